// Layer norm of one row on the CPU, and its derivative: in double, sums in one order fixed by the row's
// length.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/row_kernels.h"

namespace headwise::cpu {

/// One row. weight and bias may be null (1 and 0), and so may moments, which is written; out is x or apart
/// from it.
template <class T>
struct LayerNormRow {
  const T* x = nullptr;
  T* out = nullptr;
  Index x_step = 0, out_step = 0, dim = 0;
  const double *weight = nullptr, *bias = nullptr;
  double eps = 0;
  RowMoments* moments = nullptr;
};
template <class T>
void layer_norm_row(const LayerNormRow<T>& row) noexcept;

/// One row of a gradient, dx = gradient + residual. dx may be null or dout, residual null; dweight and dbias
/// [dim] are added to, or null. moments: as layer_norm_row wrote them, or null.
template <class T>
struct LayerNormSlope {
  const T *x = nullptr, *dout = nullptr, *residual = nullptr;
  T* dx = nullptr;
  Index x_step = 0, dout_step = 0, residual_step = 0, dx_step = 0, dim = 0;
  const double* weight = nullptr;
  double *dweight = nullptr, *dbias = nullptr;
  double eps = 0;
  const RowMoments* moments = nullptr;
};
template <class T>
void layer_norm_row_backward(const LayerNormSlope<T>& row) noexcept;

}  // namespace headwise::cpu
