// cpu/mixed_backward against ref at every level, the law of deltas, and the same bits for any threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/mixed/backward.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "tests/support/count_allocations.h"
#include "tests/support/gradients.h"
#include "tests/support/mix_cases.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr Mix kFixed = Mix::fixed, kDynamic = Mix::dynamic;

/// Gradients with an input of their own.
template <class Args, class F>
void each_asked(Args& a, F&& visit) {
  each_gradient(a, [&](const char* name, auto& input, auto& gradient) {
    const std::string s = name;
    if (input.given()) visit(s, input, gradient);
  });
}

/// out and lse of ref, a place of the input's dtype for every gradient.
struct Posed {
  MixRun run;
  explicit Posed(const MixCase& c) : run(c) {
    AttentionArgs& a = run.args.forward;
    a.lse = run.keep(Tensor(DType::f32, {a.q.size[0], run.heads.normal_heads(), a.q.size[1]}));
    attention(a, reference(), {}, run.heads);
    each_asked(run.args, [&](const std::string&, AnyView& input, AnyView& gradient) {
      gradient = run.keep(converted(input, input.dtype));
    });
  }
  void spoil() {
    each_asked(run.args, [&](const std::string&, AnyView&, AnyView& g) {
      if (g.count()) std::memset(g.data, 0xff, static_cast<std::size_t>(g.count() * size_of(g.dtype)));
    });
  }
  std::vector<Tensor> on_cpu(int threads) {
    spoil();
    Context ctx({.threads = threads, .kernels = "cpu/mixed_backward"});
    attention_backward(run.args, ctx, run.heads);
    return gradients();
  }
  /// Straight from the kernel, in workspace of exactly the bytes it asked for.
  std::vector<Tensor> as_form(cpu::mixed::Form form, int threads, double* worst = nullptr) {
    spoil();
    BackwardArgs a = run.args;
    BackwardProblem p = backward_problem_of(a, run.heads);
    ArgChecks::spread_bias(p.forward, a.forward.inputs.bias);
    if (a.forward.inputs.bias.given()) a.forward.inputs.bias.step[0] = 0;
    ThreadPool pool(threads);
    const Buffer memory(cpu::mixed::backward_bytes_as(form, p, threads));
    EXPECT_EQ(cpu::mixed::run_backward_as(form, p, a, memory.span(), pool, worst), Status::ok);
    return gradients();
  }
  std::vector<Tensor> gradients() {
    std::vector<Tensor> all;
    each_asked(run.args,
               [&](const std::string&, AnyView&, AnyView& g) { all.push_back(converted(g, g.dtype)); });
    return all;
  }
};

TEST(MixedBackward, EveryLevelAgreesWithRef) {
  for (MixCase c : mix_cases())
    for (const DType t : {DType::f32, DType::bf16}) {
      c.dtype = t;
      Posed posed(c);
      BackwardArgs wide = posed.run.args;
      each_asked(wide, [&](const std::string&, AnyView& input, AnyView& g) {
        g = posed.run.keep(converted(input, DType::f64));
      });
      std::deque<Tensor> kept;
      for (AnyView* x : std::initializer_list<AnyView*>{&wide.forward.q, &wide.forward.k, &wide.forward.v,
                                                        &wide.dout, &wide.forward.out})
        *x = kept.emplace_back(converted(*x, DType::f64)).view();
      wide.forward.lse = {};
      attention_backward(wide, reference(), posed.run.heads);
      each_level([&] {
        const std::vector<Tensor> got = posed.on_cpu(1);
        std::size_t n = 0;
        each_asked(wide, [&](const std::string& name, AnyView&, AnyView& g) {
          const Distance d = distance_of(got[n++].view(), g);
          EXPECT_EQ(d.mismatched, 0) << c.name << " d" << name << " at " << d.at;
          EXPECT_LE(d.relative, t == DType::f32 ? 1e-5 : 4e-3) << c.name << " d" << name;
        });
      });
    }
}

TEST(MixedBackward, DeltasOfARowSumToDoutTimesOut) {
  each_level([] {
    for (MixCase c : mix_cases()) {
      c.dtype = DType::f32;
      Posed posed(c);
      double worst = 0;
      posed.as_form(cpu::mixed::Form::kept, 1, &worst);
      EXPECT_TRUE(c.q_tokens * c.kv_tokens == 0 || worst > 0) << c.name << ": nothing was checked";
      EXPECT_LE(worst, 2e-5) << c.name;
    }
  });
}

TEST(MixedBackward, FormsAndThreadsGiveTheSameBits) {
  each_level([] {
    for (MixCase c : mix_cases()) {
      c.dtype = DType::f32;
      Posed posed(c);
      const std::vector<Tensor> whole = posed.on_cpu(1);
      for (const auto& [form, threads] : {std::pair{cpu::mixed::Form::kept, 3},
                                          {cpu::mixed::Form::twice, 1},
                                          {cpu::mixed::Form::twice, 3}}) {
        const std::vector<Tensor> other = posed.as_form(form, threads);
        for (std::size_t n = 0; n < whole.size(); ++n)
          EXPECT_TRUE(same_bits(whole[n].view(), other[n].view()))
              << c.name << " gradient " << n << " threads " << threads;
      }
    }
  });
}

TEST(MixedBackward, ClosedPairsMayHoldAnything) {
  each_level([] {
    for (const Mix kind : {kFixed, kDynamic}) {
      const MixCase c{.name = "poison",
                      .before = kind,
                      .after = kind,
                      .rank = kind == kDynamic ? 2 : 0,
                      .batch = 2,
                      .q_tokens = 40,
                      .kv_tokens = 50,
                      .mask = "lengths(45, 0) & causal",
                      .gate = true,
                      .dropout = true,
                      .dtype = DType::f32};
      Posed clean(c), bad(c);
      AttentionArgs& a = bad.run.args.forward;
      for (const auto& x :
           {a.k, a.v, a.inputs.mix_k})  // keys 40.. of sequence 0 are closed, all of sequence 1
        for (Index n = 0; n < x.count(); ++n) {
          const Index each = x.count() / 100;
          if (n / each >= 50 || n / each % 50 >= 40) store_double(x.data, x.dtype, n, std::nan(""));
        }
      for (const auto& x : {a.q, a.inputs.mix_q, bad.run.args.dout})  // rows of sequence 1 see nothing
        for (Index n = x.count() / 2; n < x.count(); ++n) store_double(x.data, x.dtype, n, std::nan(""));
      const std::vector<Tensor> x = clean.on_cpu(1), y = bad.on_cpu(1);
      for (std::size_t n = 0; n < x.size(); ++n) {
        const Distance d = distance_of(y[n].view(), x[n].view());
        EXPECT_TRUE(d.mismatched == 0 && d.largest == 0) << "gradient " << n << " at " << d.at;
      }
    }
  });
}

TEST(MixedBackward, FarKeysOfAFallingSlopeStayFinite) {
  // One query: the lanes beside it have no row, and logits of -slope |q - k| near 89 that no exp holds.
  MixCase c{.name = "far", .q_heads = 2, .heads = 2, .v_heads = 2, .q_tokens = 1, .kv_tokens = 400};
  c.dim = c.value_dim = 8, c.alibi = true, c.dtype = DType::f32;
  each_level([&] {
    Posed posed(c);
    BackwardArgs& a = posed.run.args;
    store_double(a.forward.inputs.slopes.data, DType::f32, 0, -0.25);
    store_double(a.forward.inputs.slopes.data, DType::f32, 1, 0);
    attention(a.forward, reference(), {}, posed.run.heads);
    attention_backward(a, reference(), posed.run.heads);
    const std::vector<Tensor> truth = posed.gradients(), got = posed.on_cpu(1);
    for (std::size_t n = 0; n < truth.size(); ++n) {
      const Distance d = distance_of(got[n].view(), truth[n].view());
      EXPECT_TRUE(d.mismatched == 0 && d.relative < 1e-5) << "gradient " << n << ' ' << d.relative;
    }
  });
}

TEST(MixedBackward, BiasesSumOverWhatTheyShare) {
  each_level([] {
    for (const auto& sizes :
         {std::array<Index, 4>{1, 1, 70, 45}, {2, 3, 1, 45}, {2, 1, 70, 1}, {1, 3, 1, 1}}) {
      MixRun run({.name = "bias",
                  .batch = 2,
                  .q_tokens = 70,
                  .kv_tokens = 45,
                  .mask = "causal",
                  .sinks = true,  // without, what all keys share has no slope
                  .softcap = true,
                  .dtype = DType::f32});
      BackwardArgs& a = run.args;
      a.forward.inputs.bias =
          run.keep(random_normal({sizes[0], sizes[1], sizes[2], sizes[3]}, DType::f32, 5));
      a.forward.lse = run.keep(Tensor(DType::f32, {2, 3, 70}));
      attention(a.forward, reference(), {}, run.heads);
      a.dbias = run.keep(converted(a.forward.inputs.bias, DType::f32));
      attention_backward(a, reference(), run.heads);
      Tensor truth = converted(a.dbias, DType::f64);
      Tensor first;
      for (const int threads : {1, 3}) {
        Context ctx({.threads = threads, .kernels = "cpu/mixed_backward"});
        attention_backward(a, ctx, run.heads);
        EXPECT_LE(distance_of(a.dbias, truth.view()).relative, 1e-5) << sizes[0] << sizes[1] << sizes[2];
        if (threads == 1) first = converted(a.dbias, DType::f32);
        EXPECT_TRUE(same_bits(a.dbias, first.view()));
      }
    }
  });
}

TEST(MixedBackward, RefusesInWords) {
  MixRun run({.name = "alone", .dtype = DType::f32});
  run.args.dmix_before = run.keep(converted(run.args.forward.inputs.mix_before, DType::f32));
  EXPECT_EQ(cpu::mixed::kBackward.refuse(backward_problem_of(run.args, run.heads)),
            "it starts from the log-sum-exp of the forward, and none is given");
  run.args.forward.lse = run.keep(Tensor(DType::f32, {1, 3, 5}));
  EXPECT_STREQ(BackwardPlan(backward_problem_of(run.args, run.heads), 1, "").kernel(), "cpu/mixed_backward");
}

TEST(MixedBackward, MemoryStaysLinearAndRunsAllocateNothing) {
  const auto problem = [](Index n) {
    BackwardProblem p;
    p.forward.heads.q = p.forward.heads.k = p.forward.heads.v = HeadLayout::split(16, 64);
    p.forward.heads.before = p.forward.heads.after = Mix::dynamic, p.forward.heads.mix_rank = 2;
    p.forward.batch = 1, p.forward.q_tokens = p.forward.kv_tokens = n, p.forward.lse = true;
    p.wants.q = p.wants.k = p.wants.v = p.wants.mix_q = p.wants.mix_k = true;
    return p;
  };
  const auto bytes = [&](cpu::mixed::Form form, Index n) {
    return static_cast<double>(cpu::mixed::backward_bytes_as(form, problem(n), 2));
  };
  for (const cpu::mixed::Form form : {cpu::mixed::Form::kept, cpu::mixed::Form::twice})
    EXPECT_LE(bytes(form, 16384) - bytes(form, 8192), 1.01 * (bytes(form, 8192) - bytes(form, 4096)) * 2);
  // The kept form is taken while its budget holds it: 2 threads, 64 MiB each.
  for (const Index n : {2048, 131072})
    EXPECT_EQ(static_cast<double>(cpu::mixed::kBackward.workspace_bytes(problem(n), 2)),
              bytes(n == 2048 ? cpu::mixed::Form::kept : cpu::mixed::Form::twice, n));
  Posed posed({.name = "talking", .q_tokens = 40, .kv_tokens = 40, .mask = "causal", .dtype = DType::f32});
  Context ctx({.threads = 2, .kernels = "cpu/mixed_backward"});
  const BackwardPlan plan(backward_problem_of(posed.run.args, posed.run.heads), ctx);
  plan.run(posed.run.args, ctx);
  const auto before = allocations();
  for (int i = 0; i < 10; ++i) plan.run(posed.run.args, ctx);
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace headwise::test
