// Cross-head mixing in double: the matrix of one pair of tokens, and all heads of one query together.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/ref/row.h"

namespace headwise::ref {

/// Which mix: its kind, its given matrix, its first row in mix_q and mix_k, the heads it joins.
struct MixStage {
  Mix kind;
  const AnyView* given;
  Index row0, from, to;

  static MixStage before(const AttentionProblem& p, const HeadInputs& in) {
    return {p.heads.before, &in.mix_before, 0, p.heads.q.heads, p.heads.normal_heads()};
  }
  static MixStage after(const AttentionProblem& p, const HeadInputs& in) {
    return {p.heads.after, &in.mix_after, p.heads.before == Mix::dynamic ? 2 * p.heads.mix_rank + 1 : 0,
            p.heads.normal_heads(), p.heads.v.heads};
  }
};

/// M[m h] of one pair: query row `q`, key row `k` of tensors' batch `batch`.
struct PairMix {
  const MixStage& stage;
  Index rank;
  const AnyView *mix_q, *mix_k;
  Index batch, q, k;

  double of_query(Index row, Index head) const {
    return mix_q->given() ? at(*mix_q, batch, q, stage.row0 + row, head) : 0;
  }
  double of_key(Index row, Index head) const {
    return mix_k->given() ? at(*mix_k, batch, k, stage.row0 + row, head) : 0;
  }
  double operator()(Index m, Index h) const {
    const double w = stage.given->given() ? at(*stage.given, m, h) : 0;
    if (stage.kind == Mix::fixed) return w;
    double sum = w + (m == h ? 1 + of_query(2 * rank, h) + of_key(2 * rank, h) : 0);
    for (Index r = 0; r < rank; ++r)
      sum += of_query(r, m) * of_query(rank + r, h) + of_key(r, m) * of_key(rank + r, h);
    return sum;
  }
};

/// One query of all heads.
struct MixedRows {
  MixStage before, after;
  std::vector<Row> scores;  // q's heads: logits are what the first mix reads
  std::vector<Row> rows;    // heads between the mixes: logits and weights
  std::vector<Row> outs;    // v's heads: weights after the second mix; a pair is open where some head's is

  MixedRows(const AttentionProblem& p, const AttentionArgs& a);
  void compute(const AttentionProblem& p, const AttentionArgs& a, const SequenceLocation& place, Index b,
               Index i);
  PairMix pair(const AttentionProblem& p, const AttentionArgs& a, const MixStage& stage, Index j) const;
};

}  // namespace headwise::ref
