// Taps: attention weights of single heads copied out of a forward, block by block and sequence by sequence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <vector>

#include "headwise/layers/basic/module.h"
#include "headwise/spec/problem.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Weights of one block for one sequence, before dropout; a row that may attend anywhere sums to 1 (mixed
/// heads: see mixed_taps.h). Differential heads have two maps each: 2 h and 2 h + 1 belong to head h.
struct Tap {
  Index block = 0, sequence = 0, heads = 0, q_tokens = 0, kv_tokens = 0;
  std::vector<float> weights = {};            // [heads q_tokens kv_tokens]
  std::vector<float> q = {}, k = {}, v = {};  // rows as attention reads them, where Taps::rows asks
  std::vector<float> slopes = {};             // dL / d(weights v) by rows, where Taps::slopes asks

  float at(Index head, Index query, Index key) const {
    return weights[static_cast<std::size_t>((head * q_tokens + query) * kv_tokens + key)];
  }
};

/// What a Call fills: taps in the order of blocks, then of sequences. Rows are the picked-rows probe of the
/// kernel that runs, so the output keeps its bits; mixed heads attend once more, to values that are rows of
/// the identity.
struct Taps {
  std::vector<Tap> all = {};
  std::vector<Index> blocks = {};  // those looked at; empty: every block
  bool rows = false;               // keep q, k and v too, turned by RoPE; heads that mix have none
  bool slopes = false;  // of self-attention, in a backward that follows: the gradient of a weight is
                        // that of its row times v of its key
  /// Whose weights; none: in blocks with cross-attention that one, else self-attention, of the stack over the
  /// ids.
  std::optional<AttentionPart> of = {};

  bool wants(Index block) const;
  /// Whether the attention `part` of a block is looked at; with_cross: the block has cross-attention.
  bool looks_at(AttentionPart part, bool with_cross) const {
    return of ? *of == part : part == (with_cross ? AttentionPart::cross : AttentionPart::own);
  }
};

/// Asks the problem and its run for every row of every head; the views lie in the call's memory.
void ask_weights(AttentionProblem& problem, ProbeOut& probe, const Sequences& q, Call& call);
/// q, k and v of the newest taps, one a sequence; rows [tokens columns].
void keep_rows(const AnyView& q, const AnyView& k, const AnyView& v, const Sequences& sequences, Taps& taps);
/// The gradient of what attention gave, into the taps of a block.
void keep_slopes(const AnyView& rows, const Sequences& sequences, Index block, Taps& taps);
/// Copies what such a run gave.
void keep_weights(const AttentionProblem& problem, const ProbeOut& probe, const Sequences& q,
                  const Sequences& kv, Index block, Taps& taps);

}  // namespace headwise
#pragma GCC visibility pop
