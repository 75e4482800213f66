// Numbers in memory of any float format, read or written by one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/dtype.h"
#include "headwise/kernels/cuda/hopper_forward.h"

namespace headwise::cuda {

__device__ __forceinline__ float load_float(const void* data, DType t, Index i) {
  switch (t) {
    case DType::bf16: return static_cast<float>(static_cast<const bf16*>(data)[i]);
    case DType::f16: return static_cast<float>(static_cast<const f16*>(data)[i]);
    case DType::f64: return static_cast<float>(static_cast<const double*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}
__device__ __forceinline__ float number_of(const PerHead& x, int head) {
  return load_float(x.data, x.dtype, head * x.step);
}

}  // namespace headwise::cuda
