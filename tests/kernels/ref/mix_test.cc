// Mixed heads on ref: gradients are slopes, mixes that do nothing are MHA, and the invariants of both
// variants.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headwise/ops/explain/explain.h"

#include "headwise/base/context.h"
#include "tests/base/sentence.h"
#include "tests/support/bits.h"
#include "tests/support/gradients.h"
#include "tests/support/mix_case.h"

namespace headwise::test {
namespace {

constexpr Mix kNone = Mix::none, kFixed = Mix::fixed, kDynamic = Mix::dynamic;

std::vector<MixCase> gradient_cases() {
  return {
      {.name = "talking", .sinks = true, .bias = true},
      {.name = "three_counts",
       .q_heads = 2,
       .heads = 4,
       .v_heads = 3,
       .batch = 2,
       .mask = "causal",
       .bias = true},
      {.name = "only_before", .after = kNone, .q_heads = 2, .heads = 3, .v_heads = 3, .mask = "window(1, 1)"},
      {.name = "only_after",
       .before = kNone,
       .v_heads = 2,
       .mask = "causal",
       .per_head = true,
       .alibi = true},
      {.name = "grouped",
       .q_heads = 4,
       .heads = 3,
       .v_heads = 4,
       .kv_group = 2,
       .v_group = 4,
       .mask = "causal & window(2, 0)"},
      {.name = "ragged", .batch = 3, .mask = "causal", .ragged = true, .sinks = true, .gate = true},
      {.name = "terms",
       .mask = "window(3, 2)",
       .per_head = true,
       .relative = true,
       .softcap = true,
       .gate = true,
       .dropout = true,
       .scale = true},
      {.name = "dcmha", .before = kDynamic, .after = kDynamic, .rank = 2, .mask = "causal"},
      {.name = "dcmha_given",
       .before = kDynamic,
       .after = kDynamic,
       .rank = 1,
       .given = true,
       .mask = "window(2, 1)",
       .sinks = true,
       .bias = true,
       .dropout = true},
      {.name = "dcmha_ragged",
       .before = kDynamic,
       .after = kDynamic,
       .rank = 1,
       .batch = 3,
       .mask = "causal",
       .ragged = true,
       .softcap = true},
      {.name = "dcmha_grouped",
       .before = kDynamic,
       .after = kDynamic,
       .q_heads = 4,
       .heads = 4,
       .v_heads = 4,
       .kv_group = 2,
       .v_group = 2,
       .rank = 2,
       .mask = "causal",
       .per_head = true},
      {.name = "gates_alone", .before = kDynamic, .after = kNone, .rank = 0},
      {.name = "query_side", .before = kNone, .after = kDynamic, .rank = 1, .key = false},
      {.name = "key_side", .before = kDynamic, .after = kFixed, .v_heads = 2, .rank = 1, .query = false},
  };
}

TEST(Mix, GradientsMatchCentralDifferences) {
  for (const MixCase& c : gradient_cases()) {
    MixRun run(c);
    GradientRun r = in_double(run.args, run.heads);
    EXPECT_EQ(differs_from_differences(r), "") << c.name;
  }
}

Context& reference() {
  static auto* ctx = new Context({.threads = 1, .kernels = "ref"});
  return *ctx;
}
void fill_identity(const InputView& m) {
  for (Index i = 0; i < m.size[0]; ++i)
    for (Index j = 0; j < m.size[1]; ++j) store_double(m.data, m.dtype, i * m.size[1] + j, i == j ? 1 : 0);
}
void fill(const InputView& x, double value) {
  for (Index n = 0; n < x.count(); ++n) store_double(x.data, x.dtype, n, value);
}
double element(const InputView& x, Index n) { return load_double(x.data, x.dtype, n); }

/// Output and gradients of q, k, v equal those of the same arguments without a mix.
void expect_mha(MixRun& run, const std::string& name) {
  run.args.dq = run.keep(converted(run.args.forward.q, DType::f64));
  run.args.dk = run.keep(converted(run.args.forward.k, DType::f64));
  run.args.dv = run.keep(converted(run.args.forward.v, DType::f64));
  attention(run.args.forward, reference(), {}, run.heads);
  attention_backward(run.args, reference(), run.heads);
  BackwardArgs plain = run.args;
  HeadInputs& in = plain.forward.inputs;
  in.mix_before = in.mix_after = in.mix_q = in.mix_k = AnyView();
  HeadSpec heads = run.heads;
  heads.before = heads.after = kNone, heads.heads = 0, heads.mix_rank = 0;
  plain.forward.out = run.keep(converted(run.args.forward.out, DType::f64));
  plain.dq = run.keep(converted(plain.dq, DType::f64));
  plain.dk = run.keep(converted(plain.dk, DType::f64));
  plain.dv = run.keep(converted(plain.dv, DType::f64));
  attention(plain.forward, reference(), {}, heads);
  attention_backward(plain, reference(), heads);
  const std::pair<AnyView, AnyView> both[] = {{run.args.forward.out, plain.forward.out},
                                              {run.args.dq, plain.dq},
                                              {run.args.dk, plain.dk},
                                              {run.args.dv, plain.dv}};
  for (const auto& [mixed, alone] : both)
    for (Index n = 0; n < mixed.count(); ++n)
      ASSERT_NEAR(element(mixed, n), element(alone, n), 1e-13) << name << " at " << n;
}

TEST(Mix, IdentitiesAreMhaWithGradients) {
  MixRun run({.name = "identity", .batch = 2, .mask = "causal", .sinks = true});
  fill_identity(run.args.forward.inputs.mix_before);
  fill_identity(run.args.forward.inputs.mix_after);
  expect_mha(run, "identity");
}
TEST(Mix, CoefficientsOfZeroAreMhaWithGradients) {
  MixRun run(
      {.name = "zeros", .before = kDynamic, .after = kDynamic, .rank = 2, .given = true, .mask = "causal"});
  HeadInputs& in = run.args.forward.inputs;
  for (const auto& x : {in.mix_before, in.mix_after, in.mix_q, in.mix_k}) fill(x, 0);
  expect_mha(run, "zeros");
}

TEST(Mix, ValuesOfOneGiveColumnSumsOfTheMatrix) {
  MixRun run({.name = "ones", .heads = 4, .v_heads = 2, .mask = "causal"});
  fill(run.args.forward.v, 1);
  attention(run.args.forward, reference(), {}, run.heads);
  const InputView m = run.args.forward.inputs.mix_after, out = run.args.forward.out;
  for (Index v = 0; v < 2; ++v) {
    double sum = 0;
    for (Index h = 0; h < 4; ++h) sum += element(m, h * 2 + v);
    for (Index i = 0; i < 5; ++i) EXPECT_NEAR(element(out, (i * 2 + v) * 2), sum, 1e-13);
  }
}
TEST(Mix, MeanMatrixGivesEveryHeadTheMeanMap) {
  MixRun run({.name = "mean"}), plain({.name = "plain", .after = kNone});
  fill(run.args.forward.inputs.mix_after, 1.0 / 3);
  const InputView& v = run.args.forward.v;  // all heads of a token alike: out is the mean map times it
  for (Index n = 0; n < v.count(); ++n) store_double(v.data, v.dtype, n, element(v, n / 6 * 6 + n % 2));
  plain.args.forward.v = v;
  attention(run.args.forward, reference(), {}, run.heads);
  attention(plain.args.forward, reference(), {}, plain.heads);
  for (Index i = 0; i < 5; ++i)
    for (Index c = 0; c < 2; ++c) {
      double mean = 0;
      for (Index h = 0; h < 3; ++h) mean += element(plain.args.forward.out, (i * 3 + h) * 2 + c) / 3;
      for (Index h = 0; h < 3; ++h)
        EXPECT_NEAR(element(run.args.forward.out, (i * 3 + h) * 2 + c), mean, 1e-13);
    }
}
TEST(Mix, GatesAfterMultiplyTheWeights) {
  MixCase c{.name = "gates", .before = kNone, .after = kDynamic, .rank = 1, .key = false};
  MixRun run(c);
  MixCase none = c;
  none.after = kNone, none.rank = 0;
  MixRun plain(none);
  const InputView& q = run.args.forward.inputs.mix_q;  // [1 5 3 3]: w1, w2, gate
  for (Index n = 0; n < q.count(); ++n)
    if (n / 3 % 3 != 2) store_double(q.data, q.dtype, n, 0);
  attention(run.args.forward, reference(), {}, run.heads);
  attention(plain.args.forward, reference(), {}, plain.heads);
  for (Index i = 0; i < 5; ++i)
    for (Index h = 0; h < 3; ++h)
      for (Index x = 0; x < 2; ++x) {
        const Index n = (i * 3 + h) * 2 + x;
        EXPECT_NEAR(element(run.args.forward.out, n),
                    (1 + element(q, i * 9 + 6 + h)) * element(plain.args.forward.out, n), 1e-13);
      }
}
TEST(Mix, RowWithOneVisibleKeyHasNoQueryGradient) {
  for (const Mix kind : {kFixed, kDynamic}) {
    MixRun run({.name = "one_key",
                .before = kind,
                .after = kind,
                .rank = kind == kDynamic ? 2 : 0,
                .mask = "window(0, 0)"});
    run.args.dq = run.keep(converted(run.args.forward.q, DType::f64));
    attention_backward(run.args, reference(), run.heads);
    for (Index n = 0; n < run.args.dq.count(); ++n) EXPECT_NEAR(element(run.args.dq, n), 0, 1e-14);
  }
}
/// What a query that sees no key holds reaches no gradient, those that all rows share included.
TEST(Mix, EmptyRowsGiveNothing) {
  for (const Mix kind : {kFixed, kDynamic}) {
    std::vector<Tensor> gradients[2];
    for (const bool planted : {false, true}) {
      MixRun run({.name = "empty",
                  .before = kind,
                  .after = kind,
                  .rank = kind == kDynamic ? 2 : 0,
                  .batch = 2,
                  .mask = "lengths(6, 0)",
                  .sinks = true,
                  .alibi = true,
                  .softcap = true,
                  .gate = true,
                  .scale = true});
      BackwardArgs& a = run.args;
      const HeadInputs& in = a.forward.inputs;
      if (planted)
        for (const auto& x : {a.forward.q, a.dout, in.gate, in.mix_q})  // sequence 1 sees nothing
          for (Index n = x.count() / 2; n < x.count(); ++n) store_double(x.data, x.dtype, n, std::nan(""));
      const std::pair<AnyView*, AnyView> asked[] = {
          {&a.dq, a.forward.q},          {&a.dk, a.forward.k},
          {&a.dv, a.forward.v},          {&a.dsinks, in.sinks},
          {&a.dslopes, in.slopes},       {&a.dscale, in.scale},
          {&a.dgate, in.gate},           {&a.dmix_before, in.mix_before},
          {&a.dmix_after, in.mix_after}, {&a.dmix_q, in.mix_q},
          {&a.dmix_k, in.mix_k}};
      for (const auto& [d, of] : asked)
        if (of.given()) *d = run.keep(converted(of, DType::f64));
      attention_backward(a, reference(), run.heads);
      for (const auto& [d, of] : asked)
        if (of.given()) gradients[planted].push_back(converted(*d, DType::f64));
    }
    for (std::size_t g = 0; g < gradients[0].size(); ++g)
      EXPECT_TRUE(same_bits(gradients[1][g], gradients[0][g])) << "gradient " << g;
  }
}
TEST(Mix, FixedMixBeforeEqualsWidenedQueries) {
  // l_h = concat_m(A[m h] q_m) . concat_m(k_m): MHA over one shared wide key
  MixRun run({.name = "folded", .after = kNone, .heads = 4, .v_heads = 4, .mask = "causal"});
  attention(run.args.forward, reference(), {}, run.heads);
  const AttentionArgs& a = run.args.forward;
  Tensor q(DType::f64, {1, 5, 4, 9}), k(DType::f64, {1, 6, 1, 9}), scale(DType::f64, {1}),
      out(DType::f64, {1, 5, 4, 2});
  for (Index i = 0; i < 5; ++i)
    for (Index h = 0; h < 4; ++h)
      for (Index n = 0; n < 9; ++n)
        store_double(q.view().data, DType::f64, (i * 4 + h) * 9 + n,
                     element(a.inputs.mix_before, n / 3 * 4 + h) * element(a.q, i * 9 + n));
  for (Index n = 0; n < 54; ++n) store_double(k.view().data, DType::f64, n, element(a.k, n));
  store_double(scale.view().data, DType::f64, 0, 1 / std::sqrt(3.0));
  AttentionArgs wide;
  wide.q = q.view(), wide.k = k.view(), wide.v = a.v, wide.out = out.view(), wide.inputs.scale = scale.view();
  wide.mask = a.mask;
  attention(wide, reference());
  for (Index n = 0; n < out.view().count(); ++n)
    EXPECT_NEAR(element(a.out, n), element(out.view(), n), 1e-13);
}
TEST(Mix, PermutedHeadsPermuteOutputs) {
  MixRun run({.name = "dcmha", .before = kDynamic, .after = kDynamic, .rank = 2, .mask = "causal"});
  attention(run.args.forward, reference(), {}, run.heads);
  MixRun turned({.name = "dcmha", .before = kDynamic, .after = kDynamic, .rank = 2, .mask = "causal"});
  const auto turn = [](const InputView& from, const InputView& to,
                       Index inner) {  // [.. 3 inner]: head h -> h + 1
    for (Index n = 0; n < from.count(); ++n) {
      const Index h = n / inner % 3, at = n + ((h + 1) % 3 - h) * inner;
      store_double(to.data, to.dtype, at, element(from, n));
    }
  };
  const AttentionArgs &a = run.args.forward, &b = turned.args.forward;
  turn(a.q, b.q, 3), turn(a.k, b.k, 3), turn(a.v, b.v, 2);
  turn(a.inputs.mix_q, b.inputs.mix_q, 1), turn(a.inputs.mix_k, b.inputs.mix_k, 1);
  attention(b, reference(), {}, turned.heads);
  Tensor expected = converted(a.out, DType::f64);
  turn(a.out, expected.view(), 2);
  for (Index n = 0; n < a.out.count(); ++n)
    EXPECT_NEAR(element(b.out, n), element(expected.view(), n), 1e-13);
}

TEST(Mix, SpecsAreReadFromViews) {
  MixRun fixed({.name = "fixed", .q_heads = 2, .heads = 4, .v_heads = 3});
  const HeadSpec read = problem_of(fixed.args.forward).heads;
  EXPECT_EQ(read.before, kFixed);
  EXPECT_EQ(read.normal_heads(), 4);
  EXPECT_EQ(read.v.heads, 3);
  MixRun dynamic({.name = "dynamic", .before = kDynamic, .after = kDynamic, .rank = 2});
  EXPECT_EQ(problem_of(dynamic.args.forward).heads.mix_rank, 2);
}

TEST(Mix, BadInputGetsOneSentence) {
  const auto said = [](ErrorKind kind, MixRun& run) {
    return sentence_of(kind, [&] { attention(run.args.forward, reference(), {}, run.heads); });
  };
  MixRun wrong({.name = "wrong"});
  wrong.args.forward.inputs.mix_before = wrong.normal({3, 2}, DType::f64, 1, 3);
  EXPECT_EQ(
      said(ErrorKind::bad_shape, wrong),
      "attention: mix_before is f64 [3 2] but f32 or bf16 or f16 or f64 [3 3] is needed, [q_heads heads]");
  MixRun absent({.name = "absent"});
  absent.args.forward.inputs.mix_after = {};
  EXPECT_EQ(said(ErrorKind::bad_argument, absent),
            "attention: mix_after is not given; pass it as f32 or bf16 or f16 or f64 [3 3], [heads v_heads]");
  MixRun rank({.name = "rank", .before = kDynamic, .after = kDynamic, .rank = 2});
  rank.heads.mix_rank = 1;
  EXPECT_EQ(said(ErrorKind::bad_shape, rank),
            "attention: mix_q is f64 [1 5 10 3] but f32 or bf16 or f16 or f64 [1 5 6 3] is needed, [batch "
            "q_tokens mixes*(2*rank+1) heads]");
  MixRun counts({.name = "counts", .before = kDynamic, .after = kDynamic, .rank = 1});
  counts.heads.heads = 4;
  EXPECT_EQ(
      said(ErrorKind::bad_shape, counts),
      "attention: q has 3 heads but 4 are normalized; only a fixed mix before the normalizer changes their "
      "number");
  MixRun probed({.name = "probed"});
  EXPECT_EQ(sentence_of(ErrorKind::unsupported,
                        [&] { attention(probed.args.forward, reference(), {.rows = true}, probed.heads); }),
            "attention: heads are mixed, so that no head has weights of its own to show; leave out probe and "
            "weights");
  MixRun odd({.name = "odd", .before = kDynamic, .after = kNone, .rank = 1});
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { problem_of(odd.args.forward); }),
            "attention: mix_q is f64 [1 5 3 3] but [batch tokens 2*(2*rank+1) heads] is needed, coefficients "
            "before and after the normalizer; name a single dynamic mix in the head spec");
}

TEST(Mix, KernelsThatGoHeadByHeadRefuseInWords) {
  MixRun run({.name = "f32", .dtype = DType::f32});
  Context ctx({.threads = 1});
  const AttentionPlan plan(run.problem(), ctx);
  std::string why;
  for (const Refusal& r : plan.refusals())
    if (r.kernel == "cpu/online") why = r.why;
  EXPECT_EQ(why, "heads are mixed: a row needs all its heads at once");
}

}  // namespace
}  // namespace headwise::test
