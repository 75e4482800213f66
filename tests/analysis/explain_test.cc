// explain_text: heads against finite differences, words against the text without them, chunks, threads.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/analysis/explain.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "headwise/text/word_breaks.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;

Vocabulary letters() {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) pieces.push_back(std::string("##") + c);
  return Vocabulary(pieces);
}

Recognizer small(std::string heads = "mha:heads=2,dim=4", bool multi_label = false, bool norm_first = true) {
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 8, c.encoder.depth = 2, c.encoder.heads = std::move(heads);
  c.encoder.norm_first = norm_first;
  c.labels = {"x", "y", "z"}, c.multi_label = multi_label;
  c.chunk_tokens = 12, c.chunk_overlap = 4;
  c.ngrams.buckets = 0;  // a token's input is its row of the table
  return Recognizer(c, letters(), 3, DType::f64);
}

double odds(const Recognizer& r, const InputView& logits, Index label) {
  if (r.config().multi_label) return value(logits, label);
  double others = 0;
  for (Index l = 0; l < 3; ++l)
    if (l != label) others += std::exp(value(logits, l));
  return value(logits, label) - std::log(others);
}

/// The log-odds of a label under gates.
double odds(const Recognizer& r, const std::string& text, Index label, const InputView& gates) {
  Session session;
  const TextBatch batch = r.batch(std::span(&text, 1));
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.head_gates = gates;
  return odds(r, r.forward(batch, call, nullptr), label);
}

/// Whether the label is given to the text with the tokens of a word hidden, thresholds as for the scope 0.
bool freed_by_hiding(const Recognizer& r, const std::string& text, TextSpan word, Index label) {
  Encoding hidden = r.encode(text);
  for (std::size_t t = 0; t < hidden.ids.size(); ++t)
    if (hidden.spans[t].begin != hidden.spans[t].end && hidden.spans[t].begin >= word.begin &&
        hidden.spans[t].end <= word.end)
      hidden.ids[t] = r.tokenizer().vocabulary().find("[MASK]");
  TextBatch batch;
  r.add_to(batch, hidden);
  Session session;
  Call call{.ctx = session.ctx, .memory = session.memory};
  Prediction p = r.judge(r.forward(batch, call, nullptr), 0);
  RecognizerConfig open = r.config();
  open.out_of_scope = 0;
  decide(open, p);
  return std::find(p.labels.begin(), p.labels.end(), label) != p.labels.end();
}

TEST(Explain, HeadsAreWorthTheSlopeOfTheirGate) {
  for (const bool multi_label : {false, true})
    for (const std::string heads : {"mha:heads=2,dim=4", "mha:heads=2,dim=4+gated:source=input,act=silu"}) {
      const Recognizer r = small(heads, multi_label);
      Session session;
      const std::string text = "pay the rent of may at noon";  // two chunks
      const Explanation e = explain_text(r, text, session);
      ASSERT_EQ(e.layers, 2);
      ASSERT_EQ(e.heads, 2);
      Tensor gates(DType::f64, {2, 2});
      for (Index i = 0; i < 4; ++i) {
        const auto at = [&](double step) {
          for (Index k = 0; k < 4; ++k)
            gates.values<double>()[static_cast<std::size_t>(k)] = 1 + (k == i) * step;
          return odds(r, text, e.label, gates.view());
        };
        const double slope = (at(1e-5) - at(-1e-5)) / 2e-5;
        EXPECT_NEAR(e.head_importance[static_cast<std::size_t>(i)], slope,
                    1e-7 * std::max(1.0, std::abs(slope)));
      }
    }
}

/// The log-odds of a label of a text some of whose tokens read [MASK].
double odds_hidden(const Recognizer& r, const std::string& text, Index label,
                   std::vector<std::size_t> hidden) {
  Encoding e = r.encode(text);
  for (const std::size_t t : hidden) e.ids[t] = r.tokenizer().vocabulary().find("[MASK]");
  TextBatch batch;
  r.add_to(batch, e);
  Session session;
  Call call{.ctx = session.ctx, .memory = session.memory};
  return odds(r, r.forward(batch, call, nullptr), label);
}

TEST(Explain, WordsAreWorthWhatIsLostWithoutThem) {
  for (const bool multi_label : {false, true})
    for (const bool norm_first : {true, false}) {
      const Recognizer r = small("mha:heads=2,dim=4", multi_label, norm_first);
      Session session;
      const std::string text = "pay b c";
      const Explanation e = explain_text(r, text, session);
      ASSERT_EQ(e.tokens.size(), 7u);  // [CLS] p ##a ##y b c [SEP]
      EXPECT_EQ(e.tokens[0].piece, "[CLS]");
      EXPECT_EQ(e.tokens[2].piece, "##a");
      EXPECT_EQ(e.tokens[4].span, (TextSpan{4, 5}));
      std::vector<Index> words;
      for (const ExplainedToken& t : e.tokens) words.push_back(t.word);
      EXPECT_EQ(words, (std::vector<Index>{-1, 0, 0, 0, 1, 2, -1}));
      const double s = odds_hidden(r, text, e.label, {});
      const double of_word = e.tokens[1].importance + e.tokens[2].importance + e.tokens[3].importance;
      EXPECT_NEAR(of_word, s - odds_hidden(r, text, e.label, {1, 2, 3}), 1e-12);
      EXPECT_EQ(e.tokens[1].importance, e.tokens[3].importance);
      EXPECT_NEAR(e.tokens[4].importance, s - odds_hidden(r, text, e.label, {4}), 1e-12);
      EXPECT_NEAR(e.tokens[5].importance, s - odds_hidden(r, text, e.label, {5}), 1e-12);
      EXPECT_EQ(e.tokens[0].importance, 0);
      EXPECT_EQ(e.tokens[6].importance, 0);
    }
}

TEST(Explain, NeighboursShareInTextsOfManyWords) {
  const Recognizer r = small();
  Session session;
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::string(1, static_cast<char>('a' + i * 7 % 26)) + " ";
  const Explanation e = explain_text(r, text, session);
  ASSERT_EQ(e.tokens.size(), 202u);
  // 128 groups of one or two words: word w is in group w * 128 / 200.
  const double s = odds_hidden(r, text, e.label, {});
  EXPECT_NEAR(e.tokens[1].importance + e.tokens[2].importance, s - odds_hidden(r, text, e.label, {1, 2}),
              1e-12);
  EXPECT_EQ(e.tokens[1].importance, e.tokens[2].importance);
  EXPECT_NEAR(e.tokens[200].importance, s - odds_hidden(r, text, e.label, {200}), 1e-12);
}

TEST(Explain, LongTextsCountEveryTokenOnce) {
  const Recognizer r = small();
  Session session;
  std::string text;
  for (int i = 0; i < 30; ++i) text += std::string(1, static_cast<char>('a' + i % 26)) + " ";
  const Explanation e = explain_text(r, text, session, {.weights = true});
  ASSERT_EQ(e.tokens.size(), 32u);
  for (std::size_t t = 1; t < 31; ++t) {
    EXPECT_EQ(e.tokens[t].span.begin, static_cast<Index>(2 * (t - 1)));
    EXPECT_NE(e.tokens[t].importance, 0);
  }
  EXPECT_GT(e.taps.size(), 4u);  // two layers of several chunks
  EXPECT_EQ(explain_text(r, "", session).tokens.size(), 2u);
}

TEST(Explain, HasTheBitsOfPredictAndLeavesGradientsAlone) {
  const Recognizer r = small();
  Session session;
  const std::string text = "pay the rent";
  const Prediction p = r.predict(text, session);
  std::vector<Explanation> all(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      Session own({.threads = i + 1});
      all[static_cast<std::size_t>(i)] = explain_text(r, text, own);
    });
  for (std::thread& t : threads) t.join();
  for (const Explanation& e : all) {
    EXPECT_EQ(e.prediction.probability, p.probability);
    EXPECT_EQ(e.label, p.labels[0]);
    EXPECT_EQ(e.head_importance, all[0].head_importance);
    for (std::size_t t = 0; t < e.tokens.size(); ++t)
      EXPECT_EQ(e.tokens[t].importance, all[0].tokens[t].importance);
  }
}

TEST(Explain, AMissedLabelSaysWhatItNeeded) {
  for (const bool multi_label : {false, true}) {
    Recognizer r = small("mha:heads=2,dim=4", multi_label);
    Session session;
    const std::string text = "pay the rent";
    const Prediction open = r.predict(text, session);
    const auto at = [&](Index l) {
      return static_cast<double>(open.probability[static_cast<std::size_t>(l)]);
    };
    const auto [low, high] = std::minmax_element(open.probability.begin(), open.probability.end());
    const Index least = low - open.probability.begin(), best = high - open.probability.begin();
    // Between the two: the best one alone is given.
    r.set_thresholds((at(least) + at(best)) / 2, 0);
    const Explanation missed = explain_text(r, text, session, {.label = least});
    EXPECT_FALSE(missed.given);
    EXPECT_EQ(missed.probability, at(least));
    EXPECT_EQ(missed.rival, multi_label ? -1 : best);
    EXPECT_EQ(missed.needed, multi_label ? r.config().threshold : at(best));
    const auto log_odds = [](double p) { return std::log(p / (1 - p)); };
    EXPECT_NEAR(missed.lacks(), log_odds(missed.needed) - log_odds(at(least)), 1e-9);
    const Explanation given = explain_text(r, text, session, {.label = best});
    EXPECT_TRUE(given.given);
    EXPECT_EQ(given.lacks(), 0);
    // Refused as a whole, the best label needs the scope's confidence.
    r.set_thresholds(r.config().threshold, 0.999);
    const Explanation refused = explain_text(r, text, session);
    EXPECT_FALSE(refused.given);
    EXPECT_EQ(refused.needed, 0.999);
    // A word frees a label exactly where the text with that word hidden gets it.
    for (const WordWeight& w : words_of(missed)) EXPECT_EQ(w.frees, freed_by_hiding(r, text, w.span, least));
  }
}

TEST(Explain, WordsAreThoseOfTheLanguage) {
  EXPECT_EQ(word_breaks(""), std::vector<Index>{});
  EXPECT_EQ(word_breaks("I can't"), (std::vector<Index>{0, 1, 2}));
  // 我 | 需要 | 保险 | 服务: three bytes a character
  EXPECT_EQ(word_breaks("我需要保险服务"), (std::vector<Index>{0, 3, 9, 15}));
  EXPECT_EQ(word_breaks("a\xff b").front(), 0);
  Session session;
  const Explanation e = explain_text(small(), "i can't pay", session);
  std::vector<TextSpan> spans;
  for (const WordWeight& w : words_of(e)) spans.push_back(w.span);
  EXPECT_EQ(spans, (std::vector<TextSpan>{{0, 1}, {2, 7}, {8, 11}}));
}

TEST(Explain, HeadsThatCannotBePartedAreLeftOut) {
  Session session;
  const Explanation whole =
      explain_text(small("gated:heads=2,dim=4,source=heads"), "pay", session, {.weights = true});
  EXPECT_EQ(whole.heads, 0);
  EXPECT_TRUE(whole.head_importance.empty());
  EXPECT_EQ(whole.taps.size(), 2u);
  const Explanation mixed = explain_text(small("talking:heads=2,dim=4"), "pay", session, {.weights = true});
  EXPECT_EQ(mixed.heads, 2);
  ASSERT_EQ(mixed.taps.size(), 2u);
  EXPECT_NEAR(mixed.taps[0].at(0, 0, 0) + mixed.taps[0].at(0, 0, 1) + mixed.taps[0].at(0, 0, 2) +
                  mixed.taps[0].at(0, 0, 3) + mixed.taps[0].at(0, 0, 4),
              1, 1e-6);  // shares of a row of [CLS] p ##a ##y [SEP]
  EXPECT_EQ(error_of([&] { explain_text(small(), "pay", session, {.label = 3}); }),
            "explain: label 3 is asked but the recogniser has 3; give 0 to 2, or -1 for the best");
}

}  // namespace
}  // namespace headwise
