#include "headwise/kernels/cpu/attend.h"
#include "headwise/kernels/ref/attend.h"
#include "headwise/ops/attention.h"

namespace headwise {

std::span<const AttentionKernel> attention_kernels() {
  static const AttentionKernel kKernels[] = {cpu::kOnline, ref::kRef};
  return kKernels;
}

}  // namespace headwise
