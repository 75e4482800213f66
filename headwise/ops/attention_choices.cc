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
#include "headwise/ops/attention.h"
#include "headwise/ops/attention_backward.h"
#include "headwise/ops/choice.h"
#include "headwise/ops/projection.h"

namespace headwise {

std::span<const AttentionKernel> attention_kernels() {
  static const AttentionKernel kKernels[] = {cpu::kDecode, cpu::kOnline, cpu::kMixed, cpu::kMixedTwice,
                                             cpu::kEntmax, cpu::kF64,    ref::kRef};
  return kKernels;
}

std::span<const BackwardKernel> backward_kernels() {
  static const BackwardKernel kKernels[] = {cpu::kBackward, cpu::kMixedBackward, cpu::kEntmaxBackward,
                                            cpu::kF64Backward, ref::kRefBackward};
  return kKernels;
}

std::span<const GemmKernel> gemm_kernels() {
  static const GemmKernel kKernels[] = {cpu::kPackedGemm, ref::kRefGemm};
  return kKernels;
}

bool names_a_kernel(std::string_view name) {
  const auto among = [&](const auto& kernels) {
    return std::any_of(kernels.begin(), kernels.end(), [&](const auto& k) { return name == k.name; });
  };
  return among(attention_kernels()) || among(backward_kernels()) || among(gemm_kernels());
}

}  // namespace headwise
