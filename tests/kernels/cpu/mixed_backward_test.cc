// cpu/mixed_backward against ref at every level, the law of deltas, and the same bits for any threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "headwise/kernels/cpu/mixed_backward.h"
#include "tests/support/close.h"
#include "tests/support/count_allocations.h"
#include "tests/support/gradients.h"
#include "tests/support/levels.h"
#include "tests/support/mix_case.h"

namespace headwise::test {
namespace {

constexpr Mix kNone = Mix::none, kFixed = Mix::fixed, kDynamic = Mix::dynamic;

std::vector<MixCase> cases() {
  return {
      {.name = "talking",
       .q_heads = 5,
       .heads = 5,
       .v_heads = 5,
       .q_tokens = 70,
       .kv_tokens = 70,
       .dim = 20,
       .value_dim = 24,
       .mask = "causal",
       .sinks = true},
      {.name = "three_counts",
       .q_heads = 4,
       .heads = 9,
       .v_heads = 6,
       .kv_group = 2,
       .v_group = 3,
       .batch = 2,
       .q_tokens = 33,
       .kv_tokens = 50,
       .dim = 16,
       .value_dim = 16,
       .gate = true,
       .dropout = true},
      {.name = "only_before",
       .after = kNone,
       .q_heads = 2,
       .heads = 3,
       .v_heads = 3,
       .q_tokens = 80,
       .kv_tokens = 40,
       .mask = "window(5, 3)",
       .per_head = true,
       .gate = true},
      {.name = "only_after",
       .before = kNone,
       .v_heads = 2,
       .q_tokens = 17,
       .kv_tokens = 65,
       .mask = "causal",
       .per_head = true,
       .softcap = true,
       .dropout = true},
      {.name = "ragged",
       .batch = 3,
       .q_tokens = 40,
       .kv_tokens = 40,
       .mask = "causal",
       .ragged = true,
       .sinks = true,
       .softcap = true},
      {.name = "dcmha",
       .before = kDynamic,
       .after = kDynamic,
       .q_heads = 18,
       .heads = 18,
       .v_heads = 18,
       .rank = 2,
       .q_tokens = 40,
       .kv_tokens = 40,
       .dim = 8,
       .value_dim = 8,
       .mask = "causal"},
      {.name = "dcmha_given",
       .before = kDynamic,
       .after = kDynamic,
       .q_heads = 4,
       .heads = 4,
       .v_heads = 4,
       .kv_group = 4,
       .v_group = 2,
       .rank = 3,
       .batch = 2,
       .q_tokens = 9,
       .kv_tokens = 37,
       .given = true,
       .mask = "window(9, 1)",
       .dropout = true},
      {.name = "query_side",
       .before = kNone,
       .after = kDynamic,
       .rank = 1,
       .q_tokens = 20,
       .kv_tokens = 35,
       .key = false,
       .mask = "causal"},
      {.name = "empty_rows",
       .before = kDynamic,
       .after = kFixed,
       .v_heads = 2,
       .rank = 1,
       .q_tokens = 20,
       .kv_tokens = 4,
       .query = false,
       .mask = "window(1, 0)"},
      {.name = "no_key", .q_tokens = 3, .kv_tokens = 0},
  };
}

Context& reference() {
  static auto* ctx = new Context({.threads = 1, .kernels = "ref"});
  return *ctx;
}

/// Gradients with an input of their own, but for those the kernel leaves to ref.
template <class Args, class F>
void each_asked(Args& a, F&& visit) {
  each_gradient(a, [&](const char* name, auto& input, auto& gradient) {
    const std::string s = name;
    if (input.given() && s != "bias" && s != "slopes" && s != "relative" && s != "scale")
      visit(s, input, gradient);
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
    std::vector<Tensor> all;
    each_asked(run.args,
               [&](const std::string&, AnyView&, AnyView& g) { all.push_back(converted(g, g.dtype)); });
    return all;
  }
};

template <class Body>
void each_level(Body&& body) {
  for (const cpu::IsaLevel& level : run_levels()) {
    cpu::force_isa(&level);
    body(std::string(level.name));
  }
  cpu::force_isa(nullptr);
}

TEST(MixedBackward, EveryLevelAgreesWithRef) {
  for (MixCase c : cases())
    for (const DType t : {DType::f32, DType::bf16}) {
      c.dtype = t;
      Posed posed(c);
      BackwardArgs wide = posed.run.args;
      each_asked(wide, [&](const std::string&, AnyView& input, AnyView& g) {
        g = posed.run.keep(converted(input, DType::f64));
      });
      std::deque<Tensor> kept;
      for (AnyView* x : {&wide.forward.q, &wide.forward.k, &wide.forward.v, &wide.dout, &wide.forward.out})
        *x = kept.emplace_back(converted(*x, DType::f64)).view();
      wide.forward.lse = {};
      attention_backward(wide, reference(), posed.run.heads);
      each_level([&](const std::string& level) {
        const std::vector<Tensor> got = posed.on_cpu(1);
        std::size_t n = 0;
        each_asked(wide, [&](const std::string& name, AnyView&, AnyView& g) {
          const Distance d = distance_of(got[n++].view(), g);
          EXPECT_EQ(d.mismatched, 0) << level << " " << c.name << " d" << name << " at " << d.at;
          EXPECT_LE(d.relative, t == DType::f32 ? 1e-5 : 4e-3) << level << " " << c.name << " d" << name;
        });
      });
    }
}

TEST(MixedBackward, DeltasOfARowSumToDoutTimesOut) {
  each_level([](const std::string& level) {
    for (MixCase c : cases()) {
      c.dtype = DType::f32;
      Posed posed(c);
      const BackwardProblem p = backward_problem_of(posed.run.args, posed.run.heads);
      ThreadPool pool(1);
      const Buffer memory(cpu::kMixedBackward.workspace_bytes(p, 1));
      double worst = 1;
      EXPECT_EQ(cpu::run_mixed_backward_checking(p, posed.run.args, memory.span(), pool, worst), Status::ok);
      EXPECT_LE(worst, 2e-5) << level << " " << c.name;
    }
  });
}

TEST(MixedBackward, ThreadsGiveTheSameBits) {
  each_level([](const std::string& level) {
    for (MixCase c : cases()) {
      c.dtype = DType::f32;
      Posed posed(c);
      const std::vector<Tensor> one = posed.on_cpu(1), three = posed.on_cpu(3);
      for (std::size_t n = 0; n < one.size(); ++n)
        EXPECT_TRUE(one[n].view().count() == 0 ||
                    std::memcmp(one[n].view().data, three[n].view().data,
                                static_cast<std::size_t>(one[n].view().count() * size_of(one[n].dtype()))) ==
                        0)
            << level << " " << c.name << " gradient " << n;
    }
  });
}

TEST(MixedBackward, ClosedPairsMayHoldAnything) {
  each_level([](const std::string& level) {
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
      for (const AnyView& x :
           {a.k, a.v, a.inputs.mix_k})  // keys 40.. of sequence 0 are closed, all of sequence 1
        for (Index n = 0; n < x.count(); ++n) {
          const Index each = x.count() / 100;
          if (n / each >= 50 || n / each % 50 >= 40) store_double(x.data, x.dtype, n, std::nan(""));
        }
      for (const AnyView& x : {a.q, a.inputs.mix_q, bad.run.args.dout})  // rows of sequence 1 see nothing
        for (Index n = x.count() / 2; n < x.count(); ++n) store_double(x.data, x.dtype, n, std::nan(""));
      const std::vector<Tensor> x = clean.on_cpu(1), y = bad.on_cpu(1);
      for (std::size_t n = 0; n < x.size(); ++n) {
        const Distance d = distance_of(y[n].view(), x[n].view());
        EXPECT_TRUE(d.mismatched == 0 && d.largest == 0) << level << " gradient " << n << " at " << d.at;
      }
    }
  });
}

TEST(MixedBackward, RefusesInWords) {
  MixRun run({.name = "bias", .bias = true, .dtype = DType::f32});
  run.args.dbias = run.keep(converted(run.args.forward.inputs.bias, DType::f32));
  run.args.forward.lse = run.keep(Tensor(DType::f32, {1, 3, 5}));
  EXPECT_EQ(cpu::kMixedBackward.refuse(backward_problem_of(run.args, run.heads)),
            "gradients of a bias, of slopes, of a relative table or of a scale are asked with mixed heads");
}

TEST(MixedBackward, MemoryStaysLinearAndRunsAllocateNothing) {
  const auto bytes = [](Index n) {
    BackwardProblem p;
    p.forward.heads.q = p.forward.heads.k = p.forward.heads.v = HeadLayout::split(16, 64);
    p.forward.heads.before = p.forward.heads.after = Mix::dynamic, p.forward.heads.mix_rank = 2;
    p.forward.batch = 1, p.forward.q_tokens = p.forward.kv_tokens = n, p.forward.lse = true;
    p.wants.q = p.wants.k = p.wants.v = p.wants.mix_q = p.wants.mix_k = true;
    return static_cast<double>(cpu::kMixedBackward.workspace_bytes(p, 2));
  };
  EXPECT_LE(bytes(16384) - bytes(8192), 1.01 * (bytes(8192) - bytes(4096)) * 2);
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
