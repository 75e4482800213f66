// Passes over rows of f32 in vectors of eight doubles: layer norm and its gradient, AdamW, exponentials,
// sums of squares. Included by every ISA level after its Lanes; the compiler cuts the vectors to what the
// level has. Internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/row_kernels.h"

namespace headwise::cpu {
namespace {

typedef double Eight __attribute__((vector_size(64)));
typedef double EightApart __attribute__((vector_size(64), aligned(8), may_alias));
typedef float EightFloats __attribute__((vector_size(32)));
typedef float EightFloatsApart __attribute__((vector_size(32), aligned(4), may_alias));

/// Elements i..i+8 of a row, those from n on as `rest`.
inline __attribute__((always_inline)) void load_eight(const float* row, Index i, Index n, double rest,
                                                      Eight& to) {
  if (i + 8 <= n) {
    to = __builtin_convertvector(*reinterpret_cast<const EightFloatsApart*>(row + i), Eight);
    return;
  }
  for (Index j = 0; j < 8; ++j) to[j] = i + j < n ? static_cast<double>(row[i + j]) : rest;
}
inline __attribute__((always_inline)) void load_eight(const double* row, Index i, Index n, double rest,
                                                      Eight& to) {
  if (i + 8 <= n) {
    to = *reinterpret_cast<const EightApart*>(row + i);
    return;
  }
  for (Index j = 0; j < 8; ++j) to[j] = i + j < n ? row[i + j] : rest;
}
inline __attribute__((always_inline)) void store_eight(const Eight& from, Index i, Index n, float* row) {
  if (i + 8 <= n) {
    *reinterpret_cast<EightFloatsApart*>(row + i) = __builtin_convertvector(from, EightFloats);
    return;
  }
  for (Index j = 0; i + j < n; ++j) row[i + j] = static_cast<float>(from[j]);
}
inline __attribute__((always_inline)) void store_eight(const Eight& from, Index i, Index n, double* row) {
  if (i + 8 <= n) {
    *reinterpret_cast<EightApart*>(row + i) = from;
    return;
  }
  for (Index j = 0; i + j < n; ++j) row[i + j] = from[j];
}
inline __attribute__((always_inline)) double fold(const Eight& s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

struct RowMoments {
  double mean, inverse;
};
inline __attribute__((always_inline)) RowMoments moments_of(const float* x, Index dim, double eps) {
  const auto length = static_cast<double>(dim);
  Eight sum = {}, square = {}, v;
  for (Index i = 0; i < dim; i += 8) load_eight(x, i, dim, 0, v), sum += v;
  const double mean = fold(sum) / length;
  for (Index i = 0; i < dim; i += 8) {
    load_eight(x, i, dim, mean, v);
    v -= mean;
    square += v * v;
  }
  const double variance = fold(square) / length + eps;
  return {mean, variance == 0 ? 0.0 : 1.0 / __builtin_sqrt(variance)};
}

inline void norm_run(const NormRun& r) {
  const RowMoments m = moments_of(r.x, r.dim, r.eps);
  for (Index i = 0; i < r.dim; i += 8) {
    Eight v, w;
    load_eight(r.x, i, r.dim, 0, v);
    v = (v - m.mean) * m.inverse;
    if (r.weight) load_eight(r.weight, i, r.dim, 0, w), v *= w;
    if (r.bias) load_eight(r.bias, i, r.dim, 0, w), v += w;
    store_eight(v, i, r.dim, r.out);
  }
}

inline void norm_run_backward(const NormRunSlope& r) {
  const RowMoments m = moments_of(r.x, r.dim, r.eps);
  Eight sum = {}, product = {}, n, g, w;
  for (Index i = 0; i < r.dim; i += 8) {
    load_eight(r.x, i, r.dim, m.mean, n);
    load_eight(r.dout, i, r.dim, 0, g);
    n = (n - m.mean) * m.inverse;
    if (r.dweight) load_eight(r.dweight, i, r.dim, 0, w), store_eight(w + g * n, i, r.dim, r.dweight);
    if (r.dbias) load_eight(r.dbias, i, r.dim, 0, w), store_eight(w + g, i, r.dim, r.dbias);
    if (r.weight) load_eight(r.weight, i, r.dim, 0, w), g *= w;
    sum += g;
    product += g * n;
  }
  if (!r.dx) return;
  const auto length = static_cast<double>(r.dim);
  const double mean = fold(sum) / length, along = fold(product) / length;
  for (Index i = 0; i < r.dim; i += 8) {
    load_eight(r.x, i, r.dim, 0, n);
    load_eight(r.dout, i, r.dim, 0, g);
    n = (n - m.mean) * m.inverse;
    if (r.weight) load_eight(r.weight, i, r.dim, 0, w), g *= w;
    g = m.inverse * (g - mean - n * along);
    if (r.residual) load_eight(r.residual, i, r.dim, 0, w), g += w;
    store_eight(g, i, r.dim, r.dx);
  }
}

/// The order of operations is torch's, so that results agree to the last bits.
inline void adamw_run(const AdamWRun& r) {
  float* __restrict x = r.x, * __restrict m = r.m, * __restrict v = r.v;
  const float* __restrict g = r.g;
  const float shrink = r.shrink, beta2 = r.beta2, gain1 = r.gain1, gain2 = r.gain2, eps = r.eps,
              size = r.size, root = r.root;
  for (Index i = 0; i < r.n; ++i) {
    const float mi = m[i] + gain1 * (g[i] - m[i]), vi = v[i] * beta2 + gain2 * g[i] * g[i];
    m[i] = mi, v[i] = vi;
    x[i] = x[i] * shrink - size * (mi / (__builtin_sqrtf(vi) / root + eps));
  }
}

inline double squares_of(const float* x, Index n) {
  Eight sum = {}, v;
  for (Index i = 0; i < n; i += 8) load_eight(x, i, n, 0, v), sum += v * v;
  return fold(sum);
}

inline ExpRow exp_run(const float* x, Index n, float* e) {
  constexpr int W = Lanes::width;
  ExpRow r{-__builtin_inff(), 0, 0};
  Lanes::F most = Lanes::set(r.top);
  bool nan = false;
  Index i = 0;
  for (; i + W <= n; i += W) {
    const Lanes::F v = Lanes::load(x + i);
    nan = nan || Lanes::any(Lanes::is_nan(v));
    most = Lanes::max(v, most);
  }
  alignas(64) float lanes[W];
  Lanes::store(lanes, most);
  for (const float v : lanes) r.top = v > r.top ? v : r.top;
  for (; i < n; ++i) nan = nan || x[i] != x[i], r.top = x[i] > r.top ? x[i] : r.top;
  if (nan) r.top = __builtin_nanf("");
  const Lanes::F top = Lanes::set(r.top), c = Lanes::set(kLog2E), lowest = Lanes::set(-140.0f);
  Eight sum = {}, all = {}, v;
  constexpr Index kBlock = 256;
  alignas(64) float block[kBlock];
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index end = n - begin < kBlock ? n : begin + kBlock;
    float* to = e ? e + begin : block;
    for (i = begin; i < end; i += 8) load_eight(x, i, end, 0, v), all += v;
    for (i = begin; i + W <= end; i += W)
      Lanes::store(to + i - begin, exp2_product(Lanes::sub(Lanes::load(x + i), top), c, lowest));
    if (const int rest = static_cast<int>(end - i); rest > 0)
      Lanes::store_part(to + i - begin,
                        exp2_product(Lanes::sub(Lanes::load_part(x + i, rest), top), c, lowest), rest);
    for (i = 0; i < end - begin; i += 8) load_eight(to, i, end - begin, 0, v), sum += v;
  }
  r.sum = fold(sum), r.all = fold(all);
  return r;
}

constexpr RowKernels kRowPasses{norm_run, norm_run_backward, adamw_run, exp_run, squares_of};

}  // namespace
}  // namespace headwise::cpu
