// Close: the tolerance policy: judged against double, by the error of a plain run in the same dtype.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/attend.h"
#include "tests/support/case.h"
#include "tests/support/yardstick.h"

namespace headwise::test {

struct Distance {
  double largest = 0, relative = 0;  // max |a - b| and |a - b| / |b| in the 2-norm
  Index at = -1, mismatched = 0;     // where the largest is; NaN or inf on one side only
};
/// Row-major tensors of equal sizes; `truth` is usually f64.
inline Distance distance_of(const InputView& got, const InputView& truth) {
  Distance d;
  double error = 0, norm = 0;
  for (Index n = 0; n < truth.count(); ++n) {
    const double x = load_double(got.data, got.dtype, n), y = load_double(truth.data, truth.dtype, n);
    const bool same = std::isfinite(y) ? std::isfinite(x) : std::isnan(y) ? std::isnan(x) : x == y;
    if (!same && d.mismatched++ == 0) d.at = n;
    if (!std::isfinite(x) || !std::isfinite(y)) continue;
    error += (x - y) * (x - y);
    norm += y * y;
    if (d.mismatched == 0 && std::fabs(x - y) > d.largest) d.largest = std::fabs(x - y), d.at = n;
  }
  d.relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return d;
}

/// One unit in the last place of numbers as large as x.
inline double ulp_of(DType t, double x) {
  const int digits = t == DType::bf16 ? 8 : t == DType::f16 ? 11 : t == DType::f32 ? 24 : 53;
  const int lowest = t == DType::f16 ? -24 : t == DType::f64 ? -1074 : t == DType::bf16 ? -133 : -149;
  if (x == 0) return std::ldexp(1.0, lowest);
  return std::ldexp(1.0, std::max(std::ilogb(x) + 1 - digits, lowest));
}

inline double largest_of(const InputView& x) {
  double most = 0;
  for (Index n = 0; n < x.count(); ++n)
    if (const double v = std::fabs(load_double(x.data, x.dtype, n)); std::isfinite(v))
      most = std::max(most, v);
  return most;
}

/// The same problem in double on the already rounded inputs: the truth of T1.
struct Truth {
  Tensor out, lse;
};
inline Truth truth_of(AttentionProblem p, AttentionArgs a, Context& ctx) {
  Tensor q = converted(a.q, DType::f64), k = converted(a.k, DType::f64), v = converted(a.v, DType::f64);
  Truth t{converted(a.out, DType::f64), Tensor(DType::f64, {a.q.size[0], p.heads.q.heads, a.q.size[1]})};
  a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = t.out.view(), a.lse = t.lse.view();
  a.probe = {};
  p.dtype = DType::f64, p.lse = true, p.probe = {};
  if (a.inputs.bias.given())
    for (int axis = 0; axis < 4; ++axis)
      if (a.inputs.bias.size[axis] == 1) a.inputs.bias.step[axis] = 0;
  EXPECT_EQ(ref::kRef.run(p, a, {}, ctx.pool()), Status::ok);
  return t;
}

/// T1 and T7: NaN and inf stand where they stand in the truth; the error is at most the plain run's (f32: 1.5
/// times) + 2 ulp.
inline testing::AssertionResult close_to_truth(const InputView& got, const InputView& truth,
                                               const InputView& plain) {
  const Distance d = distance_of(got, truth), yard = distance_of(plain, truth);
  if (d.mismatched > 0)
    return testing::AssertionFailure() << d.mismatched << " values are NaN or inf on one side only, first at "
                                       << d.at << ": got " << load_double(got.data, got.dtype, d.at)
                                       << ", truth " << load_double(truth.data, truth.dtype, d.at);
  const double factor = got.dtype == DType::f32 ? 1.5 : 1.0, ulp = ulp_of(got.dtype, largest_of(truth));
  const double relative_ulp = std::ldexp(2.0, got.dtype == DType::bf16  ? -8
                                              : got.dtype == DType::f16 ? -11
                                                                        : -24);
  if (d.largest <= factor * yard.largest + 2 * ulp && d.relative <= factor * yard.relative + relative_ulp)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "largest error " << d.largest << " at " << d.at << " (plain run "
                                     << yard.largest << ", ulp " << ulp << "), relative " << d.relative
                                     << " (plain run " << yard.relative << "); got "
                                     << load_double(got.data, got.dtype, d.at) << ", truth "
                                     << load_double(truth.data, truth.dtype, d.at);
}

/// T1 for a whole run: `a.out` was written by the kernel under test.
inline testing::AssertionResult out_is_close(const AttentionProblem& p, const AttentionArgs& a,
                                             Context& ctx) {
  Tensor got = converted(a.out, p.dtype), plain = converted(a.out, p.dtype);
  plain_run(p, a, plain.view());
  const Truth truth = truth_of(p, a, ctx);
  return close_to_truth(got.view(), truth.out.view(), plain.view());
}

/// T2, for unit-normal data: the guard that does not depend on a plain run.
inline double relative_guard(DType t) {
  return t == DType::bf16 ? 2.5e-3 : t == DType::f16 ? 3.2e-4 : t == DType::f32 ? 1e-6 : 1e-14;
}

/// T5: |lse error| <= 4 u max(1, |lse|), -inf exactly where the truth has it.
inline testing::AssertionResult lse_is_close(const InputView& got, const InputView& truth) {
  for (Index n = 0; n < truth.count(); ++n) {
    const double x = load_double(got.data, got.dtype, n), y = load_double(truth.data, truth.dtype, n);
    if (std::isnan(y) ? std::isnan(x)
                      : x == y || std::fabs(x - y) <= 4 * 0x1p-24 * std::max(1.0, std::fabs(y)))
      continue;
    return testing::AssertionFailure()
           << "lse " << n << " is " << x << ", truth " << y << ", apart " << x - y;
  }
  return testing::AssertionSuccess();
}

/// What the bound of hostile data is made of: the largest |v|, |s|, |q| and |k|, and how many tiles are
/// added.
struct Hostile {
  DType out;
  double most_v, most_logit, most_q, most_k, scale;
  Index dim;
  double tiles;
};
/// T3: |error| <= max|v| (u_out + 4 u32 (max|s| + sqrt(d) max|q| max|k| |scale| + log2(tiles))).
inline double hostile_bound(const Hostile& h) {
  const double u_out = ulp_of(h.out, 1.0) / 2;
  const double products = std::sqrt(static_cast<double>(h.dim)) * h.most_q * h.most_k * std::fabs(h.scale);
  return h.most_v * (u_out + 4 * 0x1p-24 * (h.most_logit + products + std::log2(std::max(2.0, h.tiles))));
}

/// T4: mean signed error in units of its own standard error; a kernel that rounds is within 3, one that
/// truncates is not.
inline double signed_bias(const InputView& got, const InputView& truth) {
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(truth.count());
  for (Index i = 0; i < truth.count(); ++i) {
    const double error = load_double(got.data, got.dtype, i) - load_double(truth.data, truth.dtype, i);
    sum += error, squares += error * error;
  }
  const double variance = squares / n - sum / n * (sum / n);
  return variance > 0 ? sum / n / std::sqrt(variance / n) : 0;
}

}  // namespace headwise::test
