// What each variant promises beyond the shared law: identities of its formula, one test each.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/heads/differential.h"
#include "headwise/heads/overlapped.h"
#include "headwise/heads/scales.h"
#include "tests/base/sentence.h"
#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

constexpr Place kPlace{1, 4, 12};
Context& context() {
  static Context ctx({.threads = 2, .kernels = ""});
  return ctx;
}
Tensor rows(std::uint64_t seed) { return random_normal({2, 5, kPlace.model_dim}, DType::f64, seed); }
/// A causal run; a backward may follow.
Tensor out_of(Layer& layer) {
  static const HeadSetting causal{.name = "causal", .mask = Mask::causal()};
  static Tensor x = rows(3);
  return layer.forward(causal, x.view(), x.view(), context());
}
double apart(const Tensor& a, const Tensor& b) { return distance_of(a.view(), b.view()).largest; }
double& number(Layer& layer, std::string_view name, Index i) {
  return static_cast<double*>(layer.params().find(name).value().data)[i];
}
void set(Layer& layer, std::string_view name, double x) {
  for (Index i = 0; i < layer.params().find(name).value().count(); ++i) number(layer, name, i) = x;
}

TEST(Gqa, IsMhaWithRepeatedKeysAndValues) {
  Layer gqa("gqa:heads=4,kv_heads=2,dim=3", DType::f64, kPlace), mha("mha:heads=4,dim=3", DType::f64, kPlace);
  for (const char* w : {"w_q", "w_o"})
    for (Index i = 0; i < 144; ++i) number(mha, w, i) = number(gqa, w, i);
  for (const char* w : {"w_k", "w_v"})
    for (Index row = 0; row < 12; ++row)
      for (Index c = 0; c < 12; ++c)
        number(mha, w, row * 12 + c) = number(gqa, w, (row / 6 * 3 + row % 3) * 12 + c);
  EXPECT_LE(apart(out_of(gqa), out_of(mha)), 1e-14);
  Tensor dy = rows(9);
  gqa.backward(dy.view(), context()), mha.backward(dy.view(), context());
  const double* one = static_cast<double*>(gqa.params().find("w_k").grad().data);
  const double* all = static_cast<double*>(mha.params().find("w_k").grad().data);
  for (Index i = 0; i < 36; ++i) EXPECT_NEAR(one[i], all[i] + all[36 + i], 1e-13);
}

TEST(Overlapped, ScoresAddTheNeighboursRims) {
  // One key: weights are 1, so values show which columns a head reads; scores are checked by two keys below.
  const Index heads = 3, dim = 4, rim = 2, row = heads * dim;
  ParamSet params;
  const AnyHead head = make_head("overlapped:heads=3,dim=4,schedule=constant,rim=2", params, kPlace);
  Tensor q = random_normal({1, 1, row}, DType::f64, 1), k = random_normal({1, 2, row}, DType::f64, 2),
         v = random_normal({1, 2, row}, DType::f64, 3);
  HeadRun run(head, {.dtype = DType::f64, .batch = 1, .q_tokens = 1, .kv_tokens = 2}, false);
  Buffer memory(1 << 16);
  Arena arena(memory.span());
  run.call.q = q.view(), run.call.k = k.view(), run.call.v = v.view();
  run.book(arena), run.forward(context());
  const auto at = [&](const Tensor& t, Index token, Index c) {
    return c < 0 || c >= row ? 0.0 : t.values<double>()[static_cast<std::size_t>(token * row + c)];
  };
  for (Index h = 0; h < heads; ++h) {
    double score[2] = {0, 0};
    for (Index token = 0; token < 2; ++token) {
      for (Index c = h * dim; c < (h + 1) * dim; ++c) score[token] += at(q, 0, c) * at(k, token, c);
      for (Index c = 1; c <= rim; ++c) score[token] += at(q, 0, h * dim - c) * at(k, token, h * dim - c);
      for (Index c = 0; c < rim; ++c)
        score[token] += at(q, 0, (h + 1) * dim + c) * at(k, token, (h + 1) * dim + c);
    }
    const double first = 1 / (1 + std::exp((score[1] - score[0]) / std::sqrt(double(dim))));
    for (Index c = -rim; c < dim + rim; ++c)
      EXPECT_NEAR(static_cast<double*>(run.call.y.data)[h * (dim + 2 * rim) + c + rim],
                  first * at(v, 0, h * dim + c) + (1 - first) * at(v, 1, h * dim + c), 1e-14);
  }
}

TEST(Overlapped, OneHeadIsMhaAndItsRimsOfWoGetNoGradient) {
  Layer wide("overlapped:heads=1,dim=3,schedule=constant,rim=2", DType::f64, kPlace),
      mha("mha:heads=1,dim=3", DType::f64, kPlace);
  for (const char* w : {"w_q", "w_k", "w_v"})
    for (Index i = 0; i < 36; ++i) number(mha, w, i) = number(wide, w, i);
  for (Index r = 0; r < 12; ++r)
    for (Index c = 0; c < 3; ++c) number(mha, "w_o", r * 3 + c) = number(wide, "w_o", r * 7 + c + 2);
  EXPECT_LE(apart(out_of(wide), out_of(mha)), 1e-14);
  Tensor dy = rows(9);
  wide.backward(dy.view(), context());
  const double* g = static_cast<double*>(wide.params().find("w_o").grad().data);
  for (Index r = 0; r < 12; ++r)
    for (const Index c : {0, 1, 5, 6}) EXPECT_EQ(g[r * 7 + c], 0);
}

TEST(Overlapped, SchedulesFollowTheLayer) {
  const auto rim = [](RimSchedule s, Index layer) {
    ParamSet params;
    return Overlapped({8, 8, s, 3}, params, {layer, 6, 64}).rim();
  };
  const Index wanted[9][3] = {{3, 3, 3}, {0, 3, 5}, {1, 4, 6}, {0, 1, 2}, {1, 2, 3},
                              {5, 2, 0}, {6, 3, 1}, {2, 1, 0}, {3, 2, 1}};  // at layers 0, 3, 5 of 6
  for (int s = 0; s < 9; ++s)
    for (int i = 0; i < 3; ++i) EXPECT_EQ(rim(static_cast<RimSchedule>(s), i == 2 ? 5 : 3 * i), wanted[s][i]);
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_shape,
                  [] {
                    ParamSet params;
                    make_head("overlapped:heads=2,dim=4,schedule=constant,rim=9", params, kPlace);
                  }),
      "overlapped: the rim is 9 at layer 1 but must be 0 to 8, the columns of all heads; choose another "
      "schedule");
}

TEST(Gated, ZeroWeightsHalveMha) {
  Layer gated("gated:heads=4,dim=3", DType::f64, kPlace), mha("mha:heads=4,dim=3", DType::f64, kPlace);
  copy_values(mha.params(), gated.params());
  set(gated, "head.gate", 0);
  Tensor half = out_of(mha);
  for (double& x : half.values<double>()) x /= 2;
  EXPECT_LE(apart(out_of(gated), half), 1e-15);
  Layer open("gated:heads=4,dim=3,bias=true", DType::f64, kPlace);
  copy_values(mha.params(), open.params());
  set(open, "head.gate", 0), set(open, "head.gate_bias", 1000);
  EXPECT_LE(apart(out_of(open), out_of(mha)), 1e-15);
}

TEST(Gated, HeadWiseIsElementWiseWithRepeatedColumns) {
  Layer by_head("gated:heads=4,dim=3,grain=head", DType::f64, kPlace),
      by_element("gated:heads=4,dim=3", DType::f64, kPlace);
  for (const char* w : {"w_q", "w_k", "w_v", "w_o"})
    for (Index i = 0; i < 144; ++i) number(by_element, w, i) = number(by_head, w, i);
  for (Index row = 0; row < 12; ++row)
    for (Index c = 0; c < 12; ++c)
      number(by_element, "head.gate", row * 12 + c) = number(by_head, "head.gate", row / 3 * 12 + c);
  EXPECT_LE(apart(out_of(by_head), out_of(by_element)), 1e-14);
}

TEST(Differential, EqualMapsGiveOneMinusLambdaTimesMha) {
  Layer layer("differential:heads=2,dim=3,value_dim=3,learned=false,norm=false,start=0.25", DType::f64,
              kPlace),
      mha("mha:heads=2,dim=3", DType::f64, kPlace);
  for (const char* w : {"w_q", "w_k"})
    for (Index row = 0; row < 12; ++row)
      for (Index c = 0; c < 12; ++c)
        number(layer, w, row * 12 + c) = number(mha, w, (row / 6 * 3 + row % 3) * 12 + c);
  for (const char* w : {"w_v", "w_o"})
    for (Index i = 0; i < 72; ++i) number(layer, w, i) = number(mha, w, i);
  Tensor less = out_of(mha);
  for (double& x : less.values<double>()) x *= 0.75;
  EXPECT_LE(apart(out_of(layer), less), 1e-14);
}

TEST(Differential, ConstantValuesGiveOneMinusLambda) {
  ParamSet params(DType::f64);
  Differential typed({4, 4, 3, 3, true, false, -1}, params, kPlace);
  const double lambda = typed.lambda();
  EXPECT_NEAR(lambda, 0.8 - 0.6 * std::exp(-0.3), 0.2);
  const AnyHead head(typed);
  Tensor q = random_normal({1, 5, 24}, DType::f64, 1), k = random_normal({1, 5, 24}, DType::f64, 2),
         v(DType::f64, {1, 5, 12});
  for (double& x : v.values<double>()) x = 1;
  HeadRun run(head, {.dtype = DType::f64, .batch = 1, .q_tokens = 5, .kv_tokens = 5}, false);
  Buffer memory(1 << 16);
  Arena arena(memory.span());
  run.call.q = q.view(), run.call.k = k.view(), run.call.v = v.view();
  run.book(arena), run.forward(context());
  for (Index i = 0; i < run.call.y.count(); ++i)
    EXPECT_NEAR(static_cast<double*>(run.call.y.data)[i], 1 - lambda, 1e-14);
}

TEST(Moh, PermutingRoutedHeadsChangesNothing) {
  // One of four heads is shared; the others take each other's places in every matrix that knows heads.
  const char* settings = "moh:heads=4,dim=3,shared=1,k=2";
  Layer moh(settings, DType::f64, kPlace), permuted(settings, DType::f64, kPlace);
  constexpr Index kFrom[] = {0, 3, 1, 2};
  for (const char* w : {"w_q", "w_k", "w_v"})
    for (Index i = 0; i < 144; ++i)
      number(permuted, w, i) = number(moh, w, (kFrom[i / 36] * 3 + i / 12 % 3) * 12 + i % 12);
  for (Index i = 0; i < 144; ++i)
    number(permuted, "w_o", i) = number(moh, "w_o", i / 12 * 12 + kFrom[i % 12 / 3] * 3 + i % 3);
  for (Index i = 0; i < 36; ++i)
    number(permuted, "head.router_routed", i) =
        number(moh, "head.router_routed", (kFrom[i / 12 + 1] - 1) * 12 + i % 12);
  EXPECT_LE(apart(out_of(moh), out_of(permuted)), 1e-14);
  EXPECT_NEAR(moh.call().loss, permuted.call().loss, 1e-14);
  number(permuted, "head.router_routed", 0) += 1;  // the law can fail
  EXPECT_GT(apart(out_of(moh), out_of(permuted)), 1e-3);
}

TEST(Knocking, MatricesFoldIntoTheProjections) {
  Layer knocking("knocking:heads=4,dim=3", DType::f64, kPlace), mha("mha:heads=4,dim=3", DType::f64, kPlace);
  disturb(knocking.params(), 0.3);
  const std::pair<const char*, const char*> folded[] = {
      {"w_q", "head.knock_q"}, {"w_k", "head.knock_k"}, {"w_v", "head.knock_v"}};
  for (const auto& [w, t] : folded)  // T W_h for every head
    for (Index row = 0; row < 12; ++row)
      for (Index c = 0; c < 12; ++c) {
        double sum = 0;
        for (Index i = 0; i < 3; ++i)
          sum += number(knocking, t, row % 3 * 3 + i) * number(knocking, w, (row / 3 * 3 + i) * 12 + c);
        number(mha, w, row * 12 + c) = sum;
      }
  for (Index i = 0; i < 144; ++i) number(mha, "w_o", i) = number(knocking, "w_o", i);
  EXPECT_LE(apart(out_of(knocking), out_of(mha)), 1e-13);
}

TEST(Knocking, TheGatedValuesStartAsTheIdentity) {
  Layer mlp("knocking:heads=4,dim=3,values=mlp", DType::f64, kPlace),
      mha("mha:heads=4,dim=3", DType::f64, kPlace);
  copy_values(mha.params(), mlp.params());
  EXPECT_LE(apart(out_of(mlp), out_of(mha)), 1e-14);
}

TEST(Reach, IsMhaUnderOneMaskAHead) {
  Layer reach("reach:heads=4,dim=3,near=1,near_heads=1,middle=3,middle_heads=2", DType::f64, kPlace),
      mha("mha:heads=4,dim=3", DType::f64, kPlace);
  copy_values(reach.params(), mha.params());
  Tensor open(DType::u8, {1, 4, 5, 5});
  const Index keys[] = {1, 3, 3, 5};
  for (Index n = 0; n < 100; ++n) {
    const Index far = n / 5 % 5 - n % 5;
    open.values<std::uint8_t>()[static_cast<std::size_t>(n)] = far < keys[n / 25] && -far < keys[n / 25];
  }
  const HeadSetting plain{.name = "plain"}, masked{.name = "masked", .mask = Mask::dense(open.view())};
  Tensor x = rows(3);
  const Tensor out = reach.forward(plain, x.view(), x.view(), context());
  EXPECT_EQ(apart(out, mha.forward(masked, x.view(), x.view(), context())), 0);
  EXPECT_GT(apart(out, mha.forward(plain, x.view(), x.view(), context())), 1e-3);
}

TEST(Reach, CountsThatCannotBeAreRefused) {
  ParamSet params;
  const auto words = [&](const char* head, ErrorKind kind) {
    return sentence_of(kind, [&] { make_head(head, params, kPlace); });
  };
  EXPECT_EQ(words("reach:heads=3,dim=4,near_heads=2,middle_heads=2", ErrorKind::bad_argument),
            "reach: near_heads (2) and middle_heads (2) are together more than the 3 heads; make them fewer");
  EXPECT_EQ(words("mha:heads=4+reach:near=0", ErrorKind::bad_argument),
            "reach: got near 0 and middle 256; a head sees at least its own key, so both start at 1");
  EXPECT_EQ(
      words("talking:heads=4+reach", ErrorKind::unsupported),
      "reach: the head below mixes its heads, which needs one mask for all; put reach over another head");
}

TEST(Scales, DealTheHeadsOfEachLayer) {
  EXPECT_EQ(with_scales("mha:heads=7", "32, 256,all"),
            "mha:heads=7+reach:near=32,near_heads=2,middle_heads=2,middle=256");
  EXPECT_EQ(with_scales("mha:heads=2; gqa:heads=4,kv_heads=2", "8,all"),
            "mha:heads=2+reach:near=8,near_heads=1,middle_heads=0; "
            "gqa:heads=4,kv_heads=2+reach:near=8,near_heads=2,middle_heads=0");
  EXPECT_EQ(with_scales("mha:heads=3", "4,9"),
            "mha:heads=3+reach:near=4,near_heads=1,middle_heads=2,middle=9");
  EXPECT_EQ(with_scales("mha:heads=3", "4"), "mha:heads=3+reach:near=4,near_heads=3,middle_heads=0");
  EXPECT_EQ(with_scales("mha:heads=3", "all"), "mha:heads=3");
  ParamSet params;
  const AnyHead made = make_head(with_scales("mha:heads=4,dim=3", "2,3,all"), params, kPlace);
  EXPECT_EQ(made.settings(),
            "mha:heads=4,dim=3+reach:heads=4,kv_heads=4,dim=3,near=2,near_heads=1,middle=3,middle_heads=1");
}

TEST(Scales, OthersAreRefusedInWords) {
  const auto words = [](const char* scales) {
    return sentence_of(ErrorKind::bad_argument, [&] { with_scales("mha:heads=2", scales); });
  };
  EXPECT_EQ(words("256,32"),
            "scales: \"256,32\" does not ascend; write the nearest reach first, as in 32,256,all");
  EXPECT_EQ(words("all,32"),
            "scales: \"all,32\" does not ascend; write the nearest reach first, as in 32,256,all");
  EXPECT_EQ(words("1,2,3"),
            "scales: \"1,2,3\" has more than two windows; give at most two and all, as in 32,256,all");
  EXPECT_EQ(words("1,2,all"),
            "scales: \"mha:heads=2\" has 2 heads for 3 scales; give at least one head a scale");
  for (const char* bad : {"", "0", "-3", "x", "1e9", "9999999", "32,", "32;64"})
    EXPECT_NE(words(bad).find("is no reach; give a number of tokens from 1 to 1048576, or all"),
              std::string::npos)
        << bad;
}

}  // namespace
}  // namespace headwise::test
