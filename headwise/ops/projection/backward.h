// projection_backward: the gradients of y = x W^T + b: dx = dy W, dW += dy^T x, db += column sums of dy.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/ops/projection/projection.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One run; what is empty is not computed. dy and dx have the forms of out and x. dx is overwritten; dweight
/// [out in] and dbias [out] are added to, so that micro-batches add up. Their sums continue over the rows in
/// ascending order from what they hold. So f32 gradients of a batch cut in two equal those of the whole, bit
/// for bit (bf16 and parts: cut at a multiple of 32 rows). parts: see GemmProblem.
struct ProjectionGrads {
  InputView dy = {}, x = {}, weight = {};
  AnyView dx = {}, dweight = {}, dbias = {};
  bool parts = false;
};

/// Sizes, dtypes and wants alone.
struct ProjectionBackwardProblem {
  GemmProblem dx, dweight;
  bool wants_dx = false, wants_dweight = false, wants_dbias = false;
  friend constexpr bool operator==(const ProjectionBackwardProblem&,
                                   const ProjectionBackwardProblem&) = default;
};

class ProjectionBackwardPlan {
 public:
  ProjectionBackwardPlan(const ProjectionBackwardProblem& problem, const Context& ctx);
  ProjectionBackwardPlan(const ProjectionBackwardProblem& problem, int threads, std::string kernels);

  const ProjectionBackwardProblem& problem() const noexcept { return problem_; }
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  int threads() const noexcept { return threads_; }
  /// Of both products, "dx: ...; dweight: ...".
  std::string numerics() const;

  void run(const ProjectionGrads& args, Context& ctx) const;
  /// The same on the caller's memory: allocates nothing.
  void run(const ProjectionGrads& args, std::span<std::byte> workspace, ThreadPool& pool) const;

 private:
  std::size_t bytes_for(int threads) const;
  ProjectionBackwardProblem problem_;
  const GemmKernel *dx_kernel_ = nullptr, *dweight_kernel_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  int threads_ = 1;
};

ProjectionBackwardProblem projection_backward_problem_of(const ProjectionGrads& args);

/// Plans and runs in one call.
void projection_backward(const ProjectionGrads& args, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
