// cpu/mixed against ref at every level; its two forms, threads, batches and chunks give the same bits.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/mixed/forward.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "tests/support/count_allocations.h"
#include "tests/support/mix_cases.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr Mix kFixed = Mix::fixed, kDynamic = Mix::dynamic;

/// Out and lse of the kernel, in workspace of exactly the bytes it asked for.
struct Got {
  Tensor out, lse;
};
Got run_form(MixRun& run, cpu::mixed::Form form, int threads, Index first_bytes = cpu::mixed::kFirstBytes) {
  AttentionArgs a = run.args.forward;
  AttentionProblem p = run.problem();
  Got g{converted(a.out, a.out.dtype),
        Tensor(DType::f32, {a.q.size[0], p.heads.normal_heads(), a.q.size[1]})};
  for (Tensor* t : {&g.out, &g.lse})
    if (t->view().count())
      std::memset(t->view().data, 0xff,
                  static_cast<std::size_t>(t->view().count() * size_of(t->view().dtype)));
  a.out = g.out.view(), a.lse = g.lse.view();
  p.lse = true;
  ArgChecks::spread_bias(p, a.inputs.bias);
  if (a.inputs.bias.given()) a.inputs.bias.step[0] = 0;
  ThreadPool pool(threads);
  Buffer workspace(cpu::mixed::bytes_as(form, p, threads, first_bytes));
  EXPECT_EQ(cpu::mixed::run_as(form, p, a, workspace.span(), pool, first_bytes), Status::ok);
  return g;
}
/// Relative error in the 2-norm of out, and the largest of lse, against ref on the rounded inputs.
void expect_close(MixRun& run, const Got& got, const std::string& name) {
  AttentionArgs a = run.args.forward;
  Tensor q = converted(a.q, DType::f64), k = converted(a.k, DType::f64), v = converted(a.v, DType::f64);
  Tensor out = converted(a.out, DType::f64), lse = converted(got.lse.view(), DType::f64);
  a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = out.view(), a.lse = lse.view();
  attention(a, reference(), {}, run.heads);
  const Distance d = distance_of(got.out.view(), out.view());
  EXPECT_EQ(d.mismatched, 0) << name << " at " << d.at;
  EXPECT_LE(d.relative, 1.5 * relative_guard(run.args.forward.q.dtype)) << name;
  const DType t = run.args.forward.q.dtype;
  for (Index n = 0; n < lse.view().count(); ++n) {
    const double x = load_double(got.lse.view().data, DType::f32, n),
                 y = load_double(lse.view().data, DType::f64, n);
    EXPECT_TRUE(x == y || std::fabs(x - y) <= (t == DType::f32 ? 4e-6 : 2e-5) * std::max(1.0, std::fabs(y)))
        << name << " lse " << n << ": " << x << ", truth " << y;
  }
}

TEST(Mixed, EveryLevelAgreesWithRef) {
  each_level([] {
    for (MixCase c : mix_cases())
      for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
        c.dtype = t;
        MixRun run(c);
        expect_close(run, run_form(run, cpu::mixed::Form::kept, 1), c.name + " " + std::string(name_of(t)));
      }
  });
}

TEST(Mixed, FormsAndThreadsGiveTheSameBits) {
  each_level([] {
    for (MixCase c : mix_cases())
      for (const DType t : {DType::f32, DType::bf16}) {
        c.dtype = t;
        MixRun run(c);
        const Got kept = run_form(run, cpu::mixed::Form::kept, 1);
        for (const int threads : {1, 3})
          for (const Index first :
               {Index{-1}, Index{0}, Index{40000}, cpu::mixed::kFirstBytes}) {  // -1: the kept form
            const Got other = first < 0 ? run_form(run, cpu::mixed::Form::kept, threads)
                                        : run_form(run, cpu::mixed::Form::twice, threads, first);
            EXPECT_TRUE(same_bits(kept.out.view(), other.out.view()) &&
                        same_bits(kept.lse.view(), other.lse.view()))
                << c.name << " threads " << threads << " first " << first;
          }
      }
  });
}

/// Queries a .. b of a padded run of one sequence, at their own positions.
Got chunk(MixRun& run, Index first, Index count) {
  AttentionArgs a = run.args.forward;
  const auto cut = [&](AnyView& v, int axis) {
    if (!v.given()) return;
    v.data = static_cast<std::byte*>(v.data) + first * v.step[axis] * size_of(v.dtype);
    v.size[axis] = count;
  };
  cut(a.q, 1), cut(a.inputs.mix_q, 1), cut(a.inputs.gate, 1);
  Tensor start(DType::i64, {1}), out(a.out.dtype, {1, count, a.out.size[2], a.out.size[3]});
  static_cast<Index*>(start.view().data)[0] = first;
  a.q_start = start.view(), a.out = out.view();
  Tensor lse(DType::f32, {1, run.heads.normal_heads(), count});
  a.lse = lse.view();
  Context ctx({.threads = 1, .kernels = "cpu/mixed"});
  attention(a, ctx, {}, run.heads);
  return {std::move(out), std::move(lse)};
}
TEST(Mixed, ChunksOfQueriesGiveTheSameBits) {
  each_level([] {
    for (const Mix kind : {kFixed, kDynamic}) {
      MixRun run({.name = "chunks",
                  .before = kind,
                  .after = kind,
                  .rank = kind == kDynamic ? 2 : 0,
                  .q_tokens = 150,
                  .kv_tokens = 150,
                  .dim = 8,
                  .value_dim = 8,
                  .mask = "causal",
                  .alibi = true,
                  .gate = true,
                  .dtype = DType::f32});
      const Got whole = run_form(run, cpu::mixed::Form::kept, 2);
      for (const auto& [first, count] : {std::pair<Index, Index>{0, 1}, {3, 20}, {23, 100}, {149, 1}}) {
        const Got part = chunk(run, first, count);
        const Index row = part.out.view().count() / count * 4;
        EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(whole.out.view().data) + first * row,
                              part.out.view().data, static_cast<std::size_t>(count * row)),
                  0)
            << "from " << first;
      }
    }
  });
}

TEST(Mixed, ClosedPairsMayHoldAnything) {
  each_level([] {
    for (const Mix kind : {kFixed, kDynamic}) {
      const MixCase c{.name = "poison",
                      .before = kind,
                      .after = kind,
                      .rank = kind == kDynamic ? 1 : 0,
                      .batch = 2,
                      .q_tokens = 40,
                      .kv_tokens = 50,
                      .mask = "lengths(45, 0) & causal",
                      .gate = true,
                      .dropout = true,
                      .dtype = DType::f32};
      MixRun clean(c), bad(c);
      const double nan = std::nan("");
      AttentionArgs& a = bad.args.forward;
      for (const auto& x :
           {a.k, a.v, a.inputs.mix_k})  // keys 40.. of sequence 0 are closed, all of sequence 1
        for (Index n = 0; n < x.count(); ++n) {
          const Index each = x.count() / 100, key = n / each % 50;
          if (n / each >= 50 || key >= 40) store_double(x.data, x.dtype, n, nan);
        }
      const InputView& q = a.inputs.mix_q;  // rows of sequence 1 see nothing
      for (Index n = q.count() / 2; n < q.count(); ++n) store_double(q.data, q.dtype, n, nan);
      for (const cpu::mixed::Form form : {cpu::mixed::Form::kept, cpu::mixed::Form::twice}) {
        const Got x = run_form(clean, form, 1), y = run_form(bad, form, 1);
        EXPECT_TRUE(same_bits(x.out.view(), y.out.view()) && same_bits(x.lse.view(), y.lse.view()));
      }
      expect_close(clean, run_form(clean, cpu::mixed::Form::kept, 1), "poison");
    }
  });
}

TEST(Mixed, OpenPairsPassWhatIsNotFiniteOn) {
  each_level([] {
    MixRun run({.name = "inf", .q_tokens = 6, .kv_tokens = 6, .mask = "causal", .dtype = DType::f32});
    const InputView& v = run.args.forward.v;  // key 3, head 1, column 0
    store_double(v.data, v.dtype, (3 * 3 + 1) * 2, INFINITY);
    const Got got = run_form(run, cpu::mixed::Form::kept, 1);
    for (Index i = 0; i < 6; ++i)
      for (Index n = 0; n < 6; ++n)
        EXPECT_EQ(std::isfinite(load_double(got.out.view().data, DType::f32, i * 6 + n)), i < 3 || n != 2)
            << i << " " << n;
  });
}

void multiply(const InputView& v, double by) {
  for (Index n = 0; n < v.count(); ++n)
    store_double(v.data, v.dtype, n, by * load_double(v.data, v.dtype, n));
}
TEST(Mixed, NumbersOfAnySizeAreMixedAlike) {
  // What a core multiplies in parts goes another way where its numbers are too large or too small for that.
  struct Sizes {
    int q = 0, k = 0, v = 0, before = 0, after = 0;  // powers of 2
  };
  each_level([] {
    for (const Sizes& e : {Sizes{.v = -110},
                           {.v = 80},
                           {.after = 12},
                           {.after = 60},
                           {.after = -60},
                           {.q = -50, .before = 50},
                           {.q = 30, .before = -30},
                           {.q = 60, .k = -60},
                           {.q = -70, .k = 70},
                           {.v = 60, .after = 12},
                           {.v = -60, .after = -50}})
      for (const Mix kind : {kFixed, kDynamic}) {
        if (kind == kDynamic && (e.before || e.after)) continue;
        MixRun run({.name = "sizes",
                    .before = kind,
                    .after = kind,
                    .rank = kind == kDynamic ? 2 : 0,
                    .q_tokens = 37,
                    .kv_tokens = 70,
                    .dim = 33,
                    .value_dim = 34,
                    .dtype = DType::f32});
        const AttentionArgs& a = run.args.forward;
        multiply(a.q, std::ldexp(0.5, e.q)), multiply(a.k, std::ldexp(1, e.k));
        multiply(a.v, std::ldexp(1, e.v));
        multiply(a.inputs.mix_before, std::ldexp(1, e.before));
        multiply(a.inputs.mix_after, std::ldexp(1, e.after));
        const std::string name = text("q ", e.q, " k ", e.k, " v ", e.v, " mixes ", e.before, " ", e.after);
        const Got kept = run_form(run, cpu::mixed::Form::kept, 1),
                  twice = run_form(run, cpu::mixed::Form::twice, 1);
        expect_close(run, kept, name);
        EXPECT_TRUE(same_bits(kept.out.view(), twice.out.view())) << name;
      }
  });
}

TEST(Mixed, ARowOfOddNumbersChangesNoOther) {
  each_level([] {
    for (const Mix kind : {kFixed, kDynamic})
      for (const double odd : {0x1p90, 0x1p-90, static_cast<double>(INFINITY), std::nan("")}) {
        const MixCase c{.name = "odd",
                        .before = kind,
                        .after = kind,
                        .rank = kind == kDynamic ? 2 : 0,
                        .q_tokens = 40,
                        .kv_tokens = 50,
                        .dim = 32,
                        .value_dim = 32,
                        .dtype = DType::f32};
        MixRun clean(c), run(c);
        const Index row = 3 * 32;
        const InputView& q = run.args.forward.q;
        for (Index n = 7 * row; n < 8 * row; ++n) store_double(q.data, q.dtype, n, odd);
        const Got x = run_form(clean, cpu::mixed::Form::kept, 1),
                  y = run_form(run, cpu::mixed::Form::kept, 1);
        for (Index n = 0; n < 40 * row; ++n) {
          if (n / row == 7) continue;
          ASSERT_EQ(load_double(x.out.view().data, DType::f32, n),
                    load_double(y.out.view().data, DType::f32, n))
              << odd << " row " << n / row;
        }
      }
  });
}

TEST(Mixed, IdentitiesAreMhaToTheLastBits) {
  Context mixed({.threads = 1, .kernels = "cpu/mixed"}), online({.threads = 1, .kernels = "cpu/online"});
  MixRun run({.name = "identity",
              .q_heads = 4,
              .heads = 4,
              .v_heads = 4,
              .q_tokens = 90,
              .kv_tokens = 90,
              .dim = 16,
              .value_dim = 16,
              .mask = "causal",
              .dtype = DType::f32});
  for (const auto& m : {run.args.forward.inputs.mix_before, run.args.forward.inputs.mix_after})
    for (Index n = 0; n < 16; ++n) store_double(m.data, m.dtype, n, n % 5 == 0 ? 1 : 0);
  AttentionArgs plain = run.args.forward;
  plain.inputs.mix_before = plain.inputs.mix_after = AnyView();
  Tensor out = converted(plain.out, DType::f32);
  plain.out = out.view();
  attention(run.args.forward, mixed, {}, run.heads);
  attention(plain, online);
  EXPECT_LE(distance_of(run.args.forward.out, out.view()).largest, 1e-6);
}

TEST(Mixed, MemoryStaysLinearInTokens) {
  // The kept form grows with kv_tokens until its budget, the other form does not grow at all.
  const auto problem = [](Index n) {
    AttentionProblem p;
    p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(16, 64);
    p.heads.before = p.heads.after = Mix::fixed;
    p.batch = 1, p.q_tokens = p.kv_tokens = n;
    return p;
  };
  EXPECT_EQ(cpu::mixed::bytes_as(cpu::mixed::Form::twice, problem(1 << 20), 2),
            cpu::mixed::bytes_as(cpu::mixed::Form::twice, problem(4096), 2));
  EXPECT_LE(cpu::mixed::kKept.workspace_bytes(problem(8192), 2),
            3u * static_cast<std::size_t>(cpu::mixed::kKeptBytes));
  EXPECT_STREQ(AttentionPlan(problem(2048), 2, "").kernel(), "cpu/mixed");
  EXPECT_STREQ(AttentionPlan(problem(1 << 20), 2, "").kernel(), "cpu/mixed_twice");
}

TEST(Mixed, NoHeadsNeedNoRoom) {
  AttentionProblem p;
  p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(0, 64);
  p.heads.before = p.heads.after = Mix::fixed;
  p.batch = 1, p.q_tokens = p.kv_tokens = 100;
  for (const cpu::mixed::Form form : {cpu::mixed::Form::kept, cpu::mixed::Form::twice})
    EXPECT_LT(cpu::mixed::bytes_as(form, p, 2), std::size_t{1} << 20);
}

TEST(Mixed, RunsAllocateNothing) {
  MixRun run({.name = "dcmha",
              .before = kDynamic,
              .after = kDynamic,
              .rank = 2,
              .q_tokens = 40,
              .kv_tokens = 40,
              .mask = "causal",
              .dtype = DType::f32});
  Context ctx({.threads = 2, .kernels = "cpu/mixed"});
  const AttentionPlan plan(run.problem(), ctx);
  plan.run(run.args.forward, ctx);
  const auto before = allocations();
  for (int i = 0; i < 10; ++i) plan.run(run.args.forward, ctx);
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace headwise::test
