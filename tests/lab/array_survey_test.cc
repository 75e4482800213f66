// Surveys of weights from elsewhere: planted rows are named, drawn ones are not, others are refused.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/figures/array_subject.h"

#include <cmath>

#include "headwise/base/random.h"
#include "headwise/lab/survey/head_survey.h"
#include "tests/intent/support.h"

namespace headwise {
namespace {

constexpr Index kTokens = 12, kTexts = 6;

/// One layer of three heads: previous token, the token named [SEP], rows drawn by a seed.
struct Planted {
  std::vector<std::vector<float>> weights;
  std::vector<TextArrays> texts;

  explicit Planted(Index rarest = 5) {
    for (Index t = 0; t < kTexts; ++t) {
      weights.emplace_back(static_cast<std::size_t>(3 * kTokens * kTokens), 0.0f);
      const auto put = [&](Index head, Index i, Index j, double w) {
        weights.back()[static_cast<std::size_t>((head * kTokens + i) * kTokens + j)] = static_cast<float>(w);
      };
      for (Index i = 0; i < kTokens; ++i) {
        put(0, i, std::max<Index>(0, i - 1), 1);
        put(1, i, kTokens - 1, 1);
        double sum = 0;
        for (Index j = 0; j < kTokens; ++j) sum += std::exp(normal_at(7, (t * kTokens + i) * kTokens + j));
        for (Index j = 0; j < kTokens; ++j)
          put(2, i, j, std::exp(normal_at(7, (t * kTokens + i) * kTokens + j)) / sum);
      }
    }
    for (Index t = 0; t < kTexts; ++t) {
      TextArrays one;
      for (Index i = 0; i < kTokens; ++i)
        one.tokens.push_back(
            {.id = i == rarest ? 7 : 3, .begin = i, .end = i + (i + 1 < kTokens), .sep = i + 1 == kTokens});
      one.weights = {weights[static_cast<std::size_t>(t)].data()};
      texts.push_back(one);
    }
  }
};

TEST(ArraySurvey, PlantedRowsAreNamedAndDrawnOnesAreNot) {
  const Planted p;
  ArraySubject own(p.texts, {3}, false), shuffled(p.texts, {3}, false, true, 5);
  const HeadSurvey s =
      survey_subjects(own, &shuffled, own.names(), {.tokens = kTokens, .repeats = 0, .collapse = 0});
  ASSERT_EQ(s.heads.size(), 3u);
  EXPECT_EQ(s.heads[0].roles, (std::vector<std::string>{"previous", "positional -1"}));
  EXPECT_EQ(s.heads[1].roles, std::vector<std::string>{"sep"});
  EXPECT_TRUE(s.heads[2].roles.empty());
  // Shuffled rows are as sharp as they were and know no place.
  const FigureValue previous = s.heads[0].figures[figure_at("previous")],
                    entropy = s.heads[2].figures[figure_at("entropy")];
  EXPECT_EQ(previous.value, 1);
  EXPECT_LT(previous.shuffled, 0.35);
  EXPECT_NEAR(entropy.value, entropy.shuffled, 1e-7);
  EXPECT_NEAR(s.apart.at(0, 1), std::log(2.0), 0.08);
}

/// Of a head that lies on [SEP] the other weights are all 0, and the first of them is no choice.
TEST(ArraySurvey, AHeadThatLiesOnSepLooksAtNoRareToken) {
  const Planted p(0);
  ArraySubject own(p.texts, {3}, false), shuffled(p.texts, {3}, false, true, 5);
  const HeadSurvey s =
      survey_subjects(own, &shuffled, own.names(), {.tokens = kTokens, .repeats = 0, .collapse = 0});
  EXPECT_EQ(s.heads[1].roles, std::vector<std::string>{"sep"});
  EXPECT_EQ(s.heads[1].figures[figure_at("rare")].value, 0);
}

TEST(ArraySurvey, WhatIsNoWeightIsRefused) {
  Planted p;
  EXPECT_SAYS(ArraySubject({}, {3}, false), "give one or more of each");
  EXPECT_SAYS(ArraySubject(p.texts, {3}, true), "row 0 of text 0, layer 0, head 1");
  p.weights[2][5] = 0.5f;
  EXPECT_SAYS(ArraySubject(p.texts, {3}, false), "row 0 of text 2, layer 0, head 0 sums to 1.5");
  p.weights[2][5] = std::nanf("");
  EXPECT_SAYS(ArraySubject(p.texts, {3}, false), "entries that are no weights");
  p.weights[2][5] = 0;
  ArraySubject own(p.texts, {3}, false);
  EXPECT_SAYS(own.read("0", 8), "12 tokens, more than the 8");
  EXPECT_SAYS(own.repeated(1, 4), "random tokens");
}

}  // namespace
}  // namespace headwise
