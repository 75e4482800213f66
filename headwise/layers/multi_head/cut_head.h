// cut_head: the heads of one rank of a tensor team as a head text, or why they cannot be cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/distributed/order.h"
#include "headwise/heads/head.h"
#include "headwise/layers/basic/module.h"

#pragma GCC visibility push(default)
namespace headwise {

/// heads: whole heads, whose only sums are those of dx and W_O. leaf_heads: whole heads that share parameters
/// or read x; every leaf runs by itself. sequences: all heads, of some of the sequences.
enum class CutBy : std::uint8_t { heads, leaf_heads, sequences };

/// This rank's heads. kv heads that several leaves share have copies, `repeats` of each here, so that a
/// leaf's sums are its own; `shared` ranks hold the same kv head.
struct HeadCut {
  std::string words;
  Index heads = 0, kv_heads = 0;  // of the whole layer
  Index leaves = 1;               // of this rank
  Index repeats = 1, shared = 1;
  CutBy by = CutBy::heads;
};

/// Heads that cannot be cut over so many ranks in this order are refused in words. With one rank and order
/// one_rank the text stays as it is.
HeadCut cut_head(std::string_view words, const Place& place, int ranks, Order order);

/// The part of heads that a rank attends with where it gets all tokens for some of the heads; "" where heads
/// learn, read x, mix, or do not divide.
std::string part_of_heads(std::string_view words, const Place& place, int ranks);

/// Rows [rows heads*dim] with every head `times` times, copies side by side; and back: copies added as a
/// tree.
AnyView repeat_heads(const AnyView& rows, Index dim, Index times, Call& call);
AnyView fold_heads(const AnyView& rows, Index dim, Index times, Call& call);

}  // namespace headwise
#pragma GCC visibility pop
