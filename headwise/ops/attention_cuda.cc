#include "headwise/ops/attention_cuda.h"

#include <algorithm>

#include "headwise/ops/attention_checks.h"
#include "headwise/ops/backend_cuda.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "attention";
constexpr const char* kNames[] = {"cuda/decode", "cuda/hopper", "cuda/mma", "cuda/plain"};

/// The CUDA kernels of a list "a,b" in its order, others are for other devices; all for an empty one.
std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> names;
  std::string name;
  bool given = false;
  for (const char c : list + ",") {
    if (c == ' ') continue;
    if (c != ',') {
      name += c;
      continue;
    }
    given = given || !name.empty();
    if (name.rfind("cuda/", 0) != 0) {
      name.clear();
      continue;
    }
    require(std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames),
            ErrorKind::bad_argument, kOp, "there is no kernel \"", name,
            "\" for CUDA tensors; there are: ", kNames[0], ", ", kNames[1], ", ", kNames[2], ", ", kNames[3]);
    names.push_back(name);
    name.clear();
  }
  require(!given || !names.empty(), ErrorKind::unsupported, kOp,
          "the tensors are on a CUDA device but the list \"", list,
          "\" allows no kernel for it; add cuda/plain, or copy the tensors to the CPU");
  if (names.empty()) names.assign(std::begin(kNames), std::end(kNames));
  return names;
}

const cuda::Kernel* kernel_named(const CudaBackend& backend, std::string_view name) {
  for (int i = 0; i < backend.table->kernel_count; ++i)
    if (name == backend.table->kernels[i].name) return &backend.table->kernels[i];
  return nullptr;
}

/// What no CUDA kernel reads, asked before any of them; empty: nothing.
const char* unread_by_all(const AttentionProblem& p) {
  if (p.int8_kv) return "keys and values are int8, which is read on the CPU only; give them as floats";
  if (p.keys == KeyForm::packed) return "keys are packed, which is read on the CPU only; give plain ones";
  if (p.heads.mixes()) return "heads are mixed, which is computed on the CPU only";
  if (p.heads.norm != Norm::softmax) return "entmax is computed on the CPU only; copy the tensors there";
  if (p.heads.terms.rows)
    return "heads list their rows, which is done on the CPU only; give a gate of 0s and 1s";
  return "";
}

struct Found {
  const cuda::Kernel* kernel = nullptr;
  std::vector<Refusal> refusals;
};
Found find_kernel(const AttentionProblem& p, const AttentionArgs& a, Device device,
                  const std::string& kernels) {
  Found f;
  const CudaBackend& backend = cuda_backend();
  for (const std::string& name : names_of(kernels)) {
    if (const std::string why = unread_by_all(p); !why.empty() || !backend.why.empty()) {
      f.refusals.push_back({name, why.empty() ? backend.why : why});
      continue;
    }
    const cuda::Kernel* kernel = kernel_named(backend, name);
    char why[cuda::kSentenceBytes] = "";
    if (kernel) kernel->refuse(p, a, device.index, why);
    if (kernel && !why[0]) {
      f.kernel = kernel;
      return f;
    }
    f.refusals.push_back({name, kernel ? why : "this libheadwise_cuda.so does not have it"});
  }
  return f;
}

}  // namespace

AttentionProblem cuda_problem_of(const AttentionArgs& args, const HeadSpec& heads) {
  return problem_of(args, {.rows = args.probe.entropy.given()}, heads);
}

CudaChoice choose_cuda(const AttentionProblem& problem, const AttentionArgs& args, Device device,
                       const std::string& kernels) {
  check_problem(problem);
  Found f = find_kernel(problem, args, device, kernels);
  CudaChoice c;
  c.refusals = std::move(f.refusals);
  if (!f.kernel) return c;
  c.kernel = f.kernel->name;
  char words[cuda::kSentenceBytes];
  f.kernel->numerics(problem, words);
  c.numerics = words;
  return c;
}

void attention_cuda(const AttentionArgs& args, Device device, void* stream, const std::string& kernels,
                    const HeadSpec& heads) {
  const AttentionProblem problem = cuda_problem_of(args, heads);
  check_problem(problem);
  const AttentionArgs checked = check_args(problem, args);
  const Found f = find_kernel(problem, checked, device, kernels);
  if (!f.kernel) {
    std::string all;
    for (const Refusal& r : f.refusals) all += text("\n  ", r.kernel, ": ", r.why);
    throw Error(ErrorKind::unsupported, text(kOp, ": every kernel for ", device,
                                             " refused; copy the tensors to the CPU for the rest", all));
  }
  const cuda::Status status = f.kernel->run(problem, checked, device.index, stream);
  require(status.ok(), ErrorKind::device, kOp, "launch ", status.launch, " on ", device, " failed with code ",
          status.code, ": ", status.words ? status.words : "");
}

std::span<const char* const> cuda_kernel_names() { return kNames; }

}  // namespace headwise
