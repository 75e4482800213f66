// Row: one query of one head in double: its open keys, its logits, its weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "headwise/spec/problem.h"

namespace headwise::ref {

struct Row {
  Index sequence = 0, head = 0, query = 0;  // query: index inside its sequence
  SequenceLocation place{};
  std::vector<std::uint8_t> open;        // [kv]: the mask's answer, or 0 where the logit is -inf
  std::vector<std::uint8_t> keep;        // [kv]: open, and dropout leaves the pair its weight
  std::vector<double> logits, weights;   // [kv]; closed pairs: -inf and 0
  std::vector<double> scaled;            // [kv]: scale * q.k of open pairs, what softcap begins with
  std::vector<double> q_vector, output;  // [head_dim], [value_dim]
  bool empty = true;                     // no open key
  bool listed = true;                    // the head works on this row
  double lse = 0, sink_weight = 0;

  explicit Row(const AttentionProblem& p)
      : open(static_cast<std::size_t>(p.kv_tokens)),
        keep(open.size()),
        logits(open.size()),
        weights(open.size()),
        scaled(open.size()),
        q_vector(static_cast<std::size_t>(p.heads.q.dim)),
        output(static_cast<std::size_t>(p.heads.v.dim)) {}
  Index position() const { return place.q_start + query; }
  Index keys() const { return place.kv_tokens; }
  Index q_row() const { return place.q_row + query; }
  template <class Body>
  void each_open(Body&& body) {  // body(j, logit)
    for (Index j = 0; j < keys(); ++j)
      if (open[static_cast<std::size_t>(j)]) body(j, logits[static_cast<std::size_t>(j)]);
  }

  /// Fills everything above but `keep` and `output` for one query. `scores` probes are written on the way.
  void compute(const AttentionProblem& p, const AttentionArgs& a, Index b, Index h, Index i);
  /// The parts of compute(): what the mask opens; s = cap * tanh(scale * q.k) of open pairs; terms and
  /// weights.
  void open_pairs(const AttentionProblem& p, const AttentionArgs& a, Index b, Index h, Index i);
  void score(const AttentionProblem& p, const AttentionArgs& a);
  void weigh(const AttentionProblem& p, const AttentionArgs& a);
  /// Weights of the open logits and of a sink (-inf: none) by entmax; lse becomes tau.
  void normalize_row(double alpha, double sink);
  /// Fills `keep` of a computed row, by the contract of DropoutRule.
  void drop(const AttentionProblem& p, const AttentionArgs& a);
};

/// Column c of what head h reads from token `row`; 0 outside the columns that exist.
double head_element(const AnyView& x, const HeadLayout& layout, Index batch, Index row, Index h, Index c);

/// The same of key or value j of the row's sequence: packed keys are found, 8 bits are multiplied by their
/// scale.
double key_element(const AttentionProblem& p, const AttentionArgs& a, const Row& row, Index j, Index c);
double value_element(const AttentionProblem& p, const AttentionArgs& a, const Row& row, Index j, Index c);

/// Element of [a], [a b], [a b c] or [a b c d] tensors.
double at(const AnyView& x, Index i, Index j = 0, Index k = 0, Index l = 0);
void put(const AnyView& x, double value, Index i, Index j = 0, Index k = 0, Index l = 0);

/// Row probes, top keys and class mass of a computed row.
void write_row_probes(const AttentionProblem& p, const AttentionArgs& a, const Row& row);

}  // namespace headwise::ref
