// knocked_out: single pairs of a query and a key that a head may not use, as a bias on its scores.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/lab/model/lab_model.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Tokens are counted from 0 as the model reads the text, what it puts around it included.
struct HeadPair {
  HeadName head = {};
  AttentionPart part = AttentionPart::own;
  Index query = 0, key = 0;
};

/// Scores of one layer that pairs are taken out of: those of all heads, and how many maps each of them has.
struct PairScores {
  Index heads = 0, q_tokens = 0, kv_tokens = 0, maps = 1;
};
/// -inf at each pair and 0 elsewhere, [1 heads*maps q kv]; all pairs are of one layer and part.
Tensor pairs_bias(std::span<const HeadPair> pairs, const PairScores& scores);
/// Maps of one head: two of a differential one, which both lose a pair. Heads that mix their scores are
/// refused: a pair of theirs belongs to all of them.
Index maps_of_head(const MultiHead& attention);
/// Call::score_bias of the pairs' layer for one text: -inf at each pair, 0 elsewhere, [1 heads tokens
/// tokens]. The other weights of a row share what the pair had. All pairs are of one layer.
Tensor knocked_out(const LabModel& model, std::span<const HeadPair> pairs, Index tokens);

}  // namespace headwise
#pragma GCC visibility pop
