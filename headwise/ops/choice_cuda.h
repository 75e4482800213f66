// How both directions of attention choose among the CUDA library's kernels: lists of names, refusals, errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string_view>

#include "headwise/ops/attention_cuda.h"
#include "headwise/ops/backend_cuda.h"

namespace headwise {

/// The names of one direction, best first; those from `by_default` on run only when asked for.
struct CudaNames {
  std::string_view op;
  std::span<const char* const> names;
  std::size_t by_default;
};

/// The kernels of a list "a,b" in its order; names of other devices and of the other direction are skipped.
/// An empty list: all that run by default.
std::vector<std::string> cuda_names_of(const CudaNames& own, std::span<const char* const> others,
                                       const std::string& list);

/// What no CUDA kernel reads, asked before any of them; empty: nothing.
const char* cuda_unread(const AttentionProblem& p);

template <class Kernel>
struct CudaFound {
  const Kernel* kernel = nullptr;
  std::vector<Refusal> refusals;
};
/// The first of `names` that does not refuse.
template <class Kernel, class Problem, class Args>
CudaFound<Kernel> find_cuda(std::span<const Kernel> kernels, const std::vector<std::string>& names,
                            const AttentionProblem& forward, const Problem& problem, const Args& args,
                            Device device) {
  CudaFound<Kernel> f;
  const std::string unread = cuda_unread(forward), absent = cuda_backend().why;
  for (const std::string& name : names) {
    if (!unread.empty() || !absent.empty()) {
      f.refusals.push_back({name, unread.empty() ? absent : unread});
      continue;
    }
    const auto kernel =
        std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return name == k.name; });
    char why[cuda::kSentenceBytes] = "";
    if (kernel != kernels.end()) kernel->refuse(problem, args, device.index, why);
    if (kernel != kernels.end() && !why[0]) {
      f.kernel = &*kernel;
      return f;
    }
    f.refusals.push_back({name, kernel != kernels.end() ? why : "this libheadwise_cuda.so does not have it"});
  }
  return f;
}

template <class Kernel, class Problem>
CudaChoice cuda_choice_of(CudaFound<Kernel> f, const Problem& problem) {
  CudaChoice c;
  c.refusals = std::move(f.refusals);
  if (!f.kernel) return c;
  c.kernel = f.kernel->name;
  char words[cuda::kSentenceBytes];
  f.kernel->numerics(problem, words);
  c.numerics = words;
  return c;
}

/// Runs what was found, or throws all refusals.
template <class Kernel, class Problem, class Args>
void run_cuda(std::string_view op, const CudaFound<Kernel>& f, const Problem& problem, const Args& args,
              Device device, void* stream) {
  if (!f.kernel) {
    std::string all;
    for (const Refusal& r : f.refusals) all += text("\n  ", r.kernel, ": ", r.why);
    throw Error(ErrorKind::unsupported, text(op, ": every kernel for ", device,
                                             " refused; copy the tensors to the CPU for the rest", all));
  }
  const cuda::Status status = f.kernel->run(problem, args, device.index, stream);
  require(status.ok(), ErrorKind::device, op, "launch ", status.launch, " on ", device, " failed with code ",
          status.code, ": ", status.words ? status.words : "");
}

}  // namespace headwise
