#include "headwise/ops/attention_cuda.h"

#include "headwise/ops/attention_backward_checks.h"
#include "headwise/ops/attention_backward_cuda.h"
#include "headwise/ops/attention_checks.h"
#include "headwise/ops/choice_cuda.h"

namespace headwise {
namespace {

constexpr const char* kForwardNames[] = {"cuda/decode", "cuda/hopper", "cuda/mma",
                                         "cuda/probes", "cuda/rows",   "cuda/mixed",
                                         "cuda/entmax", "cuda/plain",  "cuda/phase"};
constexpr const char* kBackwardNames[] = {"cuda/hopper_backward", "cuda/mma_backward",
                                          "cuda/mixed_backward",  "cuda/entmax_backward",
                                          "cuda/plain_backward",  "cuda/unordered"};
constexpr CudaNames kForward{"attention", kForwardNames, 8}, kBackward{kBackwardOp, kBackwardNames, 5};

CudaFound<cuda::Kernel> find(const AttentionProblem& p, const AttentionArgs& a, Device device,
                             const std::string& kernels) {
  const cuda::Table* table = cuda_backend().table;
  const std::span<const cuda::Kernel> all =
      table ? std::span(table->kernels, static_cast<std::size_t>(table->kernel_count))
            : std::span<const cuda::Kernel>();
  return find_cuda(all, cuda_names_of(kForward, kBackwardNames, kernels), p, p, a, device);
}
CudaFound<cuda::BackwardKernel> find(const BackwardProblem& p, const BackwardArgs& a, Device device,
                                     const std::string& kernels) {
  const cuda::Table* table = cuda_backend().table;
  const std::span<const cuda::BackwardKernel> all =
      table ? std::span(table->backward, static_cast<std::size_t>(table->backward_count))
            : std::span<const cuda::BackwardKernel>();
  return find_cuda(all, cuda_names_of(kBackward, kForwardNames, kernels), p.forward, p, a, device);
}

/// Checks read alpha's numbers, and a GPU's are not to be read here: a number that fits stands for them.
AttentionArgs without_alpha(AttentionArgs a) {
  static double alpha = 2;
  AnyView& v = a.inputs.alpha;
  v.data = &alpha, v.dtype = DType::f64;
  for (Index& step : v.step) step = 0;
  return a;
}

}  // namespace

std::vector<std::string> cuda_names_of(const CudaNames& own, std::span<const char* const> others,
                                       const std::string& list) {
  const auto among = [](std::span<const char* const> some, const std::string& name) {
    return std::find(some.begin(), some.end(), name) != some.end();
  };
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
    if (name.rfind("cuda/", 0) == 0 && !among(others, name)) {
      std::string known;
      for (const char* n : own.names) known += (known.empty() ? "" : ", ") + std::string(n);
      require(among(own.names, name), ErrorKind::bad_argument, own.op, "there is no kernel \"", name,
              "\" for CUDA tensors; there are: ", known);
      names.push_back(name);
    }
    name.clear();
  }
  require(!given || !names.empty(), ErrorKind::unsupported, own.op,
          "the tensors are on a CUDA device but the list \"", list, "\" allows no kernel for it; add ",
          own.names[own.by_default - 1], ", or copy the tensors to the CPU");
  if (names.empty())
    names.assign(own.names.begin(), own.names.begin() + static_cast<std::ptrdiff_t>(own.by_default));
  return names;
}

const char* cuda_unread(const AttentionProblem& p) {
  if (p.keys == KeyForm::packed) return "keys are packed, which is read on the CPU only; give plain ones";
  return "";
}

AttentionProblem cuda_problem_of(const AttentionArgs& args, const HeadSpec& heads) {
  const ProbeOut& to = args.probe;
  require(!to.scores.given(), ErrorKind::unsupported, kForward.op,
          "scores of every pair come from the reference kernel, which runs on the CPU only; copy q, k and v "
          "there, or ask for picked rows");
  const AnyView& top = to.top_keys.given() ? to.top_keys : to.top_weights;
  return problem_of(args,
                    {.rows = to.any_row(),
                     .top_k = top.given() ? top.size[3] : 0,
                     .classes = to.class_mass.given() ? to.class_mass.size[3] : 0,
                     .columns = to.column_sums.given(),
                     .picked = to.picks.given() ? to.picks.size[0] : 0},
                    heads);
}

CudaChoice choose_cuda(const AttentionProblem& problem, const AttentionArgs& args, Device device,
                       const std::string& kernels) {
  check_problem(problem);
  return cuda_choice_of(find(problem, args, device, kernels), problem);
}
CudaChoice choose_cuda(const BackwardProblem& problem, const BackwardArgs& args, Device device,
                       const std::string& kernels) {
  check_backward_problem(problem);
  return cuda_choice_of(find(problem, args, device, kernels), problem);
}

void attention_cuda(const AttentionArgs& args, Device device, void* stream, const std::string& kernels,
                    const HeadSpec& heads) {
  const AttentionProblem problem = cuda_problem_of(args, heads);
  check_problem(problem);
  AttentionArgs checked = check_args(problem, without_alpha(args));
  checked.inputs.alpha = args.inputs.alpha;
  run_cuda(kForward.op, find(problem, checked, device, kernels), problem, checked, device, stream);
}

void attention_backward_cuda(const BackwardArgs& args, Device device, void* stream,
                             const std::string& kernels, const HeadSpec& heads) {
  const BackwardProblem problem = backward_problem_of(args, heads);
  check_backward_problem(problem);
  BackwardArgs safe = args;
  safe.forward = without_alpha(args.forward);
  BackwardArgs checked = check_backward_args(problem, safe);
  checked.forward.inputs.alpha = args.forward.inputs.alpha;
  run_cuda(kBackward.op, find(problem, checked, device, kernels), problem, checked, device, stream);
}

std::span<const char* const> cuda_kernel_names() { return kForwardNames; }
std::span<const char* const> cuda_backward_kernel_names() { return kBackwardNames; }

}  // namespace headwise
