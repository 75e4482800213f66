// Online: runs cpu/online at every ISA level of this CPU, and judges a run against ref by the a-priori bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"
#include "tests/support/bits.h"
#include "tests/support/close.h"
#include "tests/support/levels.h"
#include "tests/support/random_rows.h"

namespace headwise::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                        kInf = std::numeric_limits<double>::infinity();

/// Calls f() with each level forced in turn, see run_levels.
inline void each_level(const std::function<void()>& f) {
  for (const cpu::IsaLevel& level : run_levels()) {
    cpu::force_isa(&level);
    SCOPED_TRACE(level.name);
    f();
    cpu::force_isa(nullptr);
  }
}

/// One context a thread count, kept: pools are not what these tests are about.
inline Context& online(int threads = 2) {
  static Context* contexts[65] = {};
  if (!contexts[threads]) contexts[threads] = new Context({.threads = threads, .kernels = "cpu/online"});
  return *contexts[threads];
}
inline Context& reference() {
  static auto* ctx = new Context({.threads = 2, .kernels = "ref"});
  return *ctx;
}

/// f32 of one value, [n].
inline Tensor filled(Index n, double x, DType dtype = DType::f32) {
  Tensor t(dtype, {n});
  for (Index i = 0; i < n; ++i) store_double(t.view().data, dtype, i, x);
  return t;
}
inline void fill(const InputView& v, double x) {
  for (Index n = 0; n < v.count(); ++n) store_double(v.data, v.dtype, n, x);
}
/// Rows [first, first + count) of axis 1.
inline AnyView tokens_of(const InputView& v, Index first, Index count) {
  AnyView r = v;
  r.data = static_cast<std::byte*>(v.data) + first * v.step[1] * size_of(v.dtype);
  r.size[1] = count;
  return r;
}
/// Entries [first, first + count) of axis 0.
inline AnyView batch_of(const InputView& v, Index first, Index count) {
  AnyView r = v;
  r.data = static_cast<std::byte*>(v.data) + first * v.step[0] * size_of(v.dtype);
  r.size[0] = count;
  return r;
}

/// The truth of a run, in double: ref on f64 copies, with its logits.
struct DenseTruth {
  Tensor out, lse, logits;
};
inline DenseTruth dense_truth(const AttentionArgs& a, const HeadSpec& heads = {},
                              ScoreStage stage = ScoreStage::biased) {
  AttentionArgs t = a;
  Tensor q = converted(a.q, DType::f64), k = converted(a.k, DType::f64), v = converted(a.v, DType::f64);
  t.probe = {};
  const AttentionProblem p = problem_of(t, {}, heads);
  DenseTruth r{Tensor(DType::f64, {a.out.size[0], a.out.size[1], a.out.size[2], a.out.size[3]}),
               Tensor(DType::f64, {a.out.size[0], a.out.size[2], a.out.size[1]}),
               Tensor(DType::f64, {p.batch, p.heads.q.heads, p.q_tokens, p.kv_tokens})};
  t.q = q.view(), t.k = k.view(), t.v = v.view();
  t.out = r.out.view(), t.lse = r.lse.view(), t.probe.scores = r.logits.view();
  attention(t, reference(), {.scores = stage}, heads);
  return r;
}

/// T3 and T5 for a run that wrote a.out (and a.lse where given).
inline testing::AssertionResult matches_ref(const AttentionArgs& a, const HeadSpec& heads = {}) {
  const DenseTruth truth = dense_truth(a, heads);
  const auto most_norm = [](const InputView& x) {
    Tensor t = converted(x, DType::f64);
    const Index width = x.rank > 0 ? x.size[x.rank - 1] : 0;
    double most = 0;
    for (Index n = 0; width > 0 && n < t.view().count(); n += width) {
      double sum = 0;
      for (Index c = 0; c < width; ++c)
        if (const double y = t.values<double>()[static_cast<std::size_t>(n + c)]; std::isfinite(y))
          sum += y * y;
      most = std::max(most, sum);
    }
    return std::sqrt(most);
  };
  const AttentionProblem p = problem_of(a, {}, heads);
  double scale = a.inputs.scale.given() ? 0 : 1 / std::sqrt(static_cast<double>(p.heads.q.dim));
  for (Index h = 0; a.inputs.scale.given() && h < a.inputs.scale.size[0]; ++h)
    scale = std::max(
        scale, std::fabs(load_double(a.inputs.scale.data, a.inputs.scale.dtype, h * a.inputs.scale.step[0])));
  const double products = most_norm(a.q) * most_norm(a.k) * scale, logits = largest_of(truth.logits.view());
  const double tiles = std::max(2.0, static_cast<double>(p.kv_tokens) / 256);
  const double gate = a.inputs.gate.given() ? largest_of(converted(a.inputs.gate, DType::f64).view()) : 1;
  const double values = largest_of(converted(a.v, DType::f64).view()) * gate / (1 - a.inputs.dropout);
  const double bound =
      values * (ulp_of(p.dtype, 1.0) / 2 + 4 * 0x1p-24 * (logits + products + std::log2(tiles) + 1));
  Tensor out = converted(a.out, DType::f64);
  for (Index n = 0; n < out.view().count(); ++n) {
    const double x = out.values<double>()[static_cast<std::size_t>(n)],
                 y = truth.out.values<double>()[static_cast<std::size_t>(n)];
    const bool same_kind = std::isnan(y) ? std::isnan(x) : std::isinf(y) ? x == y : std::isfinite(x);
    if (!same_kind || (std::isfinite(y) && std::fabs(x - y) > bound + 2 * ulp_of(p.dtype, y)))
      return testing::AssertionFailure()
             << "out " << n << " is " << x << ", truth " << y << ", bound " << bound;
  }
  if (!a.lse.given()) return testing::AssertionSuccess();
  Tensor lse = converted(a.lse, DType::f64);
  for (Index n = 0; n < lse.view().count(); ++n) {
    const double x = lse.values<double>()[static_cast<std::size_t>(n)],
                 y = truth.lse.values<double>()[static_cast<std::size_t>(n)];
    if (std::isnan(y) ? std::isnan(x)
                      : x == y || std::fabs(x - y) <= 4 * 0x1p-24 * (std::max(1.0, std::fabs(y)) + products))
      continue;
    return testing::AssertionFailure() << "lse " << n << " is " << x << ", truth " << y;
  }
  return testing::AssertionSuccess();
}

/// Runs on cpu/online at each level and matches ref there.
inline void expect_matches(CaseRun& r, const char* what = "", const HeadSpec& heads = {}) {
  each_level([&] {
    poison(r.out), poison(r.lse);
    attention(r.args, online(), {}, heads);
    EXPECT_TRUE(matches_ref(r.args, heads)) << what;
  });
}

}  // namespace headwise::test
