// Segment heads: the formula in plain loops, one side as both under a mask, a sure break as a mask, refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/sentence.h"
#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

constexpr Place kPlace{1, 4, 12};
constexpr Index kBatch = 2, kTokens = 5, kModel = 12, kHeads = 4, kDim = 3;

Context& context() {
  static Context ctx({.threads = 2, .kernels = ""});
  return ctx;
}
Tensor rows(std::uint64_t seed) { return random_normal({kBatch, kTokens, kModel}, DType::f64, seed); }
double apart(const Tensor& a, const Tensor& b) { return distance_of(a.view(), b.view()).largest; }
double* numbers(Layer& layer, std::string_view name) {
  return static_cast<double*>(layer.params().find(name).value().data);
}

/// What the layer gives, in the order of the formula; nothing of the library but its numbers.
struct Loops {
  Layer& layer;
  const double* x;

  double projected(std::string_view w, Index b, Index t, Index column) const {
    double sum = 0;
    for (Index m = 0; m < kModel; ++m)
      sum += numbers(layer, w)[column * kModel + m] * x[(b * kTokens + t) * kModel + m];
    return sum;
  }
  /// c_t = sum over s <= t of softplus(u . x_s + b)
  double decay(Index b, Index t, Index h) const {
    double sum = 0;
    for (Index s = 0; s <= t; ++s) {
      double z = numbers(layer, "head.breaks_bias")[h];
      for (Index m = 0; m < kModel; ++m)
        z += numbers(layer, "head.breaks")[h * kModel + m] * x[(b * kTokens + s) * kModel + m];
      sum += std::log(1 + std::exp(z));
    }
    return sum;
  }
  Tensor out(Index stops, bool causal) const {
    std::vector<double> o(kBatch * kTokens * kModel);
    for (Index b = 0; b < kBatch; ++b)
      for (Index h = 0; h < kHeads; ++h)
        for (Index i = 0; i < kTokens; ++i) {
          double weights[kTokens], total = 0;
          const Index last = causal ? i : kTokens - 1;
          for (Index j = 0; j <= last; ++j) {
            double score = 0;
            for (Index d = h * kDim; d < (h + 1) * kDim; ++d)
              score += projected("w_q", b, i, d) * projected("w_k", b, j, d) / std::sqrt(double{kDim});
            if (h < stops) score -= std::fabs(decay(b, i, h) - decay(b, j, h));
            total += weights[j] = std::exp(score);
          }
          for (Index d = h * kDim; d < (h + 1) * kDim; ++d)
            for (Index j = 0; j <= last; ++j)
              o[static_cast<std::size_t>((b * kTokens + i) * kModel + d)] +=
                  weights[j] / total * projected("w_v", b, j, d);
        }
    Tensor y(DType::f64, {kBatch, kTokens, kModel});
    for (Index t = 0; t < kBatch * kTokens; ++t)
      for (Index m = 0; m < kModel; ++m) {
        double sum = 0;
        for (Index d = 0; d < kModel; ++d)
          sum += numbers(layer, "w_o")[m * kModel + d] * o[static_cast<std::size_t>(t * kModel + d)];
        y.values<double>()[static_cast<std::size_t>(t * kModel + m)] = sum;
      }
    return y;
  }
};

TEST(Segment, IsItsFormula) {
  Tensor x = rows(3);
  for (const Index stops : {1, 3, 4})
    for (const bool causal : {false, true}) {
      Layer layer(text("segment:heads=4,dim=3,start=-1,stops=", stops), DType::f64, kPlace);
      disturb(layer.params(), 0.3);
      const HeadSetting s{.name = "formula", .mask = causal ? Mask::causal() : Mask()};
      const Tensor got = layer.forward(s, x.view(), x.view(), context());
      EXPECT_LE(apart(got, Loops{layer, x.values<double>().data()}.out(stops, causal)), 1e-12)
          << stops << " stop, causal " << causal;
    }
}

TEST(Segment, OneSideIsBothSidesUnderAMask) {
  Tensor x = rows(4), dy = rows(5);
  for (const auto& [look, mask] : {std::pair{"back", Mask::causal()}, {"ahead", Mask::window(0, 100)}}) {
    Layer side(text("segment:heads=4,dim=3,stops=4,look=", look), DType::f64, kPlace),
        both("segment:heads=4,dim=3,stops=4", DType::f64, kPlace);
    disturb(side.params(), 0.3);
    copy_values(side.params(), both.params());
    const HeadSetting open{.name = "open"}, masked{.name = "masked", .mask = mask};
    const Tensor a = side.forward(open, x.view(), x.view(), context()),
                 b = both.forward(masked, x.view(), x.view(), context());
    EXPECT_LE(apart(a, b), 1e-13) << look;
    side.backward(dy.view(), context()), both.backward(dy.view(), context());
    EXPECT_LE(apart(side.dx, both.dx), 1e-12) << look;
  }
}

/// Heads that stop see their own segment alone where a break is sure, the others everything.
TEST(Segment, ASureBreakIsAMask) {
  Tensor x = rows(6);
  for (Index t = 0; t < kBatch * kTokens; ++t)
    x.values<double>()[static_cast<std::size_t>(t * kModel)] = t % kTokens == 3;
  Layer segment("segment:heads=4,dim=3,stops=2", DType::f64, kPlace),
      mha("mha:heads=4,dim=3", DType::f64, kPlace);
  for (const char* w : {"w_q", "w_k", "w_v", "w_o"})
    for (Index i = 0; i < kModel * kModel; ++i) numbers(mha, w)[i] = numbers(segment, w)[i];
  for (Index h = 0; h < 2; ++h)
    numbers(segment, "head.breaks_bias")[h] = -1000, numbers(segment, "head.breaks")[h * kModel] = 3000;
  Tensor open(DType::u8, {1, kHeads, kTokens, kTokens});
  for (Index n = 0; n < kHeads * kTokens * kTokens; ++n)
    open.values<std::uint8_t>()[static_cast<std::size_t>(n)] =
        n / (kTokens * kTokens) >= 2 || (n / kTokens % kTokens < 3) == (n % kTokens < 3);
  const HeadSetting plain{.name = "plain"}, masked{.name = "masked", .mask = Mask::dense(open.view())};
  const Tensor got = segment.forward(plain, x.view(), x.view(), context());
  EXPECT_LE(apart(got, mha.forward(masked, x.view(), x.view(), context())), 1e-13);
  EXPECT_GT(apart(got, mha.forward(plain, x.view(), x.view(), context())), 1e-3);
}

TEST(Segment, WhatCannotBeIsRefused) {
  ParamSet params;
  const auto words = [&](const char* head, ErrorKind kind, Place place = kPlace) {
    return sentence_of(kind, [&] { make_head(head, params, place); });
  };
  EXPECT_EQ(words("segment:heads=4,stops=5", ErrorKind::bad_argument),
            "segment: stops is 5 but there are 4 heads; give 1 to 4, or 0 for half of them");
  EXPECT_EQ(
      words("segment:heads=4,dim=3", ErrorKind::bad_shape, {}),
      "segment: model_dim is 0; breaks are read from rows of the layer's input, so give the model's width");
  const auto too_long = [&] {
    ParamSet own;
    HeadRun run(make_head("segment:heads=4", own, kPlace),
                {.batch = 1, .q_tokens = 16384, .kv_tokens = 16384}, false);
    Arena count = Arena::measuring();
    run.book(count);
  };
  EXPECT_EQ(
      sentence_of(ErrorKind::unsupported, too_long),
      "segment: look=both keeps a number for every pair of 16384 and 16384 tokens, 1 times for 4 heads, "
      "more than 268435456; give fewer or shorter sequences at a time, or look=back or ahead");
  EXPECT_EQ(make_head("segment:heads=7,dim=4", params, kPlace).settings(),
            "segment:heads=7,kv_heads=7,dim=4,stops=4,look=both,start=-3");
}

}  // namespace
}  // namespace headwise::test
