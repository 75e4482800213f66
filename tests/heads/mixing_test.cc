// What talking heads and DCMHA promise beside the shared law: starts, coefficients, layers in turn.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/heads/dcmha.h"
#include "headwise/heads/talking.h"
#include "tests/heads/differences.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

constexpr Index kModel = 12;

Context& reference() {
  static auto* ctx = new Context({.threads = 1, .kernels = "ref"});
  return *ctx;
}

TEST(Dcmha, LayersTakeTurnsLocalAndGlobal) {
  const auto pattern = [](Index global_every, Index window = 256) {
    std::string s;
    for (Index layer = 0; layer < 8; ++layer) {
      ParamSet params;
      Dcmha::Config c;
      c.heads = 2, c.dim = 4, c.window = window, c.global_every = global_every;
      s += Dcmha(c, params, {layer, 8, kModel}).local() ? 'L' : 'G';
    }
    return s;
  };
  EXPECT_EQ(pattern(2), "LGLGLGLG");
  EXPECT_EQ(pattern(4), "LGLLLGLL");
  EXPECT_EQ(pattern(8), "LGLLLLLL");
  EXPECT_EQ(pattern(1), "GGGGGGGG");
  EXPECT_EQ(pattern(0), "LLLLLLLL");
  EXPECT_EQ(pattern(2, 0), "GGGGGGGG");
}

TEST(Dcmha, ALocalLayerIsAGlobalOneUnderAWindow) {
  const Place place{0, 1, kModel};
  Layer local("dcmha:heads=3,dim=4,window=3,global_every=0", DType::f64, place),
      global("dcmha:heads=3,dim=4,window=0", DType::f64, place);
  disturb(global.params(), 0.3);
  copy_values(global.params(), local.params());
  Tensor x = random_normal({2, 9, kModel}, DType::f64, 3);
  for (const bool causal : {false, true}) {
    const Mask mask = causal ? Mask::causal() : Mask::all();
    const HeadSetting s{.name = "local", .q_tokens = 9, .kv_tokens = 9, .mask = mask};
    const HeadSetting under{
        .name = "global", .q_tokens = 9, .kv_tokens = 9, .mask = mask & Mask::window(2, 2)};
    Tensor a = local.forward(s, x.view(), x.view(), reference()),
           b = global.forward(under, x.view(), x.view(), reference());
    EXPECT_EQ(distance_of(a.view(), b.view()).largest, 0);
  }
}

TEST(Dcmha, CoefficientsComeFromTheNetOfTheirSide) {
  constexpr Index kHeads = 3, kRank = 2, kTokens = 4, kHidden = 2 * kRank * kHeads;
  Layer layer("dcmha:heads=3,dim=4,rank=2", DType::f64, {1, 2, kModel});
  disturb(layer.params(), 0.3);
  Tensor x = random_normal({1, kTokens, kModel}, DType::f64, 4);
  const HeadSetting s{.name = "plain", .batch = 1, .q_tokens = kTokens, .kv_tokens = kTokens};
  layer.forward(s, x.view(), x.view(), reference());
  const HeadInputs& in = layer.call().run.forward.inputs;
  const auto number = [](const InputView& v, Index i) { return static_cast<const double*>(v.data)[i]; };
  const std::pair<const char*, int> nets[] = {
      {"before_q", 0}, {"before_k", 0}, {"after_q", 1}, {"after_k", 1}};
  for (int n = 0; n < 4; ++n) {
    const auto param = [&](const char* as) {
      return layer.params().find(text("head.", nets[n].first, ".", as)).value();
    };
    const AnyView w1 = param("hidden"), w2 = param("out"), wg = param("gate");
    const InputView& mix = n % 2 == 0 ? in.mix_q : in.mix_k;
    for (Index i = 0; i < kTokens; ++i) {
      const auto dot = [&](const InputView& w, Index row) {
        double sum = 0;
        for (Index c = 0; c < kModel; ++c)
          sum += number(x.view(), i * kModel + c) * number(w, row * kModel + c);
        return sum;
      };
      const auto at = [&](Index row, Index h) {
        return number(mix, ((i * 2 + nets[n].second) * (2 * kRank + 1) + row) * kHeads + h);
      };
      double z[kHidden], out[kHidden];
      for (Index k = 0; k < kHidden; ++k) {
        const double a = dot(w1, k);
        z[k] = 0.5 * a * std::erfc(-a / std::sqrt(2.0));  // the exact GELU
      }
      for (Index k = 0; k < kHidden; ++k) {
        out[k] = 0;
        for (Index j = 0; j < kHidden; ++j) out[k] += number(w2, k * kHidden + j) * z[j];
      }
      for (Index r = 0; r < kRank; ++r) {
        double square = 0;
        for (Index h = 0; h < kHeads; ++h) square += out[r * kHeads + h] * out[r * kHeads + h] / kHeads;
        for (Index h = 0; h < kHeads; ++h) {
          EXPECT_NEAR(at(r, h), out[r * kHeads + h] / std::sqrt(square + 1e-6), 1e-12);
          EXPECT_NEAR(at(kRank + r, h), out[(kRank + r) * kHeads + h], 1e-12);
        }
      }
      for (Index h = 0; h < kHeads; ++h) EXPECT_NEAR(at(2 * kRank, h), std::tanh(dot(wg, h)), 1e-12);
    }
  }
}

TEST(Dcmha, GradientsOfRankTwoMatchDifferences) {
  for (const HeadSetting& s : head_settings(false))
    expect_gradients("dcmha:heads=4,kv_heads=2,dim=3,rank=2,fixed=true,window=3,global_every=0", s,
                     reference());
}

TEST(Dcmha, StartsWithTheAuthorsDeviations) {
  // Their JAX code: dw1 sqrt(2 / (D + K)), qkw 0.01 sqrt(1 / K) 2 / (H + R), dd 0.005 sqrt(2 / (D + H)).
  constexpr double kHeads = 8, kRank = 2, kWide = 512, kHidden = 2 * kHeads * kRank;
  ParamSet params;
  const Dcmha head({.heads = 8, .dim = 64, .rank = 2}, params, {0, 1, 512});
  const std::pair<const char*, double> want[] = {
      {"hidden", std::sqrt(2 / (kWide + kHidden))},
      {"out", 0.01 * std::sqrt(1 / kHidden) * 2 / (kHeads + kRank)},
      {"gate", 0.005 * std::sqrt(2 / (kWide + kHeads))}};
  for (const auto& [name, deviation] : want) {
    double sum = 0, count = 0;
    for (const char* net : {"before_q.", "before_k.", "after_q.", "after_k."}) {
      const AnyView v = params.find(text(net, name)).value();
      for (Index i = 0; i < v.count(); ++i) sum += std::pow(load_double(v.data, v.dtype, i), 2);
      count += static_cast<double>(v.count());
    }
    EXPECT_NEAR(std::sqrt(sum / count), deviation, 0.05 * deviation) << name;
  }
}

TEST(Dcmha, StartsCloseToMha) {
  const Place place{0, 1, kModel};
  Layer dcmha("dcmha:heads=3,dim=4,window=0", DType::f64, place), mha("mha:heads=3,dim=4", DType::f64, place);
  for (const char* w : {"w_q", "w_k", "w_v", "w_o"}) {
    const AnyView from = dcmha.params().find(w).value(), to = mha.params().find(w).value();
    for (Index i = 0; i < to.count(); ++i)
      store_double(to.data, to.dtype, i, load_double(from.data, from.dtype, i));
  }
  Tensor x = random_normal({2, 9, kModel}, DType::f64, 5);
  const HeadSetting s{.name = "causal", .q_tokens = 9, .kv_tokens = 9, .mask = Mask::causal()};
  Tensor a = dcmha.forward(s, x.view(), x.view(), reference()),
         b = mha.forward(s, x.view(), x.view(), reference());
  const double apart = distance_of(a.view(), b.view()).relative;
  EXPECT_GT(apart, 0);
  EXPECT_LT(apart, 0.3);
}

TEST(Mixing, BadSettingsGetOneSentence) {
  const auto said = [](const char* words) {
    ParamSet params;
    try {
      make_head(words, params, {0, 1, kModel});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(nothing was thrown)");
  };
  EXPECT_EQ(said("dcmha:heads=3,rank=0"), "dcmha: rank is 0; it starts at 1");
  EXPECT_EQ(said("dcmha:heads=3,window=-1"), "dcmha: got window -1 and global_every 2; both start at 0");
  EXPECT_EQ(said("talking:heads=5"),
            "talking: model_dim (12) must be a multiple of heads (5); change one of them or give dim");
  EXPECT_EQ(said("talking:heads=3,key_heads=-2"),
            "talking: got -2 key_heads and 0 value_heads; both start at 1, and 0 stands for heads");
}

}  // namespace
}  // namespace headwise::test
