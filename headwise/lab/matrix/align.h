// Alignment: several key or value heads as turned and scaled copies of one, from their inner products alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <vector>

#include "headwise/lab/matrix/small_matrix.h"
#include "headwise/spec/rope.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Sums over tokens of products between all columns of all heads: block (h, g) is A_h^T A_g.
struct HeadGram {
  Index heads = 0, dim = 0;
  SmallMatrix all = {};  // [heads*dim heads*dim]

  HeadGram() = default;
  HeadGram(Index h, Index d) : heads(h), dim(d), all(h * d, h * d) {}
  SmallMatrix block(Index h, Index g) const;
  /// Of one head: its sum of squares.
  double square(Index h) const;
  void add_row(const float* row);
};

/// Which turns keep the model what it is: any (values; keys without RoPE), those of RoPE's pairs, or none.
enum class Turns : std::uint8_t { any, pairs, none };
struct TurnRule {
  Turns turns = Turns::any;
  RopeOptions rope = {};  // of pairs
};

/// A_h turn_h is close to size_h times the shared head, which is sum over h of share_h A_h turn_h.
struct Alignment {
  std::vector<SmallMatrix> turn;
  std::vector<double> size, share;
  double error = 0;  // sum over heads of |A_h turn_h - size_h shared|^2
};

/// The mean of the heads: no turns, sizes of 1. The first: share 1 of it alone.
Alignment mean_of(const HeadGram& gram, const std::vector<Index>& heads);
Alignment first_of(const HeadGram& gram, const std::vector<Index>& heads);
/// Begins at the mean and goes downhill: turns by Procrustes, then sizes, then the shared head, until it
/// stands. Its error is therefore never above the mean's.
Alignment aligned(const HeadGram& gram, const std::vector<Index>& heads, const TurnRule& rule);

/// Least |A_h turn - A_g|^2 over the turns of the rule.
double distance_aligned(const HeadGram& gram, Index h, Index g, const TurnRule& rule);
/// `groups` equal groups of 0..n-1 with a small sum of distances inside them: neighbours first, then swaps as
/// long as one helps.
std::vector<std::vector<Index>> grouped_by(const SmallMatrix& distance, Index groups);

}  // namespace headwise
#pragma GCC visibility pop
