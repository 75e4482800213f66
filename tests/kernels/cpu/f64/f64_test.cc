// cpu/f64 and cpu/f64_backward have the bits of ref, for every mask, term, layout and number of threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/f64/forward.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "tests/support/mix_case.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

MixCase plain(MixCase c) {
  c.before = c.after = Mix::none;
  c.heads = c.v_heads = c.q_heads, c.v_group = c.kv_group;
  return c;
}

std::vector<MixCase> cases() {
  std::vector<MixCase> all = {
      {.name = "plain", .q_tokens = 37, .kv_tokens = 70, .dim = 19, .value_dim = 33},
      {.name = "causal", .batch = 2, .q_tokens = 90, .kv_tokens = 90, .mask = "causal"},
      {.name = "one", .q_tokens = 1, .kv_tokens = 300, .dim = 64, .value_dim = 64},
      {.name = "no key", .q_tokens = 3, .kv_tokens = 0},
      {.name = "grouped", .q_heads = 6, .kv_group = 3, .q_tokens = 21, .kv_tokens = 33},
      {.name = "ragged", .batch = 3, .q_tokens = 20, .kv_tokens = 40, .ragged = true},
      {.name = "closed rows",
       .batch = 2,
       .q_tokens = 40,
       .kv_tokens = 50,
       .mask = "lengths(45, 0) & window(5, 2) | global(3)"}};
  MixCase terms{.name = "terms", .batch = 2, .q_tokens = 40, .kv_tokens = 35, .mask = "causal | prefix(9)"};
  terms.sinks = terms.bias = terms.alibi = terms.relative = terms.softcap = terms.gate = terms.dropout =
      terms.scale = true;
  all.push_back(terms);
  terms.name = "terms, a mask a head", terms.per_head = true, terms.ragged = true, terms.bias = false;
  all.push_back(terms);
  for (MixCase& c : all) c = plain(c);
  return all;
}

void expect_forward_of_ref() {
  for (const MixCase& c : cases()) {
    MixRun run(c);
    AttentionArgs& a = run.args.forward;
    a.lse = run.keep(Tensor(DType::f64, {a.q.size[0], c.q_heads, a.q.size[1]}));
    attention(a, reference(), {}, run.heads);
    Tensor out = converted(a.out, DType::f64), lse = converted(a.lse, DType::f64);
    for (const int threads : {1, 3}) {
      std::memset(a.out.data, 0xff, static_cast<std::size_t>(a.out.count()) * 8);
      Context ctx({.threads = threads, .kernels = "cpu/f64"});
      attention(a, ctx, {}, run.heads);
      EXPECT_TRUE(same_bits(a.out, out.view())) << c.name;
      EXPECT_TRUE(same_bits(a.lse, lse.view())) << c.name;
    }
  }
}

TEST(F64, ForwardHasTheBitsOfRefOnEveryLevel) { each_level(expect_forward_of_ref); }

void expect_gradients_of_ref() {
  for (const MixCase& c : cases()) {
    MixRun run(c);
    BackwardArgs& a = run.args;
    a.forward.lse = run.keep(Tensor(DType::f64, {a.forward.q.size[0], c.q_heads, a.forward.q.size[1]}));
    attention(a.forward, reference(), {}, run.heads);
    a.dq = run.keep(converted(a.forward.q, DType::f64)), a.dk = run.keep(converted(a.forward.k, DType::f64));
    a.dv = run.keep(converted(a.forward.v, DType::f64));
    if (c.gate) a.dgate = run.keep(converted(a.forward.inputs.gate, DType::f64));
    const std::pair<const char*, AnyView> gradients[] = {
        {"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}, {"dgate", a.dgate}};
    attention_backward(a, reference(), run.heads);
    std::vector<Tensor> truth;
    for (const auto& [name, v] : gradients) truth.push_back(v.given() ? converted(v, DType::f64) : Tensor());
    for (const int threads : {1, 3}) {
      for (const auto& [name, v] : gradients)
        if (v.count() > 0) std::memset(v.data, 0xff, static_cast<std::size_t>(v.count()) * 8);
      Context ctx({.threads = threads, .kernels = "cpu/f64_backward"});
      attention_backward(a, ctx, run.heads);
      for (std::size_t n = 0; n < 4; ++n)
        if (const auto& [name, v] = gradients[n]; v.given()) {
          EXPECT_TRUE(same_bits(v, truth[n].view())) << c.name << ' ' << name << ' ' << threads;
        }
    }
  }
}

TEST(F64, GradientsHaveTheBitsOfRefOnEveryLevel) { each_level(expect_gradients_of_ref); }

TEST(F64, ClosedPairsMayHoldAnything) {
  MixRun run(plain({.name = "poison", .q_tokens = 20, .kv_tokens = 30, .mask = "causal"}));
  AttentionArgs& a = run.args.forward;
  attention(a, reference(), {}, run.heads);
  Tensor out = converted(a.out, DType::f64);
  for (const auto& x : {a.k, a.v})
    for (Index n = x.count() * 20 / 30; n < x.count(); ++n) store_double(x.data, x.dtype, n, std::nan(""));
  Context ctx({.threads = 1, .kernels = "cpu/f64"});
  attention(a, ctx, {}, run.heads);
  EXPECT_TRUE(same_bits(a.out, out.view()));
}

TEST(F64, IsTheFirstChoiceAndRefusesInWords) {
  MixRun run(plain({.name = "plain", .q_tokens = 20, .kv_tokens = 30}));
  const AttentionProblem p = run.problem();
  EXPECT_STREQ(AttentionPlan(p, 1, "").kernel(), "cpu/f64");
  AttentionProblem narrow = p;
  narrow.dtype = DType::f32;
  EXPECT_EQ(cpu::f64::kForward.refuse(narrow), "dtype is f32: this kernel computes in f64");
  BackwardProblem b{.forward = p, .wants = {.q = true, .scale = true}};
  EXPECT_EQ(cpu::f64::kBackward.refuse(b),
            "gradients beside dq, dk, dv and dgate are sums over sequences: ref has their order");
}

}  // namespace
}  // namespace headwise::test
