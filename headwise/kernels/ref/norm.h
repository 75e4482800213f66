// RMS and L2 norm of one row in double, a loop per line of the formula.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/view.h"

namespace headwise::ref {

inline double sum_squares(const AnyView& x) {
  double sum = 0;
  for (Index i = 0; i < x.size[0]; ++i) {
    const double value = load_double(x.data, x.dtype, i * x.step[0]);
    sum += value * value;
  }
  return sum;
}

/// out_i = x_i / divisor * weight_i; a divisor of 0 (a row of zeros without eps) gives zeros.
inline void divide_row(const AnyView& x, double divisor, const AnyView& weight, double added,
                       const AnyView& out) {
  for (Index i = 0; i < x.size[0]; ++i) {
    const double value = load_double(x.data, x.dtype, i * x.step[0]);
    const double factor =
        weight.given() ? added + load_double(weight.data, weight.dtype, i * weight.step[0]) : 1.0;
    store_double(out.data, out.dtype, i * out.step[0], divisor == 0 ? 0.0 : value / divisor * factor);
  }
}

/// x, out and weight [dim]: out = x / sqrt(mean(x^2) + eps) * (added + weight); added is 0 or 1.
inline void rms_norm(const AnyView& x, const AnyView& weight, double added, double eps, const AnyView& out) {
  const double mean = sum_squares(x) / static_cast<double>(x.size[0]);
  divide_row(x, std::sqrt(mean + eps), weight, added, out);
}

/// x, out and scale [dim]: out = x / max(|x|, eps) * scale.
inline void l2_norm(const AnyView& x, const AnyView& scale, double eps, const AnyView& out) {
  const double length = std::sqrt(sum_squares(x));
  divide_row(x, length < eps ? eps : length, scale, 0, out);
}

/// What a row was divided by, and its slope: d value / d x_i = value along x_i.
struct Divisor {
  double value, along;
};
/// divide_row() differentiated. g_i = dout_i * factor_i:
///   dx_i      = (g_i - along * x_i * sum_j g_j x_j) / divisor
///   x_i dfactor_i = dout_i * x_i / divisor, added to `dweight`, f64
inline void divide_row_backward(const AnyView& x, const Divisor& by, const AnyView& weight, double added,
                                const AnyView& dout, const AnyView& dx, const AnyView& dweight) {
  const double divisor = by.value, along = by.along;
  const auto load = [](const AnyView& v, Index i) { return load_double(v.data, v.dtype, i * v.step[0]); };
  const auto g = [&](Index i) { return load(dout, i) * (weight.given() ? added + load(weight, i) : 1.0); };
  double product = 0;
  for (Index i = 0; i < x.size[0]; ++i) product += g(i) * load(x, i);
  for (Index i = 0; i < x.size[0]; ++i) {
    const double slope = divisor == 0 ? 0.0 : (g(i) - along * load(x, i) * product) / divisor;
    if (dx.given()) store_double(dx.data, dx.dtype, i * dx.step[0], slope);
    if (dweight.given() && divisor != 0)
      static_cast<double*>(dweight.data)[i * dweight.step[0]] += load(dout, i) * load(x, i) / divisor;
  }
}

/// out = x / sqrt(mean(x^2) + eps) * (added + weight), differentiated.
inline void rms_norm_backward(const AnyView& x, const AnyView& weight, double added, double eps,
                              const AnyView& dout, const AnyView& dx, const AnyView& dweight) {
  const auto dim = static_cast<double>(x.size[0]);
  const double square = sum_squares(x) / dim + eps;
  divide_row_backward(x, {std::sqrt(square), square == 0 ? 0 : 1 / (dim * square)}, weight, added, dout, dx,
                      dweight);
}

/// out = x / max(|x|, eps) * scale, differentiated; where eps is the larger the divisor has no slope.
inline void l2_norm_backward(const AnyView& x, const AnyView& scale, double eps, const AnyView& dout,
                             const AnyView& dx, const AnyView& dscale) {
  const double length = std::sqrt(sum_squares(x));
  const bool floored = length < eps || length == 0;
  divide_row_backward(x, {length < eps ? eps : length, floored ? 0 : 1 / (length * length)}, scale, 0, dout,
                      dx, dscale);
}

}  // namespace headwise::ref
