// Bad input of attention: one sentence each, compared literally.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/attention/checks/arg_checks.h"

#include <gtest/gtest.h>

#include <limits>

#include "headwise/base/context.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/checks/view.h"
#include "tests/base/sentence.h"
#include "tests/support/case.h"
#include "tests/support/random_rows.h"

namespace headwise::test {
namespace {

const Case kCase{.name = "base",
                 .batch = 2,
                 .q_tokens = 5,
                 .kv_tokens = 7,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .value_dim = 6};

/// A sound run; each test spoils one thing.
struct Bad : testing::Test {
  CaseRun run{kCase};
  AttentionArgs& args = run.args;
  Context ctx{{.threads = 1, .kernels = "ref"}};

  std::string sentence(ErrorKind kind, const ProbeSpec& probe = {}, const HeadSpec& heads = {}) {
    return sentence_of(kind, [&] { attention(args, ctx, probe, heads); });
  }
  /// The plan is made from sound arguments, the run gets the spoilt ones.
  template <class Spoil>
  std::string run_sentence(ErrorKind kind, Spoil&& spoil) {
    const AttentionPlan plan(problem_of(args), ctx);
    AttentionArgs spoilt = args;
    spoil(spoilt);
    return sentence_of(kind, [&] { plan.run(spoilt, ctx); });
  }
};

TEST_F(Bad, Nothing) { EXPECT_EQ(sentence(ErrorKind::bad_shape), "(nothing was thrown)"); }

TEST_F(Bad, Ranks) {
  args.q.rank = 3;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: q is f32 [2 5 4] but rank 4 is needed, [batch q_tokens heads head_dim]");
  args.q = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: q is not given; pass it as [batch q_tokens heads head_dim]");
}

TEST_F(Bad, HeadsNotDivisible) {
  Tensor k(DType::f32, {2, 7, 3, 8});
  args.k = k.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_shape),
      "attention: heads (4) must be a multiple of kv_heads (3) of k; repeat or drop heads of k until it is");
  args.k.size[2] = 0;
  EXPECT_EQ(
      sentence(ErrorKind::bad_shape),
      "attention: heads (4) must be a multiple of kv_heads (0) of k; repeat or drop heads of k until it is");
}

TEST_F(Bad, ShapesThatDoNotFit) {
  Tensor k(DType::f32, {2, 7, 2, 9}), v(DType::f32, {2, 6, 2, 6}), batch(DType::f32, {3, 7, 2, 6}),
      out(DType::f32, {2, 5, 4, 8});
  args.k = k.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: q has head_dim 8 but k has 9; their products need equal widths");
  run.point();
  args.v = v.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_shape),
      "attention: v is f32 [2 6 2 6] but f32 [2 7 2 6] is needed, [batch kv_tokens kv_heads value_dim]");
  args.v = batch.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_shape),
      "attention: v is f32 [3 7 2 6] but f32 [2 7 2 6] is needed, [batch kv_tokens kv_heads value_dim]");
  run.point();
  args.out = out.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: out is f32 [2 5 4 8] but f32 [2 5 4 6] is needed, [batch q_tokens heads value_dim]");
  args.out = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: out is not given; pass it as f32 [2 5 4 6], [batch q_tokens heads value_dim]");
  run.point();
  args.lse.size[1] = 5, args.lse.size[2] = 4;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: lse is f32 [2 5 4] but f32 [2 4 5] is needed, [batch heads q_tokens]");
}

TEST_F(Bad, WrongDtypePairs) {
  Tensor k(DType::bf16, {2, 7, 2, 8}), ids(DType::i32, {2, 5, 4, 8}), lse(DType::f64, {2, 4, 5});
  args.k = k.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_dtype),
      "attention: k is bf16 [2 7 2 8] but f32 [2 7 2 8] is needed, [batch kv_tokens kv_heads head_dim]");
  run.point();
  args.q = ids.view();
  EXPECT_EQ(sentence(ErrorKind::bad_dtype), "attention: q, k and v are i32; use f32, bf16, f16 or f64");
  run.point();
  args.lse = lse.view();
  EXPECT_EQ(sentence(ErrorKind::bad_dtype),
            "attention: lse is f64 [2 4 5] but f32 [2 4 5] is needed, [batch heads q_tokens]");
}

TEST_F(Bad, Sizes) {
  AttentionProblem p = problem_of(args);
  const auto plan = [&](ErrorKind kind) { return sentence_of(kind, [&] { AttentionPlan(p, ctx); }); };
  p.batch = -1;
  EXPECT_EQ(plan(ErrorKind::bad_shape), "attention: batch is -1; it runs from 0 to 2^62");
  p = problem_of(args), p.kv_tokens = -7;
  EXPECT_EQ(plan(ErrorKind::bad_shape), "attention: kv_tokens is -7; it runs from 0 to 2^62");
  p = problem_of(args), p.heads.v.dim = 0;
  EXPECT_EQ(plan(ErrorKind::bad_shape), "attention: v has a head width of 0; it starts at 1");
  p = problem_of(args), p.heads.v.heads = 3;
  EXPECT_EQ(plan(ErrorKind::bad_shape),
            "attention: v's layout has 3 heads but q's has 4; all layouts need the same number, shared heads "
            "are a group");
  p = problem_of(args), p.heads.k.group = 3;
  EXPECT_EQ(plan(ErrorKind::bad_shape), "attention: heads (4) must be a multiple of k's group (3)");
  p = problem_of(args), p.heads.k.group = 0;
  EXPECT_EQ(plan(ErrorKind::bad_shape),
            "attention: k's layout has group 0 and row 0; a group starts at 1, a row at 0");
  p = problem_of(args), p.heads.k.row = 16, p.heads.k.step = -1;
  EXPECT_EQ(plan(ErrorKind::bad_shape),
            "attention: k's layout steps -1 columns from head to head starting at 0; a step starts at 0 and "
            "columns stay below 2^63");
  p = problem_of(args), p.batch = p.q_tokens = Index{1} << 40;
  EXPECT_EQ(plan(ErrorKind::bad_shape),
            "attention: [1099511627776 1099511627776 4 8], [batch tokens heads dim], reaches past 2^63 "
            "bytes; use smaller sizes");
}

TEST_F(Bad, Scale) {
  Tensor scale = floats_of({0.5f, 1, std::numeric_limits<float>::quiet_NaN(), 1});
  args.inputs.scale = scale.view();
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: scale is nan for head 2; give a finite number, or none for 1 / sqrt(head_dim)");
  scale.values<float>()[2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: scale is inf for head 2; give a finite number, or none for 1 / sqrt(head_dim)");
  args.inputs.scale.size[0] = 3;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: scale is f32 [3] but f32 or f64 [4] is needed, [heads] or [1]; a size of 1 repeats");
}

TEST_F(Bad, SoftcapAndDropout) {
  args.inputs.softcap = -1;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: softcap is -1; give a number from 1e-30 to 1e30, or 0 for none");
  for (const double cap : {3.5e38, 1e-44, 1.1e30, 0.9e-30, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    args.inputs.softcap = cap;
    EXPECT_EQ(sentence(ErrorKind::bad_argument),
              text("attention: softcap is ", cap, "; give a number from 1e-30 to 1e30, or 0 for none"));
  }
  args.inputs.softcap = 0;
  for (const double p : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    args.inputs.dropout = p;
    EXPECT_EQ(sentence(ErrorKind::bad_argument),
              text("attention: dropout is ", p, "; it is a probability from 0 up to but not including 1"));
  }
}

TEST_F(Bad, TermsOfAnotherPlan) {
  Tensor bias(DType::f32, {1, 1, 5, 7});
  EXPECT_EQ(
      run_sentence(ErrorKind::bad_argument, [&](AttentionArgs& a) { a.inputs.bias = bias.view(); }),
      "attention: bias is given but the plan was made without a bias; plan with it or leave bias empty");
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [&](AttentionArgs& a) { a.inputs.softcap = 30; }),
            "attention: softcap is 30 but the plan was made without it; plan for this run");
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [&](AttentionArgs& a) { a.inputs.dropout = 0.5; }),
            "attention: dropout is 0.5 but the plan was made without it; plan for this run");
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [&](AttentionArgs& a) { a.lse = {}; }),
            "attention: lse is not given; pass it as f32 [2 4 5], [batch heads q_tokens]");
  args.inputs.bias = bias.view();
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [&](AttentionArgs& a) { a.inputs.bias = {}; }),
            "attention: bias is not given; pass it as f32 or bf16 or f16 or f64 [2 4 5 7], [batch heads "
            "q_tokens kv_tokens]");
}

TEST_F(Bad, ShapesOfTerms) {
  Tensor bias(DType::f32, {1, 3, 5, 7}), gate(DType::f32, {2, 4, 5}), sinks(DType::f32, {2}),
      table(DType::f32, {8, 4});
  args.inputs.bias = bias.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: bias is f32 [1 3 5 7] but f32 or bf16 or f16 or f64 [2 4 5 7] is needed, [batch "
            "heads q_tokens "
            "kv_tokens]; a size of 1 repeats");
  args.inputs = {};
  args.inputs.gate = gate.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: gate is f32 [2 4 5] but f32 or bf16 or f16 or f64 [2 5 4] is needed, [batch q_tokens "
            "heads]");
  args.inputs = {};
  args.inputs.sinks = sinks.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: sinks is f32 [2] but f32 or bf16 or f16 or f64 [4] is needed, [heads]");
  args.inputs = {};
  args.inputs.slopes = sinks.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: alibi slopes is f32 [2] but f32 or bf16 or f16 or f64 [4] is needed, [heads]");
  args.inputs = {};
  args.inputs.relative = table.view();
  args.inputs.buckets = {.buckets = 8, .max_distance = 4, .bidirectional = false};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: relative positions have 8 buckets and max_distance 4; need at least 2 buckets and a "
            "max_distance above 4");
  args.inputs.buckets = {.buckets = 16, .max_distance = 128, .bidirectional = true};
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: relative table is f32 [8 4] but f32 or bf16 or f16 or f64 [16 4] is needed, [buckets "
            "heads]");
}

TEST_F(Bad, Masks) {
  const Index lengths[] = {3, 4, 5};
  const MaskView short_lengths = MaskView::one({.op = MaskOp::lengths, .offsets = lengths, .n = 3});
  args.mask = {&short_lengths, 1};
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: mask lengths(...) has 3 lengths but batch is 2; give one length per sequence");
  const MaskView two[] = {MaskView::causal(), MaskView::all()};
  args.mask = {two, 2};
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: mask has 2 per-head masks but there are 4 heads; give one, or one per head");
  const MaskView dense = MaskView::one({.op = MaskOp::dense, .size = {1, 4, 7, 5}});
  args.mask = {&dense, 1};
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: dense mask is [1 4 7 5] but [2 4 5 7] is needed, [batch heads q_tokens kv_tokens]; "
            "any of them may be 1, which repeats");
}

TEST_F(Bad, Starts) {
  Tensor three = tensor_of(std::vector<Index>{0, 1, 2}),
         far = tensor_of(std::vector<Index>{0, (Index{1} << 62) + 1});
  args.q_start = three.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: q_start is i64 [3] but i64 [2] is needed, [batch] or [1]; a size of 1 repeats");
  args.q_start = far.view();
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: q_start is 4611686018427387905 for sequence 1; positions stay inside +-2^62");
}

TEST_F(Bad, Offsets) {
  CaseRun ragged({.name = "ragged", .q_tokens = 5, .kv_tokens = 7, .heads = 2, .kv_heads = 2});
  const auto with = [&](std::vector<Index> q, std::vector<Index> kv) {
    Tensor qo = tensor_of(q), ko = tensor_of(kv);
    ragged.args.q_offsets = qo.view(), ragged.args.kv_offsets = ko.view();
    return sentence_of(ErrorKind::bad_shape, [&] { attention(ragged.args, ctx); });
  };
  EXPECT_EQ(with({0, 2, 5}, {0, 7, 7}), "(nothing was thrown)");
  EXPECT_EQ(with({0, 3, 2, 5}, {0, 1, 2, 7}),
            "attention: q_offsets go from 3 to 2 at sequence 1; offsets start at 0 and never fall");
  EXPECT_EQ(with({0, -1, 5}, {0, 1, 7}),
            "attention: q_offsets go from 0 to -1 at sequence 0; offsets start at 0 and never fall");
  EXPECT_EQ(with({0, 2, 4}, {0, 1, 7}),
            "attention: q_offsets run from 0 to 4 but must run from 0 to 5, the rows of the tensor");
  EXPECT_EQ(with({0, 2, 5}, {0, 1, 8}),
            "attention: kv_offsets run from 0 to 8 but must run from 0 to 7, the rows of the tensor");
  EXPECT_EQ(with({1, 2, 5}, {0, 1, 7}),
            "attention: q_offsets run from 1 to 5 but must run from 0 to 5, the rows of the tensor");
  EXPECT_EQ(with({0, 2, 5}, {0, 7}), "attention: kv_offsets is i64 [2] but i64 [3] is needed, [batch + 1]");

  Tensor planned = tensor_of(std::vector<Index>{0, 2, 5}), other = tensor_of(std::vector<Index>{0, 1, 5}),
         kv = tensor_of(std::vector<Index>{0, 3, 7});
  ragged.args.q_offsets = planned.view(), ragged.args.kv_offsets = kv.view();
  const AttentionPlan plan(problem_of(ragged.args), ctx);
  ragged.args.q_offsets = other.view();
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { plan.run(ragged.args, ctx); }),
            "attention: q_offsets give sequence 1 4 tokens but the plan was made for at most 3; plan for "
            "these offsets");
}

TEST_F(Bad, Memory) {
  args.q.step[1] = -32;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: q has step -32 in axis 1; steps start at 0, so copy the tensor instead of turning it "
            "round");
  run.point();
  args.k.step[0] = Index{1} << 61;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: k is f32 [2 7 2 8] with steps that reach past 2^63 bytes; use smaller ones");
  run.point();
  args.v.data = nullptr;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: v is f32 [2 7 2 6] at a null address; pass its data");
  run.point();
  args.v.data = static_cast<char*>(args.v.data) + 2;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: v is f32 at an address that is not a multiple of 4; copy it to aligned memory");
}

TEST_F(Bad, OutOverlaps) {
  Tensor all(DType::f32, {2, 5, 4, 8});
  args.q = all.view();
  args.out = all.view();
  args.out.size[3] = 6;
  const std::string want =
      " in memory, or interleaves with it in a way that cannot be told apart; give out memory of its own";
  EXPECT_EQ(sentence(ErrorKind::bad_argument), "attention: out overlaps q" + want);
  run.point();
  args.out.data = static_cast<float*>(run.v.view().data);
  EXPECT_EQ(sentence(ErrorKind::bad_argument), "attention: out overlaps v" + want);
  run.point();
  args.out.step[2] = 0;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: out is f32 [2 5 4 6] with steps that put two elements in one place; give it memory "
            "of its own");
  run.point();
  args.out.step[2] = 5;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: out is f32 [2 5 4 6] with steps that put two elements in one place; give it memory "
            "of its own");
}

TEST_F(Bad, Probes) {
  AttentionProblem p = problem_of(args);
  p.probe.top_k = -1;
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { AttentionPlan(p, ctx); }),
            "attention: probe asks for top_k -1, classes 0 and picked 0; each starts at 0");
  p = problem_of(args, {.scores = ScoreStage::weights});
  p.q_tokens = p.kv_tokens = 4096;
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { AttentionPlan(p, ctx); }),
            "attention: probe scores would write [2 4 4096 4096], more than 67108864 entries; ask for picked "
            "rows, or take fewer "
            "heads or tokens at a time");
  Tensor entropy(DType::f32, {2, 5, 4});
  args.probe.entropy = entropy.view();
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: probe entropy is given but the plan was made without row probes; plan with it or "
            "leave probe entropy empty");
  EXPECT_EQ(sentence(ErrorKind::bad_shape, {.rows = true}),
            "attention: probe entropy is f32 [2 5 4] but f32 [2 4 5] is needed, [batch heads q_tokens]");
  args.probe = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument, {.rows = true}),
            "attention: row probes are asked for but none of their outputs is given; pass one or more of "
            "entropy, top_weight, top_position, second_moment, mean_distance and sink_mass");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, {.columns = true}),
            "attention: probe column_sums is not given; pass it as f32 [2 4 7], [batch heads kv_tokens]");
  Tensor picks(DType::i64, {1, 3}), weights(DType::f32, {1, 7});
  picks.values<std::int64_t>()[2] = 5;
  args.probe.picks = picks.view(), args.probe.picked_weights = weights.view();
  EXPECT_EQ(sentence(ErrorKind::bad_argument, {.picked = 1}),
            "attention: picked row 0 is (0, 0, 5) but there are [2 4 5] rows, [batch heads q_tokens]");
}

TEST(ViewChecks, PackedQkvAndItsOutputInOneBuffer) {
  // [batch tokens 4 heads dim]: q, k, v and out are the four slots of each token.
  Tensor all(DType::f32, {2, 5, 4, 16});
  const auto slot = [&](Index n) {
    AnyView v = AnyView::packed(all.view().data, DType::f32, {2, 5, 2, 8});
    v.data = all.values<float>().data() + n * 16;
    v.step[0] = 5 * 64, v.step[1] = 64;
    return v;
  };
  EXPECT_FALSE(may_share_bytes(slot(0), slot(3)));
  EXPECT_FALSE(may_share_bytes(slot(3), slot(0)));
  EXPECT_TRUE(may_share_bytes(slot(1), slot(1)));
  AnyView shifted = slot(3);
  shifted.data = static_cast<float*>(shifted.data) - 1;
  EXPECT_TRUE(may_share_bytes(shifted, slot(2)));
  AttentionArgs a;
  a.q = slot(0), a.k = slot(1), a.v = slot(2), a.out = slot(3);
  Context ctx({.threads = 1, .kernels = "ref"});
  EXPECT_NO_THROW(attention(a, ctx));
  a.out = slot(2);
  EXPECT_THROW(attention(a, ctx), Error);
}

TEST(ViewChecks, ApartOnlyWhenNoByteIsShared) {
  // Against a list of every byte: an answer of "apart" must be true.
  Tensor memory(DType::f32, {4096});
  int told_apart = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const std::vector<Index> r = random_integers(14, 0, 999, seed);
    AnyView v[2];
    std::vector<char> bytes[2];
    for (std::size_t n = 0; n < 2; ++n) {
      v[n] = AnyView::packed(memory.values<float>().data() + r[n * 7] % 64, DType::f32,
                             {1 + r[n * 7 + 1] % 4, 1 + r[n * 7 + 2] % 4, 1 + r[n * 7 + 3] % 4});
      v[n].step[0] = r[n * 7 + 4] % 5 * 24, v[n].step[1] = r[n * 7 + 5] % 4 * 6,
      v[n].step[2] = r[n * 7 + 6] % 3;
      bytes[n].resize(4096);
      for (Index i = 0; i < v[n].size[0]; ++i)
        for (Index j = 0; j < v[n].size[1]; ++j)
          for (Index k = 0; k < v[n].size[2]; ++k)
            ++bytes[n]
                   [static_cast<std::size_t>(static_cast<float*>(v[n].data) - memory.values<float>().data() +
                                             i * v[n].step[0] + j * v[n].step[1] + k * v[n].step[2])];
    }
    bool truly_shared = false, once = true;
    for (std::size_t i = 0; i < 4096; ++i) {
      truly_shared |= bytes[0][i] && bytes[1][i];
      once &= bytes[0][i] <= 1;
    }
    EXPECT_FALSE(!may_share_bytes(v[0], v[1]) && truly_shared) << seed;
    EXPECT_FALSE(each_element_once(v[0]) && !once) << seed;
    told_apart += !may_share_bytes(v[0], v[1]);
    shared += truly_shared;
  }
  EXPECT_GT(told_apart, 500);
  EXPECT_GT(shared, 500);
}

TEST(ViewChecks, StepsOfSizeOneSayNothing) {  // R053
  CaseRun r({.name = "junk", .kv_tokens = 3, .value_dim = 1});
  for (AnyView* v :
       std::initializer_list<AnyView*>{&r.args.q, &r.args.k, &r.args.v, &r.args.out, &r.args.lse})
    for (int axis = 0; axis < v->rank; ++axis)
      if (v->size[axis] == 1) v->step[axis] = axis % 2 ? -12345678 : std::numeric_limits<Index>::max();
  Context ctx({.threads = 1, .kernels = "ref"});
  EXPECT_NO_THROW(attention(r.args, ctx));
}

TEST(ViewChecks, ReachStaysInside63Bits) {  // R069, R076
  AnyView v = AnyView::packed(nullptr, DType::f32, {2, 3});
  v.step[0] = Index{1} << 33;
  EXPECT_EQ(reach_of(v).value, (Index{1} << 33) + 3);
  v.step[0] = (Index{1} << 61) - 4;
  EXPECT_TRUE(reach_of(v).ok);
  v.step[0] = Index{1} << 61;
  EXPECT_FALSE(reach_of(v).ok);
  v.size[1] = 0;
  EXPECT_EQ(reach_of(v).value, 0);
}

}  // namespace
}  // namespace headwise::test
