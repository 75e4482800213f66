// Regressions R044 to R067 that concern the CPU forward: heads, layouts, strides, scales, plans.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/support/online.h"
#include "tests/support/setting/setting_pose.h"

namespace headwise::test {
namespace {

TEST(Regression, R044_KvHeadIsQueryHeadDividedByGroup) {
  each_level([] {
    CaseRun r({.name = "R044", .q_tokens = 3, .kv_tokens = 5, .heads = 12, .kv_heads = 4, .value_dim = 1});
    for (std::size_t n = 0; n < 20; ++n)
      r.v.values<float>()[n] = static_cast<float>(n % 4);  // a value is its head's number
    attention(r.args, online());
    for (std::size_t n = 0; n < 36; ++n)
      EXPECT_NEAR(r.out.values<float>()[n], static_cast<float>(n % 12 / 3), 1e-6) << n;
  });
}

TEST(Regression, R045_R046_R047_EveryGroupSizeUnderCausal) {
  for (Index group = 1; group <= 20; ++group)
    for (const Index kv_heads : {1, 2}) {
      CaseRun r({.name = "R045",
                 .batch = 2,
                 .q_tokens = 19,
                 .kv_tokens = 35,
                 .heads = group * kv_heads,
                 .kv_heads = kv_heads,
                 .head_dim = 8,
                 .value_dim = 4});
      const MaskView causal = MaskView::causal();
      Tensor end = tensor_of(std::vector<Index>{kStartEnd});
      r.args.mask = {&causal, 1}, r.args.q_start = end.view();
      expect_matches(r, "R045");
    }
}

TEST(Regression, R049_SlopesForAnyNumberOfHeads) {
  for (const Index heads : {1, 3, 6, 12})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      CaseRun r({.name = "R049", .q_tokens = 20, .kv_tokens = 300, .heads = heads, .kv_heads = 1});
      Tensor slopes(dtype, {heads});
      for (Index h = 0; h < heads; ++h)
        store_double(slopes.view().data, dtype, h, std::exp2(-0.7 * static_cast<double>(h + 1)));
      r.args.inputs.slopes = slopes.view();
      expect_matches(r, "R049");
    }
}

TEST(Regression, R051_BroadcastKeysAndValuesAtEveryResidue) {
  each_level([] {
    for (Index keys = 1; keys <= 66; ++keys) {
      Case c{.name = "R051",
             .batch = 3,
             .q_tokens = 5,
             .kv_tokens = keys,
             .heads = 4,
             .kv_heads = 4,
             .head_dim = 9,
             .value_dim = 6};
      CaseRun r(c);
      r.args.k.step[0] = r.args.k.step[2] = r.args.v.step[0] = r.args.v.step[2] = 0;
      CaseRun copied(c);
      copied.k = converted(r.args.k, DType::f32), copied.v = converted(r.args.v, DType::f32);
      copied.point();
      attention(r.args, online());
      attention(copied.args, online());
      ASSERT_TRUE(same_bits(r.out, copied.out)) << keys;
    }
  });
}

TEST(Regression, R056_R057_LogSumExpInAPaddedBuffer) {
  each_level([] {
    const Case c{.name = "R056",
                 .batch = 2,
                 .q_tokens = 33,
                 .kv_tokens = 2100,
                 .heads = 6,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .value_dim = 8};
    CaseRun r(c);
    attention(r.args, online());
    for (const Placement& way : {Placement{.gap = 7}, Placement{.order = {0, 2, 1}},
                                 Placement{.order = {2, 1, 0}, .inner = 3, .gap = 2, .first = 1}}) {
      const Placed lse = place(r.lse.view(), way);
      poison(lse.memory);
      AttentionArgs a = r.args;
      Tensor out(DType::f32, {2, 33, 6, 8});
      a.lse = lse.view, a.out = out.view();
      attention(a, online());
      EXPECT_TRUE(same_bits(converted(lse.view, DType::f32), r.lse));
      Index written = 0;
      for (float x : lse.memory.values<float>()) written += !std::isnan(x);
      EXPECT_EQ(written, r.lse.view().count());
    }
    EXPECT_TRUE(matches_ref(r.args));
  });
}

TEST(Regression, R060_R061_EveryHeadDimWithTheScaleOfTheTrueWidth) {
  each_level([] {
    for (Index dim = 1; dim <= 256; dim += dim < 70 ? 1 : dim < 130 ? 3 : 9) {
      const Case c{.name = "R060",
                   .q_tokens = 5,
                   .kv_tokens = 33,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = dim,
                   .value_dim = 257 - dim};
      CaseRun r(c);
      attention(r.args, online());
      ASSERT_TRUE(matches_ref(r.args)) << dim;
      Tensor scale = filled(1, 1 / std::sqrt(static_cast<double>(dim)), DType::f64), out = r.out.clone();
      r.args.inputs.scale = scale.view();
      attention(r.args, online());
      ASSERT_TRUE(same_bits(out, r.out)) << dim;
    }
  });
}

TEST(Regression, R062_ValueDimApartFromHeadDim) {
  for (const auto& [head_dim, value_dim] :
       {std::pair<Index, Index>{192, 128}, {576, 512}, {64, 512}, {1, 513}, {600, 1}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CaseRun r(with_dtype({.name = "R062",
                            .q_tokens = 9,
                            .kv_tokens = 70,
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = head_dim,
                            .value_dim = value_dim},
                           dtype));
      expect_matches(r, "R062");
    }
}

TEST(Regression, R063_ValuesAreAViewIntoKeys) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CaseRun r(with_dtype({.name = "R063",
                          .q_tokens = 20,
                          .kv_tokens = 70,
                          .heads = 4,
                          .kv_heads = 1,
                          .head_dim = 48,
                          .value_dim = 32},
                         dtype));
    r.args.v = r.args.k;
    r.args.v.size[3] = 32;
    expect_matches(r, "R063");
    r.args.k = r.args.q;  // k of q's own memory, and v too
    r.args.v = r.args.q;
    r.args.v.size[3] = 32;
    expect_matches(r, "R063, all of q");
  }
}

/// The same bytes read as [tokens heads] and as [heads tokens]: the layout is in the view, never guessed from
/// sizes.
TEST(Regression, R064_LayoutIsSaidNotGuessed) {
  each_level([] {
    const Case c{.name = "R064",
                 .q_tokens = 2,
                 .kv_tokens = 2,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .value_dim = 8};
    CaseRun bshd(c), bhsd(c);
    for (AnyView* v : std::initializer_list<AnyView*>{&bhsd.args.q, &bhsd.args.k, &bhsd.args.v})
      std::swap(v->step[1], v->step[2]);
    attention(bshd.args, online());
    attention(bhsd.args, online());
    EXPECT_FALSE(same_bits(bshd.out, bhsd.out));
    EXPECT_TRUE(matches_ref(bhsd.args));
  });
}

TEST(Regression, R067_RaggedOffsetsWithGroupedHeadsInAPackedRow) {
  const Index heads = 6, kv_heads = 2, dim = 16, tokens = 60, width = (heads + 2 * kv_heads) * dim;
  Tensor row = random_normal({1, tokens, width}, DType::f32, 3),
         offsets = tensor_of(offsets_of({20, 0, 33, 7}));
  CaseRun r({.name = "R067",
             .q_tokens = tokens,
             .kv_tokens = tokens,
             .heads = heads,
             .kv_heads = kv_heads,
             .head_dim = dim,
             .value_dim = dim});
  const auto part = [&](AnyView& v, Index first) {
    v.data = row.values<float>().data() + first * dim;
    v.step[1] = width, v.step[0] = width * tokens;
  };
  part(r.args.q, 0), part(r.args.k, heads), part(r.args.v, heads + kv_heads);
  const MaskView causal = MaskView::causal();
  r.args.q_offsets = r.args.kv_offsets = offsets.view(), r.args.mask = {&causal, 1};
  expect_matches(r, "R067");
}

/// Planned with one scale tensor, run with another after the first is gone: a plan keeps no address.
TEST(Regression, R098_NothingOfThePlanningCallIsKept) {
  each_level([] {
    CaseRun r({.name = "R098", .q_tokens = 9, .kv_tokens = 20, .heads = 2, .kv_heads = 1});
    const auto plan = [&] {
      Tensor scale = filled(2, 0.5);
      r.args.inputs.scale = scale.view();
      return AttentionPlan(problem_of(r.args), online());
    }();
    Tensor later = filled(2, 0.25);
    r.args.inputs.scale = later.view();
    plan.run(r.args, online());
    EXPECT_TRUE(matches_ref(r.args));
  });
}

}  // namespace
}  // namespace headwise::test
