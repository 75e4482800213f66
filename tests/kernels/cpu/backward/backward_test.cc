// cpu/backward against ref over crossed features; its forms, threads, panels and blocks give the same bits;
// closed pairs see nothing; a run allocates nothing.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/kernels/cpu/backward/backward.h"

#include "headwise/ops/attention/checks/backward.h"
#include "tests/support/backward_run.h"
#include "tests/support/count_allocations.h"
#include "tests/support/cover.h"

namespace headwise::test {
namespace {

using cpu::backward::Form;

/// A posed setting as the kernel gets it, and the same numbers in double with the gradients of ref.
struct Against {
  GradientRun truth, run;

  Against(const Posed& p, std::uint64_t seed) : truth(double_of(p, seed)) {
    const DType dtype = p.sizes.dtype;
    run.heads = p.heads;
    run.args.forward = p.args;
    run.args.forward.probe = {};
    run.args.dout = run.keep(converted(truth.args.dout, dtype));
    truth.args.dout = truth.keep(converted(run.args.dout, DType::f64));
    run.args.forward.out = run.keep(converted(truth.args.forward.out, dtype));
    run.args.forward.lse = run.keep(Tensor(DType::f32, {p.tensor_batch(), p.sizes.heads, p.q_rows()}));
    each_gradient(run.args, [&](const char* name, AnyView& input, AnyView& gradient) {
      if (!input.given()) return;
      const bool tensor = std::string("qkv").find(name) != std::string::npos;
      gradient = run.keep(converted(input, tensor ? dtype : DType::f32));
      if (std::string(name) == "scale") gradient = run.keep(converted(input, DType::f64));
    });
    attention(run.args.forward, context_of(""), {}, run.heads);
    attention_backward(truth.args, context_of("ref"), truth.heads);
  }
};

/// Runs a form on its own, checked arguments and all; the workspace is exactly as large as asked.
void run_as(Form form, const BackwardArgs& a, const HeadSpec& heads, int threads) {
  const BackwardProblem p = backward_problem_of(a, heads);
  const std::size_t bytes = cpu::backward::bytes_as(form, p, threads);
  Buffer memory(bytes);
  std::memset(memory.span().data(), 0xff, bytes);  // NaN: nothing is read before it is written
  poison_gradients(a);
  ASSERT_EQ(cpu::backward::run_as(form, p, check_backward_args(p, a), memory.span(),
                                  context_of("", threads).pool()),
            Status::ok);
}

/// The largest error of a gradient in units of its largest number, at least of what it is summed from: inputs
/// are unit normal, distances are not. Exact units are what the yardstick tests judge by; this finds wrong
/// sums.
std::string far_from(const Against& x, const Posed& p, double tolerance) {
  const double rows = static_cast<double>(p.sizes.batch * p.sizes.q_tokens * p.sizes.heads),
               distance = static_cast<double>(p.sizes.q_tokens + p.sizes.kv_tokens + 70);
  std::string fault;
  std::vector<AnyView> truths;
  each_gradient(x.truth.args,
                [&](const char*, const InputView&, const InputView& g) { truths.push_back(g); });
  std::size_t i = 0;
  each_gradient(x.run.args, [&](const char* name, const InputView&, const InputView& g) {
    const InputView& t = truths[i++];
    if (!g.given()) return;
    const Distance d = distance_of(g, t);
    double parts = name == std::string("q") ? 1 : std::sqrt(rows);
    if (name == std::string("slopes")) parts *= distance;
    if (name == std::string("scale")) parts *= std::sqrt(static_cast<double>(p.sizes.head_dim));
    if (d.mismatched > 0 || d.largest > tolerance * std::max(parts, largest_of(t)))
      fault += text("d", name, " at ", d.at, ": ", load_double(g.data, g.dtype, d.at), ", truth ",
                    load_double(t.data, t.dtype, d.at), ", largest ", largest_of(t), "; ");
  });
  return fault;
}

double tolerance_of(DType t) { return t == DType::f32 ? 1e-5 : t == DType::f16 ? 0.01 : 0.1; }

TEST(CpuBackward, EveryPairOfFeaturesMatchesRef) {
  Choice counts = Cover::all_values();
  for (const int option : {kOutLayout, kLse, kRowProbe, kTopK, kClasses, kColumns, kPicked, kStage, kThreads,
                           kKernels, kKeysValues})
    counts[static_cast<std::size_t>(option)] = 1;
  counts[kDtype] = 3;  // f64 is refused
  counts[kScale] = 6;  // without 1e30
  Cover cover(5, counts, 1.5e6);
  int cases = 0;
  for (; !cover.done(); ++cases) {
    Choice c = cover.next();
    if (c[kRows] > 0) c[kBias] = c[kRelative] = 0;  // refused together, but for ref
    const auto seed = static_cast<std::uint64_t>(cases + 1);
    Posed posed;
    pose(c, {.seed = seed}, posed);
    Against x(posed, seed);
    each_level([&] {
      for (const Form form : {Form::joined, Form::split}) {
        run_as(form, x.run.args, x.run.heads, 2);
        EXPECT_EQ(far_from(x, posed, tolerance_of(posed.sizes.dtype)), "")
            << describe(c) << " form " << static_cast<int>(form) << " case " << to_text(c) << " seed "
            << seed;
      }
    });
  }
  std::printf("backward: %d cases\n", cases);
}

const Case kLarge{.name = "large",
                  .batch = 2,
                  .q_tokens = 150,
                  .kv_tokens = 203,
                  .heads = 6,
                  .kv_heads = 2,
                  .head_dim = 24,
                  .value_dim = 40};

TEST(CpuBackward, BitsDependOnNeitherFormNorThreadsNorRepeats) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    each_level([&] {
      FullBackward run(with_dtype(kLarge, dtype));
      run.forward();
      run_as(Form::joined, run.args, {}, 1);
      const Gradients first = gradients_of(run.args);
      for (const int threads : {1, 2, 3, 4, 7, 8, 16})
        for (const Form form : {Form::joined, Form::split}) {
          run_as(form, run.args, {}, threads);
          expect_same_bits(gradients_of(run.args), first,
                           text("threads ", threads, " form ", static_cast<int>(form)));
        }
    });
}

/// Rows of one sequence, whatever stands beside it; k and v of other sequences are other numbers.
TEST(CpuBackward, BitsDoNotDependOnTheBatch) {
  each_level([&] {
    FullBackward run(kLarge);
    run.forward();
    run_as(Form::joined, run.args, {}, 2);
    const Gradients both = gradients_of(run.args);
    for (Index b = 0; b < 2; ++b) {
      BackwardArgs one = run.args;
      for (AnyView* v : std::initializer_list<AnyView*>{
               &one.forward.q, &one.forward.k, &one.forward.v, &one.forward.out, &one.forward.lse,
               &one.forward.inputs.gate, &one.forward.inputs.sequence_ids, &one.dout})
        *v = batch_of(*v, b, 1);
      one.dbias = one.dslopes = one.drelative = one.dsinks = one.dscale = {};
      for (AnyView* v : {&one.dq, &one.dk, &one.dv, &one.dgate}) *v = batch_of(*v, 0, 1);
      run_as(Form::split, one, {}, 3);
      const Gradients alone = gradients_of(one);
      for (const auto& [name, tensor] : alone)
        EXPECT_TRUE(same_bits(tensor.view(), batch_of(both.at(name).view(), b, 1))) << name;
    }
  });
}

/// Rows and keys that take several blocks of each, kept packed or not: against ref, and form against form.
TEST(CpuBackward, ManyBlocksOfRowsAndKeys) {
  const Case wide{.name = "wide",
                  .batch = 1,
                  .q_tokens = 200,
                  .kv_tokens = 300,
                  .heads = 2,
                  .kv_heads = 1,
                  .head_dim = 256,
                  .value_dim = 256};
  Case many = wide;
  many.q_tokens = 260, many.kv_tokens = 2000, many.heads = 1;
  FullBackward run(wide);
  run.forward();
  const Gradients truth = run_backward(run.args, "ref");
  each_level([&] {
    for (const Form form : {Form::joined, Form::split}) {
      run_as(form, run.args, {}, 2);
      for (const auto& [name, tensor] : gradients_of(run.args)) {
        const InputView& t = truth.at(name).view();
        EXPECT_LE(distance_of(tensor.view(), t).largest, 2e-4 * std::max(1.0, largest_of(t))) << name;
      }
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
      BackwardRun more(with_dtype(many, dtype));
      more.forward();
      run_as(Form::joined, more.args, {}, 1);
      const Gradients first = gradients_of(more.args);
      run_as(Form::split, more.args, {}, 3);
      expect_same_bits(gradients_of(more.args), first, text(dtype));
    }
  });
}

/// NaN in one element of q, k, v or dout reaches what ref says and nothing else.
void nan_reaches_open_pairs(const Case& c, const char* name, int planted, bool terms) {
  FullBackward run(c);
  const Mask mask = parse_mask(name);
  if (!terms) {
    run.args = {};
    run.point();
  }
  run.args.forward.mask = mask.set();
  const AnyView at[] = {run.args.forward.q, run.args.forward.k, run.args.forward.v, run.args.dout};
  for (const Index token : {3, 66}) {
    const InputView& v = at[planted];
    store_double(v.data, v.dtype, token * v.step[1] + v.step[2] + 5, kNan);
  }
  attention(run.args.forward, context_of(""));
  const Gradients truth = run_backward(run.args, "ref");
  each_level([&] {
    for (const Form form : {Form::joined, Form::split}) {
      run_as(form, run.args, {}, 2);
      for (const auto& [gradient, tensor] : gradients_of(run.args)) {
        const Distance d = distance_of(tensor.view(), truth.at(gradient).view());
        EXPECT_EQ(d.mismatched, 0) << name << " planted in " << planted << " terms " << terms << " d"
                                   << gradient << " at " << d.at << " " << c;
        EXPECT_LE(d.largest, c.dtype == DType::f32 ? 1e-3 : kInf)
            << name << " planted in " << planted << " d" << gradient;
      }
    }
  });
}
TEST(CpuBackward, NanReachesOpenPairsAlone) {
  const Case c{.name = "nan",
               .batch = 1,
               .q_tokens = 75,
               .kv_tokens = 140,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 20,
               .value_dim = 33};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const char* name : {"causal", "window(9, 3)", "prefix(70) & strided(3, 2)", "lengths(90)"})
      for (int planted = 0; planted < 4; ++planted)
        for (const bool terms : {false, true})
          nan_reaches_open_pairs(with_dtype(c, dtype), name, planted, terms);
}

/// What nobody may see changes no bit: NaN, infinities and the largest numbers in closed keys and rows.
TEST(CpuBackward, ClosedKeysAndEmptyRowsChangeNoBit) {
  const Case c{.name = "closed",
               .batch = 1,
               .q_tokens = 70,
               .kv_tokens = 150,
               .heads = 2,
               .kv_heads = 1,
               .head_dim = 16,
               .value_dim = 8};
  const Mask mask = parse_mask("lengths(90) & window(200, 60)");
  Tensor start = tensor_of({-90});  // the first 30 queries see nothing
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const double bad : {kNan, kInf, -kInf, 3e38})
      each_level([&] {
        FullBackward clean(with_dtype(c, dtype)), planted(with_dtype(c, dtype));
        clean.args.forward.mask = planted.args.forward.mask = mask.set();
        clean.args.forward.q_start = planted.args.forward.q_start = start.view();
        for (Index i = 0; i < 30; ++i)
          for (Tensor* t : {&planted.inputs.q, &planted.dout})
            for (Index n = 0; n < 2 * t->view().size[3]; ++n)
              store_double(t->view().data, dtype, i * t->view().step[1] + n, bad);
        for (Index j = 90; j < 150; ++j)
          for (Tensor* t : {&planted.inputs.k, &planted.inputs.v})
            for (Index n = 0; n < t->view().size[3]; ++n)
              store_double(t->view().data, dtype, j * t->view().step[1] + n, bad);
        clean.forward(), planted.forward();
        for (const Form form : {Form::joined, Form::split}) {
          run_as(form, clean.args, {}, 2), run_as(form, planted.args, {}, 2);
          expect_same_bits(gradients_of(clean.args), gradients_of(planted.args), text("planted ", bad));
        }
        for (Index n = 0; n < 30 * clean.dq.view().step[1]; ++n)
          EXPECT_EQ(load_double(clean.dq.view().data, dtype, n), 0);
      });
}

TEST(CpuBackward, ARunAllocatesNothing) {
  FullBackward run(kLarge);
  run.forward();
  const BackwardPlan plan(backward_problem_of(run.args), 2, "cpu/backward");
  Buffer memory(plan.workspace_bytes());
  ThreadPool pool(2);
  plan.run(run.args, memory.span(), pool);
  const std::uint64_t before = allocations();
  plan.run(run.args, memory.span(), pool);
  EXPECT_EQ(allocations(), before);
}

TEST(CpuBackward, WorkspaceGrowsWithTokensNotWithTheirSquare) {
  const auto bytes = [](Index tokens, int threads) {
    BackwardProblem p;
    p.forward.heads = {
        HeadLayout::split(8, 64), HeadLayout::grouped(8, 2, 64), HeadLayout::grouped(8, 2, 64), {}};
    p.forward.batch = 1, p.forward.q_tokens = p.forward.kv_tokens = tokens, p.forward.lse = true;
    p.wants = {.q = true, .k = true, .v = true, .bias = true, .sinks = true, .scale = true};
    return static_cast<double>(cpu::backward::kBackward.workspace_bytes(p, threads));
  };
  for (const int threads : {1, 2, 16}) {
    EXPECT_LT(bytes(65536, threads), 2.1 * bytes(32768, threads));
    EXPECT_LT(bytes(32768, threads), 3.0 * 32768 * 4 * 64 * (8 + 2 + 2));  // q, k and v thrice
  }
}

TEST(CpuBackward, RefusesInWords) {
  BackwardProblem p;
  p.forward.dtype = DType::f64;
  EXPECT_EQ(cpu::backward::kBackward.refuse(p), "dtype is f64: this kernel computes in f32");
  p.forward.dtype = DType::f32;
  EXPECT_EQ(cpu::backward::kBackward.refuse(p),
            "it starts from the log-sum-exp of the forward, and none is given");
  p.forward.lse = true;
  EXPECT_EQ(cpu::backward::kBackward.refuse(p), "");
}

}  // namespace
}  // namespace headwise::test
