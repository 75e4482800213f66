// NaN planted in every byte that must not matter changes nothing; visible ones touch their rows alone.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr DType kHalves[] = {DType::f32, DType::bf16, DType::f16};

Mask mask_named(const std::string& text) { return parse_mask(text); }

/// Row (b, i, h) of out as bytes.
std::string row_bytes(const Tensor& out, Index b, Index i, Index h) {
  const InputView& v = out.view();
  const auto bytes = static_cast<std::size_t>(v.size[3] * size_of(v.dtype));
  return {static_cast<const char*>(v.data) +
              static_cast<std::size_t>((b * v.size[1] + i) * v.size[2] + h) * bytes,
          bytes};
}
bool all_nan(const Tensor& out, Index b, Index i, Index h) {
  const InputView& v = out.view();
  for (Index c = 0; c < v.size[3]; ++c)
    if (!std::isnan(load_double(v.data, v.dtype, ((b * v.size[1] + i) * v.size[2] + h) * v.size[3] + c)))
      return false;
  return true;
}
void put_token(const Tensor& t, Index b, Index token, Index head, double x) {
  const InputView& v = t.view();
  for (Index c = 0; c < v.size[3]; ++c)
    store_double(v.data, v.dtype, ((b * v.size[1] + token) * v.size[2] + head) * v.size[3] + c, x);
}

/// Every key no query may see holds NaN in K and an infinity in V: R003, R034, R109 without pages.
TEST(Poison, R003_R034_KeysNobodySees) {
  for (const char* text :
       {"prefix(5)", "lengths(0, 40)", "lengths(257, 300)", "window(3, 0)", "documents(0, 20, 21, 40)",
        "causal", "causal & window(9, 0) | prefix(4)", "strided(64, 3)"})
    for (const DType dtype : kHalves)
      each_level([&] {
        const Case c = with_dtype({.name = text,
                                   .batch = 2,
                                   .q_tokens = 35,
                                   .kv_tokens = 300,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 20,
                                   .value_dim = 33},
                                  dtype);
        CaseRun clean(c), planted(c);
        const Mask mask = mask_named(text);
        clean.args.mask = planted.args.mask = mask.set();
        Index hidden = 0;
        for (Index b = 0; b < 2; ++b)
          for (Index j = 0; j < 300; ++j) {
            bool seen = false;
            for (Index i = 0; i < 35 && !seen; ++i) seen = mask.may_attend(i, j, {b, 0, 0});
            if (seen) continue;
            ++hidden;
            for (Index h = 0; h < 2; ++h)
              put_token(planted.k, b, j, h, kNan), put_token(planted.v, b, j, h, j % 2 ? kInf : kNan);
          }
        EXPECT_GT(hidden, 0) << text;
        attention(clean.args, online());
        poison(planted.out), poison(planted.lse);
        attention(planted.args, online());
        EXPECT_TRUE(same_bits(clean.out, planted.out)) << text << " " << dtype;
        EXPECT_TRUE(same_bits(clean.lse, planted.lse)) << text << " " << dtype;
      });
}

/// One bad key: rows that may not see it keep their bits, rows that see it become NaN, for every place of the
/// key.
TEST(Poison, ABadKeyOrValueTouchesItsRowsAlone) {
  for (const char* text : {"causal", "window(20, 5) | strided(50, 1)", "documents(0, 33, 64, 300)"})
    each_level([&] {
      const Case c{.name = text,
                   .batch = 1,
                   .q_tokens = 290,
                   .kv_tokens = 290,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 16,
                   .value_dim = 20};
      CaseRun clean(c);
      const Mask mask = mask_named(text);
      clean.args.mask = mask.set();
      attention(clean.args, online());
      for (const Index bad : {0, 33, 255, 256, 289})
        for (const double x : {kNan, kInf})
          for (const bool in_value : {false, true}) {
            CaseRun r(c);
            r.args.mask = mask.set();
            put_token(in_value ? r.v : r.k, 0, bad, 0, x);
            attention(r.args, online());
            for (Index i = 0; i < 290; ++i)
              for (Index h = 0; h < 2; ++h) {
                const bool right = mask.may_attend(i, bad)
                                       ? !std::isnan(x) || all_nan(r.out, 0, i, h)
                                       : row_bytes(r.out, 0, i, h) == row_bytes(clean.out, 0, i, h);
                ASSERT_TRUE(right) << text << " key " << bad << " row " << i << " head " << h << " " << x
                                   << (in_value ? " in v" : " in k");
              }
          }
    });
}

TEST(Poison, OneColumnOfAValueTouchesOneColumn) {
  each_level([] {
    const Case c{.name = "column",
                 .q_tokens = 20,
                 .kv_tokens = 20,
                 .heads = 1,
                 .kv_heads = 1,
                 .head_dim = 8,
                 .value_dim = 40};
    CaseRun clean(c), r(c);
    const MaskView causal = MaskView::causal();
    clean.args.mask = r.args.mask = {&causal, 1};
    r.v.values<float>()[7 * 40 + 21] = static_cast<float>(kNan);
    attention(clean.args, online());
    attention(r.args, online());
    for (std::size_t i = 0; i < 20; ++i)
      for (std::size_t d = 0; d < 40; ++d) {
        const float x = r.out.values<float>()[i * 40 + d];
        if (d == 21 && i >= 7)
          EXPECT_TRUE(std::isnan(x)) << i;
        else
          EXPECT_EQ(x, clean.out.values<float>()[i * 40 + d]) << i << " " << d;
      }
  });
}

TEST(Poison, ABadQueryTouchesItsRowAlone) {
  each_level([] {
    const Case c{.name = "query",
                 .batch = 2,
                 .q_tokens = 45,
                 .kv_tokens = 270,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .value_dim = 8};
    CaseRun clean(c), r(c);
    put_token(r.q, 1, 17, 2, kNan);
    attention(clean.args, online());
    attention(r.args, online());
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 45; ++i)
        for (Index h = 0; h < 4; ++h)
          if (b == 1 && i == 17 && h == 2) {
            EXPECT_TRUE(all_nan(r.out, b, i, h));
            EXPECT_TRUE(std::isnan(r.lse.values<float>()[static_cast<std::size_t>((b * 4 + h) * 45 + i)]));
          } else {
            EXPECT_EQ(row_bytes(r.out, b, i, h), row_bytes(clean.out, b, i, h)) << b << " " << i << " " << h;
          }
  });
}

/// A row whose only open logit is NaN, or +inf, is NaN with a NaN log-sum-exp, not empty.
TEST(Poison, AnOnlyKeyThatIsBadGivesNan) {
  each_level([] {
    for (const double x : {kNan, kInf}) {
      const Case c{.name = "only", .q_tokens = 9, .kv_tokens = 9, .heads = 1, .kv_heads = 1};
      CaseRun r(c);
      const MaskView own = MaskView::window(0, 0);
      r.args.mask = {&own, 1};
      Tensor bias(DType::f32, {1, 1, 9, 9});
      bias.values<float>()[4 * 9 + 4] = static_cast<float>(x);
      r.args.inputs.bias = bias.view();
      attention(r.args, online());
      for (Index i = 0; i < 9; ++i) {
        EXPECT_EQ(all_nan(r.out, 0, i, 0), i == 4) << i;
        EXPECT_EQ(std::isnan(r.lse.values<float>()[static_cast<std::size_t>(i)]), i == 4) << i;
      }
    }
  });
}

TEST(Poison, ClosedPairsOfTheBiasDoNotMatter) {
  each_level([] {
    const Case c{.name = "bias", .q_tokens = 40, .kv_tokens = 270, .heads = 2, .kv_heads = 2};
    CaseRun clean(c), r(c);
    const Mask mask = Mask::causal() | Mask::prefix(3);
    Tensor bias = random_normal({1, 2, 40, 270}, DType::f32, 3), planted = bias.clone();
    for (Index n = 0; n < bias.view().count(); ++n)
      if (!mask.may_attend(n / 270 % 40, n % 270))
        planted.values<float>()[static_cast<std::size_t>(n)] = static_cast<float>(n % 2 ? kNan : kInf);
    clean.args.mask = r.args.mask = mask.set();
    clean.args.inputs.bias = bias.view(), r.args.inputs.bias = planted.view();
    attention(clean.args, online());
    attention(r.args, online());
    EXPECT_TRUE(same_bits(clean.out, r.out));
    EXPECT_TRUE(same_bits(clean.lse, r.lse));
  });
}

/// A pair that weighs nothing by a bias of -inf or by dropout does not read its value either.
TEST(Poison, PairsClosedByBiasOrDropoutDoNotMatter) {
  each_level([] {
    for (const bool masked : {false, true})
      for (const DType dtype : kHalves) {
        const Case c =
            with_dtype({.name = "lost", .q_tokens = 20, .kv_tokens = 300, .heads = 2, .kv_heads = 1}, dtype);
        CaseRun r(c);
        const MaskView window = MaskView::window(15, 400);
        if (masked) r.args.mask = {&window, 1};
        Tensor bias(DType::f32, {1, 1, 20, 300});
        for (std::size_t i = 0; i < 20; ++i)
          bias.values<float>()[i * 300 + 17] = i % 2 ? static_cast<float>(-kInf) : 0.0f;
        r.args.inputs.bias = bias.view();
        put_token(r.v, 0, 17, 0, kNan);
        attention(r.args, online());
        for (Index i = 0; i < 20; ++i)
          for (Index h = 0; h < 2; ++h) EXPECT_EQ(all_nan(r.out, 0, i, h), i % 2 == 0) << i << " " << dtype;
        r.args.inputs.bias = {};
        r.args.inputs.dropout = 0.5, r.args.inputs.seed = 3;
        attention(r.args, online());
        const DropoutRule rule = DropoutRule::of(0.5, 3);
        for (Index i = 0; i < 20; ++i)
          for (Index h = 0; h < 2; ++h)
            EXPECT_EQ(all_nan(r.out, 0, i, h), rule.keep(0, h, i, 17)) << i << " " << dtype;
      }
  });
}

/// An empty row is +0 whatever its gate, alone in its panel or not.
TEST(Poison, TheGateOfAnEmptyRowDoesNotMatter) {
  each_level([] {
    CaseRun r({.name = "gate", .q_tokens = 40, .kv_tokens = 40, .heads = 1, .kv_heads = 1});
    const MaskView late = MaskView::window(0, 0);
    Tensor start = tensor_of(std::vector<Index>{20});  // rows 20.. see nothing
    r.args.mask = {&late, 1}, r.args.q_start = start.view();
    for (const double gate : {-2.0, kNan, kInf}) {
      Tensor gates = filled(40, gate);
      r.args.inputs.gate = AnyView::packed(gates.view().data, DType::f32, {1, 40, 1});
      attention(r.args, online());
      for (std::size_t n = 20 * 8; n < 40 * 8; ++n)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(r.out.values<float>()[n]), 0u) << n << " " << gate;
    }
  });
}

/// Neighbours of a ragged sequence hold NaN: nothing of them is read into it. (R013's forward half: empty
/// members.)
TEST(Poison, RaggedNeighbours) {
  each_level([] {
    const std::vector<Index> q_lengths = {0, 20, 33, 0, 7, 0}, kv_lengths = {5, 30, 65, 3, 0, 0};
    const std::vector<Index> qo = offsets_of(q_lengths), ko = offsets_of(kv_lengths);
    Tensor q_offsets = tensor_of(qo), kv_offsets = tensor_of(ko);
    const Case c{.name = "ragged",
                 .q_tokens = qo.back(),
                 .kv_tokens = ko.back(),
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 20,
                 .value_dim = 17};
    for (std::size_t own = 0; own < q_lengths.size(); ++own) {
      CaseRun clean(c), r(c);
      for (CaseRun* x : {&clean, &r})
        x->args.q_offsets = q_offsets.view(), x->args.kv_offsets = kv_offsets.view();
      for (Index i = 0; i < qo.back(); ++i)
        if (i < qo[own] || i >= qo[own + 1])
          for (Index h = 0; h < 2; ++h) put_token(r.q, 0, i, h, kNan);
      for (Index j = 0; j < ko.back(); ++j)
        if (j < ko[own] || j >= ko[own + 1]) put_token(r.k, 0, j, 0, kNan), put_token(r.v, 0, j, 0, kInf);
      attention(clean.args, online());
      poison(r.out);
      attention(r.args, online());
      for (Index i = qo[own]; i < qo[own + 1]; ++i)
        for (Index h = 0; h < 2; ++h)
          EXPECT_EQ(row_bytes(r.out, 0, i, h), row_bytes(clean.out, 0, i, h)) << own << " " << i;
    }
  });
}

/// R097, R020: what the workspace and the output held before does not matter, a hundred times over one plan.
TEST(Poison, R020_R097_WorkspaceAndOutputHoldAnything) {
  each_level([] {
    const Case c{.name = "workspace",
                 .batch = 2,
                 .q_tokens = 33,
                 .kv_tokens = 2100,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .value_dim = 16};
    CaseRun r(c);
    const MaskView window = MaskView::window(40, 0);
    r.args.mask = {&window, 1};
    Tensor columns(DType::f32, {2, 4, 2100});
    r.args.probe.column_sums = columns.view();
    ThreadPool pool(2);
    const AttentionPlan plan(problem_of(r.args, {.columns = true}), 2, "cpu/online");
    const Buffer memory(plan.workspace_bytes());
    std::memset(memory.data(), 0, memory.size());
    plan.run(r.args, memory.span(), pool);
    Tensor out = r.out.clone(), lse = r.lse.clone(), sums = columns.clone();
    for (int n = 0; n < 20; ++n) {
      std::memset(memory.data(), n % 3 == 0 ? 0xff : n % 3 == 1 ? 0x7f : 0x81, memory.size());
      poison(r.out), poison(r.lse), poison(columns);
      plan.run(r.args, memory.span(), pool);
      ASSERT_TRUE(same_bits(out, r.out)) << n;
      ASSERT_TRUE(same_bits(lse, r.lse)) << n;
      ASSERT_TRUE(same_bits(sums, columns)) << n;
    }
  });
}

/// A panel of queries that is not full: slopes that raise far keys past the range of exp reach no column sum.
TEST(Poison, IdleLanesReachNoColumnSum) {
  each_level([] {
    CaseRun r({.name = "idle", .batch = 1, .q_tokens = 1, .kv_tokens = 600, .heads = 1, .kv_heads = 1});
    float slope = -1;
    Tensor columns(DType::f32, {1, 1, 600});
    r.args.inputs.slopes = AnyView::packed(&slope, DType::f32, {1}),
    r.args.probe.column_sums = columns.view();
    attention(r.args, online(), {.columns = true});
    double sum = 0;
    for (const float x : columns.values<float>()) sum += static_cast<double>(x);
    EXPECT_NEAR(sum, 1, 1e-5);
  });
}

/// R019: a run full of NaN leaves nothing behind in the context that a later run meets.
TEST(Poison, R019_AWarmUpOfNanLeavesNothing) {
  each_level([] {
    const Case c{.name = "warm", .batch = 2, .q_tokens = 40, .kv_tokens = 300, .heads = 2, .kv_heads = 2};
    CaseRun r(c), bad(c);
    for (Tensor* t : {&bad.q, &bad.k, &bad.v}) poison(*t);
    Context cold({.threads = 2, .kernels = "cpu/online"}), warm({.threads = 2, .kernels = "cpu/online"});
    attention(r.args, cold);
    Tensor out = r.out.clone();
    attention(bad.args, warm);
    attention(r.args, warm);
    EXPECT_TRUE(same_bits(out, r.out));
  });
}

}  // namespace
}  // namespace headwise::test
