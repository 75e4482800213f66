// Cross-entropy of one row in double, and its derivative: the formulas themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/view.h"

namespace headwise::ref {

/// ln sum_c exp(x_c), from the largest down.
inline double log_sum_exp(const AnyView& x) {
  double top = -INFINITY, sum = 0;
  for (Index c = 0; c < x.size[0]; ++c) top = std::fmax(top, load_double(x.data, x.dtype, c * x.step[0]));
  for (Index c = 0; c < x.size[0]; ++c) sum += std::exp(load_double(x.data, x.dtype, c * x.step[0]) - top);
  return top + std::log(sum);
}

/// -sum_c q_c ln p_c with p = softmax(x), q = (1 - smoothing) [c == label] + smoothing / classes.
inline double cross_entropy(const AnyView& x, Index label, double smoothing) {
  const double lse = log_sum_exp(x), share = smoothing / static_cast<double>(x.size[0]);
  double loss = 0;
  for (Index c = 0; c < x.size[0]; ++c)
    loss -= ((c == label ? 1 - smoothing : 0) + share) * (load_double(x.data, x.dtype, c * x.step[0]) - lse);
  return loss;
}

/// d cross_entropy / dx_c = p_c - q_c.
inline double cross_entropy_slope(const AnyView& x, Index label, double smoothing, Index c) {
  const double q = (c == label ? 1 - smoothing : 0) + smoothing / static_cast<double>(x.size[0]);
  return std::exp(load_double(x.data, x.dtype, c * x.step[0]) - log_sum_exp(x)) - q;
}

/// -y ln s - (1 - y) ln (1 - s) with s = sigmoid(x), without forming s.
inline double binary_cross_entropy(double x, double y) {
  return std::fmax(x, 0.0) - x * y + std::log1p(std::exp(-std::abs(x)));
}
inline double binary_cross_entropy_slope(double x, double y) { return 1 / (1 + std::exp(-x)) - y; }

}  // namespace headwise::ref
