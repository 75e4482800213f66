// BackwardPlan: choice, workspace, the problem tensors pose; bad input of gradients, one sentence each.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/attention/backward.h"

#include "headwise/base/context.h"
#include "headwise/ops/explain/explain.h"
#include "tests/base/sentence.h"
#include "tests/support/backward_run.h"
#include "tests/support/count_allocations.h"
#include "tests/support/gradient_names.h"

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

/// A sound run with every term; each test spoils one thing.
struct BadGradient : testing::Test {
  FullBackward run{kCase};
  BackwardArgs& args = run.args;
  Context ctx{{.threads = 1, .kernels = "ref"}};

  std::string sentence(ErrorKind kind) {
    return sentence_of(kind, [&] { attention_backward(args, ctx); });
  }
  /// The plan is made from sound arguments, the run gets the spoilt ones.
  template <class Spoil>
  std::string run_sentence(ErrorKind kind, Spoil&& spoil) {
    const BackwardPlan plan(backward_problem_of(args), ctx);
    BackwardArgs spoilt = args;
    spoil(spoilt);
    return sentence_of(kind, [&] { plan.run(spoilt, ctx); });
  }
};

TEST_F(BadGradient, Nothing) { EXPECT_EQ(sentence(ErrorKind::bad_shape), "(nothing was thrown)"); }

TEST_F(BadGradient, IntegerInputs) {
  Tensor q(DType::i32, {2, 5, 4, 8}), k(DType::i32, {2, 7, 2, 8}), v(DType::i32, {2, 7, 2, 6});
  args.forward.q = q.view(), args.forward.k = k.view(), args.forward.v = v.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_dtype),
      "attention_backward: gradients asked of integer inputs: q, k and v are i32; use f32, bf16, f16 or "
      "f64");
}

TEST_F(BadGradient, NoGradientAsked) {
  each_gradient(args, [](const char*, AnyView&, AnyView& gradient) { gradient = {}; });
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention_backward: no gradient is asked; give at least one of " + gradient_names());
}

TEST_F(BadGradient, TheForwardsOwnChecksSpeakForThisOp) {
  args.forward.q.rank = 3;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention_backward: q is f32 [2 5 4] but rank 4 is needed, [batch q_tokens heads head_dim]");
  run.point(), run.point_terms();
  args.forward.k.size[2] = 3;
  EXPECT_EQ(
      sentence(ErrorKind::bad_shape),
      "attention_backward: heads (4) must be a multiple of kv_heads (3) of k; repeat or drop heads of k "
      "until it is");
  run.point(), run.point_terms();
  args.forward.inputs.softcap = -1;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention_backward: softcap is -1; give a number from 1e-30 to 1e30, or 0 for none");
}

TEST_F(BadGradient, SavedLseOfAnotherShape) {
  Tensor lse(DType::f32, {2, 5, 4}), wide(DType::f64, {2, 4, 5});
  args.forward.lse = lse.view();
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention_backward: lse is f32 [2 5 4] but f32 [2 4 5] is needed, [batch heads q_tokens]");
  args.forward.lse = wide.view();
  EXPECT_EQ(sentence(ErrorKind::bad_dtype),
            "attention_backward: lse is f64 [2 4 5] but f32 [2 4 5] is needed, [batch heads q_tokens]");
}

TEST_F(BadGradient, WhatTheForwardLeftIsMissing) {
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.forward.lse = {}; }),
            "attention_backward: lse is not given; pass it as f32 [2 4 5], [batch heads q_tokens]");
  EXPECT_EQ(
      run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.forward.out = {}; }),
      "attention_backward: out is not given; pass it as f32 [2 5 4 6], [batch q_tokens heads value_dim]");
  const AnyView lse = args.forward.lse;
  args.forward.lse = {};
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [&](BackwardArgs& a) { a.forward.lse = lse; }),
            "attention_backward: lse is given but the plan was made without lse; plan with it or leave lse "
            "empty");
}

/// ref computes the forward anew; any other kernel says what it misses.
TEST_F(BadGradient, KernelsThatNeedTheForwardSayWhatTheyMiss) {
  args.forward.out = args.forward.lse = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument), "(nothing was thrown)");
  for (const BackwardKernel& kernel : backward_kernels(Device::Kind::cpu))
    EXPECT_EQ(kernel.refuse(backward_problem_of(args)).empty(), kernel.name == std::string("ref"))
        << kernel.name;
}

TEST_F(BadGradient, ShapesOfGradients) {
  Tensor dout(DType::f32, {2, 5, 4, 8}), dq(DType::f32, {2, 5, 8, 4}), dk(DType::f32, {2, 7, 4, 8}),
      dv(DType::f32, {2, 7, 2, 8}), wide(DType::f64, {2, 5, 4, 8});
  const auto spoilt = [&](auto view, Tensor& t, ErrorKind kind = ErrorKind::bad_shape) {
    return run_sentence(kind, [&](BackwardArgs& a) { a.*view = t.view(); });
  };
  EXPECT_EQ(spoilt(&BackwardArgs::dout, dout),
            "attention_backward: dout is f32 [2 5 4 8] but f32 [2 5 4 6] is needed, [batch q_tokens heads "
            "value_dim]");
  EXPECT_EQ(spoilt(&BackwardArgs::dq, dq),
            "attention_backward: dq is f32 [2 5 8 4] but f32 [2 5 4 8] is needed, [batch q_tokens heads "
            "head_dim]");
  EXPECT_EQ(spoilt(&BackwardArgs::dk, dk),
            "attention_backward: dk is f32 [2 7 4 8] but f32 [2 7 2 8] is needed, [batch kv_tokens kv_heads "
            "head_dim]");
  EXPECT_EQ(spoilt(&BackwardArgs::dv, dv),
            "attention_backward: dv is f32 [2 7 2 8] but f32 [2 7 2 6] is needed, [batch kv_tokens kv_heads "
            "value_dim]");
  EXPECT_EQ(spoilt(&BackwardArgs::dq, wide, ErrorKind::bad_dtype),
            "attention_backward: dq is f64 [2 5 4 8] but f32 [2 5 4 8] is needed, [batch q_tokens heads "
            "head_dim]");
  args.dout = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention_backward: dout is not given; pass it as f32 [2 5 4 6], [batch q_tokens heads "
            "value_dim]");
}

TEST_F(BadGradient, ShapesOfTermGradients) {
  Tensor full(DType::f32, {2, 4, 5, 7}), three(DType::f32, {3}), one(DType::f32, {1}), half(DType::bf16, {4}),
      table(DType::f32, {4, 16}), gate(DType::f32, {2, 4, 5}), integers(DType::i32, {4});
  const auto spoilt = [&](auto view, Tensor& t, ErrorKind kind = ErrorKind::bad_shape) {
    return run_sentence(kind, [&](BackwardArgs& a) { a.*view = t.view(); });
  };
  const std::string floats = "f32 or bf16 or f16 or f64 ";
  EXPECT_EQ(spoilt(&BackwardArgs::dbias, full), "attention_backward: dbias is f32 [2 4 5 7] but " + floats +
                                                    "[1 4 1 7] is needed, the sizes of bias");
  EXPECT_EQ(spoilt(&BackwardArgs::dslopes, three),
            "attention_backward: dslopes is f32 [3] but " + floats + "[4] is needed, [heads]");
  EXPECT_EQ(spoilt(&BackwardArgs::dsinks, one),
            "attention_backward: dsinks is f32 [1] but " + floats + "[4] is needed, [heads]");
  EXPECT_EQ(spoilt(&BackwardArgs::dsinks, integers, ErrorKind::bad_dtype),
            "attention_backward: dsinks is i32 [4] but " + floats + "[4] is needed, [heads]");
  EXPECT_EQ(spoilt(&BackwardArgs::drelative, table), "attention_backward: drelative is f32 [4 16] but " +
                                                         floats + "[16 4] is needed, [buckets heads]");
  EXPECT_EQ(spoilt(&BackwardArgs::dgate, gate), "attention_backward: dgate is f32 [2 4 5] but " + floats +
                                                    "[2 5 4] is needed, [batch q_tokens heads]");
  EXPECT_EQ(spoilt(&BackwardArgs::dscale, half, ErrorKind::bad_dtype),
            "attention_backward: dscale is bf16 [4] but f32 or f64 [4] is needed, the size of scale");
}

TEST_F(BadGradient, GradientsOfWhatIsNotThere) {
  args.forward.inputs.scale = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: dscale is given but scale is not; give the scale of the forward or leave dscale "
      "empty");
  run.point_terms();
  args.forward.inputs.sinks = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: dsinks is asked but the forward has no sinks; leave dsinks out, or plan with "
      "sinks");
  run.point_terms();
  args.forward.inputs.bias = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: dbias is asked but the forward has no bias; leave dbias out, or plan with bias");
  run.point_terms();
  args.forward.inputs.slopes = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention_backward: dslopes is asked but the forward has no alibi slopes; leave dslopes out, or "
            "plan with alibi slopes");
  run.point_terms();
  args.forward.inputs.relative = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: drelative is asked but the forward has no relative table; leave drelative out, "
      "or plan with relative table");
  run.point_terms();
  args.forward.inputs.gate = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: dgate is asked but the forward has no gate; leave dgate out, or plan with gate");
}

TEST_F(BadGradient, MoreOrFewerThanPlanned) {
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dq = {}; }),
            "attention_backward: dq is not given; pass it as f32 [2 5 4 8], [batch q_tokens heads head_dim]");
  const AnyView dk = args.dk;
  args.dk = {};
  EXPECT_EQ(
      run_sentence(ErrorKind::bad_argument, [&](BackwardArgs& a) { a.dk = dk; }),
      "attention_backward: dk is given but the plan was made without it; plan with it or leave dk empty");
}

TEST_F(BadGradient, MemoryOfGradients) {
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dk.step[2] = 0; }),
            "attention_backward: dk is f32 [2 7 2 8] with steps that put two elements in one place; give it "
            "memory of its own");
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dv.data = nullptr; }),
            "attention_backward: dv is f32 [2 7 2 6] at a null address; pass its data");
  const std::string rest =
      " in memory, or interleaves with it in a way that cannot be told apart; give dq memory of its own";
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dq.data = a.forward.q.data; }),
            "attention_backward: dq overlaps q" + rest);
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dout.data = a.dq.data; }),
            "attention_backward: dq overlaps dout" + rest);
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.forward.out.data = a.dq.data; }),
            "attention_backward: dq overlaps out" + rest);
  EXPECT_EQ(run_sentence(ErrorKind::bad_argument, [](BackwardArgs& a) { a.dk.data = a.dq.data; }),
            "attention_backward: dq overlaps dk" + rest);
  // What is only read may repeat and may share: a dout of one row for all, q, k and v in one buffer.
  args.dout.step[0] = args.dout.step[1] = 0;
  args.forward.out.step[0] = 0;
  EXPECT_EQ(sentence(ErrorKind::bad_argument), "(nothing was thrown)");
}

TEST_F(BadGradient, Probes) {
  Tensor entropy(DType::f32, {2, 4, 5});
  args.forward.probe.entropy = entropy.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention_backward: probe entropy is given, but probes have no gradient; leave forward.probe empty");
  args.forward.probe = {};
  EXPECT_EQ(
      run_sentence(ErrorKind::bad_argument,
                   [&](BackwardArgs& a) { a.forward.probe.entropy = entropy.view(); }),
      "attention_backward: probe entropy is given, but probes have no gradient; leave forward.probe empty");
  BackwardProblem p = backward_problem_of(args);
  p.forward.probe.rows = true;
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { BackwardPlan(p, ctx); }),
      "attention_backward: the problem asks for probes, but probes have no gradient; plan without them");
}

TEST(BackwardPlanTest, PosesWhatIsGiven) {
  FullBackward r(kCase);
  BackwardProblem p = backward_problem_of(r.args);
  EXPECT_EQ(p.forward, problem_of(r.args.forward));
  EXPECT_EQ(p.wants, (GradientSpec{true, true, true, true, true, true, true, true, true}));
  r.args.dk = r.args.dgate = {};
  p = backward_problem_of(r.args);
  EXPECT_EQ(p.wants, (GradientSpec{true, false, true, true, true, true, true, true, false}));
}

/// The gradients that are asked have the same bits whatever else is asked.
TEST(BackwardPlanTest, EachGradientAlone) {
  FullBackward r(kCase);
  r.forward();
  each_backward_kernel([&](const char* kernel) {
    const Gradients all = run_backward(r.args, kernel);
    each_gradient(r.args, [&](const char* name, const InputView&, const InputView& asked) {
      if (!asked.given()) return;  // of a mix
      BackwardArgs one = r.args;
      each_gradient(one, [&](const char* other, const InputView&, AnyView& gradient) {
        if (std::string(other) != name) gradient = {};
      });
      const Gradients alone = run_backward(one, kernel);
      ASSERT_EQ(alone.size(), 1u);
      EXPECT_TRUE(same_bits(alone.at(name), all.at(name))) << "d" << name;
    });
  });
}

TEST(BackwardPlanTest, AListIsSharedWithTheForward) {
  BackwardRun r(kCase);
  const Context mixed({.threads = 1, .kernels = "cpu/online, ref"});
  EXPECT_STREQ(BackwardPlan(backward_problem_of(r.args), mixed).kernel(), "ref");
  std::string known;
  for (const BackwardKernel& kernel : backward_kernels(Device::Kind::cpu))
    known += (known.empty() ? "" : ", ") + std::string(kernel.name);
  EXPECT_EQ(sentence_of(ErrorKind::unsupported,
                        [&] { BackwardPlan(backward_problem_of(r.args), 1, "cpu/online"); }),
            "attention_backward: \"cpu/online\" holds no kernel of this op; there are: " + known);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] { BackwardPlan(backward_problem_of(r.args), 1, "ref,cpu/sideways"); }),
            "attention_backward: there is no kernel \"cpu/sideways\" for CPU tensors; there are: " + known);
}

TEST(BackwardPlanTest, WorkspaceTooSmall) {
  BackwardRun r(kCase);
  r.forward();
  for (const BackwardKernel& kernel : kernels_head_by_head()) {
    Context ctx({.threads = 2, .kernels = kernel.name});
    const BackwardPlan plan(backward_problem_of(r.args), ctx);
    Buffer memory(plan.workspace_bytes() + 256);
    EXPECT_NO_THROW(plan.run(r.args, memory.span().subspan(1, plan.workspace_bytes()), ctx.pool()));
    if (plan.workspace_bytes() < 200) continue;
    EXPECT_EQ(sentence_of(ErrorKind::out_of_workspace,
                          [&] { plan.run(r.args, memory.span().first(60), ctx.pool()); }),
              text("attention_backward.workspace: needs ", plan.workspace_bytes(),
                   " bytes at offset 0 but the workspace has 60; size it with plan.workspace_bytes()"));
  }
}

/// At 32k tokens nothing is quadratic: twice the tokens, twice the memory at most, and less than 12 times
/// what q, k, v and their gradients hold themselves.
TEST(BackwardPlanTest, MemoryGrowsWithTokensNotWithPairs) {
  for (const BackwardKernel& kernel : kernels_head_by_head())
    for (const int threads : {1, 16}) {
      const auto bytes_at = [&](Index tokens) {
        BackwardProblem p;
        p.forward.batch = 1, p.forward.q_tokens = p.forward.kv_tokens = tokens, p.forward.lse = true;
        p.forward.heads.q = HeadLayout::split(8, 64);
        p.forward.heads.k = p.forward.heads.v = HeadLayout::grouped(8, 2, 64);
        p.wants = {.q = true, .k = true, .v = true};
        return BackwardPlan(p, threads, kernel.name).workspace_bytes();
      };
      constexpr std::size_t kFixed = std::size_t{4} << 20;  // tiles of each thread
      const std::size_t own = std::size_t{2} * 32768 * (8 + 2 + 2) * 64 * 4;
      EXPECT_LE(bytes_at(32768), 2 * bytes_at(16384) + kFixed) << kernel.name;
      EXPECT_LE(bytes_at(32768), 12 * own + kFixed * static_cast<std::size_t>(threads)) << kernel.name;
    }
}

/// ref alone may allocate while it runs.
TEST(BackwardPlanTest, RunsAllocateNothing) {
  FullBackward r(kCase);
  r.forward();
  for (const BackwardKernel& kernel : kernels_head_by_head()) {
    Context ctx({.threads = 2, .kernels = kernel.name});
    const BackwardPlan plan(backward_problem_of(r.args), ctx);
    plan.run(r.args, ctx);
    const std::uint64_t before = allocations();
    for (int n = 0; n < 10; ++n) plan.run(r.args, ctx);
    EXPECT_EQ(allocations() == before, kernel.name != std::string("ref")) << kernel.name;
  }
}

/// No memory is an error in words, and nothing is half-written.
TEST(BackwardPlanTest, RefWithoutMemory) {
  FullBackward r(kCase);
  Context ctx({.threads = 1, .kernels = "ref"});
  const BackwardPlan plan(backward_problem_of(r.args), ctx);
  plan.run(r.args, ctx);
  const std::uint64_t before = allocations();
  plan.run(r.args, ctx);
  const std::uint64_t needed = allocations() - before;
  ASSERT_GT(needed, 3u);
  poison_gradients(r.args);
  const Gradients untouched = gradients_of(r.args);
  for (std::uint64_t n = 1; n <= needed; ++n) {
    fail_allocation(n);
    const std::string sentence = sentence_of(ErrorKind::out_of_memory, [&] { plan.run(r.args, ctx); });
    fail_allocation(0);
    EXPECT_EQ(
        sentence,
        "attention_backward: kernel ref found no memory for the sums of its gradients; use smaller sizes or "
        "fewer gradients at a time");
  }
  expect_same_bits(untouched, gradients_of(r.args));
}

TEST(BackwardPlanTest, ExplainsItself) {
  BackwardRun r(kCase);
  r.args.dk = {};
  const Roofline roof{.peak_gflops = 100, .read_gbytes = 10, .threads = 1, .isa = "test"};
  const BackwardPlan plan(backward_problem_of(r.args), 1, "ref");
  EXPECT_EQ(
      explain(plan, {.roofline = &roof}),
      "backward    f32 q [2 5 4 8] x k [2 7 2 8], v [2 7 2 6] -> out [2 5 4 6]\n"
      "gradients   q, v\n"
      "kernel      ref  chosen\n"
      "numerics    ref f64\n"
      "workspace   0 bytes for 1 thread\n"
      "positions   q_tokens (5) and kv_tokens (7) differ: by default query 0 stands at key 0 (top-left); "
      "q_start = end, here 2, puts the last query at the last key (bottom-right)\n"
      "cost        20.2 kFLOP with every pair open, 6.88 kB, 2.93 FLOP per byte\n"
      "machine     test, 1 thread: 100.0 GFLOP/s f32, 10.0 GB/s read (measured): ridge at 10.00 FLOP per "
      "byte\n"
      "bound       memory-bound\n");
  const std::string json = explain_json(plan, {.roofline = &roof});
  EXPECT_NE(json.find("\"op\": \"attention_backward\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"gradients\": \"q, v\""), std::string::npos) << json;
}

}  // namespace
}  // namespace headwise::test
