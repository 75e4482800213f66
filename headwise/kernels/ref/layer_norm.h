// Layer norm of one row in double, and its derivative: a loop per line of the formula.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/view.h"

namespace headwise::ref {

struct RowMoments {
  double mean = 0, inverse = 0;  // inverse = 1 / sqrt(mean((x - mean)^2) + eps)
};

inline RowMoments moments_of(const AnyView& x, double eps) {
  const Index dim = x.size[0];
  RowMoments m;
  for (Index i = 0; i < dim; ++i) m.mean += load_double(x.data, x.dtype, i * x.step[0]);
  m.mean /= static_cast<double>(dim);
  double square = 0;
  for (Index i = 0; i < dim; ++i) {
    const double off = load_double(x.data, x.dtype, i * x.step[0]) - m.mean;
    square += off * off;
  }
  square = square / static_cast<double>(dim) + eps;
  m.inverse = square == 0 ? 0 : 1 / std::sqrt(square);
  return m;
}

/// x, out, weight, bias [dim]: out = (x - mean) / sqrt(variance + eps) * weight + bias.
inline void layer_norm(const AnyView& x, const AnyView& weight, const AnyView& bias, double eps,
                       const AnyView& out) {
  const auto load = [](const AnyView& v, Index i, double none) {
    return v.given() ? load_double(v.data, v.dtype, i * v.step[0]) : none;
  };
  const RowMoments m = moments_of(x, eps);
  for (Index i = 0; i < x.size[0]; ++i)
    store_double(out.data, out.dtype, i * out.step[0],
                 (load(x, i, 0) - m.mean) * m.inverse * load(weight, i, 1) + load(bias, i, 0));
}

/// With n_i = (x_i - mean) inverse and g_i = dout_i weight_i:
///   dx_i = inverse (g_i - mean(g) - n_i mean(g n)),  dweight_i += dout_i n_i,  dbias_i += dout_i   (sums
///   f64)
inline void layer_norm_backward(const AnyView& x, const AnyView& weight, double eps, const AnyView& dout,
                                const AnyView& dx, double* dweight, double* dbias) {
  const auto load = [](const AnyView& v, Index i, double none) {
    return v.given() ? load_double(v.data, v.dtype, i * v.step[0]) : none;
  };
  const RowMoments m = moments_of(x, eps);
  const auto dim = static_cast<double>(x.size[0]);
  double g_mean = 0, gn_mean = 0;
  for (Index i = 0; i < x.size[0]; ++i) {
    const double g = load(dout, i, 0) * load(weight, i, 1);
    g_mean += g / dim;
    gn_mean += g * (load(x, i, 0) - m.mean) * m.inverse / dim;
  }
  for (Index i = 0; i < x.size[0]; ++i) {
    const double n = (load(x, i, 0) - m.mean) * m.inverse, g = load(dout, i, 0) * load(weight, i, 1);
    store_double(dx.data, dx.dtype, i * dx.step[0], m.inverse * (g - g_mean - n * gn_mean));
    dweight[i] += load(dout, i, 0) * n;
    dbias[i] += load(dout, i, 0);
  }
}

}  // namespace headwise::ref
