// ref: worked numbers, every term at its place in the order, empty rows, closed pairs, ragged batches,
// layouts.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/kernels/ref/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "headwise/base/context.h"
#include "headwise/ops/attention/attention.h"
#include "tests/support/bits.h"
#include "tests/support/close.h"
#include "tests/support/random_rows.h"

namespace headwise::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Context ref_context() { return Context({.threads = 2, .kernels = "ref"}); }

/// One query, two keys, one head of width 1, q = 1: logits are the keys, values 10 and 20.
struct Small {
  Tensor q{DType::f64, {1, 1, 1, 1}}, k{DType::f64, {1, 2, 1, 1}}, v{DType::f64, {1, 2, 1, 1}},
      out{DType::f64, {1, 1, 1, 1}}, lse{DType::f64, {1, 1, 1}}, one{DType::f64, {1}};
  AttentionArgs args;
  Context ctx = ref_context();

  Small(double k0, double k1) {
    q.values<double>()[0] = one.values<double>()[0] = 1;
    k.values<double>()[0] = k0, k.values<double>()[1] = k1;
    v.values<double>()[0] = 10, v.values<double>()[1] = 20;
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view(), args.lse = lse.view();
    args.inputs.scale = one.view();
  }
  double run() {
    attention(args, ctx);
    return out.values<double>()[0];
  }
  double log_sum() const { return lse.values<double>()[0]; }
};
double two_keys(double s0, double s1) {
  return (10 * std::exp(s0) + 20 * std::exp(s1)) / (std::exp(s0) + std::exp(s1));
}

TEST(Ref, WorkedNumbers) {
  Small s(0, std::log(3.0));
  EXPECT_NEAR(s.run(), (10 + 60) / 4.0, 1e-14);  // weights 1/4 and 3/4
  EXPECT_NEAR(s.log_sum(), std::log(4.0), 1e-15);
}

TEST(Ref, DefaultScaleIsOneOverRootOfTrueHeadDim) {  // R061
  const Case c{.name = "d59", .kv_tokens = 3, .head_dim = 59, .value_dim = 2, .dtype = DType::f64};
  CaseRun a(c), b(c);
  Tensor scale(DType::f64, {1});
  scale.values<double>()[0] = 1 / std::sqrt(59.0);
  b.args.inputs.scale = scale.view();
  Context ctx = ref_context();
  attention(a.args, ctx);
  attention(b.args, ctx);
  EXPECT_TRUE(same_bits(a.out, b.out));
}

TEST(Ref, TermsStandInTheirOrder) {
  Small s(2, -1);
  Tensor scale(DType::f64, {1}), bias(DType::f64, {1, 1, 1, 2}), slope(DType::f64, {1}),
      table(DType::f64, {2, 1});
  scale.values<double>()[0] = 0.5;
  s.args.inputs.scale = scale.view();
  EXPECT_NEAR(s.run(), two_keys(1, -0.5), 1e-13);

  s.args.inputs.softcap = 2;  // after the scale, before the bias
  const double a0 = 2 * std::tanh(0.5), a1 = 2 * std::tanh(-0.25);
  EXPECT_NEAR(s.run(), two_keys(a0, a1), 1e-13);

  bias.values<double>()[0] = 0.25, bias.values<double>()[1] = 4;  // neither scaled nor capped (R023)
  s.args.inputs.bias = bias.view();
  EXPECT_NEAR(s.run(), two_keys(a0 + 0.25, a1 + 4), 1e-13);

  slope.values<double>()[0] = 0.5;  // query at position 0: distances 0 and 1
  s.args.inputs.slopes = slope.view();
  EXPECT_NEAR(s.run(), two_keys(a0 + 0.25, a1 + 4 - 0.5), 1e-13);

  table.values<double>()[0] = 3, table.values<double>()[1] = 7;  // keys ahead share the bucket of distance 0
  s.args.inputs.relative = table.view();
  s.args.inputs.buckets = {.buckets = 2, .max_distance = 8, .bidirectional = false};
  EXPECT_NEAR(s.run(), two_keys(a0 + 0.25 + 3, a1 + 4 - 0.5 + 3), 1e-13);
}

TEST(Ref, SinkStandsInTheDenominatorAlone) {  // R092
  Small s(0, 0);
  Tensor sink(DType::f64, {1});
  sink.values<double>()[0] = std::log(2.0);
  s.args.inputs.sinks = sink.view();
  EXPECT_NEAR(s.run(), 30 / 4.0, 1e-14);
  EXPECT_NEAR(s.log_sum(), std::log(4.0), 1e-15);
}

TEST(Ref, EmptyRowIsPlusZeroAndMinusInfinity) {  // R001, R014
  Small s(1, 2);
  const MaskView none = MaskView::prefix(0);
  s.args.mask = {&none, 1};
  s.v.values<double>()[0] = kNan;
  EXPECT_EQ(s.run(), 0);
  EXPECT_FALSE(std::signbit(s.run()));
  EXPECT_EQ(s.log_sum(), -kInf);

  Tensor sink(DType::f64, {1}), gate(DType::f64, {1, 1, 1});
  sink.values<double>()[0] = -3.5;
  gate.values<double>()[0] = -1;
  s.args.inputs.sinks = sink.view();
  s.args.inputs.gate = gate.view();
  EXPECT_EQ(s.run(), 0);
  EXPECT_FALSE(std::signbit(s.run()));
  EXPECT_EQ(s.log_sum(), -3.5);
}

TEST(Ref, BiasOfMinusInfinityClosesAPair) {  // R002, R007
  Small s(1, 2);
  Tensor bias(DType::f64, {1, 1, 1, 2});
  s.args.inputs.bias = bias.view();
  bias.values<double>()[1] = -kInf;
  s.v.values<double>()[1] = kNan;
  EXPECT_EQ(s.run(), 10);
  bias.values<double>()[0] = -kInf;
  EXPECT_EQ(s.run(), 0);
  EXPECT_EQ(s.log_sum(), -kInf);
}

TEST(Ref, ClosedPairsAreNotReadIntoArithmetic) {  // R003
  const Case c{.name = "nan", .batch = 2, .q_tokens = 5, .kv_tokens = 9, .heads = 2, .kv_heads = 1};
  CaseRun clean(c), planted(c);
  const MaskView mask = MaskView::prefix(4);
  clean.args.mask = planted.args.mask = {&mask, 1};
  for (Index b = 0; b < 2; ++b)
    for (Index n = (b * 9 + 4) * 8; n < (b + 1) * 9 * 8; ++n) {
      planted.k.values<float>()[static_cast<std::size_t>(n)] = static_cast<float>(kNan);
      planted.v.values<float>()[static_cast<std::size_t>(n)] = static_cast<float>(n % 2 ? kInf : kNan);
    }
  Context ctx = ref_context();
  attention(clean.args, ctx);
  attention(planted.args, ctx);
  EXPECT_TRUE(same_bits(clean.out, planted.out));
  EXPECT_TRUE(same_bits(clean.lse, planted.lse));
}

TEST(Ref, VisibleNanAndPlusInfinityStayInTheirRow) {
  for (const double bad : {kNan, kInf}) {
    const Case c{
        .name = "row", .q_tokens = 3, .kv_tokens = 4, .heads = 2, .kv_heads = 2, .dtype = DType::f64};
    CaseRun a(c), b(c);
    Tensor bias(DType::f64, {1, 2, 3, 4});
    b.args.inputs.bias = bias.view();
    bias.values<double>()[(0 * 3 + 1) * 4 + 2] = bad;  // head 0, query 1, key 2
    Context ctx = ref_context();
    attention(a.args, ctx);
    attention(b.args, ctx);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t h = 0; h < 2; ++h)
        for (std::size_t n = 0; n < 8; ++n) {
          const std::size_t at = (i * 2 + h) * 8 + n;
          if (i == 1 && h == 0)
            EXPECT_TRUE(std::isnan(b.out.values<double>()[at]));
          else
            EXPECT_EQ(a.out.values<double>()[at], b.out.values<double>()[at]);
        }
  }
}

TEST(Ref, AgreesWithThePlainRun) {
  Context ctx = ref_context();
  for (const auto& cases : {square_cases(), odd_cases()})
    for (const Case& base : cases)
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Case c = with_dtype(base, dtype);
        CaseRun r(c);
        const MaskView mask = MaskView::window(3, 1);
        if (c.kv_tokens % 2) r.args.mask = {&mask, 1};
        attention(r.args, ctx);
        EXPECT_TRUE(out_is_close(problem_of(r.args), r.args, ctx)) << c;
        Tensor plain(dtype, {c.batch, c.q_tokens, c.heads, c.value_dim});
        plain_run(problem_of(r.args), r.args, plain.view());
        EXPECT_LT(distance_of(plain.view(), r.out.view()).relative, dtype == DType::f32 ? 1e-6 : 2e-2) << c;
      }
}

TEST(Ref, KvHeadIsQueryHeadDividedByGroup) {  // R044
  const Case c{.name = "gqa", .heads = 6, .kv_heads = 2, .value_dim = 1, .dtype = DType::f64};
  CaseRun r(c);
  r.v.values<double>()[0] = 100, r.v.values<double>()[1] = 200;
  Context ctx = ref_context();
  attention(r.args, ctx);
  for (std::size_t h = 0; h < 6; ++h) EXPECT_EQ(r.out.values<double>()[h], h < 3 ? 100 : 200);
}

TEST(Ref, SizesOfZeroGiveZeros) {
  Context ctx = ref_context();
  for (const Case& c : empty_cases()) {
    CaseRun r(c);
    poison(r.out);
    attention(r.args, ctx);
    for (float x : r.out.values<float>()) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0u) << c;
    for (float x : r.lse.values<float>()) EXPECT_EQ(x, -kInf) << c;
  }
}

TEST(Ref, RaggedSequencesAreTheSequencesAlone) {
  const std::vector<Index> q_offsets = offsets_of({3, 0, 5, 2}), kv_offsets = offsets_of({4, 2, 0, 6});
  Tensor qo = tensor_of(q_offsets), ko = tensor_of(kv_offsets), start = tensor_of({0, 0, 1, kStartEnd});
  CaseRun all({.name = "ragged", .q_tokens = 10, .kv_tokens = 12, .heads = 4, .kv_heads = 2, .value_dim = 5});
  const MaskView causal = MaskView::causal();
  all.args.mask = {&causal, 1};
  all.args.q_offsets = qo.view(), all.args.kv_offsets = ko.view(), all.args.q_start = start.view();
  Context ctx = ref_context();
  poison(all.out);
  attention(all.args, ctx);
  for (std::size_t b = 0; b < 4; ++b) {
    const Index tokens = q_offsets[b + 1] - q_offsets[b], keys = kv_offsets[b + 1] - kv_offsets[b];
    AttentionArgs one = all.args;
    one.q_offsets = one.kv_offsets = {};
    Tensor out(DType::f32, {1, tokens, 4, 5}), lse(DType::f32, {1, 4, tokens});
    Tensor first = tensor_of(std::vector<Index>{start.values<std::int64_t>()[b]});
    one.q.data = static_cast<float*>(one.q.data) + q_offsets[b] * one.q.step[1];
    one.k.data = static_cast<float*>(one.k.data) + kv_offsets[b] * one.k.step[1];
    one.v.data = static_cast<float*>(one.v.data) + kv_offsets[b] * one.v.step[1];
    one.q.size[1] = tokens, one.k.size[1] = one.v.size[1] = keys;
    one.out = out.view(), one.lse = lse.view(), one.q_start = first.view();
    attention(one, ctx);
    for (Index i = 0; i < tokens * 20; ++i)
      EXPECT_EQ(all.out.values<float>()[static_cast<std::size_t>(q_offsets[b] * 20 + i)],
                out.values<float>()[static_cast<std::size_t>(i)]);
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < tokens; ++i)
        EXPECT_EQ(all.lse.values<float>()[static_cast<std::size_t>(h * 10 + q_offsets[b] + i)],
                  lse.values<float>()[static_cast<std::size_t>(h * tokens + i)]);
  }
}

TEST(Ref, OverlappedHeadsReadZeroOutsideTheirRow) {
  const Index tokens = 4, heads = 3, dim = 2, rim = 1;
  HeadSpec spec;
  spec.q = spec.k = spec.v = HeadLayout::overlapped(heads, dim, rim);
  Tensor x = random_normal({1, tokens, heads * dim}, DType::f64, 5);
  Tensor out(DType::f64, {1, tokens, heads, dim + 2 * rim});
  AttentionArgs a;
  a.q = a.k = a.v = x.view();
  a.out = out.view();
  Context ctx = ref_context();
  attention(a, ctx, {}, spec);

  Tensor wide(DType::f64, {1, tokens, heads, dim + 2 * rim}),
      want(DType::f64, {1, tokens, heads, dim + 2 * rim});
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index c = 0; c < dim + 2 * rim; ++c) {
        const Index column = h * dim - rim + c;
        wide.values<double>()[static_cast<std::size_t>((t * heads + h) * (dim + 2 * rim) + c)] =
            0 <= column && column < heads * dim
                ? x.values<double>()[static_cast<std::size_t>(t * heads * dim + column)]
                : 0;
      }
  AttentionArgs w;
  w.q = w.k = w.v = wide.view();
  w.out = want.view();
  attention(w, ctx);
  EXPECT_TRUE(same_bits(out, want));
}

TEST(Ref, OneKeyHeadWithManyValueHeads) {
  CaseRun r(
      {.name = "shared key", .q_tokens = 3, .kv_tokens = 5, .heads = 4, .kv_heads = 4, .dtype = DType::f64});
  CaseRun repeated(
      {.name = "repeated", .q_tokens = 3, .kv_tokens = 5, .heads = 4, .kv_heads = 4, .dtype = DType::f64});
  AttentionArgs a = r.args;
  a.k.size[2] = 1;  // head 0 of k for all
  repeated.args.k.step[2] = 0;
  Context ctx = ref_context();
  attention(a, ctx);
  attention(repeated.args, ctx);
  EXPECT_TRUE(same_bits(r.out, repeated.out));
}

TEST(Ref, DropoutKeepsByItsRuleAndDividesByWhatIsKept) {  // R107
  CaseRun r({.name = "dropout",
             .batch = 2,
             .q_tokens = 3,
             .kv_tokens = 6,
             .heads = 2,
             .kv_heads = 2,
             .dtype = DType::f64});
  Context ctx = ref_context();
  attention(r.args, ctx);
  r.args.inputs.dropout = 0.5;
  r.args.inputs.seed = 42;
  Tensor start = tensor_of(std::vector<Index>{10}), ids = tensor_of(std::vector<Index>{77, 3});
  r.args.q_start = start.view();
  r.args.inputs.sequence_ids = ids.view();
  Tensor scores(DType::f64, {2, 2, 3, 6});
  r.args.probe.scores = scores.view();
  attention(r.args, ctx, {.scores = ScoreStage::weights});
  const DropoutRule rule = DropoutRule::of(0.5, 42);
  int kept = 0;
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < 3; ++i)
        for (Index c = 0; c < 8; ++c) {
          double sum = 0;
          for (Index j = 0; j < 6; ++j) {
            const bool keep = rule.keep(b == 0 ? 77 : 3, h, 10 + i, j);
            kept += keep && c == 0;
            if (keep)
              sum += 2 * scores.values<double>()[static_cast<std::size_t>(((b * 2 + h) * 3 + i) * 6 + j)] *
                     r.v.values<double>()[static_cast<std::size_t>(((b * 6 + j) * 2 + h) * 8 + c)];
          }
          EXPECT_NEAR(r.out.values<double>()[static_cast<std::size_t>(((b * 3 + i) * 2 + h) * 8 + c)], sum,
                      1e-13);
        }
  EXPECT_GT(kept, 18);
  EXPECT_LT(kept, 54);
}

}  // namespace
}  // namespace headwise::test
