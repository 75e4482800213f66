#include "headwise/lab/figures/stack_subject.h"
#include "headwise/translation/translator.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";

/// One of the three attentions of a translator. Its encoder reads a text and the end, which is the [SEP] of
/// its sentences; its decoder reads a begin and the target, behind the tab of a text.
class TranslatorSubject : public StackSubject {
 public:
  TranslatorSubject(const std::string& folder, int threads, bool shuffle, std::uint64_t seed,
                    AttentionPart part)
      : StackSubject(threads), model_(Translator::load(folder)), part_(part) {
    open(stack().options().depth, shuffle, seed);
  }
  bool causal() const override { return part_ == AttentionPart::own; }
  bool cross() const override { return part_ == AttentionPart::cross; }

  SurveyTokens read(const std::string& text, Index most) const override {
    const std::size_t tab = text.find('\t');
    const std::string_view source = std::string_view(text).substr(0, tab);
    if (part_ == AttentionPart::source) return encoded(source, most);
    require(tab != text.npos, ErrorKind::bad_argument, kOp,
            "the decoder of a translator reads a target, and a text has none; give lines of a source, a tab "
            "and its translation");
    const SurveyTokens all = encoded(source, most);
    SurveyTokens tokens = decoded(std::string_view(text).substr(tab + 1), most);
    for (SurveyToken& t : tokens)
      if (!t.special()) t.begin += static_cast<Index>(tab) + 1, t.end += static_cast<Index>(tab) + 1;
    tokens.source = all, tokens.shortened |= all.shortened;
    return tokens;
  }
  SurveyTokens repeated(std::uint64_t seed, Index count) const override {
    count = min_of(count, (model_.config().max_tokens - 1) / 2);
    SurveyTokens drawn, all;
    for (int turn = 0; turn < 2; ++turn)
      for (Index i = 0; i < count; ++i)
        drawn.push_back({static_cast<TokenId>(survey_draw(seed, i) %
                                              static_cast<std::uint32_t>(model_.bpe().vocabulary())),
                         std::ssize(drawn), std::ssize(drawn) + 1});
    const SurveyToken end = {.id = kAdded, .sep = true};
    if (part_ != AttentionPart::source) all.push_back({.id = kAdded});
    all.insert(all.end(), drawn.begin(), drawn.end());
    if (part_ == AttentionPart::source) all.push_back(end);
    drawn.push_back(end);
    all.source = drawn;
    return all;
  }
  void run(std::span<const SurveyTokens> texts, bool values, const Look& look) override {
    Taps taps;
    taps.of = part_, taps.rows = values && !cross();
    forward(texts, [&](Call& call) { call.taps = &taps; });
    show(taps, texts.size(), look);
  }
  void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) override {
    // Rows of the encoder come first: those that enter it, and those behind each of its layers.
    const Index before = model_.model().source_stack()->options().depth + 1;
    Index seen = 0;
    const RowLook own = [&](Index behind, const AnyView& rows) {
      if ((seen++ < before) == (part_ == AttentionPart::source)) look(behind, rows);
    };
    forward(std::span(&text, 1), [&](Call& call) { call.parts = parts, call.see_rows = &own; });
  }
  SmallMatrix vocabulary_product() override {
    const auto table = [&](const char* name) -> AnyView { return model_.params().find(name).value(); };
    const AnyView in = table(part_ == AttentionPart::own ? "embed.table" : "source_embed.table"),
                  out = table(part_ == AttentionPart::source ? "source_embed.table" : "embed.table");
    return product_over(in, out, pool());
  }

 private:
  static constexpr TokenId kAdded = -1;  // begin and end, which the model puts there itself

  SurveyTokens pieces(std::string_view text, Index most) const {
    SurveyTokens all;
    Index place = 0;
    for (const std::int32_t id : model_.bpe().encode(text)) {
      if (std::ssize(all) == most) {
        all.shortened = true;
        break;
      }
      const std::string& bytes = model_.bpe().bytes(id);
      const auto end = place + std::ssize(bytes);
      all.push_back({id, place, end, false, false, is_punctuation(bytes)});
      place = end;
    }
    return all;
  }
  SurveyTokens encoded(std::string_view text, Index most) const {
    SurveyTokens all = pieces(text, min_of(most, model_.config().max_tokens) - 1);
    all.push_back({.id = kAdded, .sep = true});
    return all;
  }
  SurveyTokens decoded(std::string_view text, Index most) const {
    SurveyTokens all = pieces(text, min_of(most, model_.config().max_tokens) - 1);
    all.insert(all.begin(), SurveyToken{.id = kAdded});
    return all;
  }
  const Stack& stack() const {
    return part_ == AttentionPart::source ? *model_.model().source_stack() : model_.model().stack();
  }
  const MultiHead& attention(Index layer) const override {
    const Block& block = stack().block(layer);
    return cross() ? *block.cross_attention() : *block.self_attention();
  }
  void forward(std::span<const SurveyTokens> texts, const std::function<void(Call&)>& before) {
    std::vector<PairTokens> pairs;
    for (const SurveyTokens& t : texts) {
      const bool encoder = part_ == AttentionPart::source;
      const std::vector<SurveyToken>& source = encoder ? t : t.source;
      PairTokens& pair = pairs.emplace_back();
      for (const SurveyToken& token : source)
        if (token.id != kAdded) pair.source.push_back(token.id);
      for (std::size_t i = 0; !encoder && i < t.size(); ++i)
        if (t[i].id != kAdded) pair.target.push_back(t[i].id);
    }
    model_.next_scores(pairs, session_, before);
  }

  mutable Translator model_;
  AttentionPart part_;
};

}  // namespace

std::unique_ptr<SurveySubject> open_translator(const std::string& folder, int threads, bool shuffle,
                                               std::uint64_t seed, AttentionPart part) {
  return std::make_unique<TranslatorSubject>(folder, threads, shuffle, seed, part);
}

}  // namespace headwise
