// attention_backward: the gradients of attention: checked, given to the first kernel that takes them, run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/context.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/spec/backward.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Once differentiable: a gradient of these gradients is not offered.
class BackwardPlan {
 public:
  /// As AttentionPlan. A list of kernels is shared by both: names of forward kernels are skipped here.
  BackwardPlan(const BackwardProblem& problem, const Context& ctx);
  BackwardPlan(const BackwardProblem& problem, int threads, std::string kernels);

  const BackwardProblem& problem() const noexcept { return problem_; }
  const char* kernel() const noexcept { return kernel_->name; }
  /// Kernels that stand before the chosen one, each with its reason; written when asked.
  std::vector<Refusal> refusals() const;
  /// For runs with threads() threads. 0 on a CUDA device: memory there comes from the stream's own pool.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  int threads() const noexcept { return threads_; }
  std::string numerics() const { return kernel_->numerics(problem_); }

  /// Checks that the views fit the problem, then runs; the context's workspace grows if it must. On a CUDA
  /// device it starts the work on ctx.stream() and returns without waiting.
  void run(const BackwardArgs& args, Context& ctx) const;
  /// The same on the caller's memory, on the CPU: allocates nothing. Too small a workspace is an error.
  void run(const BackwardArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const;

 private:
  void start(const BackwardArgs& args, void* stream) const;

  BackwardProblem problem_;
  const BackwardKernel* kernel_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  int threads_ = 1;
  std::string kernels_;
};

/// The problem these tensors pose: the forward's by problem_of, the gradients from the views that are given.
BackwardProblem backward_problem_of(const BackwardArgs& args, const HeadSpec& heads = {});

/// Plans and runs in one call, where the tensors lie: gradients and dout beside q.
void attention_backward(const BackwardArgs& args, Context& ctx, const HeadSpec& heads = {});

/// Every kernel for gradients headwise has on every device, best first.
std::span<const BackwardKernel> backward_kernels();
std::span<const BackwardKernel> backward_kernels(Device::Kind device);

}  // namespace headwise
#pragma GCC visibility pop
