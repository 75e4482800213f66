// What docs/facts.md states and no other test shows: counts of weights, sums over heads, subspaces, ranks.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/context.h"
#include "headwise/heads/cost.h"
#include "headwise/layers/multi_head/multi_head.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/projection/projection.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;

TEST(Facts, WeightsDoNotDependOnTheNumberOfHeads) {
  for (const Index heads : {1, 2, 4, 8, 16, 32}) {
    ParamSet params(DType::f32);
    const MultiHead layer(params, "attention", text("mha:heads=", heads, ",dim=", 512 / heads),
                          {.model_dim = 512});
    EXPECT_EQ(params.count(), 4 * 512 * 512 + 4 * 512);
  }
  EXPECT_EQ(4 * 512 * 512, 1'048'576);
}

TEST(Facts, GroupsCutKeysAndValuesAlone) {
  ParamSet params(DType::f32);
  const MultiHead layer(params, "attention", "gqa:heads=8,kv_heads=2,dim=64",
                        {.model_dim = 512, .bias = false});
  EXPECT_EQ(layer.part(0).weight().value().size[0], 512);
  EXPECT_EQ(layer.part(1).weight().value().size[0], 128);  // / 4, as are cache bytes
  EXPECT_EQ(layer.head().spec().q.heads, 8);               // QK^T and PV of 8 heads are left as they were
}

TEST(Facts, RowsOfWoFollowTheHeadsAndColumnsOfWkTheKeys) {
  ParamSet params(DType::f32);
  const MultiHead layer(params, "attention", "mha:heads=3,dim=5",
                        {.model_dim = 8, .key_model_dim = 6, .value_model_dim = 7, .bias = false});
  EXPECT_EQ(layer.part(0).weight().value().size[1], 8);
  EXPECT_EQ(layer.part(1).weight().value().size[1], 6);
  EXPECT_EQ(layer.part(2).weight().value().size[1], 7);
  EXPECT_EQ(layer.part(3).weight().value().size[1],
            15);  // h d_v x model_dim: square only where h d_v is model_dim
  EXPECT_EQ(layer.part(3).weight().value().size[0], 8);
}

TEST(Facts, TheOutputIsTheSumOfHeadsTimesTheirRowsOfWo) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  const MultiHead layer(params, "attention", "mha:heads=4,dim=3", {.model_dim = 12, .out_bias = false});
  Tensor x = random_normal({5, 12}, DType::f64, 2);
  Call call = bench.call({.tokens = 5});
  MultiHead::Saved saved;
  const AnyView y = layer.forward(x.view(), call, &saved);
  const AnyView heads = as_rows(saved.run->call.y, 12), wo = layer.part(3).weight().value();
  Tensor sum(DType::f64, {5, 12});
  for (Index h = 0; h < 4; ++h) {
    Tensor one(DType::f64, {5, 12});
    projection(
        {.x = slice(heads, 1, h * 3, h * 3 + 3), .weight = slice(wo, 1, h * 3, h * 3 + 3), .out = one.view()},
        Activation::none, bench.ctx);
    for (std::size_t i = 0; i < 60; ++i) sum.values<double>()[i] += one.values<double>()[i];
  }
  for (Index i = 0; i < 60; ++i) EXPECT_NEAR(value(sum.view(), i), value(y, i), 1e-15);
}

TEST(Facts, NothingMakesHeadsOrthogonal) {
  const double w1[4][2] = {{.1, .4}, {-.2, .3}, {1, -.5}, {.5, .2}};
  const double w2[4][2] = {{-.3, .2}, {1.1, .6}, {-.4, .8}, {.7, -.1}};
  const double want[2][2] = {{-.3, .65}, {.55, -.16}};
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      double product = 0;
      for (int r = 0; r < 4; ++r) product += w1[r][i] * w2[r][j];
      EXPECT_NEAR(product, want[i][j], 1e-15);
    }
}

TEST(Facts, HeadsOfAFormulaMustDivide) {
  EXPECT_NEAR(std::sqrt(512.0 / 16), 5.657, 1e-3);  // no number of heads
  EXPECT_EQ(std::sqrt(1024.0 / 16), 8);
  EXPECT_EQ(std::sqrt(256.0 / 16), 256 / 64);  // the only width at which sqrt(d / 16) and d / 64 agree
  EXPECT_NEAR(17.0 / 48, 0.354, 1e-3);         // 17 heads of 48 kept: two thirds were pruned
}

TEST(Facts, DecodeReadsOneFloatForEveryTwoFlop) {
  // 2 FLOP for each element of K and V and each query head that reads it.
  const auto intensity = [](double bytes, double group) { return 2 * group / bytes; };
  EXPECT_EQ(intensity(2, 1), 1);
  EXPECT_EQ(intensity(4, 1), 0.5);
  EXPECT_EQ(intensity(1, 1), 2);
  EXPECT_EQ(intensity(2, 4), 4);
  EXPECT_EQ(intensity(2, 32), 32);
}

/// What `head` costs as layer 1 of 4, tokens meeting themselves.
HeadCost cost(const std::string& head, Index model_dim, Index tokens) {
  const Place place{1, 4, model_dim};
  ParamSet params;
  const AnyHead made = make_head(head, params, place);
  return cost_of(made, params, {.batch = 1, .q_tokens = tokens, .kv_tokens = tokens}, place);
}

TEST(Facts, CostDoesNotDependOnTheNumberOfHeads) {
  constexpr double kTokens = 1024, kModel = 512;  // n = 2 d: attention costs what its projections cost
  for (const Index heads : {1, 4, 8, 32}) {
    const HeadCost c = cost(text("mha:heads=", heads), 512, 1024);
    EXPECT_EQ(c.attention_flops, 4 * kTokens * kTokens * kModel);
    EXPECT_EQ(2 * kTokens * static_cast<double>(c.parameters), 8 * kTokens * kModel * kModel);
    EXPECT_EQ(c.attention_flops, 2 * kTokens * static_cast<double>(c.parameters));
  }
  // n^2 d: twice the tokens, four times the cost; twice the width, twice the cost. n d^2 for the projections.
  EXPECT_EQ(cost("mha:heads=8", 512, 2048).attention_flops,
            4 * cost("mha:heads=8", 512, 1024).attention_flops);
  EXPECT_EQ(cost("mha:heads=8", 1024, 1024).attention_flops,
            2 * cost("mha:heads=8", 512, 1024).attention_flops);
  EXPECT_EQ(cost("mha:heads=8", 1024, 1024).parameters, 4 * cost("mha:heads=8", 512, 1024).parameters);
}

TEST(Facts, EightHeadsOf512AreEightSubspacesOf64) {
  ParamSet params(DType::f32);
  const MultiHead layer(params, "attention", "mha:heads=8", {.model_dim = 512});
  EXPECT_EQ(layer.head().spec().q.heads, 8);
  EXPECT_EQ(layer.head().spec().q.dim, 64);
  EXPECT_EQ(layer.part(0).weight().value().size[0] / 64, 8);  // sets 0..7 of W_Q: h of them, not h + 1
}

TEST(Facts, RoutersOfMohAddHeadsAndTwoRows) {
  const Index more =
      cost("moh:heads=16,shared=4,k=4", 1024, 64).parameters - cost("mha:heads=16", 1024, 64).parameters;
  EXPECT_EQ(more, (16 + 2) * 1024);
  EXPECT_NEAR(static_cast<double>(more) / (4 * 1024 * 1024), 0.0044, 1e-4);
}

TEST(Facts, CoefficientsOfDcmhaComeFromTheLayersInput) {
  const Index heads = 8, rank = 2, model_dim = 512, wide = 2 * rank * heads;
  const Index more =
      cost("dcmha:heads=8,rank=2", 512, 64).parameters - cost("mha:heads=8", 512, 64).parameters;
  EXPECT_EQ(more,
            4 * (wide * model_dim + wide * wide + heads * model_dim));  // nets over x [model_dim], not q or k
}

TEST(Facts, FusedMemoryDoesNotGrowWithPairs) {
  const auto bytes_at = [](Index heads, Index tokens) {
    AttentionProblem p;
    p.batch = 1, p.q_tokens = p.kv_tokens = tokens;
    p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(heads, 512 / heads);
    Context ctx({.threads = 2, .kernels = "cpu/online"});
    return AttentionPlan(p, ctx).workspace_bytes();
  };
  for (const Index heads : {1, 8}) {
    const std::size_t scores = static_cast<std::size_t>(heads) * 8192 * 8192 * 4;  // materialised: heads n^2
    EXPECT_LE(bytes_at(heads, 8192), 2 * bytes_at(heads, 4096));
    EXPECT_LT(bytes_at(heads, 8192), scores / 10);
  }
}

}  // namespace
}  // namespace headwise
