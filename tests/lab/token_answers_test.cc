// Changes of the three attentions of a translator: a head off is one whose columns of W_O are 0, a pair
// that is knocked out has no weight, gates act where they are asked.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/decoder/token_answers.h"

#include <cmath>

#include "headwise/lab/cut/knock_out.h"
#include "headwise/lab/survey/head_survey.h"
#include "headwise/translation/translator.h"
#include "tests/lab/tiny_recognizer.h"

namespace headwise {
namespace {

using namespace test;

Translator small_translator() {
  Translator t(Bpe(),
               {.heads = "mha:heads=2,dim=8", .model_dim = 16, .feed_dim = 16, .depth = 2, .dropout = 0}, 1);
  stir(t.params(), 0.2);
  return t;
}

const TokenTexts kTexts = {{"ab cd", "a longer text"}, {"hi", "jk l"}, {}};

double difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j)
      most = std::max(most, std::abs(static_cast<double>(a[i][j]) - static_cast<double>(b[i][j])));
  return most;
}

TEST(TokenAnswers, AHeadOffIsOneWithoutItsColumnsOfOut) {
  const char* names[] = {"stack.layers.1.attention", "stack.layers.1.cross",
                         "source_stack.layers.1.attention"};
  Folder folder;
  const Translator whole = small_translator();
  whole.save(folder.at("whole"));
  const auto model = open_token_model(folder.at("whole"), 1);
  const auto plain = model->answers(kTexts, {});
  ASSERT_EQ(plain.size(), 2u);
  double sum = 0;
  for (const float p : plain[0]) sum += static_cast<double>(p);
  EXPECT_NEAR(sum, 1, 1e-5);
  for (int part = 0; part < 3; ++part) {
    Translator cut = small_translator();
    const AnyView w = cut.params().find(text(names[part], ".out.weight")).value();
    for (Index r = 0; r < 16; ++r)
      for (Index i = 8; i < 16; ++i) store_double(w.data, w.dtype, r * 16 + i, 0);
    cut.save(folder.at(text("cut", part)));
    HeadChanges off;
    off.heads = {{.head = {1, 1}, .part = static_cast<AttentionPart>(part)}};
    off.patch_rows = {0};
    const auto changed = model->answers(kTexts, off);
    EXPECT_LT(difference(changed, open_token_model(folder.at(text("cut", part)), 1)->answers(kTexts, {})),
              1e-6);
    EXPECT_GT(difference(changed, plain), 1e-5) << part;
    off.heads[0].head = {2, 0};
    EXPECT_SAYS(model->answers(kTexts, off), "which the model has not");
  }
}

/// Weights of one attention of every block, by the taps of that part.
std::vector<Tap> taps_of(const Translator& t, AttentionPart part, const PairTokens& pair,
                         const Tensor* bias) {
  Session session({.threads = 1});
  Taps taps;
  taps.of = part;
  t.next_scores(std::span(&pair, 1), session, [&](Call& call) {
    call.taps = &taps, call.asked = part, call.bias_block = 1;
    if (bias) call.score_bias = bias->view();
  });
  return std::move(taps.all);
}

TEST(TokenAnswers, AKnockedOutPairHasNoWeightInItsPartAlone) {
  const Translator t = small_translator();
  const PairTokens pair = t.encode("abc", "de");
  for (int part = 0; part < 3; ++part) {
    const auto of = static_cast<AttentionPart>(part);
    const std::vector<Tap> before = taps_of(t, of, pair, nullptr);
    ASSERT_EQ(before.size(), 2u);
    const HeadPair gone = {{1, 1}, of, 2, 1};
    const Tensor bias = pairs_bias(std::span(&gone, 1), 2, before[1].q_tokens, before[1].kv_tokens);
    const std::vector<Tap> after = taps_of(t, of, pair, &bias);
    EXPECT_EQ(after[1].at(1, 2, 1), 0);
    double sum = 0;
    for (Index j = 0; j < after[1].kv_tokens; ++j) sum += static_cast<double>(after[1].at(1, 2, j));
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_NEAR(after[1].at(0, 2, 1), before[1].at(0, 2, 1), 1e-7);
    EXPECT_NEAR(after[1].at(1, 2, 0), before[1].at(1, 2, 0) / (1 - before[1].at(1, 2, 1)), 1e-5);
  }
  EXPECT_EQ(taps_of(t, AttentionPart::source, pair, nullptr)[0].kv_tokens, 4);
  EXPECT_EQ(taps_of(t, AttentionPart::own, pair, nullptr)[0].kv_tokens, 3);
}

TEST(TokenAnswers, ASurveySeesTheEncoderOfATranslator) {
  Folder folder;
  const Translator t = small_translator();
  t.save(folder.at("whole"));
  const PairTokens pair = t.encode("abc de", "");
  const std::vector<Tap> taps = taps_of(t, AttentionPart::source, pair, nullptr);
  const auto subject = open_subject(folder.at("whole"), 1);
  const std::vector<SurveyTokens> texts = {subject->read("abc de", 64), subject->read("f", 64)};
  ASSERT_EQ(texts[0].size(), 7u);
  EXPECT_TRUE(texts[0].back().sep);
  Index seen = 0;
  subject->run(texts, true, [&](Index text, Index layer, const LayerMaps& maps) {
    ++seen;
    EXPECT_EQ(maps.heads, 2);
    EXPECT_EQ(maps.value_norm.size(), 2u);
    for (std::size_t i = 0; text == 0 && i < taps[0].weights.size(); ++i)
      EXPECT_NEAR(maps.weights[i], taps[static_cast<std::size_t>(layer)].weights[i], 1e-6);
  });
  EXPECT_EQ(seen, 4);
  const HeadSurvey s = survey_model(folder.at("whole"), {"abc de", "a longer text", "more of it"}, 1);
  EXPECT_EQ(s.heads.size(), 4u);
  EXPECT_FALSE(std::isfinite(s.heads[0].figures[figure_at("gradient")].value));
}

TEST(TokenAnswers, GatesActInThePartThatIsAsked) {
  Folder folder;
  const Translator t = small_translator();
  t.save(folder.at("whole"));
  const auto model = open_token_model(folder.at("whole"), 1);
  const PairTokens pair = t.encode(kTexts.texts[0], kTexts.targets[0]);
  Tensor gates(DType::f32, {2, 2});
  for (std::size_t i = 0; i < 4; ++i) gates.values<float>()[i] = i == 2 ? 0.0f : 1.0f;  // layer 1, head 0
  for (int part = 0; part < 3; ++part) {
    Session session({.threads = 1});
    const auto scores = t.next_scores(std::span(&pair, 1), session, [&](Call& call) {
      call.head_gates = gates.view(), call.asked = static_cast<AttentionPart>(part);
    });
    double sum = 0;
    for (const float s : scores[0]) sum += std::exp(static_cast<double>(s));
    HeadChanges off;
    off.heads = {{.head = {1, 0}, .part = static_cast<AttentionPart>(part)}};
    off.patch_rows = {0};
    const auto changed = model->answers({{kTexts.texts[0]}, {kTexts.targets[0]}, {}}, off);
    for (std::size_t i = 0; i < changed[0].size(); ++i)
      EXPECT_NEAR(changed[0][i], std::exp(static_cast<double>(scores[0][i])) / sum, 1e-6);
  }
}

}  // namespace
}  // namespace headwise
