#include <algorithm>

#include "headwise/kernels/cpu/backward/backward.h"
#include "headwise/kernels/cpu/entmax/forward.h"
#include "headwise/kernels/cpu/f64/forward.h"
#include "headwise/kernels/cpu/forward/decode.h"
#include "headwise/kernels/cpu/forward/online.h"
#include "headwise/kernels/cpu/gemm/gemm.h"
#include "headwise/kernels/cpu/mixed/backward.h"
#include "headwise/kernels/cpu/mixed/forward.h"
#include "headwise/kernels/ref/attend.h"
#include "headwise/kernels/ref/attend_backward.h"
#include "headwise/kernels/ref/gemm.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/attention/cuda_kernels.h"
#include "headwise/ops/device/products.h"
#include "headwise/ops/projection/projection.h"

namespace headwise {
namespace {

template <class Kernel>
std::span<const Kernel> of_device(std::span<const Kernel> all, Device::Kind device) {
  const auto is_of = [&](const Kernel& kernel) { return kernel.device == device; };
  const auto first = std::find_if(all.begin(), all.end(), is_of);
  return {first, std::find_if_not(first, all.end(), is_of)};
}

}  // namespace

std::span<const AttentionKernel> attention_kernels() {
  using Cuda = CudaRows<AttentionProblem, AttentionArgs>;
  static const AttentionKernel kKernels[] = {Cuda::row<0>("cuda/ragged"),
                                             Cuda::row<1>("cuda/decode"),
                                             Cuda::row<2>("cuda/hopper"),
                                             Cuda::row<3>("cuda/mma"),
                                             Cuda::row<4>("cuda/probes"),
                                             Cuda::row<5>("cuda/rows"),
                                             Cuda::row<6>("cuda/mixed"),
                                             Cuda::row<7>("cuda/entmax"),
                                             Cuda::row<8>("cuda/plain"),
                                             Cuda::row<9>("cuda/phase", true),
                                             cpu::forward::kDecode,
                                             cpu::forward::kOnline,
                                             cpu::mixed::kKept,
                                             cpu::mixed::kTwice,
                                             cpu::entmax::kForward,
                                             cpu::f64::kForward,
                                             ref::kRef};
  return kKernels;
}

std::span<const BackwardKernel> backward_kernels() {
  using Cuda = CudaRows<BackwardProblem, BackwardArgs>;
  static const BackwardKernel kKernels[] = {
      Cuda::row<0>("cuda/hopper_backward"),
      Cuda::row<1>("cuda/mma_backward"),
      Cuda::row<2>("cuda/mixed_backward"),
      Cuda::row<3>("cuda/entmax_backward"),
      Cuda::row<4>("cuda/plain_backward"),
      Cuda::row<5>("cuda/unordered", true),  // bits differ from run to run
      cpu::backward::kBackward,
      cpu::mixed::kBackward,
      cpu::entmax::kBackward,
      cpu::f64::kBackward,
      ref::kRefBackward};
  return kKernels;
}

std::span<const AttentionKernel> attention_kernels(Device::Kind device) {
  return of_device(attention_kernels(), device);
}
std::span<const BackwardKernel> backward_kernels(Device::Kind device) {
  return of_device(backward_kernels(), device);
}

std::span<const GemmKernel> gemm_kernels() {
  static const GemmKernel kKernels[] = {cpu::gemm::kPacked, ref::kRefGemm};
  return kKernels;
}

bool names_a_kernel(std::string_view name) {
  const auto among = [&](const auto& kernels) {
    return std::any_of(kernels.begin(), kernels.end(), [&](const auto& k) { return name == k.name; });
  };
  return among(attention_kernels()) || among(backward_kernels()) || among(gemm_kernels()) ||
         among(cuda_gemm_kernels());
}

}  // namespace headwise
