// HeadLayout and HeadSpec: all a kernel must know about a head variant, as plain data without addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise {

/// Where head h finds its vector.
/// row == 0: in axis 2 of a tensor [batch tokens slots dim]; head h reads slot h / group (group 1 is MHA,
/// heads is MQA). row > 0: in a tensor [batch tokens row], at columns begin + (h / group) * step + 0..dim;
/// begin may be negative, step may be below dim (overlapping heads) or 0 (one head for all); columns outside
/// 0..row are read as 0.
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
  friend constexpr bool operator==(const Terms&, const Terms&) = default;
};

struct HeadSpec {
  HeadLayout q = {}, k = {},
             v = {};  // all with the same number of heads; out has v's dim and one slot per head
  Terms terms = {};
  friend constexpr bool operator==(const HeadSpec&, const HeadSpec&) = default;
};

}  // namespace headwise
