#include "headwise/lab/figures/stack_subject.h"

#include "headwise/lab/figures/score_rank.h"
#include "headwise/translation/translator.h"

namespace headwise {
namespace {

constexpr Index kMostRows = 4096;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A translator's tokens and its end, which is the [SEP] of its sentences.
class TranslatorSubject : public StackSubject {
 public:
  TranslatorSubject(const std::string& folder, int threads, bool shuffle, std::uint64_t seed)
      : StackSubject(threads), model_(Translator::load(folder)) {
    open(stack().options().depth, shuffle, seed);
  }
  SurveyTokens read(const std::string& text, Index most) const override {
    most = min_of(most, model_.config().max_tokens) - 1;
    SurveyTokens all;
    Index place = 0;
    for (const std::int32_t id : model_.bpe().encode(text)) {
      if (static_cast<Index>(all.size()) == most) {
        all.shortened = true;
        break;
      }
      const std::string& bytes = model_.bpe().bytes(id);
      const auto end = place + static_cast<Index>(bytes.size());
      all.push_back({id, place, end, false, false, is_punctuation(bytes)});
      place = end;
    }
    all.push_back({.id = -1, .sep = true});
    return all;
  }
  SurveyTokens repeated(std::uint64_t seed, Index count) const override {
    count = min_of(count, (model_.config().max_tokens - 1) / 2);
    SurveyTokens all;
    for (int turn = 0; turn < 2; ++turn)
      for (Index i = 0; i < count; ++i)
        all.push_back({static_cast<TokenId>(survey_draw(seed, i) %
                                            static_cast<std::uint32_t>(model_.bpe().vocabulary())),
                       static_cast<Index>(all.size()), static_cast<Index>(all.size()) + 1});
    all.push_back({.id = -1, .sep = true});
    return all;
  }
  void run(std::span<const SurveyTokens> texts, bool values, const Look& look) override {
    Taps taps;
    taps.of = AttentionPart::source, taps.rows = values;
    forward(texts, [&](Call& call) { call.taps = &taps; });
    for (std::size_t i = 0; i < texts.size(); ++i)
      for (std::size_t t = i; t < taps.all.size(); t += texts.size())
        look(static_cast<Index>(i), taps.all[t].block, maps_of(taps.all[t]));
  }
  void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) override {
    Index seen = 0;  // the decoder's rows come behind those of the encoder
    const RowLook first = [&](Index behind, const AnyView& rows) {
      if (seen++ <= layers()) look(behind, rows);
    };
    forward(std::span(&text, 1), [&](Call& call) { call.parts = parts, call.see_rows = &first; });
  }
  SmallMatrix vocabulary_product() const override {
    const AnyView table = model_.params().find("source_embed.table").value();
    return product_over(table, table);
  }

 private:
  const Stack& stack() const { return *model_.model().source_stack(); }
  const MultiHead& attention(Index layer) const override { return *stack().block(layer).self_attention(); }
  void forward(std::span<const SurveyTokens> texts, const std::function<void(Call&)>& before) {
    std::vector<PairTokens> pairs;
    for (const SurveyTokens& t : texts) {
      pairs.emplace_back();
      for (const SurveyToken& token : t)
        if (token.id >= 0) pairs.back().source.push_back(token.id);
    }
    model_.next_scores(pairs, session_, before);
  }

  mutable Translator model_;
};

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

SmallMatrix product_over(const ConstView& in, const ConstView& out) {
  const Index rows = in.size[0], wide = in.size[1], step = max_of(1, rows / kMostRows);
  SmallMatrix m(wide, wide);
  std::vector<double> a(at(wide)), b(at(wide));
  for (Index r = 0; r < rows; r += step) {
    for (Index i = 0; i < wide; ++i)
      a[at(i)] = load_double(in.data, in.dtype, r * wide + i),
      b[at(i)] = load_double(out.data, out.dtype, r * wide + i);
    for (Index i = 0; i < wide; ++i)
      for (Index j = 0; j < wide; ++j) m.at(i, j) += a[at(i)] * b[at(j)];
  }
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
    for (Index h = 0; plain(i) && h < heads_.back(); ++h) out_grams_[{i, h}] = gram_of(matrices(i, h).out);
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

LayerMaps StackSubject::maps_of(Tap& t) {
  const Index heads = heads_[at(t.block)], n = t.q_tokens, maps = t.heads / heads;
  LayerMaps m{.heads = heads, .tokens = n, .weights = t.weights.data(), .value_norm = {}, .score_rank = {}};
  if (maps > 1) {  // a differential head's two maps as one: their mean
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < n * n; ++i) {
        float sum = 0;
        for (Index k = 0; k < maps; ++k) sum += t.weights[at((h * maps + k) * n * n + i)];
        t.weights[at(h * n * n + i)] = sum / static_cast<float>(maps);
      }
  }
  if (!plain(t.block) || t.v.empty()) return m;
  const HeadSpec s = attention(t.block).head().spec();
  m.value_norm.resize(at(heads)), m.score_rank.resize(at(heads));
  session_.ctx.pool().parallel_for(heads, [&](Index h, int) {
    const ScoreRows q{t.q.data() + h * s.q.dim, n, heads * s.q.dim, s.q.dim},
        k{t.k.data() + s.k.slot(h) * s.k.dim, n, s.k.slots() * s.k.dim, s.k.dim},
        v{t.v.data() + s.v.slot(h) * s.v.dim, n, s.v.slots() * s.v.dim, s.v.dim};
    m.value_norm[at(h)] = norms_under(out_grams_.at({t.block, h}), v);
    m.score_rank[at(h)] = score_rank_of(q, k);
  });
  return m;
}

std::unique_ptr<SurveySubject> open_translator(const std::string& folder, int threads, bool shuffle,
                                               std::uint64_t seed) {
  return std::make_unique<TranslatorSubject>(folder, threads, shuffle, seed);
}

}  // namespace headwise
