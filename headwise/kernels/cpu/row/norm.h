// RMS and L2 norm on the CPU: the sum of squares of a row in one fixed order, and scaling the row.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cpu {

/// x_0^2 + ... + x_{dim-1}^2 in double: 8 chains (chain j adds the elements i with i % 8 == j in ascending
/// order), folded as
/// ((0+4)+(2+6)) + ((1+5)+(3+7)). The order depends on dim alone. Squares of f32 and smaller are exact and
/// cannot overflow.
template <class T>
double sum_squares(const T* x, Index step, Index dim) noexcept;

/// What a row with this sum is multiplied by; 0 for a row of zeros without eps.
double rms_factor(double sum, Index dim, double eps) noexcept;
double l2_factor(double sum, double eps) noexcept;

/// out_i = x_i * factor * weight[i], computed in double, rounded once; weight may be null. out is x or apart
/// from it.
template <class T>
void scale_row(const T* x, Index x_step, T* out, Index out_step, Index dim, double factor,
               const double* weight) noexcept;

/// One row of a gradient. weight may be null (1); dx and dweight may be null (not wanted); dx may be dout.
template <class T>
struct NormRow {
  const T *x = nullptr, *dout = nullptr;
  T* dx = nullptr;
  Index x_step = 0, dout_step = 0, dx_step = 0, dim = 0;
  const double* weight = nullptr;
  double* dweight = nullptr;  // [dim], added to
};
/// How far a row was scaled, and how much of its own direction leaves the gradient.
struct NormSlope {
  double factor = 0, along = 0;
};

/// sum_i dout_i weight_i x_i in double, in the order of sum_squares.
template <class T>
double sum_products(const NormRow<T>& row) noexcept;

/// dx_i = factor (dout_i weight_i - (x_i factor) along), dweight_i += dout_i (x_i factor): in double, dx
/// rounded once.
template <class T>
void norm_backward(const NormRow<T>& row, const NormSlope& slope) noexcept;

}  // namespace headwise::cpu
