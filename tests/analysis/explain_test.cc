// explain_text: importance of heads and tokens against finite differences, chunks, refusals, shared threads.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/analysis/explain.h"

#include <cmath>
#include <thread>

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

/// The log-odds of a label under gates.
double odds(const Recognizer& r, const std::string& text, Index label, const AnyView& gates) {
  Session session;
  const TextBatch batch = r.batch(std::span(&text, 1));
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.head_gates = gates;
  const AnyView logits = r.forward(batch, call, nullptr);
  if (r.config().multi_label) return value(logits, label);
  double others = 0;
  for (Index l = 0; l < 3; ++l)
    if (l != label) others += std::exp(value(logits, l));
  return value(logits, label) - std::log(others);
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
      const Tensor gates(DType::f64, {2, 2});
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

TEST(Explain, TokensAreGradientTimesInput) {
  // Rows of the embedding table scaled by 1 + step scale the inputs of their tokens.
  for (const bool norm_first : {true, false}) {
    Recognizer r = small("mha:heads=2,dim=4", false, norm_first);
    Session session;
    const std::string text = "pay b c";
    const Explanation e = explain_text(r, text, session);
    ASSERT_EQ(e.tokens.size(), 7u);  // [CLS] p ##a ##y b c [SEP]
    EXPECT_EQ(e.tokens[0].piece, "[CLS]");
    EXPECT_EQ(e.tokens[2].piece, "##a");
    EXPECT_EQ(e.tokens[4].span, (TextSpan{4, 5}));
    Param& table = *std::find_if(r.params().all().begin(), r.params().all().end(),
                                 [](const Param& p) { return p.name == "embed.table"; });
    if (r.config().encoder.positions != Positions::none) {
      for (Param& p : r.params().all())
        if (p.name == "embed.positions") fill_zeros(p.value);
    }
    const Explanation plain = explain_text(r, text, session);
    for (const std::size_t token : {std::size_t{1}, std::size_t{4}}) {
      const Index id = r.tokenizer().vocabulary().find(token == 1 ? "p" : "b");
      double* row = static_cast<double*>(table.value.data) + id * 8;
      const auto at = [&](double step) {
        for (Index c = 0; c < 8; ++c) row[c] *= 1 + step;
        const double s = odds(r, text, plain.label, {});
        for (Index c = 0; c < 8; ++c) row[c] /= 1 + step;
        return s;
      };
      const double slope = (at(1e-5) - at(-1e-5)) / 2e-5;
      EXPECT_NEAR(plain.tokens[token].importance, slope, 1e-7 * std::max(1.0, std::abs(slope)));
    }
  }
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
  }
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
  EXPECT_TRUE(mixed.taps.empty());
  EXPECT_EQ(error_of([&] { explain_text(small(), "pay", session, {.label = 3}); }),
            "explain: label 3 is asked but the recogniser has 3; give 0 to 2, or -1 for the best");
}

}  // namespace
}  // namespace headwise
