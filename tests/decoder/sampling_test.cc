// draw: tables by hand, the law of large numbers, noise by position and token alone; TextStream cut by cut.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "headwise/decoder/text_stream.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TokenId draw_at(std::span<const float> logits, const SamplingOptions& o, Index position) {
  return draw(logits, o, {}, {.position = position}).token;
}

TEST(Sampling, TemperatureZeroIsTheLargestAndTheLowestIdAmongEquals) {
  const std::vector<float> l = {1, 3, 3, 2};
  const Drawn d = draw(l, {}, {}, {.top = 2});
  EXPECT_EQ(d.token, 1);
  const double whole = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_NEAR(d.logprob, 3 - whole, 1e-12);
  ASSERT_EQ(d.top.size(), 2u);
  EXPECT_EQ(d.top[0].token, 1);
  EXPECT_EQ(d.top[1].token, 2);
}

TEST(Sampling, ALookGivesWhatTheWholeWayGives) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> l(2 + random() % 70);
    for (float& x : l) x = static_cast<float>(static_cast<int>(random() % 9)) - 4;
    if (trial % 3 == 0) l[random() % l.size()] = -kInf;
    const auto tokens = trial % 4 == 0 ? Index{0} : static_cast<Index>(2 + random() % (l.size() - 1));
    const Drawn quick = draw(l, {}, {}, {.tokens = tokens, .logprobs = false});
    const Drawn slow = draw(l, {.bias = {{0, 0.0}}}, {}, {.tokens = tokens});  // a bias takes the whole way
    EXPECT_EQ(quick.token, slow.token);
    EXPECT_EQ(quick.logprob, 0);
    EXPECT_EQ(draw(l, {}, {}, {.tokens = tokens}).logprob, slow.logprob);
  }
}

TEST(Sampling, FrequenciesAreThoseOfTheSoftmax) {
  const std::vector<float> l = {0.5F, -1, 2, 0, 1, -3};
  struct Case {
    SamplingOptions options;
    std::vector<double> open;  // which tokens may be drawn
  };
  const std::vector<Case> cases = {
      {{.temperature = 1}, {1, 1, 1, 1, 1, 1}},
      {{.temperature = 0.7}, {1, 1, 1, 1, 1, 1}},
      {{.temperature = 1, .top_k = 3}, {1, 0, 1, 0, 1, 0}},
      {{.temperature = 1, .top_k = 99}, {1, 1, 1, 1, 1, 1}},
      {{.temperature = 1, .min_p = 0.2}, {1, 0, 1, 0, 1, 0}},
      {{.temperature = 1, .top_p = 0.6}, {0, 0, 1, 0, 1, 0}},
      {{.temperature = 1, .top_p = 1e-9}, {0, 0, 1, 0, 0, 0}},
  };
  for (std::size_t c = 0; c < cases.size(); ++c) {
    SamplingOptions o = cases[c].options;
    o.seed = 17 + c;
    std::vector<double> p(l.size());
    double sum = 0, square = 0;
    for (std::size_t i = 0; i < l.size(); ++i)
      sum += p[i] = cases[c].open[i] * std::exp(static_cast<double>(l[i]) / o.temperature);
    constexpr int kDraws = 40'000;
    std::vector<int> seen(l.size());
    for (int i = 0; i < kDraws; ++i) ++seen[static_cast<std::size_t>(draw_at(l, o, i))];
    for (std::size_t i = 0; i < l.size(); ++i) {
      const double want = kDraws * p[i] / sum;
      if (want == 0) {
        EXPECT_EQ(seen[i], 0) << c << " " << i;
        continue;
      }
      square += (seen[i] - want) * (seen[i] - want) / want;
    }
    EXPECT_LT(square, 25) << c;  // chi-square of at most 5 degrees: 1 in 7,000
  }
}

TEST(Sampling, NoiseIsThatOfSeedPositionAndTokenAlone) {
  std::vector<float> l(40, 0.0F);
  const SamplingOptions o{.temperature = 1, .seed = 5};
  for (Index at = 0; at < 50; ++at) {
    const TokenId first = draw_at(l, o, at);
    EXPECT_EQ(first, draw_at(l, o, at));
    // A token that is closed changes nothing for the others.
    const TokenId other = (first + 1) % 40;
    EXPECT_EQ(draw(l, o, {}, {.position = at, .closed = std::span(&other, 1)}).token, first);
    // Rows padded behind the tokenizer's ids are never drawn.
    EXPECT_LT(draw(l, o, {}, {.position = at, .tokens = 3}).token, 3);
  }
}

TEST(Sampling, PenaltiesAndBiasAreTheFormulas) {
  const std::vector<float> l = {2, -2, 1, 0};
  const std::vector<TokenId> prompt = {0}, output = {1, 1};
  SamplingOptions o{.repetition_penalty = 2.5};
  EXPECT_EQ(draw(l, o, {prompt, output}, {}).token, 2);  // 2 / 2.5 = 0.8, -5, 1, 0
  o = {.frequency_penalty = -3, .presence_penalty = 1};
  EXPECT_EQ(draw(l, o, {prompt, output}, {}).token, 1);  // 2, -2 + 6 - 1 = 3, 1, 0
  o = {.bias = {{3, 5.0}}};
  EXPECT_EQ(draw(l, o, {}, {}).token, 3);
}

TEST(Sampling, NaNAndNothingToDrawAreErrors) {
  const std::vector<float> nan = {0, std::nanf(""), 1}, closed = {-kInf, -kInf};
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { draw(nan, {}, {}, {}); }),
            "sampling: the model gave NaN for token 1; its weights or this text are broken");
  for (const double t : {0.0, 1.0})
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { draw(closed, {.temperature = t}, {}, {}); }),
              "sampling: every token is closed; open one by fewer biases or closed ids");
}

std::string streamed(std::string_view bytes, const std::vector<std::string>& stops, std::mt19937& random,
                     bool* stopped) {
  TextStream s(stops);
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = 1 + random() % 4;
    const std::string piece = s.push(bytes.substr(at, n));
    out += piece;
    at += n;
    if (s.stopped()) break;
  }
  out += s.finish();
  *stopped = s.stopped();
  return out;
}

TEST(TextStream, EveryCutGivesTheWholeText) {
  std::mt19937 random(2);
  const std::string samples[] = {"plain", "na\xc3\xafve \xf0\x9f\x98\x80\xe4\xbd\xa0",
                                 "bad \xff\xc3(\xe4\xbd end \xf0\x9f", "stop here STOP and on",
                                 "n\xc3\xa9 n\xc3"};
  const std::vector<std::vector<std::string>> stops = {{}, {"STOP"}, {"n\xc3\xa9", "ST"}, {"here", "re S"}};
  for (const std::string& sample : samples)
    for (const auto& stop : stops) {
      TextStream whole(stop);
      std::string want = whole.push(sample);
      want += whole.finish();
      for (const std::string& s : stop) EXPECT_EQ(want.find(s), std::string::npos);
      for (int trial = 0; trial < 60; ++trial) {
        bool stopped = false;
        EXPECT_EQ(streamed(sample, stop, random, &stopped), want) << sample;
        EXPECT_EQ(stopped, whole.stopped());
      }
    }
}

TEST(TextStream, TheStopThatEndsFirstCountsAndBrokenBytesAreOneSign) {
  TextStream a({"abc", "b"});
  EXPECT_EQ(a.push("xab"), "xa");
  EXPECT_TRUE(a.stopped());
  EXPECT_EQ(a.stop_index(), 1);
  TextStream b({"c", "abc"});
  EXPECT_EQ(b.push("xabc"), "x");
  EXPECT_EQ(b.stop_index(), 1);
  TextStream c;
  EXPECT_EQ(c.push("\xf0\x9f"), "");
  EXPECT_EQ(c.push("\x98\x80"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(c.push("\xf0\x9f"), "");
  EXPECT_EQ(c.push("a"),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(c.push("\xe4"), "");
  EXPECT_EQ(c.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { const TextStream none({""}); }),
            "stop: a stop text has 0 bytes; it has 1 to 1024");
}

}  // namespace
}  // namespace headwise
