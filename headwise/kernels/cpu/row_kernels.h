// RowKernels: the passes over runs of side-by-side f32 that one ISA level brings; plain types only, since
// every level includes it. SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cpu {

/// One row of layer norm; weight and bias [dim] may be null (1 and 0); out is x or apart from it.
struct NormRun {
  const float* x;
  float* out;
  Index dim;
  const double *weight, *bias;
  double eps;
};
/// One row of its gradient: dx = gradient + residual. dx may be null or dout, residual null; dweight and
/// dbias [dim] are added to, or null.
struct NormRunSlope {
  const float *x, *dout, *residual;
  float* dx;
  Index dim;
  const double* weight;
  double *dweight, *dbias;
  double eps;
};
/// One step of AdamW over n numbers: see train/optimizer.h.
struct AdamWRun {
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

/// The same bits at every level: sums are eight chains of doubles (element i belongs to chain i % 8), and no
/// product is contracted with a sum.
struct RowKernels {
  void (*layer_norm)(const NormRun&);
  void (*layer_norm_backward)(const NormRunSlope&);
  void (*adamw)(const AdamWRun&);
  /// Writes e[i] = e^(x[i] - largest) in f32; e may be x, or null: not wanted.
  ExpRow (*exp_row)(const float* x, Index n, float* e);
  /// Sum of squares: chains folded ((0+4)+(2+6)) + ((1+5)+(3+7)).
  double (*sum_squares)(const float* x, Index n);
};

}  // namespace headwise::cpu
