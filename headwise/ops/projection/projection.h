// projection: y = activation(x W^T + b) * factor + residual with weights as [out in], and weights packed once
// for many runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/gemm_candidate.h"
#include "headwise/ops/attention/attention.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Weights in the layout of the kernel that will read them; made by pack_matrix, good for any number of rows.
class PackedMatrix {
 public:
  Index in() const noexcept { return problem_.k; }
  Index out() const noexcept { return problem_.n; }
  /// Of the x it was packed for, and of the weight.
  DType x() const noexcept { return problem_.a; }
  DType dtype() const noexcept { return problem_.b; }
  bool parts() const noexcept { return problem_.parts; }
  std::size_t bytes() const noexcept { return memory_.size(); }

 private:
  friend PackedMatrix pack_matrix(const InputView& weight, DType x, Context& ctx, bool parts);
  friend class ProjectionPlan;
  GemmProblem problem_;
  const GemmKernel* kernel_ = nullptr;
  const void* layout_ = nullptr;
  Buffer memory_;
};

/// weight [out in], any steps, for x of that dtype and runs with the same `parts` (GemmProblem).
PackedMatrix pack_matrix(const InputView& weight, DType x, Context& ctx, bool parts = false);

/// One run. x is [... in] or [... heads dim] with heads * dim = in; out and residual likewise with `out`
/// columns, and so have factor and slope; their rows are all axes before, equal in number. bias [out], any
/// float dtype. slope: written where given, activation'(x W^T + b), what a backward multiplies by. Either
/// weight or packed is given. out and slope overlap none of the others. parts: see GemmProblem; a packed
/// weight brings its own.
struct ProjectionArgs {
  InputView x = {}, weight = {}, bias = {}, residual = {}, factor = {};
  AnyView slope = {}, out = {};
  const PackedMatrix* packed = nullptr;
  bool parts = false;
};

/// An output's bits depend on its row of x, its weights and the numerics class alone. They do not depend on
/// the number of rows, their place, the layout, the threads, or on whether the weights came packed.
class ProjectionPlan {
 public:
  /// problem: m rows, k in, n out; as AttentionPlan otherwise.
  ProjectionPlan(const GemmProblem& problem, const Context& ctx);
  ProjectionPlan(const GemmProblem& problem, int threads, std::string kernels);

  const GemmProblem& problem() const noexcept { return problem_; }
  const char* kernel() const noexcept { return kernel_->name; }
  std::vector<Refusal> refusals() const;
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  int threads() const noexcept { return threads_; }
  std::string numerics() const { return kernel_->numerics(problem_); }

  void run(const ProjectionArgs& args, Context& ctx) const;
  /// The same on the caller's memory: allocates nothing.
  void run(const ProjectionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const;

 private:
  GemmProblem problem_;
  const GemmKernel* kernel_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  int threads_ = 1;
  std::string kernels_;
};

/// The problem these tensors pose.
GemmProblem projection_problem_of(const ProjectionArgs& args, Activation activation = Activation::none);

/// Plans and runs in one call.
void projection(const ProjectionArgs& args, Activation activation, Context& ctx);

/// Kernel, refusals, numerics, workspace and cost, a line each.
std::string explain(const ProjectionPlan& plan);

/// Every kernel for products headwise has, best first.
std::span<const GemmKernel> gemm_kernels();

}  // namespace headwise
#pragma GCC visibility pop
