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
    const Tensor bias = pairs_bias(std::span(&gone, 1), {2, before[1].q_tokens, before[1].kv_tokens});
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
  subject->run(texts, true, [&](Index layer, Index first, std::span<const LayerMaps> all) {
    for (std::size_t text = 0; text < all.size(); ++text) {
      const LayerMaps& maps = all[text];
      ++seen;
      EXPECT_EQ(maps.heads, 2);
      EXPECT_EQ(maps.value_norm.size(), 2u);
      for (std::size_t i = 0; first + static_cast<Index>(text) == 0 && i < taps[0].weights.size(); ++i)
        EXPECT_NEAR(maps.weights[i], taps[static_cast<std::size_t>(layer)].weights[i], 1e-6);
    }
  });
  EXPECT_EQ(seen, 4);
  const HeadSurvey s = survey_model(folder.at("whole"), {"abc de", "a longer text", "more of it"}, 1);
  EXPECT_EQ(s.heads.size(), 4u);
  EXPECT_FALSE(std::isfinite(s.heads[0].figures[figure_at("gradient")].value));
}

/// Self- and cross-attention of the decoder: maps are those of the taps, figures what their formulas say.
TEST(TokenAnswers, ASurveySeesTheDecoderOfATranslator) {
  Folder folder;
  const Translator t = small_translator();
  t.save(folder.at("whole"));
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"abc de", "hi jk"}, {"a longer text", "more"}, {"more of it", "yes it is"}};
  std::vector<std::string> lines;
  for (const auto& [source, target] : pairs) lines.push_back(text(source, '\t', target));
  for (const AttentionPart part : {AttentionPart::own, AttentionPart::cross}) {
    const bool cross = part == AttentionPart::cross;
    const auto subject = open_subject(folder.at("whole"), 1, false, 0, part);
    const std::vector<SurveyTokens> read = {subject->read(lines[0], 64)};
    ASSERT_EQ(read[0].size(), 6u);
    ASSERT_EQ(read[0].source.size(), 7u);
    const std::vector<Tap> first = taps_of(t, part, t.encode("abc de", "hi jk"), nullptr);
    subject->run(read, true, [&](Index layer, Index, std::span<const LayerMaps> maps) {
      EXPECT_EQ(maps[0].tokens, 6);
      EXPECT_EQ(maps[0].keys, cross ? 7 : 6);
      const std::vector<float>& wanted = first[static_cast<std::size_t>(layer)].weights;
      for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(maps[0].weights[i], wanted[i], 1e-6);
    });
    HeadSurveyOptions o;
    o.part = part;
    const HeadSurvey s = survey_model(folder.at("whole"), lines, 1, o);
    ASSERT_EQ(s.heads.size(), 4u);
    double entropy = 0, behind = 0, last = 0;  // of layer 0, head 1
    for (const auto& [source, target] : pairs) {
      const Tap tap = taps_of(t, part, t.encode(source, target), nullptr)[0];
      double sum = 0, next = 0, end = 0;
      for (Index i = 0; i < tap.q_tokens; ++i) {
        for (Index j = 0; j < tap.kv_tokens; ++j)
          if (const double w = tap.at(1, i, j); w > 0 && (cross || i > 0)) sum -= w * std::log(w);
        if (i > 0 && i - 1 < tap.kv_tokens) next += static_cast<double>(tap.at(1, i, i - 1));
        end += static_cast<double>(tap.at(1, i, tap.kv_tokens - 1));
      }
      // Row 0 of a causal map has one key and no choice.
      entropy += sum / static_cast<double>(cross ? tap.q_tokens : tap.q_tokens - 1) / 3;
      behind += next / static_cast<double>(min_of(tap.q_tokens - 1, tap.kv_tokens)) / 3;
      last += end / static_cast<double>(tap.q_tokens) / 3;
    }
    const auto figure = [&](std::string_view name) { return s.heads[1].figures[figure_at(name)].value; };
    EXPECT_NEAR(figure("entropy"), entropy, 1e-5);
    EXPECT_NEAR(figure("previous"), behind, 1e-5);
    if (cross) {
      EXPECT_NEAR(figure("sep"), last, 1e-5);
    }
    EXPECT_EQ(std::isnan(figure("induction")), cross);
    EXPECT_EQ(std::isnan(s.depth[depth_figure_at("rollout_own")][0].value), cross);
    EXPECT_GT(s.apart.at(0, 1), 0);
    EXPECT_EQ(survey_page(s, "m", "t").find("nan"), std::string::npos);
    EXPECT_SAYS(subject->read("no target", 64), "a tab and its translation");
    o.related = parse_pairs("c\tmy card\tmy\tcard\n", "p");
    if (cross) {
      EXPECT_SAYS(survey_model(folder.at("whole"), lines, 1, o), "leave out trees and pairs");
    }
  }
  lab_recognizer("mha:heads=2,dim=3").save(folder.at("labels"));
  EXPECT_SAYS(open_subject(folder.at("labels"), 1, false, 0, AttentionPart::cross), "only a translator");
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
