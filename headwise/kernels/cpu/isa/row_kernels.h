// RowKernels: the passes over runs of side-by-side f32 that one ISA level brings; plain types only, since
// every level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise::cpu {

/// What layer norm subtracts from a row, and multiplies it by then.
struct RowMoments {
  double mean, inverse;
};
/// One row of layer norm, dim a multiple of 8; weight and bias [dim] may be null (1 and 0), and so may
/// moments, which is written; out is x or apart from it.
struct NormTask {
  const float* x;
  float* out;
  Index dim;
  const double *weight, *bias;
  double eps;
  RowMoments* moments;
};
/// One row of its gradient, dim likewise: dx = gradient + residual. dx may be null or dout, residual null;
/// dweight and dbias [dim] are added to, or null. moments: as layer norm wrote them, or null.
struct NormSlopeTask {
  const float *x, *dout, *residual;
  float* dx;
  Index dim;
  const double* weight;
  double *dweight, *dbias;
  double eps;
  const RowMoments* moments;
};
/// One step of AdamW over n numbers: see train/optimizer.h.
struct AdamWTask {
  float* x;
  const float* g;
  float *m, *v;
  Index n;
  float shrink, beta2, gain1, gain2, eps, size, root;
};

/// A row of logits: the largest (NaN where one is), the sum of e^(x - largest), the sum of x.
struct ExpRow {
  float top;
  double sum, all;
};

/// n columns of one row of dropout, see ops/row/dropout.h: out = x * scale where kept, else 0, plus residual
/// where given, in double. out is x or residual itself or apart from both.
struct DropoutTask {
  const float *x, *residual;
  float* out;
  Index n;
  double scale;
  std::uint64_t seed, row;
  std::uint32_t threshold, site;
};

/// n pairs (a, b) of one head turned: a cos - b sin and b cos + a sin in double, rounded once; `inverse`: by
/// -sin.
struct TurnTask {
  const float *a, *b;
  float *to_a, *to_b;
  Index n;
  const double *cos, *sin;
  bool inverse;
};

/// The same bits at every level: sums are chains of doubles (layer norm: 32, element i belongs to chain i %
/// 32; else 8), and no product is contracted with a sum.
struct RowKernels {
  void (*layer_norm)(const NormTask&);
  void (*layer_norm_backward)(const NormSlopeTask&);
  void (*adamw)(const AdamWTask&);
  /// Writes e[i] = e^(x[i] - largest) in f32; e may be x, or null: not wanted.
  ExpRow (*exp_row)(const float* x, Index n, float* e);
  /// sum[j] += x[0][j] + x[1][j] + ..., one chain a column in f32; columns <= kSumColumns, rows `step` apart.
  void (*column_sums)(const float* x, Index step, Index rows, Index columns, float* sum);
  static constexpr Index kSumColumns = 64;
  /// Sum of squares: chains folded ((0+4)+(2+6)) + ((1+5)+(3+7)).
  double (*sum_squares)(const float* x, Index n);
  void (*dropout)(const DropoutTask&);
  /// out[i] = x[i] * factor * weight[i] in double, rounded once; weight may be null, out may be x.
  void (*scale)(const float* x, float* out, Index n, double factor, const double* weight);
  void (*turn)(const TurnTask&);
};

}  // namespace headwise::cpu
