// AttentionPlan: choice, strict lists, workspace, no stored pointers, no allocation in run, a complete key.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/attend.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/plan_shelf.h"
#include "headwise/ops/attention/run_facts.h"
#include "tests/base/sentence.h"
#include "tests/support/bits.h"
#include "tests/support/case.h"
#include "tests/support/count_allocations.h"
#include "tests/support/random_rows.h"

namespace headwise::test {
namespace {

const Case kCase{.name = "base",
                 .batch = 2,
                 .q_tokens = 33,
                 .kv_tokens = 70,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 24,
                 .value_dim = 20};

// What a kernel does not name it refuses, so that a new term cannot be left out in silence.
TEST(Plan, AKernelRefusesTheTermsItDoesNotName) {
  const AttentionProblem plain = problem_of(CaseRun(kCase).args);
  for (const AttentionKernel& k : attention_kernels(Device::Kind::cpu))
    for (const ScoreTerm& t : kScoreTerms) {
      if (t.planned == nullptr) continue;
      AttentionKernel without = k;
      without.takes.terms.*t.planned = false;
      AttentionProblem p = plain;
      const std::string before = k.refuse(p);
      EXPECT_EQ(without.refuse(p), before) << k.name;
      p.heads.terms.*t.planned = true;
      EXPECT_EQ(without.refuse(p), text(t.name, " is asked for, and this kernel does not compute it"));
    }
  for (const BackwardKernel& k : backward_kernels(Device::Kind::cpu))
    for (const Gradient& g : kGradients) {
      BackwardKernel without = k;
      without.takes.gradients.*g.wanted = false;
      BackwardProblem p = {.forward = plain};
      p.wants.*g.wanted = true;
      EXPECT_EQ(without.refuse(p), text(g.name, " is asked for, and this kernel does not compute it"));
    }
  EXPECT_TRUE(kEvery.terms == ref::kRef.takes.terms) << "ref computes every term of the list";
}

TEST(Plan, ChoosesTheFirstThatDoesNotRefuse) {
  CaseRun r(kCase);
  EXPECT_STREQ(
      AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cpu/online,ref"})).kernel(),
      "cpu/online");
  EXPECT_STREQ(
      AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "ref, cpu/online"})).kernel(),
      "ref");
  EXPECT_TRUE(AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cpu/online,ref"}))
                  .refusals()
                  .empty());
}

TEST(Plan, F64AndScoreStagesRunOnRefWithAReason) {
  const CaseRun r(with_dtype(kCase, DType::f64));
  const AttentionPlan plan(problem_of(r.args), Context({.threads = 1, .kernels = "cpu/online,ref"}));
  EXPECT_STREQ(plan.kernel(), "ref");
  EXPECT_EQ(plan.numerics(), "ref f64");
  ASSERT_EQ(plan.refusals().size(), 1u);
  EXPECT_EQ(plan.refusals()[0].kernel, "cpu/online");
  EXPECT_FALSE(plan.refusals()[0].why.empty());

  const CaseRun f32(kCase);
  const AttentionPlan stages(problem_of(f32.args, {.scores = ScoreStage::biased}),
                             Context({.threads = 1, .kernels = "cpu/online,ref"}));
  EXPECT_STREQ(stages.kernel(), "ref");
  EXPECT_EQ(stages.refusals().size(), 1u);
}

TEST(Plan, AListWithoutRefIsStrict) {
  const CaseRun r(with_dtype(kCase, DType::f64));
  const Context strict({.threads = 1, .kernels = "cpu/online"});
  const std::string why =
      AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cpu/online,ref"}))
          .refusals()
          .at(0)
          .why;
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { AttentionPlan(problem_of(r.args), strict); }),
            "attention: every kernel of \"cpu/online\" refused; add ref to the list\n  cpu/online: " + why);
}

TEST(Plan, UnknownKernelsAreNamedWithTheKnownOnes) {
  const CaseRun r(kCase);
  const std::string known =
      " for CPU tensors; there are: cpu/decode, cpu/online, cpu/mixed, cpu/mixed_twice, cpu/entmax, cpu/f64, "
      "ref";
  EXPECT_EQ(
      sentence_of(
          ErrorKind::bad_argument,
          [&] { AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cuda/fastest"})); }),
      "attention: there is no kernel \"cuda/fastest\"" + known);
  EXPECT_EQ(
      sentence_of(
          ErrorKind::unsupported,
          [&] { AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cuda/hopper"})); }),
      "attention: the tensors are on the CPU but the list \"cuda/hopper\" allows no kernel for it; add ref");
  // One list serves every device.
  EXPECT_STREQ(
      AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "cuda/hopper, ref"})).kernel(),
      "ref");
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument,
                  [&] { AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "ref,reff"})); }),
      "attention: there is no kernel \"reff\"" + known);
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument,
                  [&] { AttentionPlan(problem_of(r.args), Context({.threads = 1, .kernels = "ref,"})); }),
      "attention: there is no kernel \"\"" + known);
}

/// What a call on a CUDA device does before its launch where the plan is kept: the key, the search, the
/// checks.
TEST(Plan, TheWayOfAKeptPlanOnADeviceAllocatesNothing) {
  CaseRun r(kCase);
  for (AnyView* v :
       std::initializer_list<AnyView*>{&r.args.q, &r.args.k, &r.args.v, &r.args.out, &r.args.lse})
    if (v->given()) *v = v->on(Device::cuda(0));
  const AttentionProblem planned = problem_of(r.args);
  const std::uint64_t before = allocations();
  const AttentionProblem again = problem_of(r.args);
  check_args(again, r.args);
  const bool same = again == planned;
  require_planned("attention", planned.run, run_facts(again, r.args));
  EXPECT_EQ(allocations() - before, 0u);
  EXPECT_TRUE(same);
}

TEST(Plan, AShelfKeepsAPlan) {
  CaseRun r(kCase);
  const Context ctx({.threads = 1});
  PlanShelf shelf;
  const AttentionPlan* kept = &shelf.forward(problem_of(r.args), ctx);
  const std::uint64_t before = allocations();
  EXPECT_EQ(&shelf.forward(problem_of(r.args), ctx), kept);
  EXPECT_EQ(allocations() - before, 0u);
}

TEST(Plan, WorkspaceTooSmall) {
  const CaseRun r(kCase);
  Context ctx({.threads = 2, .kernels = "cpu/online"});
  const AttentionPlan plan(problem_of(r.args), ctx);
  ASSERT_GT(plan.workspace_bytes(), 100u);
  Buffer memory(plan.workspace_bytes() + 256);
  EXPECT_EQ(sentence_of(ErrorKind::out_of_workspace,
                        [&] { plan.run(r.args, memory.span().first(100), ctx.pool()); }),
            text("attention.workspace: needs ", plan.workspace_bytes(),
                 " bytes at offset 0 but the workspace has 100; size it with plan.workspace_bytes()"));
  // Any address will do when the size is the plan's.
  for (std::size_t shift : {0u, 1u, 64u, 127u})
    EXPECT_NO_THROW(plan.run(r.args, memory.span().subspan(shift, plan.workspace_bytes()), ctx.pool()))
        << shift;
}

TEST(Plan, WritesOnlyItsWorkspace) {
  const CaseRun r(kCase);
  Context ctx({.threads = 2, .kernels = "cpu/online"});
  const AttentionPlan plan(problem_of(r.args), ctx);
  Buffer memory(plan.workspace_bytes() + 256);
  std::fill(memory.span().begin(), memory.span().end(), std::byte{0xa5});
  plan.run(r.args, memory.span().subspan(128, plan.workspace_bytes()), ctx.pool());
  for (std::size_t n = 0; n < 128; ++n) {
    EXPECT_EQ(memory.span()[n], std::byte{0xa5});
    EXPECT_EQ(memory.span()[memory.size() - 1 - n], std::byte{0xa5});
  }
}

TEST(Plan, StoresNoPointer) {
  for (const char* kernels : {"cpu/online", "ref"}) {
    Context ctx({.threads = 2, .kernels = kernels});
    CaseRun r(kCase);
    Tensor sinks = floats_of({0.5f, -1, 2, 0}), bias = random_normal({1, 4, 33, 70}, DType::f32, 9);
    const MaskView causal = MaskView::causal();
    r.args.mask = {&causal, 1};
    r.args.inputs.sinks = sinks.view(), r.args.inputs.bias = bias.view();
    const AttentionPlan plan(problem_of(r.args), ctx);
    plan.run(r.args, ctx);
    Tensor out = r.out.clone(), lse = r.lse.clone();

    CaseRun moved(kCase);
    moved.q = r.q.clone(), moved.k = r.k.clone(), moved.v = r.v.clone();
    moved.point();
    Tensor moved_sinks = sinks.clone(), moved_bias = bias.clone();
    const MaskView moved_mask = causal;
    moved.args.mask = {&moved_mask, 1};
    moved.args.inputs.sinks = moved_sinks.view(), moved.args.inputs.bias = moved_bias.view();
    for (Tensor* t : {&r.q, &r.k, &r.v, &r.out, &r.lse, &sinks, &bias, &moved.out, &moved.lse}) poison(*t);
    plan.run(moved.args, ctx);
    EXPECT_TRUE(same_bits(out, moved.out)) << kernels;
    EXPECT_TRUE(same_bits(lse, moved.lse)) << kernels;
  }
}

TEST(Plan, RunAllocatesNothing) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const CaseRun r(with_dtype(kCase, dtype));
    Context ctx({.threads = 2, .kernels = "cpu/online"});
    const AttentionPlan plan(problem_of(r.args), ctx);
    plan.run(r.args, ctx);
    const std::uint64_t before = allocations();
    for (int n = 0; n < 10; ++n) plan.run(r.args, ctx);
    EXPECT_EQ(allocations() - before, 0u) << dtype;
  }
}

TEST(Plan, PlanningAllocatesNothingWhenNothingIsRefused) {
  const CaseRun r(kCase);
  const Context ctx({.threads = 2, .kernels = "cpu/online"});
  const AttentionProblem problem = problem_of(r.args);
  const std::uint64_t before = allocations();
  const AttentionPlan plan(problem, ctx);
  EXPECT_EQ(allocations() - before, 0u);
}

TEST(Plan, OutOfMemoryIsASentence) {
  const CaseRun r(kCase);
  Context ctx({.threads = 1, .kernels = "ref"});
  const AttentionPlan plan(problem_of(r.args), ctx);
  const std::string sentence = sentence_of(ErrorKind::out_of_memory, [&] {
    fail_allocation(1);
    plan.run(r.args, ctx);
  });
  fail_allocation(0);
  EXPECT_EQ(
      sentence,
      "attention: kernel ref found no memory for its rows of 70 keys; use fewer threads or smaller sizes");
  EXPECT_NO_THROW(plan.run(r.args, ctx));
}

/// R065: a value that is not part of the key acts at once on the same plan.
TEST(Plan, SizesNearTheEndOfIndexDoNotOverflow) {
  constexpr Index kHuge = std::numeric_limits<Index>::max() / 8;
  const std::string kernels = "cpu/online,ref";
  for (const Index tokens : {kHuge, kHuge * 8}) {
    AttentionProblem p = problem_of(CaseRun(kCase).args);
    p.heads.q = HeadLayout::split(64, 8), p.heads.k = p.heads.v = HeadLayout::grouped(64, 1, 8);
    p.q_tokens = tokens;
    EXPECT_THROW(AttentionPlan(p, 1, kernels), Error) << tokens;
  }
}

TEST(Plan, R065_SamePlanOtherValues) {
  for (const char* kernels : {"cpu/online", "ref"}) {
    Context ctx({.threads = 1, .kernels = kernels});
    CaseRun r(kCase);
    Tensor scale = floats_of({0.1f}), slopes = floats_of({1, 0.5f, 0.25f, 0.125f}),
           sinks = floats_of({0, 0, 0, 0}), bias = random_normal({1, 1, 33, 70}, DType::f32, 4),
           gate = random_normal({2, 33, 4}, DType::f32, 5), table = random_normal({8, 4}, DType::f32, 6);
    Tensor later = tensor_of(std::vector<Index>{20});
    HeadInputs& in = r.args.inputs;
    in = {.scale = scale.view(),
          .softcap = 20,
          .slopes = slopes.view(),
          .bias = bias.view(),
          .relative = table.view(),
          .buckets = {.buckets = 8, .max_distance = 64, .bidirectional = true},
          .sinks = sinks.view(),
          .gate = gate.view(),
          .dropout = 0.25,
          .seed = 1};
    const MaskView causal = MaskView::causal(), window = MaskView::window(9, 3);
    r.args.mask = {&causal, 1};
    const AttentionPlan plan(problem_of(r.args), ctx);
    plan.run(r.args, ctx);
    Tensor first = r.out.clone();
    const AttentionArgs args = r.args;
    const std::pair<const char*, std::function<void()>> changes[] = {
        {"scale", [&] { scale.values<float>()[0] = 0.2f; }},
        {"softcap", [&] { in.softcap = 0.5; }},
        {"slopes", [&] { slopes.values<float>()[0] = 2; }},
        {"bias", [&] { bias.values<float>()[0] += 1; }},
        {"relative", [&] { table.values<float>()[0] += 1; }},
        {"max_distance", [&] { in.buckets.max_distance = 12; }},
        {"sinks", [&] { sinks.values<float>()[3] = 3; }},
        {"gate", [&] { gate.values<float>()[0] += 1; }},
        {"dropout", [&] { in.dropout = 0.5; }},
        {"seed", [&] { in.seed = 2; }},
        {"mask",
         [&] {
           r.args.mask = {&window, 1};
         }},
        {"q_start", [&] { r.args.q_start = later.view(); }},
    };
    for (const auto& [name, change] : changes) {
      change();
      plan.run(r.args, ctx);
      EXPECT_FALSE(same_bits(first, r.out)) << kernels << " " << name;
      r.args = args;
      scale.values<float>()[0] = 0.1f, slopes.values<float>()[0] = 1, sinks.values<float>()[3] = 0;
      bias = random_normal({1, 1, 33, 70}, DType::f32, 4), gate = random_normal({2, 33, 4}, DType::f32, 5);
      table = random_normal({8, 4}, DType::f32, 6);
      in.bias = bias.view(), in.gate = gate.view(), in.relative = table.view();
      plan.run(r.args, ctx);
      EXPECT_TRUE(same_bits(first, r.out)) << kernels << " back from " << name;
    }
  }
}

/// R066: everything a plan depends on is in the problem, and each field of it tells two problems apart.
TEST(Plan, R066_KeyIsComplete) {
  const CaseRun r(kCase);
  const AttentionProblem base = problem_of(r.args);
  std::vector<AttentionProblem> others;
  const auto changed = [&](auto&& change) {
    AttentionProblem p = base;
    change(p);
    others.push_back(p);
  };
  for (HeadLayout HeadSpec::*which : {&HeadSpec::q, &HeadSpec::k, &HeadSpec::v})
    for (Index HeadLayout::*field : {&HeadLayout::heads, &HeadLayout::dim, &HeadLayout::group,
                                     &HeadLayout::step, &HeadLayout::begin, &HeadLayout::row})
      changed([&](AttentionProblem& p) { ++(p.heads.*which.*field); });
  for (bool Terms::*term : {&Terms::softcap, &Terms::alibi, &Terms::bias, &Terms::relative, &Terms::sinks,
                            &Terms::dropout, &Terms::gate, &Terms::rows})
    changed([&](AttentionProblem& p) { p.heads.terms.*term = true; });
  for (Index AttentionProblem::*size :
       {&AttentionProblem::batch, &AttentionProblem::q_tokens, &AttentionProblem::kv_tokens,
        &AttentionProblem::q_total, &AttentionProblem::kv_total, &AttentionProblem::pages,
        &AttentionProblem::page_size})
    changed([&](AttentionProblem& p) { ++(p.*size); });
  changed([](AttentionProblem& p) { p.dtype = DType::bf16; });
  changed([](AttentionProblem& p) { p.heads.norm = Norm::entmax; });
  changed([](AttentionProblem& p) { p.ragged = true; });
  changed([](AttentionProblem& p) { p.lse = !p.lse; });
  changed([](AttentionProblem& p) { p.probe.rows = true; });
  changed([](AttentionProblem& p) { p.probe.top_k = 1; });
  changed([](AttentionProblem& p) { p.probe.classes = 1; });
  changed([](AttentionProblem& p) { p.probe.columns = true; });
  changed([](AttentionProblem& p) { p.probe.picked = 1; });
  changed([](AttentionProblem& p) { p.probe.scores = ScoreStage::scaled; });
  changed([](AttentionProblem& p) { p.kv = DType::i8; });
  changed([](AttentionProblem& p) { p.kv = DType::e4m3; });
  changed([](AttentionProblem& p) { p.keys = KeyForm::packed; });
  changed([](AttentionProblem& p) { p.keys = KeyForm::paged; });
  changed([](AttentionProblem& p) { p.device = Device::cuda(0); });
  changed([](AttentionProblem& p) { p.device = Device::cuda(1); });
  changed([](AttentionProblem& p) { p.run.far = true; });
  changed([](AttentionProblem& p) { p.run.unfit[RunFacts::dv] = 1; });
  changed([](AttentionProblem& p) { p.run.padded_kv = 128; });
  others.push_back(base);
  for (std::size_t a = 0; a < others.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(others[a] == others[b]) << a << " " << b;
  // A field added to these structs must be added above; padding included, their sizes say so.
  EXPECT_EQ(sizeof(HeadLayout), 6 * sizeof(Index));
  EXPECT_EQ(sizeof(Terms), 8u);
  EXPECT_EQ(sizeof(ProbeSpec), 6 * sizeof(Index));
  EXPECT_EQ(sizeof(AttentionProblem),
            sizeof(HeadSpec) + sizeof(ProbeSpec) + sizeof(Device) + sizeof(RunFacts) + 11 * sizeof(Index));
}

TEST(Plan, KeysAndValuesAreOfQsDtypeOrOfEightBits) {
  AttentionProblem p = problem_of(CaseRun(kCase).args);
  p.kv = p.dtype;
  EXPECT_EQ(p.kv_dtype(), p.dtype);
  EXPECT_NO_THROW(AttentionPlan(p, 1, "ref"));
  p.kv = DType::bf16;
  try {
    AttentionPlan(p, 1, "ref");
    FAIL() << "a plan of f32 queries and bf16 keys was made";
  } catch (const Error& e) {
    EXPECT_EQ(
        std::string(e.what()),
        "attention: q is f32 but the plan has keys and values of bf16; give one dtype, or i8 or e4m3 with "
        "scales");
  }
}

TEST(Plan, ProblemOfReadsTheTensors) {
  CaseRun r(kCase);
  const AttentionProblem p = problem_of(r.args);
  EXPECT_EQ(p.heads.q, HeadLayout::split(4, 24));
  EXPECT_EQ(p.heads.k, HeadLayout::grouped(4, 2, 24));
  EXPECT_EQ(p.heads.v, HeadLayout::grouped(4, 2, 20));
  EXPECT_TRUE(p.lse);
  EXPECT_EQ(p.heads.terms, Terms{});
  r.args.inputs.dropout = 0.1;
  r.args.lse = {};
  EXPECT_TRUE(problem_of(r.args).heads.terms.dropout);
  EXPECT_FALSE(problem_of(r.args).lse);
}

}  // namespace
}  // namespace headwise::test
