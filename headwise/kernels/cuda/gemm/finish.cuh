// finish: what follows the sum of a product: bias, activation and its slope, factor, residual, one rounding.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/activation.cuh"
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/gemm/product.h"

namespace headwise::cuda::gemm {

/// The sum, finished: every kernel of the room rounds at the same places.
__device__ __forceinline__ float finish(const Product& p, Index row, Index column, float sum) {
  if (p.bias) sum = __fadd_rn(sum, number_at(p.bias, p.bias_dtype, column * p.bias_step));
  if (p.slope.data)
    put_number(p.slope.data, p.slope.dtype, p.slope.at(row, column), slope_at(p.activation, sum));
  float y = value_at(p.activation, sum);
  if (p.factor.data) y = __fmul_rn(y, number_at(p.factor.data, p.factor.dtype, p.factor.at(row, column)));
  if (p.residual.data)
    y = __fadd_rn(y, number_at(p.residual.data, p.residual.dtype, p.residual.at(row, column)));
  return y;
}
__device__ __forceinline__ void finish_to(const Product& p, Index row, Index column, float sum) {
  put_number(p.out.data, p.out.dtype, p.out.at(row, column), finish(p, row, column, sum));
}
/// What a sum begins with.
__device__ __forceinline__ float start_of(const Product& p, Index row, Index column) {
  return p.accumulate ? number_at(p.out.data, p.out.dtype, p.out.at(row, column)) : 0.0f;
}

/// Eight columns from one that is a multiple of 8 on, `count` of them there.
__device__ __forceinline__ void load_eight(const Operand& x, Index row, Index column, int count,
                                           float (&to)[8]) {
  if (x.wide && count == 8) {
    load_eight_numbers(x.data, x.dtype, x.at(row, column), to);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = i < count ? number_at(x.data, x.dtype, x.at(row, column + i)) : 0.0f;
  }
}
__device__ __forceinline__ void store_eight(const Operand& x, Index row, Index column, int count,
                                            const float (&from)[8]) {
  if (x.wide && count == 8) {
    store_eight_numbers(x.data, x.dtype, x.at(row, column), from);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) put_number(x.data, x.dtype, x.at(row, column + i), from[i]);
  }
}
/// finish_to() of eight columns whose bias was added.
__device__ __forceinline__ void finish_eight(const Product& p, Index row, Index column, int count,
                                             float (&sum)[8]) {
  float other[8];
  if (p.slope.data) {
#pragma unroll
    for (int i = 0; i < 8; ++i) other[i] = slope_at(p.activation, sum[i]);
    store_eight(p.slope, row, column, count, other);
  }
  if (p.activation != Activation::none) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = value_at(p.activation, sum[i]);
  }
  if (p.factor.data) {
    load_eight(p.factor, row, column, count, other);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = __fmul_rn(sum[i], other[i]);
  }
  if (p.residual.data) {
    load_eight(p.residual, row, column, count, other);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], other[i]);
  }
  store_eight(p.out, row, column, count, sum);
}

}  // namespace headwise::cuda::gemm
