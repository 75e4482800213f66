#include "headwise/analysis/report/report_answers.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "headwise/analysis/report/shown_text.h"
#include "headwise/intent/training/evaluation.h"

namespace headwise {
namespace {

constexpr Index kTokenChars = 60;
constexpr const char* kOutOfScope = "oos";  // the label of rows that belong to no intent

/// The heaviest keys of a row with their places, in the order of the text; ties go to the earlier.
void add_heaviest(const std::vector<unsigned char>& row, std::vector<unsigned char>& to) {
  std::vector<std::size_t> keys;
  for (std::size_t j = 0; j < row.size(); ++j)
    if (row[j] > 0) keys.push_back(j);
  std::stable_sort(keys.begin(), keys.end(), [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
  keys.resize(std::min(keys.size(), static_cast<std::size_t>(kKeptKeys)));
  std::sort(keys.begin(), keys.end());
  to.push_back(static_cast<unsigned char>(keys.size()));
  for (const std::size_t j : keys)
    to.insert(to.end(), {static_cast<unsigned char>(j & 255), static_cast<unsigned char>(j >> 8), row[j]});
}

/// Weights of the first tokens of the first chunk, head by head; of two maps of a head the first.
void add_weights(const std::vector<Tap>& taps, Index layer, Index head, Index heads, Index tokens,
                 std::vector<unsigned char>& to) {
  for (const Tap& t : taps) {
    if (t.block != layer || t.sequence != 0) continue;
    const Index map = head * (t.heads / heads);
    std::vector<unsigned char> row(static_cast<std::size_t>(tokens));
    for (Index i = 0; i < tokens; ++i) {
      for (Index j = 0; j < tokens; ++j)
        row[static_cast<std::size_t>(j)] =
            static_cast<unsigned char>(std::lround(255 * std::sqrt(std::clamp(t.at(map, i, j), 0.0f, 1.0f))));
      if (tokens <= kDenseTokens)
        to.insert(to.end(), row.begin(), row.end());
      else
        add_heaviest(row, to);
    }
  }
}

/// Tokens as the text has them, [CLS] and [SEP] by their pieces.
void add_token(DrawnSentence& s, std::string_view text, TextSpan span, const std::string& piece,
               const std::vector<bool>* hide, bool inside) {
  s.words.push_back(s.words.empty() ? 0 : s.words.back() + (inside ? 0 : 1));
  if (span.begin == span.end) s.special.push_back(static_cast<Index>(s.tokens.size()));
  s.tokens.push_back(span.begin == span.end ? shown(piece, kTokenChars)
                                            : shown(text, span, hide, kTokenChars));
}

}  // namespace

double Answers::Label::f1() const {
  const double all = 2.0 * static_cast<double>(right) + static_cast<double>(missed + extra);
  return all > 0 ? 2.0 * static_cast<double>(right) / all : 0;
}

Answers judge_answers(const Recognizer& r, const Corpus& corpus, Session& session) {
  Answers a;
  std::map<std::string, Index> number;
  const auto label = [&](const std::string& name) {
    const auto [at, added] = number.emplace(name, static_cast<Index>(a.labels.size()));
    if (added) a.labels.push_back({.name = name});
    return at->second;
  };
  std::vector<std::string> texts;
  for (const std::string& l : r.config().labels) label(l);
  for (const Utterance& u : corpus.rows) {
    texts.push_back(u.text);
    if (!is_out_of_scope(u, r.config().multi_label, kOutOfScope))
      for (const std::string& l : u.labels) label(l);
  }
  a.given = r.predict(texts, session);
  const auto none = static_cast<Index>(a.labels.size());
  a.labels.push_back({.name = "out of scope"});
  for (std::size_t u = 0; u < texts.size(); ++u) {
    std::set<Index> wanted, given(a.given[u].labels.begin(), a.given[u].labels.end());
    if (!is_out_of_scope(corpus.rows[u], r.config().multi_label, kOutOfScope))
      for (const std::string& l : corpus.rows[u].labels) wanted.insert(label(l));
    std::vector<Index> missed, extra;
    std::set_difference(wanted.begin(), wanted.end(), given.begin(), given.end(), std::back_inserter(missed));
    std::set_difference(given.begin(), given.end(), wanted.begin(), wanted.end(), std::back_inserter(extra));
    for (const Index l : wanted)
      if (given.count(l)) ++a.counts[{l, l}], ++a.labels[static_cast<std::size_t>(l)].right;
    for (const Index l : missed) ++a.labels[static_cast<std::size_t>(l)].missed;
    for (const Index l : extra) ++a.labels[static_cast<std::size_t>(l)].extra;
    if (missed.empty() && extra.empty()) {
      ++a.right;
      continue;
    }
    a.wrong.push_back(static_cast<Index>(u));
    // Nothing was given in its place: it was missed beside what was given, or refused.
    if (extra.empty()) extra.assign(given.begin(), given.end());
    if (missed.empty()) missed.assign(wanted.begin(), wanted.end());
    if (extra.empty()) extra.push_back(none);
    if (missed.empty()) missed.push_back(none);
    for (const Index m : missed)
      for (const Index e : extra) ++a.counts[{m, e}];
  }
  std::stable_sort(a.wrong.begin(), a.wrong.end(), [&](Index x, Index y) {
    return a.given[static_cast<std::size_t>(x)].confidence > a.given[static_cast<std::size_t>(y)].confidence;
  });
  return a;
}

std::vector<Trusted> trusted_answers(const Answers& a) {
  std::vector<Trusted> all;
  for (const Prediction& p : a.given)
    if (!p.out_of_scope) all.push_back({p.confidence, true});
  std::vector<Index> place(a.given.size(), -1);  // among those that were answered
  Index answered = 0;
  for (std::size_t u = 0; u < a.given.size(); ++u)
    if (!a.given[u].out_of_scope) place[u] = answered++;
  for (const Index u : a.wrong)
    if (const Index at = place[static_cast<std::size_t>(u)]; at >= 0)
      all[static_cast<std::size_t>(at)].right = false;
  return all;
}

DrawnSentence draw(const Recognizer& r, const std::string& text, Index most, const ReportOptions& o,
                   Session& session) {
  const Explanation e = explain_text(r, text, session, {.weights = true});
  const std::vector<bool> hide = o.redact ? private_bytes(text) : std::vector<bool>{};
  DrawnSentence s;
  s.text = shown_sentence(text, o.redact);
  s.given = shown(r.config().labels[static_cast<std::size_t>(e.label)], kTokenChars);
  const Index room = e.taps.empty() ? o.tokens : min_of(o.tokens, e.taps[0].q_tokens);
  const Index tokens = min_of(room, static_cast<Index>(e.tokens.size()));
  Index word = -2;
  for (Index t = 0; t < tokens; ++t) {
    const ExplainedToken& token = e.tokens[static_cast<std::size_t>(t)];
    const bool inside = token.word >= 0 && token.word == word;
    add_token(s, text, token.span, token.piece, o.redact ? &hide : nullptr, inside);
    word = token.word;
    s.importance.push_back(token.importance);
  }
  if (e.taps.empty() || most == kNoHead) return s;
  // Heads that cannot be parted have a map each all the same.
  const Index heads = drawn_heads(r);
  const auto importance = [&](Index n) {
    return e.heads > 0 ? e.head_importance[static_cast<std::size_t>(n)] : 0;
  };
  std::vector<Index> order;
  for (Index n = 0; n < e.layers * heads; ++n)
    if (n % heads < drawn_heads(r, n / heads)) order.push_back(n);
  if (most > 0) {
    std::stable_sort(order.begin(), order.end(),
                     [&](Index x, Index y) { return std::abs(importance(x)) > std::abs(importance(y)); });
    order.resize(static_cast<std::size_t>(min_of(most, static_cast<Index>(order.size()))));
  }
  for (const Index n : order) {
    s.heads.push_back({n / heads, n % heads, importance(n)});
    add_weights(e.taps, n / heads, n % heads, drawn_heads(r, n / heads), tokens, s.weights);
  }
  return s;
}

DrawnSentence draw(const TextEncoder& encoder, const std::string& text, const ReportOptions& o,
                   Session& session) {
  const Encoding e =
      encoder.tokenizer().encode(text, {.around = true, .most = min_of(o.tokens, encoder.max_tokens())});
  DrawnSentence s;
  s.text = shown_sentence(text, o.redact), s.model = shown(o.encoder_name, kTokenChars);
  const auto tokens = static_cast<Index>(e.ids.size());
  const WordPiece& pieces = encoder.tokenizer();
  for (std::size_t t = 0; t < e.ids.size(); ++t) {
    const std::string piece(pieces.vocabulary().piece(e.ids[t]));
    add_token(s, text, e.spans[t], piece, nullptr, piece.starts_with(pieces.options().inside));
  }
  Taps taps;
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.taps = &taps;
  encoder.model().forward({.ids = ConstView::packed(e.ids.data(), DType::i32, {tokens}),
                           .sequences = {.batch = 1, .tokens = tokens}},
                          call, nullptr);
  for (const Tap& tap : taps.all)
    for (Index h = 0; h < tap.heads; ++h) {
      s.heads.push_back({tap.block, h, 0});
      add_weights(taps.all, tap.block, h, tap.heads, tokens, s.weights);
    }
  return s;
}

}  // namespace headwise
