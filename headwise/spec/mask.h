// MaskView: which (query, key) pairs may attend, as a flat program that kernels read. True always means
// "may attend".
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/mask_terms.h"

#pragma GCC visibility push(default)

namespace headwise {

struct MaskView {
  static constexpr int kMaxTerms = 16, kMaxSteps = 2 * kMaxTerms - 1;
  MaskStep steps[kMaxSteps] = {};
  int count = 0;  // 0: everything is open

  HW_FN static constexpr MaskView all() {
    MaskView v;
    return v;
  }
  HW_FN static constexpr MaskView causal() { return one({.op = MaskOp::causal}); }
  HW_FN static constexpr MaskView window(Index back, Index ahead) {
    return one({.op = MaskOp::window, .a = back, .b = ahead});
  }
  HW_FN static constexpr MaskView prefix(Index keys) { return one({.op = MaskOp::prefix, .a = keys}); }
  HW_FN static constexpr MaskView one(const MaskStep& step) {
    MaskView v;
    v.steps[v.count++] = step;
    return v;
  }

  /// The definition. q and k are positions; k >= 0.
  HW_FN constexpr bool may_attend(Index q, Index k, const MaskSubject& at = {}) const;
  /// What a kernel needs to know about queries [q0, q1) x keys [k0, k1) before loading it; both ranges not
  /// empty. Exact for single terms and for `&` of interval terms; else `mixed` may stand for empty or full,
  /// never the reverse.
  HW_FN constexpr TileKind tile(Index q0, Index q1, Index k0, Index k1, const MaskSubject& at = {}) const;
  /// Bit j of open[w] = may_attend(q, k0 + 64 * w + j), for `words` words; bits past the last key are
  /// unspecified.
  void row_bits(Index q, Index k0, int words, std::uint64_t* open, const MaskSubject& at = {}) const;
};

/// One mask for all heads, or one per head; count 0 = everything is open.
struct MaskSet {
  const MaskView* views = nullptr;
  Index count = 0;
  bool given() const { return count > 0; }
  const MaskView& of(Index head) const { return views[count == 1 ? 0 : head]; }
};

HW_FN constexpr bool MaskView::may_attend(Index q, Index k, const MaskSubject& at) const {
  std::uint32_t stack = 1;  // the last answer is bit 0
  for (int i = 0; i < count; ++i) {
    if (steps[i].op == MaskOp::both)
      stack = stack >> 1 & (stack | ~std::uint32_t{1});
    else if (steps[i].op == MaskOp::either)
      stack = stack >> 1 | (stack & 1);
    else
      stack = stack << 1 | (mask_terms::may_attend(steps[i], q, k, at) ? 1 : 0);
  }
  return stack & 1;
}

HW_FN constexpr TileKind MaskView::tile(Index q0, Index q1, Index k0, Index k1, const MaskSubject& at) const {
  using mask_terms::Intervals;
  // An answer is an `&`: its interval terms joined, and the kind of the rest; only an `either` forces the two
  // into one.
  struct Answer {
    Intervals intervals;
    TileKind rest;
    HW_FN constexpr TileKind settle(const MaskStep* s, const MaskBox& box) const {
      return rest == TileKind::mixed && intervals.empty(s, box.q0, box.q1) ? TileKind::empty : rest;
    }
  };
  if (count == 0) return TileKind::full;
  const MaskBox box{q0, q1, k0, k1};
  Answer stack[kMaxTerms];
  int top = -1;
  for (int i = 0; i < count; ++i) {
    const MaskStep& s = steps[i];
    if (mask_terms::is_interval(s.op)) {
      const bool full = mask_terms::interval_full(s, box, at);
      stack[++top] = {Intervals::of(s, i, box, at), full ? TileKind::full : TileKind::mixed};
    } else if (s.op == MaskOp::both) {
      Answer& left = stack[--top];
      const Answer& right = stack[top + 1];
      left.intervals.join(right.intervals);
      if (left.rest == TileKind::empty || right.rest == TileKind::empty)
        left.rest = TileKind::empty;
      else if (left.rest == TileKind::full)
        left.rest = right.rest;
    } else if (s.op == MaskOp::either) {
      const TileKind left = stack[--top].settle(steps, box), right = stack[top + 1].settle(steps, box);
      const bool full = left == TileKind::full || right == TileKind::full;
      const bool empty = left == TileKind::empty && right == TileKind::empty;
      stack[top] = {Intervals::open(box), full ? TileKind::full : empty ? TileKind::empty : TileKind::mixed};
    } else {
      stack[++top] = {Intervals::open(box), mask_terms::tile(s, box, at)};
    }
  }
  return stack[0].settle(steps, box);
}

static_assert(MaskView::causal().tile(0, 8, 8, 16) == TileKind::empty);

}  // namespace headwise
#pragma GCC visibility pop
