// F64Lanes: sums in double, neighbours in the lanes of a vector of W. Every chain is that of ref; no product
// is fused. Included by every ISA level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/f64_kernels.h"

namespace headwise::cpu {
namespace {

/// R rows at a time: enough chains to hide the latency of one.
template <int W, int R>
struct F64Lanes {
  typedef double Vector __attribute__((vector_size(W * 8), aligned(8), may_alias));
  static constexpr int V = kF64Lanes / W;

  static Vector load(const double* from) { return *reinterpret_cast<const Vector*>(from); }
  static void store(double* to, Vector x) { *reinterpret_cast<Vector*>(to) = x; }

  template <int Rows>
  static void dot_rows(const F64Dots& t, Index first) {
    Vector c[Rows][V] = {};
    const double* x = t.x + first * t.x_step;
    for (Index d = 0; d < t.dim; ++d) {
      const double* at = t.tile + d * kF64Lanes;
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Vector key = load(at + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) c[r][v] += x[r * t.x_step + d] * key;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(t.sums + (first + r) * t.sums_step + v * W, c[r][v]);
  }
  static void dots(const F64Dots& t) {
    Index r = 0;
    for (; r + R <= t.rows; r += R) dot_rows<R>(t, r);
    for (; r < t.rows; ++r) dot_rows<1>(t, r);
  }

  template <int N>
  static void sum_columns(const F64Sum& t, Index column) {
    Vector c[N];
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) c[v] = load(t.to + column + v * W);
    for (Index i = 0; i < t.count; ++i) {
      const double* from = t.from + t.row[i] * t.from_step + column;
      const double by = t.factor[i];
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) c[v] += by * load(from + v * W);
    }
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) store(t.to + column + v * W, c[v]);
  }
  static void sum(const F64Sum& t) {
    constexpr int kMost = 8;
    Index column = 0;
    for (; column + kMost * W <= t.columns; column += kMost * W) sum_columns<kMost>(t, column);
    for (; column < t.columns; column += kF64Lanes) sum_columns<V>(t, column);
  }
  static constexpr F64Core table() { return {dots, sum}; }
};

}  // namespace
}  // namespace headwise::cpu
