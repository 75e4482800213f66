// Rotary embedding of one head vector in double, a loop per line of the formula.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/view.h"
#include "headwise/spec/rope.h"

namespace headwise::ref {

/// x and out [dim], any steps, out may be x; rotary_dim even and at most dim.
///   angle_i = position * frequency_i
///   out_a   = (x_a cos angle_i - x_b sin angle_i) * attention_factor
///   out_b   = (x_b cos angle_i + x_a sin angle_i) * attention_factor      for pair i = (a, b)
///   out_c   = x_c                                                         for c >= rotary_dim
/// The angle is a long double: a position of 2^31 leaves a double angle only 22 bits below the point.
inline void rope(const AnyView& x, Index position, const AnyView& out, const RopeOptions& options,
                 Index rotary_dim) {
  const RopeRule rule(options, rotary_dim);
  for (Index i = 0; i < rotary_dim / 2; ++i) {
    const bool half = options.kind == RopeKind::half;
    const Index a = half ? i : 2 * i, b = half ? i + rotary_dim / 2 : 2 * i + 1;
    const long double angle =
        static_cast<long double>(options.inverse ? -position : position) * rule.frequency(i);
    const double cos = static_cast<double>(std::cos(angle)) * rule.attention_factor;
    const double sin = static_cast<double>(std::sin(angle)) * rule.attention_factor;
    const double x_a = load_double(x.data, x.dtype, a * x.step[0]);
    const double x_b = load_double(x.data, x.dtype, b * x.step[0]);
    store_double(out.data, out.dtype, a * out.step[0], x_a * cos - x_b * sin);
    store_double(out.data, out.dtype, b * out.step[0], x_b * cos + x_a * sin);
  }
  for (Index c = rotary_dim; c < x.size[0]; ++c)
    store_double(out.data, out.dtype, c * out.step[0], load_double(x.data, x.dtype, c * x.step[0]));
}

}  // namespace headwise::ref
