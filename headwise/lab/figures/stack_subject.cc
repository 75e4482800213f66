#include "headwise/lab/figures/stack_subject.h"

#include "headwise/base/context.h"
#include "headwise/lab/matrix/product_rows.h"

namespace headwise {
namespace {

constexpr Index kMostRows = 4096;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A differential head's two maps as one: their mean.
void join_maps(Tap& t, Index heads) {
  const Index maps = t.heads / heads, size = t.q_tokens * t.kv_tokens;
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < size; ++i) {
      float sum = 0;
      for (Index k = 0; k < maps; ++k) sum += t.weights[at((h * maps + k) * size + i)];
      t.weights[at(h * size + i)] = sum / static_cast<float>(maps);
    }
}

}  // namespace

SmallMatrix rows_of(const ConstView& w, Index first, Index count) {
  SmallMatrix m(count, w.size[1]);
  for (Index i = 0; i < count; ++i)
    for (Index c = 0; c < w.size[1]; ++c)
      m.at(i, c) = load_double(w.data, w.dtype, (first + i) * w.size[1] + c);
  return m;
}
SmallMatrix columns_of(const ConstView& w, Index first, Index count) {
  SmallMatrix m(w.size[0], count);
  for (Index r = 0; r < w.size[0]; ++r)
    for (Index i = 0; i < count; ++i) m.at(r, i) = load_double(w.data, w.dtype, r * w.size[1] + first + i);
  return m;
}
SmallMatrix gram_of(const SmallMatrix& a) { return product(transposed(a), a); }

SmallMatrix product_over(const ConstView& in, const ConstView& out, ThreadPool& pool) {
  constexpr Index kPanel = 64, kTile = 32;  // rows of a pass over the sums; rows of the sums in one task
  const Index wide = in.size[1], step = max_of(1, in.size[0] / kMostRows), rows = ceil_div(in.size[0], step);
  const bool same = in.data == out.data;
  const Index line = (ceil_div(wide, 8) | 1) * 8;  // an odd number of cache lines: columns spread in a cache
  SmallMatrix m(wide, wide);
  std::vector<double> a(at(kPanel * line)), b(same ? 0 : a.size());
  for (Index first = 0; first < rows; first += kPanel) {
    const Index terms = min_of(kPanel, rows - first);
    pool.parallel_for(terms, [&](Index t, int) {
      for (Index i = 0; i < wide; ++i) {
        const Index from = (first + t) * step * wide + i;
        a[at(t * line + i)] = load_double(in.data, in.dtype, from);
        if (!same) b[at(t * line + i)] = load_double(out.data, out.dtype, from);
      }
    });
    pool.parallel_for(ceil_div(wide, kTile), [&](Index tile, int) {
      const Index row = tile * kTile, column = same ? row : 0;
      multiply_rows<double>({.x = a.data() + row,
                             .row_step = 1,
                             .term_step = line,
                             .m = (same ? a : b).data() + column,
                             .m_step = line,
                             .to = m.values.data() + row * wide + column,
                             .to_step = wide,
                             .rows = min_of(kTile, wide - row),
                             .terms = terms,
                             .columns = wide - column,
                             .onto = true});
    });
  }
  for (Index i = 0; same && i < wide; ++i)
    for (Index j = 0; j < i; ++j) m.at(i, j) = m.at(j, i);
  return m;
}

void StackSubject::open(Index layers, bool shuffle, std::uint64_t seed) {
  for (Index i = 0; i < layers; ++i) {
    heads_.push_back(attention(i).head_count());
    if (heads_.back() == 0) heads_.back() = attention(i).head().spec().v.heads;
    for (int part = 0; shuffle && part < 4; ++part) {
      if (part == 3 && attention(i).head().widths().out == 0) continue;
      const AnyView w = attention(i).part(part).weight().value();
      shuffle_entries(static_cast<float*>(w.data), w.count(),
                      seed * 1000 + static_cast<std::uint64_t>(4 * i + part));
    }
    for (Index h = 0; plain(i) && h < heads_.back(); ++h)
      out_norms_.emplace(std::pair(i, h), gram_of(matrices(i, h).out));
  }
}

HeadMatrices StackSubject::matrices(Index layer, Index head) const {
  if (!plain(layer)) return {};
  const MultiHead& a = attention(layer);
  const HeadSpec s = a.head().spec();
  const auto part = [&](int i) { return a.part(i).weight().value(); };
  return {rows_of(part(0), head * s.q.dim, s.q.dim), rows_of(part(1), s.k.slot(head) * s.k.dim, s.k.dim),
          rows_of(part(2), s.v.slot(head) * s.v.dim, s.v.dim), columns_of(part(3), head * s.v.dim, s.v.dim)};
}

bool StackSubject::plain(Index layer) const {
  const MultiHead& a = attention(layer);
  const HeadSpec s = a.head().spec();
  const Widths w = a.head().widths();
  return a.head_count() > 0 && !s.mixes() && s.q.row == 0 && s.q.heads == a.head_count() &&
         w.q == s.q.heads * s.q.dim && w.k == s.k.slots() * s.k.dim;
}

bool StackSubject::has_slopes() const {
  for (Index i = 0; i < layers(); ++i)
    if (!plain(i) || attention(i).head().spec().terms.gate) return false;
  return true;
}

std::vector<float> StackSubject::weight_slopes(const Tap& t) const {
  const HeadSpec s = attention(t.block).head().spec();
  const Index heads = heads_[at(t.block)], n = t.q_tokens, d = s.v.dim, wide = s.v.slots() * d;
  std::vector<float> all(at(heads * n * n), 0);
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < n; ++j) {
        const float *o = t.slopes.data() + (i * heads + h) * d, *v = t.v.data() + j * wide + s.v.slot(h) * d;
        float sum = 0;
        for (Index c = 0; c < d; ++c) sum += o[c] * v[c];
        all[at((h * n + i) * n + j)] = sum;
      }
  return all;
}

std::vector<LayerMaps> StackSubject::maps_of(std::span<Tap> taps) {
  const Index block = taps[0].block, heads = heads_[at(block)], count = std::ssize(taps);
  std::vector<LayerMaps> all(taps.size());
  for (std::size_t i = 0; i < taps.size(); ++i) {
    Tap& t = taps[i];
    if (t.heads > heads) join_maps(t, heads);
    all[i].heads = heads, all[i].tokens = t.q_tokens, all[i].keys = t.kv_tokens;
    all[i].weights = t.weights.data();
  }
  if (!plain(block) || taps[0].v.empty()) return all;
  const HeadSpec s = attention(block).head().spec();
  for (LayerMaps& m : all) m.value_norm.resize(at(heads)), m.score_rank.resize(at(heads));
  session_.ctx.pool().parallel_for(heads * count, [&](Index task, int) {
    const Index h = task / count;
    const Tap& t = taps[at(task % count)];
    LayerMaps& m = all[at(task % count)];
    const ScoreRows q{t.q.data() + h * s.q.dim, t.q_tokens, heads * s.q.dim, s.q.dim},
        k{t.k.data() + s.k.slot(h) * s.k.dim, t.q_tokens, s.k.slots() * s.k.dim, s.k.dim},
        v{t.v.data() + s.v.slot(h) * s.v.dim, t.q_tokens, s.v.slots() * s.v.dim, s.v.dim};
    m.value_norm[at(h)] = out_norms_.at({block, h}).of(v);
    m.score_rank[at(h)] = score_rank_of(q, k);
  });
  return all;
}

void StackSubject::show(Taps& taps, std::size_t texts, const Look& look) {
  for (std::size_t t = 0; t < taps.all.size(); t += texts) {
    const std::vector<LayerMaps> maps = maps_of(std::span(taps.all).subspan(t, texts));
    look(taps.all[t].block, 0, maps);
  }
}

}  // namespace headwise
