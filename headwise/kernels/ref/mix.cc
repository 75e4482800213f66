#include "headwise/kernels/ref/mix.h"

#include <limits>

namespace headwise::ref {
namespace {

/// y_h = sum_m M[m h] x_m for key j; `number(row)` is the row's x or y.
template <class Number>
void mix_pair(const PairMix& mix, const MixStage& stage, std::vector<Row>& from, std::vector<Row>& to,
              Index j, Number&& number) {
  for (Index h = 0; h < stage.to; ++h) {
    Row& row = to[static_cast<std::size_t>(h)];
    if (!row.open[static_cast<std::size_t>(j)]) continue;
    double sum = 0;
    for (Index m = 0; m < stage.from; ++m) sum += mix(m, h) * number(from[static_cast<std::size_t>(m)]);
    number(row) = sum;
  }
}

}  // namespace

MixedRows::MixedRows(const AttentionProblem& p, const AttentionArgs& a)
    : before(MixStage::before(p, a.inputs)),
      after(MixStage::after(p, a.inputs)),
      scores(static_cast<std::size_t>(before.from), Row(p)),
      rows(static_cast<std::size_t>(before.to), Row(p)),
      outs(static_cast<std::size_t>(after.to), Row(p)) {}

PairMix MixedRows::pair(const AttentionProblem& p, const AttentionArgs& a, const MixStage& stage,
                        Index j) const {
  const Row& row = rows[0];
  return {stage,       p.heads.mix_rank,    &a.inputs.mix_q, &a.inputs.mix_k, row.place.tensor_batch,
          row.q_row(), row.place.kv_row + j};
}

void MixedRows::compute(const AttentionProblem& p, const AttentionArgs& a, const SequenceLocation& place,
                        Index b, Index i) {
  const auto name = [&](std::vector<Row>& of, auto&& body) {
    for (std::size_t h = 0; h < of.size(); ++h) {
      of[h].place = place;
      of[h].sequence = b, of[h].head = static_cast<Index>(h), of[h].query = i;
      body(of[h]);
    }
  };
  name(rows, [&](Row& row) { row.open_pairs(p, a, b, row.head, i); });
  const auto some_open = [&](Index j) {
    for (const Row& row : rows)
      if (row.open[static_cast<std::size_t>(j)]) return true;
    return false;
  };

  // s_m = cap * tanh(scale * q_m.k_m) of pairs that some head may see
  name(scores, [&](Row& row) {
    for (Index j = 0; j < place.kv_tokens; ++j) {
      const auto n = static_cast<std::size_t>(j);
      row.open[n] = some_open(j);
      row.logits[n] = -std::numeric_limits<double>::infinity();
    }
    row.score(p, a);
  });

  // l_h = sum_m A[m h] s_m, then terms, mask and normalizer of head h
  for (Index j = 0; j < place.kv_tokens; ++j) {
    const auto n = static_cast<std::size_t>(j);
    const auto logit = [&](Row& row) -> double& { return row.logits[n]; };
    if (before.kind != Mix::none) {
      mix_pair(pair(p, a, before, j), before, scores, rows, j, logit);
    } else {
      for (std::size_t h = 0; h < rows.size(); ++h)
        if (rows[h].open[n]) rows[h].logits[n] = scores[h].logits[n];
    }
  }
  name(rows, [&](Row& row) { row.weigh(p, a); });
  for (Row& row : scores)  // a logit of -inf closed its pair
    for (Index j = 0; j < place.kv_tokens; ++j) row.open[static_cast<std::size_t>(j)] = some_open(j);

  // u_v = sum_h B[h v] w_h
  name(outs, [&](Row& row) {
    row.empty = true;
    for (Index j = 0; j < place.kv_tokens; ++j) {
      row.open[static_cast<std::size_t>(j)] = some_open(j);
      row.weights[static_cast<std::size_t>(j)] = 0;
    }
    for (const Row& r : rows) row.empty = row.empty && r.empty;
  });
  for (Index j = 0; j < place.kv_tokens; ++j) {
    const auto n = static_cast<std::size_t>(j);
    const auto weight = [&](Row& row) -> double& { return row.weights[n]; };
    if (after.kind != Mix::none) {
      mix_pair(pair(p, a, after, j), after, rows, outs, j, weight);
    } else {
      for (std::size_t h = 0; h < outs.size(); ++h) {
        outs[h].open[n] = rows[h].open[n];
        outs[h].weights[n] = rows[h].weights[n];
      }
    }
  }
  if (after.kind == Mix::none)
    for (std::size_t h = 0; h < outs.size(); ++h) outs[h].empty = rows[h].empty;
}

}  // namespace headwise::ref
