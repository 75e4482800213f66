#include "headwise/ops/device/products.h"

#include <utility>

#include "headwise/ops/attention/choice.h"
#include "headwise/ops/checks/matrix.h"
#include "headwise/ops/device/layer_table.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "product";

Choice<CudaGemmKernel, GemmProblem> choice(const GemmProblem& p) {
  return {kOp, cuda_gemm_kernels(), p.device};
}

void check_matrix(const char* name, const MatrixView& x, Index rows, Index columns) {
  require(x.rows.size == rows && x.columns.size == columns, ErrorKind::bad_shape, kOp, name, " is [",
          x.rows.size, " ", x.columns.size, "] but the plan is for [", rows, " ", columns, "]");
  require(x.data != nullptr || rows == 0 || columns == 0, ErrorKind::bad_argument, kOp, name,
          " has no memory; give its address on the device");
}

}  // namespace

std::span<const CudaGemmKernel> cuda_gemm_kernels() {
  static constexpr CudaGemmKernel kKernels[] = {{"cuda/gemm_hopper", 0},
                                                {"cuda/gemm_mma", 1},
                                                {"cuda/gemm_parts", 6},
                                                {"cuda/gemm_plain", 2},
                                                {.name = "cuda/gemm_stream", .number = 3, .by_name = true},
                                                {.name = "cuda/gemm_wgmma", .number = 4, .by_name = true},
                                                {.name = "cuda/cublaslt", .number = 5, .by_name = true}};
  return kKernels;
}

std::string CudaGemmKernel::refuse(const GemmProblem& p) const {
  if (p.packed) return "b is packed, which is read on the CPU only; give it as it lies";
  for (const DType t : {p.a, p.b, p.out})
    if (t == DType::f64) return "f64 products run on the CPU only";
  if (const std::string& absent = cuda_layers().why; !absent.empty()) return absent;
  char why[cuda::kSentenceBytes] = "";
  cuda_layers().table->gemm[number].refuse(p, why);
  return why;
}

std::string CudaGemmKernel::numerics(const GemmProblem& p) const {
  char words[cuda::kSentenceBytes] = "";
  if (cuda_layers().table) cuda_layers().table->gemm[number].numerics(p, words);
  return words;
}

CudaProductPlan::CudaProductPlan(const GemmProblem& problem, std::string kernels)
    : problem_(problem), kernels_(std::move(kernels)) {
  require(!problem_.device.is_cpu(), ErrorKind::bad_argument, kOp,
          "the problem is for the CPU; make a ProjectionPlan, or name a CUDA device");
  check_gemm_problem(kOp, problem_);
  kernel_ = &choice(problem_).first(kernels_, problem_);
}

std::vector<Refusal> CudaProductPlan::refusals() const {
  return choice(problem_).before(kernel_, kernels_, problem_);
}

void CudaProductPlan::run(const GemmArgs& a, void* stream) const {
  const GemmProblem& p = problem_;
  check_matrix("a", a.a, p.m, p.k), check_matrix("b", a.b, p.k, p.n), check_matrix("out", a.out, p.m, p.n);
  if (p.residual) check_matrix("residual", a.residual, p.m, p.n);
  if (p.factor) check_matrix("factor", a.factor, p.m, p.n);
  if (p.slope) check_matrix("slope", a.slope, p.m, p.n);
  require(!p.bias || (a.bias.rank == 1 && a.bias.size[0] == p.n), ErrorKind::bad_shape, kOp, "bias is ",
          a.bias, "; give [", p.n, "], one number an output");
  require(a.a.dtype == p.a && a.b.dtype == p.b && a.out.dtype == p.out, ErrorKind::bad_dtype, kOp, "got ",
          a.a.dtype, " by ", a.b.dtype, " to ", a.out.dtype, " but the plan is for ", p.a, " by ", p.b,
          " to ", p.out);
  require_started(kOp, p.device,
                  cuda_layers().table->gemm[kernel_->number].run(p, a, p.device.index, stream));
}

}  // namespace headwise
