#include "headwise/lab/figures/survey_subject.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/cache/kv_cache.h"
#include "headwise/decoder/forward/decoder.h"
#include "headwise/lab/figures/score_rank.h"
#include "headwise/lab/figures/stack_subject.h"
#include "headwise/lab/model/lab_model.h"
#include "headwise/model/json_object.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// An encoder: a recogniser's or a BERT-style one.
class EncoderSubject : public StackSubject {
 public:
  EncoderSubject(const std::string& folder, int threads, bool shuffle, std::uint64_t seed)
      : StackSubject(threads), model_(folder) {
    open(model_.layers(), shuffle, seed);
    model_.pack_weights();
  }

  SurveyTokens read(const std::string& text, Index most) const override {
    const Encoding e = model_.tokenizer().encode(text, {.around = true, .most = min_of(most, room())});
    SurveyTokens all;
    for (std::size_t t = 0; t < e.ids.size(); ++t)
      all.push_back(token(e.ids[t], e.spans[t].begin, e.spans[t].end));
    all.shortened = e.cut;
    return all;
  }
  SurveyTokens repeated(std::uint64_t seed, Index count) const override {
    const Vocabulary& v = model_.tokenizer().vocabulary();
    const Encoding around = model_.tokenizer().encode("", {.around = true});
    count = min_of(count, (room() - 2) / 2);
    std::vector<TokenId> ids = {around.ids.front()};
    const Index low = v.size() > 2000 ? 1000 : min_of(v.size() - 1, 5);
    for (int turn = 0; turn < 2; ++turn)
      for (Index i = 0; i < count; ++i)
        ids.push_back(
            static_cast<TokenId>(low + survey_draw(seed, i) % static_cast<std::uint32_t>(v.size() - low)));
    ids.push_back(around.ids.back());
    SurveyTokens all;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool added = i == 0 || i + 1 == ids.size();
      all.push_back(token(ids[i], added ? 0 : static_cast<Index>(i), added ? 0 : static_cast<Index>(i + 1)));
    }
    return all;
  }
  void run(std::span<const SurveyTokens> texts, bool values, const Look& look) override {
    std::vector<Encoding> all;
    for (const SurveyTokens& t : texts) all.push_back(encoding_of(t));
    Taps taps = model_.taps_of(all, session_, values);
    show(taps, texts.size(), look);
  }
  bool run_slopes(const SurveyTokens& text, const SurveyTokens& other, const Look& look) override {
    if (!has_slopes()) return false;
    model_.run_slopes(encoding_of(text), encoding_of(other), session_, [&](const SeenText& seen) {
      for (Tap& t : seen.taps) {
        const std::vector<float> slopes = weight_slopes(t);
        std::vector<LayerMaps> maps = maps_of(std::span(&t, 1));
        maps[0].slopes = slopes.data();
        look(t.block, 0, maps);
      }
    });
    return true;
  }
  void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) override {
    model_.run_parts(encoding_of(text), session_, parts, look);
  }
  SmallMatrix vocabulary_product() override {
    for (const Param& p : model_.params().all())
      if (p.name == "embed.table") return product_over(p.value, p.value, pool());
    return {};
  }

 private:
  static Encoding encoding_of(const SurveyTokens& tokens) {
    Encoding e;
    for (const SurveyToken& t : tokens) e.ids.push_back(t.id), e.spans.push_back({t.begin, t.end});
    return e;
  }
  /// Tokens of one forward.
  Index room() const {
    return model_.labels() ? model_.recognizer().config().chunk_tokens : model_.encoder().max_tokens();
  }
  SurveyToken token(TokenId id, Index begin, Index end) const {
    const std::string& piece = model_.tokenizer().vocabulary().piece(id);
    return {id,
            begin,
            end,
            piece == "[CLS]" && begin == end,
            piece == "[SEP]" && begin == end,
            begin != end && is_punctuation(piece)};
  }
  const MultiHead& attention(Index layer) const override { return model_.attention(layer); }

  LabModel model_;
};

/// Another source's weights with the attention matrices out of order.
class ShuffledSource : public DecoderSource {
 public:
  ShuffledSource(std::unique_ptr<DecoderSource> inner, bool shuffle, std::uint64_t seed)
      : inner_(std::move(inner)), shuffle_(shuffle), seed_(seed) {
    config_ = inner_->config(), tokenizer_ = inner_->share_tokenizer();
  }
  void check(const std::string& name, Index rows, Index columns) override {
    inner_->check(name, rows, columns);
  }
  void read(const std::string& name, Index rows, Index columns, float* to) override {
    inner_->read(name, rows, columns, to);
    if (!shuffle_ || rows == 0) return;
    for (const char* part : {".q.weight", ".k.weight", ".v.weight", ".o.weight"})
      if (name.ends_with(part)) {
        std::uint64_t mixed = seed_;
        for (const char c : name) mixed = mixed * 131 + static_cast<unsigned char>(c);
        shuffle_entries(to, rows * columns, mixed);
      }
  }
  void check_nothing_left() const override { inner_->check_nothing_left(); }

 private:
  std::unique_ptr<DecoderSource> inner_;
  bool shuffle_;
  std::uint64_t seed_;
};

class DecoderSubject : public SurveySubject {
 public:
  DecoderSubject(const std::string& path, int threads, bool shuffle, std::uint64_t seed)
      : ctx_({.threads = threads}),
        source_(open_decoder(path), shuffle, seed),
        model_(source_, {}, ctx_),
        c_(model_.config()) {
    require(source_.tokenizer() != nullptr, ErrorKind::bad_argument, kOp, path,
            ": has no tokenizer beside it, so texts cannot be read; put one there");
    const Index wide = c_.model_dim, q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
    for (Index i = 0; i < c_.layers; ++i) {
      const auto read = [&](const char* part, Index rows, Index columns) {
        Tensor t(DType::f32, {rows, columns});
        source_.read(text("layers.", i, '.', part, ".weight"), rows, columns, t.values<float>().data());
        parts_.push_back(std::move(t));
      };
      read("q", q, wide), read("k", kv, wide), read("v", kv, wide), read("o", wide, q);
      for (Index h = 0; h < c_.heads; ++h) out_norms_.emplace_back(gram_of(matrices(i, h).out));
    }
  }
  Index layers() const override { return c_.layers; }
  Index heads(Index) const override { return c_.heads; }
  bool causal() const override { return true; }
  ThreadPool& pool() override { return ctx_.pool(); }
  SurveyTokens read(const std::string& text, Index most) const override {
    const std::vector<TokenId> ids = source_.tokenizer()->encode(text, {.specials = false});
    SurveyTokens all;
    TokenId before = -1;
    Index place = 0;
    for (const TokenId id : ids) {
      if (static_cast<Index>(all.size()) == min_of(most, c_.positions)) {
        all.shortened = true;
        break;
      }
      const std::string_view bytes = source_.tokenizer()->bytes_after(before, id);
      all.push_back(
          {id, place, place + static_cast<Index>(bytes.size()), false, false, is_punctuation(bytes)});
      place += static_cast<Index>(bytes.size()), before = id;
    }
    return all;
  }
  SurveyTokens repeated(std::uint64_t seed, Index count) const override {
    SurveyTokens all;
    const TokenId begin = source_.tokenizer()->begin_token();
    if (begin >= 0) all.push_back({.id = begin});
    const Index low = min_of(c_.vocabulary / 8, 1000), room = c_.vocabulary - low;
    count = min_of(count, (c_.positions - 1) / 2);
    for (int turn = 0; turn < 2; ++turn)
      for (Index i = 0; i < count; ++i)
        all.push_back({static_cast<TokenId>(low + survey_draw(seed, i) % static_cast<std::uint32_t>(room)),
                       static_cast<Index>(all.size()), static_cast<Index>(all.size()) + 1});
    return all;
  }
  void run(std::span<const SurveyTokens> texts, bool values, const Look& look) override {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      DecoderStep step;
      step.look = [&](Index layer, const AnyView& q, const AnyView& k, const AnyView& v) {
        const LayerMaps maps = maps_of(layer, values, {q, k, v});
        look(layer, static_cast<Index>(i), std::span(&maps, 1));
      };
      run_one(texts[i], step);
    }
  }
  void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) override {
    DecoderStep step;
    step.parts = parts, step.see_rows = look;
    run_one(text, step);
  }
  HeadMatrices matrices(Index layer, Index head) const override {
    const Index d = c_.head_dim, kv = head / (c_.heads / c_.kv_heads);
    const auto part = [&](Index i) { return parts_[at(4 * layer + i)].view(); };
    return {rows_of(part(0), head * d, d), rows_of(part(1), kv * d, d), rows_of(part(2), kv * d, d),
            columns_of(part(3), head * d, d)};
  }
  SmallMatrix vocabulary_product() override {
    const auto read = [&](const char* name) {
      Tensor t(DType::f32, {c_.vocabulary, c_.model_dim});
      const_cast<ShuffledSource&>(source_).read(name, c_.vocabulary, c_.model_dim, t.values<float>().data());
      return t;
    };
    const Tensor embed = read("embed");
    if (c_.tied) return product_over(embed.view(), embed.view(), pool());
    return product_over(embed.view(), read("head").view(), pool());
  }

 private:
  void run_one(const SurveyTokens& tokens, DecoderStep& step) {
    const auto n = static_cast<Index>(tokens.size());
    if (n == 0) return;
    KvCache cache(model_.kv_shape(), {});
    const SequenceId id = cache.open();
    require(cache.reserve(id, n), ErrorKind::out_of_memory, kOp, "there is no room for a text of ", n,
            " tokens; give shorter ones, or fewer --tokens");
    std::vector<DecoderRow> rows;
    for (const SurveyToken& t : tokens) rows.push_back({id, t.id, false});
    model_.forward(rows, cache, step, ctx_);
  }
  /// Weights of all heads from q and k, as the layer's attention has them.
  struct HeadRows {
    const AnyView &q, &k, &v;
  };
  LayerMaps maps_of(Index layer, bool values, const HeadRows& rows) {
    const AnyView &q = rows.q, &k = rows.k, &v = rows.v;
    const Index n = q.size[1], group = c_.heads / c_.kv_heads, window = c_.window(layer);
    const double scale = c_.scale > 0 ? c_.scale : 1 / std::sqrt(static_cast<double>(c_.head_dim));
    const auto row = [](const AnyView& x, Index t, Index h) {
      return static_cast<const float*>(x.data) + t * x.step[1] + h * x.step[2];
    };
    weights_.assign(at(c_.heads * n * n), 0);
    LayerMaps m;
    m.heads = c_.heads, m.tokens = m.keys = n, m.weights = weights_.data();
    if (values) m.value_norm.resize(at(c_.heads)), m.score_rank.resize(at(c_.heads));
    pool().parallel_for(c_.heads, [&](Index h, int) {
      std::vector<double> score(at(n));
      for (Index i = 0; i < n; ++i) {
        const Index first = window > 0 ? max_of(0, i + 1 - window) : 0;
        double most = -1e300, sum = 0;
        for (Index j = first; j <= i; ++j) {
          double s = 0;
          for (Index d = 0; d < c_.head_dim; ++d)
            s += static_cast<double>(row(q, i, h)[d]) * static_cast<double>(row(k, j, h / group)[d]);
          s *= scale;
          if (c_.attention_softcap > 0) s = c_.attention_softcap * std::tanh(s / c_.attention_softcap);
          most = std::max(most, score[at(j)] = s);
        }
        for (Index j = first; j <= i; ++j) sum += score[at(j)] = std::exp(score[at(j)] - most);
        for (Index j = first; j <= i; ++j)
          weights_[at((h * n + i) * n + j)] = static_cast<float>(score[at(j)] / sum);
      }
      if (!values) return;
      const ScoreRows own_q{row(q, 0, h), n, q.step[1], c_.head_dim},
          own_k{row(k, 0, h / group), n, k.step[1], c_.head_dim},
          own_v{row(v, 0, h / group), n, v.step[1], c_.head_dim};
      m.value_norm[at(h)] = out_norms_[at(layer * c_.heads + h)].of(own_v);
      m.score_rank[at(h)] = score_rank_of(own_q, own_k);
    });
    return m;
  }

  Context ctx_;
  ShuffledSource source_;
  Decoder model_;
  const DecoderConfig& c_;
  std::vector<Tensor> parts_;  // q, k, v, o of every layer
  std::vector<RowNorms> out_norms_;
  std::vector<float> weights_;
};

bool is_encoder(const std::string& path) {
  if (!std::filesystem::is_directory(path) || !std::filesystem::exists(path + "/config.json")) return false;
  const JsonObject json = JsonObject::read(path + "/config.json", kOp);
  return json.has("architecture") || json.word("model_type", "") == "bert";
}

}  // namespace

std::uint32_t survey_draw(std::uint64_t seed, Index i) {
  return Philox::block(seed, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 7, 0})[0];
}

void shuffle_entries(float* values, Index count, std::uint64_t seed) {
  for (Index i = count - 1; i > 0; --i)
    std::swap(values[i], values[survey_draw(seed, i) % static_cast<std::uint32_t>(i + 1)]);
}

bool is_punctuation(std::string_view piece) {
  while (piece.starts_with(' ')) piece.remove_prefix(1);
  if (piece.empty()) return false;
  for (const std::string_view known : {"。", "，", "、", "？", "！", "；", "：", "“", "”", "（", "）"})
    if (piece == known) return true;
  return std::all_of(piece.begin(), piece.end(), [](char c) {
    return std::string_view(".,;:!?()[]{}\"'`-").find(c) != std::string_view::npos;
  });
}

std::unique_ptr<SurveySubject> open_subject(const std::string& path, int threads, bool shuffle,
                                            std::uint64_t seed, std::optional<AttentionPart> part) {
  if (std::filesystem::exists(path + "/bpe.txt"))
    return open_translator(path, threads, shuffle, seed, part.value_or(AttentionPart::source));
  require(part.value_or(AttentionPart::own) == AttentionPart::own, ErrorKind::bad_argument, kOp, path,
          ": the heads of its one stack are self-attention, part own; only a translator has others");
  if (is_encoder(path)) return std::make_unique<EncoderSubject>(path, threads, shuffle, seed);
  return std::make_unique<DecoderSubject>(path, threads, shuffle, seed);
}

}  // namespace headwise
