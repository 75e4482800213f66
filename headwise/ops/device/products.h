// Products of matrices on a CUDA device: check, choose, start on a stream, explain.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/ops/attention/attention.h"
#include "headwise/spec/gemm.h"

namespace headwise {

/// One row of the choice list of products on CUDA devices; its functions lie in the CUDA library.
struct CudaGemmKernel {
  const char* name;
  std::size_t number;  // in the library's table
  Device::Kind device = Device::Kind::cuda;
  bool by_name = false;

  /// Empty: it can. Else one sentence why it cannot.
  std::string refuse(const GemmProblem& p) const;
  std::string numerics(const GemmProblem& p) const;
};
/// Best first.
std::span<const CudaGemmKernel> cuda_gemm_kernels();

/// As ProjectionPlan, for a problem whose device is a CUDA device: an output's bits depend on its row of a,
/// on b and on the numerics class alone, never on the number of rows.
class CudaProductPlan {
 public:
  /// kernels: a list "a,b" of names, or empty for all that run without being named.
  explicit CudaProductPlan(const GemmProblem& problem, std::string kernels = "");

  const GemmProblem& problem() const noexcept { return problem_; }
  const char* kernel() const noexcept { return kernel_->name; }
  std::vector<Refusal> refusals() const;
  std::string numerics() const { return kernel_->numerics(problem_); }

  /// Starts the product on the stream (null: the default one) and returns. The addresses lie on the problem's
  /// device; sizes and kinds of the views are the problem's.
  void run(const GemmArgs& args, void* stream) const;

 private:
  GemmProblem problem_;
  std::string kernels_;
  const CudaGemmKernel* kernel_ = nullptr;
};

}  // namespace headwise
