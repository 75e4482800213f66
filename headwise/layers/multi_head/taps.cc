#include "headwise/layers/multi_head/taps.h"

#include <algorithm>

namespace headwise {
namespace {

constexpr Index kMostEntries = Index{1} << 26;

void copy_tap_rows(const AnyView& from, Index begin, Index end, std::vector<float>& to) {
  if (from.dtype == DType::f32) {
    const auto* x = static_cast<const float*>(from.data);
    to.assign(x + begin * from.size[1], x + end * from.size[1]);
    return;
  }
  for (Index i = begin * from.size[1]; i < end * from.size[1]; ++i)
    to.push_back(static_cast<float>(load_double(from.data, from.dtype, i)));
}

}  // namespace

bool Taps::wants(Index block) const {
  return blocks.empty() || std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

void ask_weights(AttentionProblem& p, ProbeOut& probe, const Sequences& q, Call& call) {
  require(p.device.is_cpu(), ErrorKind::unsupported, "taps", "the heads run on ", p.device,
          ", and their weights are copied on the CPU alone; run the model there");
  const Index heads = p.heads.q.heads, rows = heads * q.rows();
  const Checked entries = Checked(rows) * Checked(p.kv_tokens);
  require(entries.ok && entries.value <= kMostEntries, ErrorKind::unsupported, "taps", "copying ", rows,
          " rows of ", p.kv_tokens, " weights is more than ", kMostEntries,
          " numbers a block; look at fewer or shorter sequences at a time");
  if (rows == 0 || p.kv_tokens == 0) return;
  p.probe.picked = rows;
  probe.picks = call.memory.take(DType::i64, {rows, 3});
  probe.picked_weights =
      call.memory.take(p.dtype == DType::f64 ? DType::f64 : DType::f32, {rows, p.kv_tokens});
  Index* to = static_cast<Index*>(probe.picks.data);
  for (Index b = 0; b < q.count(); ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < q.at(b + 1) - q.at(b); ++i, to += 3) to[0] = b, to[1] = h, to[2] = i;
}

void keep_rows(const AnyView& q, const AnyView& k, const AnyView& v, const Sequences& s, Taps& taps) {
  const auto first = static_cast<Index>(taps.all.size()) - s.count();
  for (Index b = 0; b < s.count(); ++b) {
    Tap& t = taps.all[static_cast<std::size_t>(first + b)];
    copy_tap_rows(q, s.at(b), s.at(b + 1), t.q);
    copy_tap_rows(k, s.at(b), s.at(b + 1), t.k);
    copy_tap_rows(v, s.at(b), s.at(b + 1), t.v);
  }
}

void keep_slopes(const AnyView& rows, const Sequences& s, Index block, Taps& taps) {
  for (Tap& t : taps.all)
    if (t.block == block) copy_tap_rows(rows, s.at(t.sequence), s.at(t.sequence + 1), t.slopes);
}

void keep_weights(const AttentionProblem& p, const ProbeOut& probe, const Sequences& q, const Sequences& kv,
                  Index block, Taps& taps) {
  const AnyView& from = probe.picked_weights;
  Index row = 0;
  for (Index b = 0; b < q.count(); ++b) {
    Tap t{.block = block,
          .sequence = b,
          .heads = p.heads.q.heads,
          .q_tokens = q.at(b + 1) - q.at(b),
          .kv_tokens = kv.at(b + 1) - kv.at(b)};
    t.weights.reserve(static_cast<std::size_t>(t.heads * t.q_tokens * t.kv_tokens));
    for (Index r = 0; r < t.heads * t.q_tokens; ++r, ++row)
      if (from.dtype == DType::f32) {
        const float* w = static_cast<const float*>(from.data) + row * p.kv_tokens;
        t.weights.insert(t.weights.end(), w, w + t.kv_tokens);
      } else {
        for (Index key = 0; key < t.kv_tokens; ++key)
          t.weights.push_back(
              static_cast<float>(load_double(from.data, from.dtype, row * p.kv_tokens + key)));
      }
    taps.all.push_back(std::move(t));
  }
}

}  // namespace headwise
