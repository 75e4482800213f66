#include "headwise/layers/multi_head/mixed_taps.h"

#include <cmath>

#include "headwise/ops/attention/attention.h"

namespace headwise {

void keep_mixed_weights(const AttentionProblem& problem, const AttentionArgs& run, const Sequences& q,
                        const Sequences& kv, Call& call, Taps& taps) {
  constexpr Index kMostEntries = Index{1} << 26;
  require(problem.device.is_cpu(), ErrorKind::unsupported, "taps", "the heads run on ", problem.device,
          ", and their weights are copied on the CPU alone; run the model there");
  const Index heads = problem.heads.v.heads, wide = problem.kv_tokens;
  const Checked entries = Checked(heads) * Checked(max_of(q.rows(), kv.rows())) * Checked(wide);
  require(entries.ok && entries.value <= kMostEntries, ErrorKind::unsupported, "taps", "copying ",
          heads * q.rows(), " rows of ", wide, " weights is more than ", kMostEntries,
          " numbers a block; look at fewer or shorter sequences at a time");
  if (q.rows() == 0 || wide == 0) return;
  const Scratch scratch(call.memory);
  // Key j of a sequence has row j of the identity for its value, so that an output is the row of weights.
  AttentionProblem p = problem;
  p.heads.v = HeadLayout::grouped(heads, 1, wide);
  p.heads.terms.dropout = p.heads.terms.gate = p.lse = false;
  AttentionArgs a = run;
  a.lse = a.inputs.gate = {}, a.inputs.dropout = 0;
  const Index outer = p.ragged ? 1 : p.batch;
  a.v = call.memory.take(p.dtype, {outer, kv.rows() / outer, 1, wide});
  a.out = call.memory.take(p.dtype, {outer, q.rows() / outer, heads, wide});
  fill_zeros(a.v);
  for (Index b = 0; b < kv.count(); ++b)
    for (Index row = kv.at(b); row < kv.at(b + 1); ++row)
      store_double(a.v.data, p.dtype, row * wide + row - kv.at(b), 1);
  AttentionPlan(p, call.ctx).run(a, call.ctx);
  for (Index b = 0; b < q.count(); ++b) {
    Tap t{.block = call.block,
          .sequence = b,
          .heads = heads,
          .q_tokens = q.at(b + 1) - q.at(b),
          .kv_tokens = kv.at(b + 1) - kv.at(b)};
    for (Index h = 0; h < heads; ++h)
      for (Index row = q.at(b); row < q.at(b + 1); ++row)
        for (Index key = 0; key < t.kv_tokens; ++key)
          t.weights.push_back(
              static_cast<float>(load_double(a.out.data, p.dtype, (row * heads + h) * wide + key)));
    taps.all.push_back(std::move(t));
  }
}

void to_shares(Taps& taps) {
  for (Tap& t : taps.all)
    for (auto row = t.weights.begin(); row != t.weights.end(); row += t.kv_tokens) {
      float sum = 0;
      for (Index j = 0; j < t.kv_tokens; ++j) sum += std::abs(row[j]);
      for (Index j = 0; j < t.kv_tokens; ++j) row[j] = sum > 0 ? std::abs(row[j]) / sum : 0;
    }
}

}  // namespace headwise
