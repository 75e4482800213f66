// Passes over rows of f32 in vectors of eight doubles: layer norm and its gradient, AdamW, exponentials,
// sums of squares, dropout. Included by every ISA level after its Lanes; the compiler cuts the vectors to
// what the level has. Internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/row_kernels.h"
#include "headwise/kernels/cpu/lanes/draws.h"
#include "headwise/kernels/cpu/row/activations.h"

namespace headwise::cpu {
namespace {

typedef double Eight __attribute__((vector_size(64)));
typedef double EightApart __attribute__((vector_size(64), aligned(8), may_alias));
typedef double Four __attribute__((vector_size(32)));
typedef float EightFloats __attribute__((vector_size(32)));
typedef float EightFloatsApart __attribute__((vector_size(32), aligned(4), may_alias));

inline __attribute__((always_inline)) void load_eight(const float* at, Eight& to) {
#if defined(__AVX512F__)
  to = _mm512_cvtps_pd(_mm256_loadu_ps(at));  // GCC 12 would convert halves and join them
#else
  to = __builtin_convertvector(*reinterpret_cast<const EightFloatsApart*>(at), Eight);
#endif
}
inline __attribute__((always_inline)) void load_eight(const double* at, Eight& to) {
  to = *reinterpret_cast<const EightApart*>(at);
}
inline __attribute__((always_inline)) void store_eight(const Eight& from, float* at) {
#if defined(__AVX512F__)
  _mm256_storeu_ps(at, _mm512_cvtpd_ps(from));
#else
  *reinterpret_cast<EightFloatsApart*>(at) = __builtin_convertvector(from, EightFloats);
#endif
}
inline __attribute__((always_inline)) void store_eight(const Eight& from, double* at) {
  *reinterpret_cast<EightApart*>(at) = from;
}
/// The last n < 8 elements of a run, then zeros.
inline __attribute__((always_inline)) void load_rest(const float* at, Index n, Eight& to) {
  float rest[8] = {};
  for (Index i = 0; i < n; ++i) rest[i] = at[i];
  load_eight(rest, to);
}
/// ((0+4)+(2+6)) + ((1+5)+(3+7))
inline __attribute__((always_inline)) double fold(const Eight& s) {
  const Four h = __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
  return (h[0] + h[2]) + (h[1] + h[3]);
}

/// 32 chains: an addition does not wait for the one before.
struct Sums {
  Eight part[4] = {};
};
inline __attribute__((always_inline)) double fold(const Sums& s) {
  return fold(Eight((s.part[0] + s.part[1]) + (s.part[2] + s.part[3])));
}
/// body(i, j) for every eight elements from i on, whose sums are part j; dim is a multiple of 8.
template <class Body>
inline __attribute__((always_inline)) void each_eight(Index dim, const Body& body) {
  Index i = 0;
  for (; i + 32 <= dim; i += 32) body(i, 0), body(i + 8, 1), body(i + 16, 2), body(i + 24, 3);
  if (i < dim) body(i, 0);
  if (i + 8 < dim) body(i + 8, 1);
  if (i + 16 < dim) body(i + 16, 2);
}

inline __attribute__((always_inline)) RowMoments moments_of(const float* x, Index dim, double eps) {
  const auto length = static_cast<double>(dim);
  Sums sum, square;
  each_eight(
      dim, [&](Index i, int j) __attribute__((always_inline)) {
        Eight v;
        load_eight(x + i, v);
        sum.part[j] += v;
      });
  const double mean = fold(sum) / length;
  each_eight(
      dim, [&](Index i, int j) __attribute__((always_inline)) {
        Eight v;
        load_eight(x + i, v);
        v -= mean;
        square.part[j] += v * v;
      });
  const double variance = fold(square) / length + eps;
  return {mean, variance == 0 ? 0.0 : 1.0 / __builtin_sqrt(variance)};
}

inline void layer_norm_of(const NormTask& r) {
  const RowMoments m = moments_of(r.x, r.dim, r.eps);
  if (r.moments) *r.moments = m;
  const float* x = r.x;
  float* out = r.out;
  const double *weight = r.weight, *bias = r.bias;
  for (Index i = 0; i < r.dim; i += 8) {
    Eight v, w;
    load_eight(x + i, v);
    v = (v - m.mean) * m.inverse;
    if (weight) load_eight(weight + i, w), v *= w;
    if (bias) load_eight(bias + i, w), v += w;
    store_eight(v, out + i);
  }
}

inline void layer_norm_slopes(const NormSlopeTask& r) {
  const RowMoments m = r.moments ? *r.moments : moments_of(r.x, r.dim, r.eps);
  const float *x = r.x, *dout = r.dout, *residual = r.residual;
  const double* weight = r.weight;
  double *dweight = r.dweight, *dbias = r.dbias;
  float* dx = r.dx;
  Sums sum, product;
  each_eight(
      r.dim, [&](Index i, int j) __attribute__((always_inline)) {
        Eight n, g, w;
        load_eight(x + i, n);
        load_eight(dout + i, g);
        n = (n - m.mean) * m.inverse;
        if (dweight) load_eight(dweight + i, w), store_eight(w + g * n, dweight + i);
        if (dbias) load_eight(dbias + i, w), store_eight(w + g, dbias + i);
        if (weight) load_eight(weight + i, w), g *= w;
        sum.part[j] += g;
        product.part[j] += g * n;
      });
  if (!dx) return;
  const auto length = static_cast<double>(r.dim);
  const double mean = fold(sum) / length, along = fold(product) / length;
  for (Index i = 0; i < r.dim; i += 8) {
    Eight n, g, w;
    load_eight(x + i, n);
    load_eight(dout + i, g);
    n = (n - m.mean) * m.inverse;
    if (weight) load_eight(weight + i, w), g *= w;
    g = m.inverse * (g - mean - n * along);
    if (residual) load_eight(residual + i, w), g += w;
    store_eight(g, dx + i);
  }
}

/// The order of operations is torch's, so that results agree to the last bits.
inline void adamw_numbers(const AdamWTask& r) {
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

/// sum += x, or the squares of x: n elements, eight chains.
template <bool Squares>
inline __attribute__((always_inline)) void add_eights(const float* x, Index n, Eight& sum) {
  Eight v;
  Index i = 0;
  for (; i + 8 <= n; i += 8) load_eight(x + i, v), sum += Squares ? v * v : v;
  if (i < n) load_rest(x + i, n - i, v), sum += Squares ? v * v : v;
}

inline double squares_of(const float* x, Index n) {
  Eight sum = {};
  add_eights<true>(x, n, sum);
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
  Eight sum = {}, all = {};
  constexpr Index kBlock = 256;
  alignas(64) float block[kBlock];
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index end = n - begin < kBlock ? n : begin + kBlock;
    float* to = e ? e + begin : block;
    add_eights<false>(x + begin, end - begin, all);
    for (i = begin; i + W <= end; i += W)
      Lanes::store(to + i - begin, exp2_alike(Lanes::sub(Lanes::load(x + i), top), c, lowest));
    if (const int rest = static_cast<int>(end - i); rest > 0)
      Lanes::store_part(to + i - begin, exp2_alike(Lanes::sub(Lanes::load_part(x + i, rest), top), c, lowest),
                        rest);
    add_eights<false>(to, end - begin, sum);
  }
  r.sum = fold(sum), r.all = fold(all);
  return r;
}

inline void column_sums(const float* x, Index step, Index rows, Index columns, float* sum) {
  constexpr int W = Lanes::width, kMost = RowKernels::kSumColumns / W;
  if (columns < RowKernels::kSumColumns) {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) sum[j] += x[i * step + j];
    return;
  }
  Lanes::F s[kMost];
  for (int j = 0; j < kMost; ++j) s[j] = Lanes::load(sum + j * W);
  for (Index i = 0; i < rows; ++i)
    for (int j = 0; j < kMost; ++j) s[j] = Lanes::add(s[j], Lanes::load(x + i * step + j * W));
  for (int j = 0; j < kMost; ++j) Lanes::store(sum + j * W, s[j]);
}

/// 64 columns at a time: 16 blocks of four words, then put in the order of the columns.
inline void dropout_columns(const DropoutTask& r) {
  using U = Lanes::U;
  constexpr int W = Lanes::width, kBlocks = 16, kColumns = 4 * kBlocks;
  const U threshold = Lanes::setu(r.threshold);
  for (Index begin = 0; begin < r.n; begin += kColumns) {
    const Index n = r.n - begin < kColumns ? r.n - begin : kColumns;
    alignas(64) std::uint32_t count[kBlocks], drawn[kColumns];
    alignas(64) float words[kColumns], ordered[kColumns], x[kColumns] = {};
    for (int b = 0; b < kBlocks; ++b) count[b] = static_cast<std::uint32_t>(begin / 4 + b);
    for (int b = 0; b < kBlocks; b += W) {
      U c[4] = {Lanes::loadu(count + b), Lanes::setu(static_cast<std::uint32_t>(r.row)),
                Lanes::setu(static_cast<std::uint32_t>(r.row >> 32)), Lanes::setu(r.site)};
      draw_blocks(c, r.seed);
      for (int j = 0; j < 4; ++j) __builtin_memcpy(words + j * kBlocks + b, &c[j], sizeof(U));
    }
    Lanes::interleave4(words, kBlocks, kBlocks, ordered);
    __builtin_memcpy(drawn, ordered, sizeof(drawn));
    __builtin_memcpy(x, r.x + begin, static_cast<std::size_t>(n) * sizeof(float));
    // Selected, not multiplied by 0: a dropped infinity gives 0.
    for (int i = 0; i < kColumns; i += W)
      Lanes::store(x + i, Lanes::select(Lanes::not_below(Lanes::loadu(drawn + i), threshold),
                                        Lanes::load(x + i), Lanes::zero()));
    const float* residual = r.residual ? r.residual + begin : nullptr;
    float* out = r.out + begin;
    Index i = 0;
    Eight v, add;
    for (; i + 8 <= n; i += 8) {
      load_eight(x + i, v);
      v *= r.scale;
      if (residual) load_eight(residual + i, add), v += add;
      store_eight(v, out + i);
    }
    for (; i < n; ++i) {
      double kept = static_cast<double>(x[i]) * r.scale;
      if (residual) kept += static_cast<double>(residual[i]);
      out[i] = static_cast<float>(kept);
    }
  }
}

inline void scale_run(const float* x, float* out, Index n, double factor, const double* weight) {
  Index i = 0;
  for (; i + 8 <= n; i += 8) {
    Eight v, w;
    load_eight(x + i, v), v *= factor;
    if (weight) load_eight(weight + i, w), v *= w;
    store_eight(v, out + i);
  }
  for (; i < n; ++i) {
    double v = static_cast<double>(x[i]) * factor;
    if (weight) v *= weight[i];
    out[i] = static_cast<float>(v);
  }
}

inline void turn_pairs(const TurnTask& t) {
  const double sign = t.inverse ? -1.0 : 1.0;
  Index i = 0;
  for (; i + 8 <= t.n; i += 8) {
    Eight a, b, c, s;
    load_eight(t.a + i, a), load_eight(t.b + i, b), load_eight(t.cos + i, c), load_eight(t.sin + i, s);
    s *= sign;
    store_eight(a * c - b * s, t.to_a + i), store_eight(b * c + a * s, t.to_b + i);
  }
  for (; i < t.n; ++i) {
    const double a = static_cast<double>(t.a[i]), b = static_cast<double>(t.b[i]), s = sign * t.sin[i];
    t.to_a[i] = static_cast<float>(a * t.cos[i] - b * s);
    t.to_b[i] = static_cast<float>(b * t.cos[i] + a * s);
  }
}

constexpr RowKernels kRowPasses{layer_norm_of, layer_norm_slopes, adamw_numbers, exp_run,   column_sums,
                                squares_of,    dropout_columns,   scale_run,     turn_pairs};

}  // namespace
}  // namespace headwise::cpu
