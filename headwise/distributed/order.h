// Order: how a sum over ranks is added up, and Slice: which part of an axis a rank holds.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// one_rank: the bits of one process, whatever the number of ranks. tree: one set of bits for every number of
/// ranks that divides the leaves, one rank included. engine: the engine's own sum, bits of that layout.
enum class Order : std::uint8_t { one_rank, tree, engine };
inline constexpr std::string_view kOrderNames[] = {"one_rank", "tree", "engine"};
constexpr std::string_view name_of(Order o) { return kOrderNames[static_cast<int>(o)]; }
/// Throws for a word that is no order.
Order order_of(std::string_view word);

/// What one rank holds of an axis of `whole` elements.
struct Slice {
  Index begin = 0, size = 0;
};
/// Rank r of R holds [whole r / R, whole (r + 1) / R).
constexpr Slice slice_of(Index whole, int rank, int ranks) {
  const Index begin = whole * rank / ranks;
  return {begin, whole * (rank + 1) / ranks - begin};
}

inline constexpr Index kMostLeaves = 8, kMostDataLeaves = 64;
/// The largest power of two up to `most` that divides `count`: a sum's leaves.
constexpr Index leaves_of(Index count, Index most = kMostLeaves) {
  Index leaves = 1;
  while (2 * leaves <= most && count > 0 && count % (2 * leaves) == 0) leaves *= 2;
  return leaves;
}

}  // namespace headwise
#pragma GCC visibility pop
