// Index arithmetic: the one integer of sizes and offsets, and sums and products that cannot wrap.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define HW_FN __host__ __device__
#else
#define HW_FN
#endif

namespace headwise {

using Index = std::int64_t;

/// Both operands >= 0; never forms a + b, so it cannot wrap near the largest Index.
HW_FN constexpr Index ceil_div(Index a, Index b) { return a / b + (a % b != 0); }
HW_FN constexpr Index round_up(Index a, Index multiple) { return ceil_div(a, multiple) * multiple; }
HW_FN constexpr Index min_of(Index a, Index b) { return a < b ? a : b; }
HW_FN constexpr Index max_of(Index a, Index b) { return a < b ? b : a; }

/// A size that remembers whether its arithmetic left the range of Index; every product of user sizes goes
/// through it.
struct Checked {
  Index value = 0;
  bool ok = true;

  constexpr Checked() = default;
  constexpr Checked(Index v) : value(v) {}  // NOLINT: a plain number is a checked one
  constexpr friend Checked operator*(Checked a, Checked b) {
    Checked r;
    r.ok = !__builtin_mul_overflow(a.value, b.value, &r.value) && a.ok && b.ok;
    return r;
  }
  constexpr friend Checked operator+(Checked a, Checked b) {
    Checked r;
    r.ok = !__builtin_add_overflow(a.value, b.value, &r.value) && a.ok && b.ok;
    return r;
  }
};

/// For choices that come before the sizes are refused: half the largest Index where the product left the
/// range, so that rounding it up does not.
constexpr Index saturated(Checked n) { return n.ok ? n.value : std::numeric_limits<Index>::max() / 2; }

}  // namespace headwise
