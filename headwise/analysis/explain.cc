#include "headwise/analysis/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "headwise/text/word_breaks.h"

namespace headwise {
namespace {

constexpr const char* kOp = "explain";

/// ds / dlogits of s = ln p / (1 - p): a sigmoid's s is its logit; softmax: s = x_l - ln sum of the others'
/// exp.
void slope_of_odds(const Recognizer& r, const Prediction& p, Index label, const AnyView& to) {
  fill_zeros(to);
  store_double(to.data, to.dtype, label, 1);
  if (!r.config().one_class()) return;
  std::vector<double> all(p.probability.begin(), p.probability.end());
  if (to.size[1] > static_cast<Index>(all.size()))  // what is left to 1 has the class that is no label
    all.push_back(std::max(0.0, 1 - std::accumulate(all.begin(), all.end(), 0.0)));
  double others = 0;
  for (std::size_t l = 0; l < all.size(); ++l)
    if (static_cast<Index>(l) != label) others += all[l];
  for (std::size_t l = 0; l < all.size(); ++l)
    if (static_cast<Index>(l) != label && others > 0)
      store_double(to.data, to.dtype, static_cast<Index>(l), -all[l] / others);
}

/// s of one text: see slope_of_odds.
double odds(const Recognizer& r, const AnyView& logits, Index text, Index label) {
  const auto x = [&](Index l) {
    return load_double(logits.data, logits.dtype, text * logits.step[0] + l * logits.step[1]);
  };
  if (!r.config().one_class()) return x(label);
  double most = -std::numeric_limits<double>::infinity(), others = 0;
  for (Index l = 0; l < logits.size[1]; ++l)
    if (l != label) most = std::max(most, x(l));
  for (Index l = 0; l < logits.size[1]; ++l)
    if (l != label) others += std::exp(x(l) - most);
  return x(label) - most - std::log(others);
}

void look_at(const std::atomic<bool>* stop) {
  require(!stop || !stop->load(), ErrorKind::bad_argument, kOp, "stopped by its caller; ask again");
}

/// Gives every token its piece and the number of its word; returns how many words there are.
Index add_tokens(const Recognizer& r, std::string_view text, const Encoding& whole,
                 std::vector<ExplainedToken>& tokens) {
  const std::string& inside = r.tokenizer().options().inside;
  const std::vector<Index> breaks = word_breaks(text);
  const auto place = [&](Index byte) { return std::upper_bound(breaks.begin(), breaks.end(), byte); };
  Index words = 0;
  for (std::size_t t = 0; t < whole.ids.size(); ++t) {
    ExplainedToken token{.span = whole.spans[t], .piece = r.tokenizer().vocabulary().piece(whole.ids[t])};
    const bool behind = t > 0 && tokens.back().word >= 0 && tokens.back().span.end == token.span.begin;
    const bool goes_on = behind && (token.piece.starts_with(inside) ||
                                    place(tokens.back().span.begin) == place(token.span.begin));
    if (token.span.begin != token.span.end) token.word = goes_on ? words - 1 : words++;
    tokens.push_back(std::move(token));
  }
  return words;
}

/// What is hidden word by word: the text, the score of its label, and how many words it has.
struct Told {
  const Encoding& whole;
  double s = 0;
  Index label = 0, words = 0;
  bool given = false;
};

bool gives(const Prediction& p, Index label) {
  return std::find(p.labels.begin(), p.labels.end(), label) != p.labels.end();
}

/// Hides words, some at a time, and gives their tokens what s loses.
void hide_words(const Recognizer& r, const Told& told, const std::atomic<bool>* stop, Session& session,
                std::vector<ExplainedToken>& tokens) {
  const Encoding& whole = told.whole;
  const double s = told.s;
  const Index label = told.label, words = told.words;
  constexpr Index kMostUnits = 128, kLeastUnits = 8, kMostTokens = Index{1} << 15, kGroupTokens = 2048;
  const auto length = static_cast<Index>(whole.ids.size());
  const Index units = min_of(words, std::clamp(kMostTokens / length, kLeastUnits, kMostUnits));
  const Vocabulary& vocabulary = r.tokenizer().vocabulary();
  const TokenId known = vocabulary.find("[MASK]"), hidden = known >= 0 ? known : r.tokenizer().unknown();
  const auto unit_of = [&](const ExplainedToken& t) { return t.word < 0 ? -1 : t.word * units / words; };
  for (Index first = 0; first < units;) {
    TextBatch batch;
    Index unit = first;
    for (; unit < units && static_cast<Index>(batch.ids.size()) < kGroupTokens; ++unit) {
      Encoding without = whole;
      for (std::size_t t = 0; t < tokens.size(); ++t)
        if (unit_of(tokens[t]) == unit) without.ids[t] = hidden;
      r.add_to(batch, without);
    }
    look_at(stop);
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory};
    const AnyView logits = r.forward(batch, call, nullptr);
    for (Index u = first; u < unit; ++u) {
      const auto pieces = std::count_if(tokens.begin(), tokens.end(),
                                        [&](const ExplainedToken& t) { return unit_of(t) == u; });
      const double lost = s - odds(r, logits, u - first, label);
      const bool frees = !told.given && gives(r.judge(logits, u - first), label);
      for (ExplainedToken& t : tokens)
        if (unit_of(t) == u) t.importance = lost / static_cast<double>(pieces), t.frees = frees;
    }
    first = unit;
  }
}

/// Null: there is none.
const MultiHead* attention_of(const Recognizer& r) {
  return r.config().encoder.depth > 0 ? r.encoder().stack().block(0).self_attention() : nullptr;
}

Explanation explain_whole(const Recognizer& r, std::string_view text, Session& session,
                          const ExplainTextOptions& options);

/// Of a recogniser that cuts: the span that said the label, or the surest one; its words alone are read.
Explanation explain_span(const Recognizer& r, std::string_view text, Session& session,
                         ExplainTextOptions options) {
  Prediction p = r.predict(std::string(text), session);
  const auto surer = [](const IntentSpan& a, const IntentSpan& b) { return a.probability < b.probability; };
  auto said = std::max_element(p.spans.begin(), p.spans.end(), surer);
  if (options.label >= 0)
    said = std::find_if(p.spans.begin(), p.spans.end(),
                        [&](const IntentSpan& s) { return s.label == options.label; });
  TextSpan span{0, static_cast<Index>(text.size())};  // a label that was not given: in all words
  if (said != p.spans.end()) span = said->span, options.label = said->label;
  Explanation e = explain_whole(
      r, text.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin)),
      session, options);
  for (ExplainedToken& t : e.tokens)
    if (t.word >= 0) t.span.begin += span.begin, t.span.end += span.begin;
  e.prediction = std::move(p);
  e.given = gives(e.prediction, e.label);
  return e;
}

/// Whether the label is given, and what it would have needed.
void tell_need(const RecognizerConfig& c, Explanation& e) {
  const std::vector<float>& p = e.prediction.probability;
  const auto at = [&](Index l) { return static_cast<double>(p[static_cast<std::size_t>(l)]); };
  e.given = gives(e.prediction, e.label);
  e.probability = at(e.label);
  e.needed = c.one_class() ? 0 : c.threshold;
  if (c.one_class())
    for (Index l = 0; l < static_cast<Index>(p.size()); ++l)
      if (l != e.label && (e.rival < 0 || at(l) > at(e.rival))) e.rival = l;
  if (e.rival >= 0) e.needed = at(e.rival);
  if (e.prediction.out_of_scope) e.needed = std::max(e.needed, c.out_of_scope);
}

}  // namespace

double Explanation::lacks() const {
  const auto log_odds = [](double p) {
    const double inside = std::clamp(p, 1e-12, 1 - 1e-12);
    return std::log(inside / (1 - inside));
  };
  return given ? 0 : std::max(0.0, log_odds(needed) - log_odds(probability));
}

std::vector<WordWeight> words_of(const Explanation& e) {
  std::vector<WordWeight> words;
  for (const ExplainedToken& t : e.tokens) {
    if (t.word < 0) continue;  // [CLS] and [SEP]
    if (t.word == static_cast<Index>(words.size())) words.push_back({t.span, 0, t.frees});
    words.back().span.end = t.span.end, words.back().importance += t.importance;
  }
  return words;
}

Index gated_heads(const Recognizer& r) { return r.encoder().stack().most_heads(); }

Index gated_heads(const Recognizer& r, Index layer) {
  const MultiHead* attention = r.encoder().stack().block(layer).self_attention();
  return attention ? attention->head_count() : 0;
}

bool mixes_heads(const Recognizer& r) {
  const MultiHead* attention = attention_of(r);
  return attention && attention->head().spec().mixes();
}

Index drawn_heads(const Recognizer& r) {
  const MultiHead* attention = attention_of(r);
  return gated_heads(r) > 0 || !attention ? gated_heads(r) : attention->head().spec().v.heads;
}

Index drawn_heads(const Recognizer& r, Index layer) {
  return gated_heads(r) > 0 ? gated_heads(r, layer) : drawn_heads(r);
}

Explanation explain_text(const Recognizer& r, std::string_view text, Session& session,
                         const ExplainTextOptions& options) {
  const auto labels = static_cast<Index>(r.config().labels.size());
  require(options.label >= -1 && options.label < labels, ErrorKind::bad_argument, kOp, "label ",
          options.label, " is asked but the recogniser has ", labels, "; give 0 to ", labels - 1,
          ", or -1 for the best");
  return r.config().cuts.on ? explain_span(r, text, session, options)
                            : explain_whole(r, text, session, options);
}

namespace {

Explanation explain_whole(const Recognizer& r, std::string_view text, Session& session,
                          const ExplainTextOptions& options) {
  Explanation e;
  e.layers = r.config().encoder.depth, e.heads = gated_heads(r);
  const Encoding whole = r.encode(text);
  TextBatch batch;
  r.add_to(batch, whole);
  const auto rows = static_cast<Index>(batch.ids.size());
  Taps taps;
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  if (options.weights) call.taps = &taps;
  AnyView slopes;
  if (e.heads > 0) {
    call.dhead_gates = slopes = call.memory.take(DType::f64, {e.layers, rows, e.heads});
    fill_zeros(slopes);  // layers may have fewer heads
  }
  Recognizer::Saved saved;
  const AnyView logits = r.forward(batch, call, &saved);
  e.prediction = r.judge(logits, 0);
  const std::vector<float>& p = e.prediction.probability;
  e.label = options.label >= 0 ? options.label : std::max_element(p.begin(), p.end()) - p.begin();

  const AnyView dlogits = call.memory.take(logits.dtype, {1, logits.size[1]});
  slope_of_odds(r, e.prediction, e.label, dlogits);
  look_at(options.stop);
  r.backward(dlogits, call, saved);
  for (Index i = 0; i < e.layers; ++i)
    for (Index h = 0; h < e.heads; ++h) {
      double sum = 0;
      for (Index t = 0; t < rows; ++t)
        sum += static_cast<const double*>(slopes.data)[(i * rows + t) * e.heads + h];
      e.head_importance.push_back(sum);
    }

  tell_need(r.config(), e);
  const double s = odds(r, logits, 0, e.label);
  const Index words = add_tokens(r, text, whole, e.tokens);
  if (mixes_heads(r)) to_shares(taps);
  e.taps = std::move(taps.all);
  hide_words(r, {whole, s, e.label, words, e.given}, options.stop, session, e.tokens);
  return e;
}

}  // namespace
}  // namespace headwise
