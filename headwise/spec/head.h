// HeadLayout and HeadSpec: all a kernel must know about a head variant, as plain data without addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise {

/// Where head h finds its vector.
/// row == 0: in axis 2 of a tensor [batch tokens slots dim]; head h reads slot h / group (group 1 is MHA,
/// heads is MQA).
/// row > 0: in a tensor [batch tokens row], at columns begin + (h / group) * step + 0..dim. begin may be
/// negative. step may be below dim (overlapping heads) or 0 (one head for all). Columns outside 0..row are
/// read as 0.
struct HeadLayout {
  Index heads = 0, dim = 0, group = 1, step = 0, begin = 0, row = 0;

  HW_FN constexpr Index slot(Index h) const { return h / group; }
  HW_FN constexpr Index slots() const { return heads ? slot(heads - 1) + 1 : 0; }
  HW_FN constexpr Index column(Index h) const { return begin + slot(h) * step; }

  HW_FN static constexpr HeadLayout split(Index heads, Index dim) { return {heads, dim, 1, 0, 0, 0}; }
  HW_FN static constexpr HeadLayout grouped(Index heads, Index kv_heads, Index dim) {
    return {heads, dim, kv_heads ? heads / kv_heads : 1, 0, 0, 0};
  }
  /// Heads of width dim + 2 * rim that also read `rim` columns of both neighbours inside a row of heads *
  /// dim.
  HW_FN static constexpr HeadLayout overlapped(Index heads, Index dim, Index rim) {
    return {heads, dim + 2 * rim, 1, dim, -rim, heads * dim};
  }
  friend constexpr bool operator==(const HeadLayout&, const HeadLayout&) = default;
};

/// Which score terms a run brings; their values come with the run.
struct Terms {
  bool softcap = false, alibi = false, bias = false, relative = false, sinks = false, dropout = false,
       gate = false;
  bool rows = false;  // each head has a list of its query rows
  friend constexpr bool operator==(const Terms&, const Terms&) = default;
};

/// How heads exchange what they have for one pair of tokens, before or after the normalizer: y_h = sum_m
/// M[m h] x_m. fixed: M is given. dynamic: M = I + W + sum_r w1_r w2_r^T + diag(gate), with w1, w2 and gate
/// the sums of a query's and a key's own, and W given or 0.
enum class Mix : std::uint8_t { none, fixed, dynamic };

/// How logits become weights: softmax, or alpha-entmax with alpha per head (1 is softmax, 2 is sparsemax).
enum class Norm : std::uint8_t { softmax, entmax };
/// Below it entmax divides by too small an alpha - 1; 1 itself is softmax.
inline constexpr double kLeastAlpha = 1.01;

struct HeadSpec {
  HeadLayout q = {}, k = {},
             v = {};  // all with the same number of heads, but for mixing; out has v's dim and heads
  Terms terms = {};
  Norm norm = Norm::softmax;
  Mix before = Mix::none, after = Mix::none;
  Index mix_rank = 0;  // R of a dynamic mix
  Index heads = 0;     // between the mixes: those with a normalizer; 0: as many as q

  HW_FN constexpr bool mixes() const { return before != Mix::none || after != Mix::none; }
  HW_FN constexpr Index normal_heads() const { return heads ? heads : q.heads; }
  /// Dynamic mixes, and their rows in mix_q and mix_k: w1 (R), w2 (R), gate (1) for each, before first.
  HW_FN constexpr Index mix_stages() const {
    return Index{before == Mix::dynamic} + Index{after == Mix::dynamic};
  }
  HW_FN constexpr Index mix_rows() const { return mix_stages() * (2 * mix_rank + 1); }
  friend constexpr bool operator==(const HeadSpec&, const HeadSpec&) = default;
};

}  // namespace headwise
