#include "headwise/lab/decoder/token_answers.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "headwise/base/context.h"
#include "headwise/decoder/forward/memory.h"
#include "headwise/lab/decoder/lab_decoder.h"
#include "headwise/model/json_object.h"
#include "headwise/translation/translator.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "lab";
constexpr Index kMostTokens = Index{1} << 16;  // of one forward
using Rows = std::vector<std::vector<float>>;

bool is_translator(const std::string& path) {
  return std::filesystem::exists(path + "/bpe.txt") && std::filesystem::exists(path + "/config.json");
}

std::vector<float> probabilities(std::span<const float> scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const float s : scores) sum += std::exp(static_cast<double>(s) - most);
  std::vector<float> p;
  for (const float s : scores) p.push_back(static_cast<float>(std::exp(static_cast<double>(s) - most) / sum));
  return p;
}

class DecoderModel : public TokenModel {
 public:
  DecoderModel(const std::string& path, int threads)
      : ctx_({.threads = threads}), source_(open_decoder(path)), model_(*source_, {}, ctx_) {
    require(source_->tokenizer() != nullptr, ErrorKind::bad_argument, kOp, path,
            ": has no tokenizer beside it, so texts cannot be read; put one there");
  }
  Index heads(AttentionPart part, Index layer) const override {
    const DecoderConfig& c = model_.config();
    const bool there = part == AttentionPart::own || (part == AttentionPart::cross && c.cross);
    return there && layer < c.layers ? c.heads : 0;
  }
  Rows answers(const TokenTexts& t, const HeadChanges& c, const Look* look) override {
    require(t.targets.empty(), ErrorKind::bad_argument, kOp,
            "a decoder goes on with its texts; leave the targets out");
    require(t.states.given() == model_.config().cross, ErrorKind::bad_argument, kOp,
            model_.config().cross ? "the heads look at states of an encoder; give them"
                                  : "the model has no cross-attention; leave the states out");
    check_changes(c, [this](AttentionPart part, Index layer) { return heads(part, layer); });
    std::vector<std::vector<TokenId>> texts;
    for (const std::string& one : t.texts) {
      texts.push_back(source_->tokenizer()->encode(one, {.specials = model_.config().cross}));
      require(!texts.back().empty(), ErrorKind::bad_argument, kOp,
              "a text has no token; give texts with words");
    }
    std::optional<DecoderMemory> memory;
    if (t.states.given()) memory.emplace(model_, t.states, ctx_);
    Rows all;
    // Pairs are places of one text, so each has a run of its own.
    const std::size_t each = c.pairs.empty() ? texts.size() : 1;
    for (std::size_t i = 0; i < texts.size(); i += each)
      run(std::span(texts).subspan(i, each), c, look, memory ? &*memory : nullptr, all);
    return all;
  }

 private:
  /// Which pairs of a layer stay open; none where all do.
  std::map<std::pair<AttentionPart, Index>, Mask> opened(const HeadChanges& c, Index tokens, Index states) {
    std::map<std::pair<AttentionPart, Index>, std::vector<HeadPair>> by_layer;
    for (const HeadPair& p : c.pairs) by_layer[{p.part, p.head.layer}].push_back(p);
    std::map<std::pair<AttentionPart, Index>, Mask> masks;
    for (const auto& [of, pairs] : by_layer) {
      const Index keys = of.first == AttentionPart::cross ? states : tokens, heads = model_.config().heads;
      const Tensor bias = pairs_bias(pairs, {heads, tokens, keys});
      std::vector<std::uint8_t> open;
      for (const float b : bias.values<float>()) open.push_back(b == 0 ? 1 : 0);
      masks.emplace(of, Mask::dense(AnyView::packed(open.data(), DType::u8, {heads, tokens, keys})));
    }
    return masks;
  }
  void run(std::span<const std::vector<TokenId>> texts, const HeadChanges& c, const Look* look,
           const DecoderMemory* memory, Rows& to) {
    Index tokens = 0;
    for (const auto& t : texts) tokens += std::ssize(t);
    require(tokens <= kMostTokens, ErrorKind::unsupported, kOp, "the texts have ", tokens,
            " tokens together, more than the ", kMostTokens, " of one run; ask for fewer at a time");
    KvCache cache(model_.kv_shape(), {});
    std::vector<DecoderRow> rows;
    for (const auto& t : texts) {
      const SequenceId id = cache.open();
      require(cache.reserve(id, std::ssize(t)), ErrorKind::out_of_memory, kOp,
              "there is no room for a text of ", t.size(), " tokens; give shorter ones");
      for (const TokenId token : t) rows.push_back({id, token, false, memory});
      rows.back().logits = true;
    }
    const auto masks = opened(c, tokens, memory ? memory->tokens() : 0);
    DecoderStep step;
    step.edit = [&](AttentionPart part, Index layer, const AnyView& y) {
      if (look) (*look)(part, layer, y);
      apply_changes(c, part, layer, model_.config().heads, y);
    };
    step.open = [&](AttentionPart part, Index layer) {
      const auto found = masks.find({part, layer});
      return found == masks.end() ? nullptr : &found->second;
    };
    model_.forward(rows, cache, step, ctx_);
    for (std::size_t i = 0; i < texts.size(); ++i)
      to.push_back(probabilities(step.logits(static_cast<Index>(i))));
  }

  Context ctx_;
  std::unique_ptr<DecoderSource> source_;
  Decoder model_;
};

class TranslatorModel : public TokenModel {
 public:
  TranslatorModel(const std::string& path, int threads)
      : session_({.threads = threads}), model_(Translator::load(path)) {}
  Index heads(AttentionPart part, Index layer) const override {
    const MultiHead* const a = attention(part, layer);
    return a ? a->head_count() : 0;
  }
  Rows answers(const TokenTexts& t, const HeadChanges& c, const Look* look) override {
    require(!t.states.given(), ErrorKind::bad_argument, kOp,
            "a translator reads its source itself; leave the states out");
    require(t.targets.empty() || t.targets.size() == t.texts.size(), ErrorKind::bad_argument, kOp, "got ",
            t.texts.size(), " texts and ", t.targets.size(), " targets; give as many, or none");
    check_changes(c, [this](AttentionPart part, Index layer) { return heads(part, layer); });
    std::vector<PairTokens> pairs;
    for (std::size_t i = 0; i < t.texts.size(); ++i)
      pairs.push_back(model_.encode(t.texts[i], t.targets.empty() ? "" : t.targets[i]));
    Rows all;
    const std::size_t each = c.pairs.empty() ? pairs.size() : 1;
    for (std::size_t i = 0; i < pairs.size(); i += each) run(std::span(pairs).subspan(i, each), c, look, all);
    return all;
  }

 private:
  const MultiHead* attention(AttentionPart part, Index layer) const {
    const Stack* const stack =
        part == AttentionPart::source ? model_.model().source_stack() : &model_.model().stack();
    if (layer >= stack->options().depth) return nullptr;
    const Block& block = stack->block(layer);
    return part == AttentionPart::cross ? block.cross_attention() : block.self_attention();
  }
  Tensor bias_of(const HeadChanges& c, const PairTokens& pair) const {
    if (c.pairs.empty()) return {};
    const AttentionPart part = c.pairs[0].part;
    const MultiHead& a = *attention(part, c.pairs[0].head.layer);
    const Index maps = maps_of_head(a);
    const Index source = std::ssize(pair.source) + 1, target = std::ssize(pair.target) + 1;
    return pairs_bias(c.pairs, {a.head_count(), part == AttentionPart::source ? source : target,
                                part == AttentionPart::own ? target : source, maps});
  }
  void run(std::span<const PairTokens> pairs, const HeadChanges& c, const Look* look, Rows& to) {
    const Tensor bias = bias_of(c, pairs[0]);
    const Call* running = nullptr;
    const HeadEdit edit = [&](Index block, const AnyView& y) {
      if (look) (*look)(running->running, block, y);
      apply_changes(c, running->running, block, heads(running->running, block), y);
    };
    const auto before = [&](Call& call) {
      running = &call, call.edit_heads = &edit;
      if (c.pairs.empty()) return;
      call.score_bias = bias.view();
      call.asked = c.pairs[0].part, call.bias_block = c.pairs[0].head.layer;
    };
    for (const auto& scores : model_.next_scores(pairs, session_, before))
      to.push_back(probabilities(scores));
  }

  Session session_;
  Translator model_;
};

}  // namespace

bool holds_token_model(const std::string& path) {
  return is_translator(path) || path.ends_with("model.bin") || holds_decoder(path);
}

std::unique_ptr<TokenModel> open_token_model(const std::string& path, int threads) {
  if (is_translator(path)) return std::make_unique<TranslatorModel>(path, threads);
  return std::make_unique<DecoderModel>(path, threads);
}

}  // namespace headwise
