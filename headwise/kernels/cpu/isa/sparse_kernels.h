// SparseKernels: what one ISA level does with lists of (score, key): the few keys that a row of entmax keeps.
// Plain types only, since every level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/tile_tasks.h"

namespace headwise::cpu {

/// w = max(0, z - tau)^power with z = less * (s - top); less = alpha - 1, power = 1 / less.
struct EntmaxRule {
  enum class Kind : std::uint8_t { softmax, square, line, any };  // alpha 1; 1.5; 2; the rest
  Kind kind;
  float less, power;
};

/// Keys of one row in ascending order and their scores; room for the row's keys and kListPad more.
struct KeptRow {
  float* score;
  std::int32_t* key;
  float* slope;  // what the tile `slopes` held for them; null: nobody asks
  Index count;
  bool is_nan;  // one of the row's scores was NaN
};
inline constexpr Index kListPad = 16;

/// Appends keys key0 + from .. key0 + to of a tile S [keys][panel] whose score is above floor[lane] or NaN to
/// the lists of their rows. Lanes from `lanes` on keep nothing.
struct KeepTask {
  const float *s, *slopes;  // slopes: [keys][panel]; null: nobody asks
  Index from, to;
  int panel, lanes;
  const float* floor;
  Index key0;
  KeptRow* rows;
};

struct SparseKernels {
  void (*keep)(const KeepTask&);
  /// tau of a row's scores, from `start`, which is at most tau. 1.5 and 2: Newton's steps from below. Others:
  /// Halley's steps, halving the bracket where one leaves it.
  float (*tau)(const EntmaxRule& rule, float* score, Index count, float top, float start);
  /// w of a row's scores, not divided by their sum, which is returned; softmax: w = exp(s - top).
  double (*weights)(const EntmaxRule& rule, float* score, Index count, float top, float tau, float* w);
  /// out = w^(2 - alpha) for w above 0, else 0; w has room for kListPad more.
  void (*slopes)(const EntmaxRule& rule, const float* w, Index count, float* out);
  /// out[columns] = sum over the list of w * rows[key]; columns is a multiple of 16.
  void (*sum_rows)(const float* w, const std::int32_t* key, Index count, const float* rows, Index step,
                   Index columns, float* out);
  /// out[i] = x . rows[key[i]]
  void (*dot_rows)(const float* x, const std::int32_t* key, Index count, const float* rows, Index step,
                   Index columns, float* out);
  /// rows[key[i]] += a[i] * x
  void (*add_rows)(const float* a, const std::int32_t* key, Index count, const float* x, Index columns,
                   float* rows, Index step);
};

}  // namespace headwise::cpu
