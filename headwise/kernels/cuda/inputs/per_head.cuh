// Numbers in memory of any float format, read or written by one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/dtype.h"
#include "headwise/kernels/cuda/inputs/term_views.h"

namespace headwise::cuda {

/// As W: a kernel that computes in double reads doubles whole.
template <class W>
__device__ __forceinline__ W load_number(const void* data, DType t, Index i) {
  switch (t) {
    case DType::bf16: return static_cast<W>(static_cast<float>(static_cast<const bf16*>(data)[i]));
    case DType::f16: return static_cast<W>(static_cast<float>(static_cast<const f16*>(data)[i]));
    case DType::f64: return static_cast<W>(static_cast<const double*>(data)[i]);
    default: return static_cast<W>(static_cast<const float*>(data)[i]);
  }
}
__device__ __forceinline__ float load_float(const void* data, DType t, Index i) {
  return load_number<float>(data, t, i);
}
__device__ __forceinline__ void store_float(void* data, DType t, Index i, double x) {
  switch (t) {
    case DType::bf16: static_cast<bf16*>(data)[i] = static_cast<bf16>(static_cast<float>(x)); break;
    case DType::f16: static_cast<f16*>(data)[i] = static_cast<f16>(static_cast<float>(x)); break;
    case DType::f64: static_cast<double*>(data)[i] = x; break;
    default: static_cast<float*>(data)[i] = static_cast<float>(x);
  }
}
template <class W = float>
__device__ __forceinline__ W number_of(const PerHead& x, int head) {
  return load_number<W>(x.data, x.dtype, head * x.step);
}

__device__ __forceinline__ float number_of(const RowGate& x, Index batch, Index row, Index head) {
  return load_float(x.data, x.dtype, batch * x.step[0] + row * x.step[1] + head * x.step[2]);
}
/// ln(2^reference * sum), -inf for no sum. Joined in double: the two parts may cancel.
__device__ __forceinline__ float natural_lse(float reference, float sum) {
  constexpr double kLn2 = 0.693147180559945309;
  return sum == 0.f
             ? -INFINITY
             : static_cast<float>(kLn2 * (static_cast<double>(reference) + static_cast<double>(log2f(sum))));
}

}  // namespace headwise::cuda
