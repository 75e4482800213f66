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

}  // namespace headwise::ref
