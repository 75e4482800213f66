// Rotary embedding on the CPU: the turn of a position, and turning all heads of a token by it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"
#include "headwise/spec/rope.h"

namespace headwise::cpu {

/// cos[i], sin[i] of position * frequency[i], times factor. |position| <= kRopeReach.
void rope_turns(const double* frequency, Index pairs, Index position, double factor, double* cos,
                double* sin) noexcept;

/// Pairs first..first + pairs - 1 of a head, and how each turns: cos[0] belongs to pair `first`.
struct RopePairs {
  RopeKind kind = RopeKind::half;
  bool inverse = false;
  Index rotary_dim = 0, first = 0, pairs = 0;
  const double *cos = nullptr, *sin = nullptr;
};

/// x, out [heads dim] of one token; out is x or does not overlap it. Computes in double, rounds once.
template <class T>
void rope_rotate(View<const T, 2> x, View<T, 2> out, const RopePairs& turn) noexcept;

/// Columns begin..dim-1 of x to out, bit by bit.
template <class T>
void copy_columns(View<const T, 2> x, View<T, 2> out, Index begin) noexcept;

}  // namespace headwise::cpu
