// What norms and their gradients share: the check of a weight, its numbers as doubles, where a row lies.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/arena.h"
#include "headwise/ops/checks/in_out.h"

namespace headwise {

/// Weights as the kernels read them: doubles, row h for head h, or one row for all.
struct Weights {
  const double* data = nullptr;
  Index head_step = 0;
};

/// `repeats`: an axis of size 1 stands for any size.
inline void check_weight(const char* op, const char* name, const AnyView& weight, const AnyView& x,
                         bool repeats) {
  require(is_float(weight.dtype), ErrorKind::bad_dtype, op, name, " is ", weight,
          "; give f32, bf16, f16 or f64");
  const auto fits = [&](Index got, Index needed) { return got == needed || (repeats && got == 1); };
  const bool one = weight.rank == 1 && fits(weight.size[0], x.size[x.rank - 1]);
  const bool each = weight.rank == 2 && x.rank >= 2 && fits(weight.size[0], x.size[x.rank - 2]) &&
                    fits(weight.size[1], x.size[x.rank - 1]);
  require(one || each, ErrorKind::bad_shape, op, name, " is ", weight, " but x is ", x,
          repeats ? "; give [dim] or [heads dim], 1 repeats" : "; give [dim] or [heads dim]");
  check_memory(op, name, weight);
}

/// Rows a weight has: one for each head, or 1.
inline Index weight_rows(const AnyView& weight) { return weight.rank == 2 ? weight.size[0] : 1; }

/// Memory for a weight of x, its last axis as long as x's; null while measuring.
inline double* take_weights(const char* op, Arena& arena, const AnyView& weight, const AnyView& x) {
  const Checked count = Checked(weight_rows(weight)) * Checked(x.size[x.rank - 1]);
  require(count.ok, ErrorKind::bad_shape, op, "x is ", x, ", which no memory holds; use smaller sizes");
  return arena.take<double>("norm.weights", count.value);
}

inline Weights fill_weights(double* to, const AnyView& weight, double added, const AnyView& x) {
  const Index dim = x.size[x.rank - 1], rows = weight_rows(weight);
  const int last = weight.rank - 1;
  const Index row_step = weight.rank == 2 ? weight.step[0] : 0,
              step = weight.size[last] == 1 ? 0 : weight.step[last];
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < dim; ++i)
      to[r * dim + i] = added + load_double(weight.data, weight.dtype, r * row_step + i * step);
  return {to, rows > 1 ? dim : 0};
}

/// Offset of row `row` of all axes but the last.
inline Index row_offset(const AnyView& v, Index row) {
  Index offset = 0;
  for (int axis = v.rank - 2; axis >= 0; --axis) {
    offset += row % v.size[axis] * v.step[axis];
    row /= v.size[axis];
  }
  return offset;
}

}  // namespace headwise
