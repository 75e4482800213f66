// Lists of (score, key) on one ISA level: gathering, the threshold of entmax, weights, sums over rows.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/sparse_kernels.h"
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu {
namespace {

/// L is Lanes: a template, so that a level which names no table compiles none of it.
template <class L>
struct SparseCore {
  static constexpr int W = L::width;
  static constexpr float kLeast = -3.4028235e38f;

  static void keep(const KeepTask& t) {
    const float *s = t.s, *slopes = t.slopes;
    const Index from = t.from, to = t.to, key0 = t.key0;
    const int panel = t.panel, lanes = t.lanes;
    KeptRow* rows = t.rows;
    for (int j = 0; j < lanes; j += W) {
      const F above = L::load(t.floor + j);
      const std::uint64_t own = lanes - j >= W ? ~std::uint64_t{0} : (std::uint64_t{1} << (lanes - j)) - 1;
      for (Index k = from; k < to; ++k) {
        const F x = L::load(s + k * panel + j);
        const std::uint64_t nan = L::word(L::is_nan(x)) & own;
        for (std::uint64_t left = nan; left; left &= left - 1) rows[j + __builtin_ctzll(left)].is_nan = true;
        for (std::uint64_t left = (L::word(L::greater(x, above)) & own) | nan; left; left &= left - 1) {
          const int lane = j + __builtin_ctzll(left);
          KeptRow& row = rows[lane];
          row.score[row.count] = s[k * panel + lane];
          row.key[row.count] = static_cast<std::int32_t>(key0 + k);
          if (slopes) row.slope[row.count] = slopes[k * panel + lane];
          ++row.count;
        }
      }
    }
  }

  /// Lanes added in ascending order.
  static double total(F x) {
    float lane[W];
    L::store(lane, x);
    double sum = 0;
    for (int i = 0; i < W; ++i) sum += static_cast<double>(lane[i]);
    return sum;
  }
  static void pad(float* score, Index count) {
    for (Index i = 0; i < kListPad; ++i) score[count + i] = kLeast;
  }

  /// y^e for y >= 0, without branches so that loops of it vectorize: 2^(e log2 y), log2 by atanh's series
  /// (1e-8), 2^f as in exp2_product; the product's rounding error goes into f.
  static inline __attribute__((always_inline)) float power_of(float y, float e) {
    const auto bits = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, y)) - 0x3f3504f3;
    const auto exponent = static_cast<float>(bits >> 23);
    const float m = __builtin_bit_cast(float, static_cast<std::uint32_t>((bits & 0x7fffff) + 0x3f3504f3));
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float t = __builtin_fmaf(z, 0.11111111f, 0.14285715f);
    t = __builtin_fmaf(z, t, 0.2f);
    t = __builtin_fmaf(z, t, 0.33333334f);
    const float l = __builtin_fmaf(__builtin_fmaf(s * z, t, s), 2.8853901f, exponent);
    const float product = l * e, rest = __builtin_fmaf(l, e, -product);
    const float x = product < -126.0f ? -126.0f : product;
    const float n = (x + 12582912.0f) - 12582912.0f, f = (x - n) + rest, f2 = f * f;
    float p = __builtin_fmaf(0.00015353362f, f, 0.0013398875f);
    p = __builtin_fmaf(p, f2, __builtin_fmaf(0.009618437f, f, 0.055503324f));
    p = __builtin_fmaf(p, f2, __builtin_fmaf(0.24022648f, f, 0.6931472f));
    p = __builtin_fmaf(p, f, 1.0f);
    const auto shift = static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) << 23;
    const float r = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p) + shift);
    return product < -125.0f || !(y > 0.0f) ? 0.0f : r;
  }
  static constexpr Index kBlock = 64;
  /// y = max(0, z - tau) and p = y^power of `n` scores, up to kBlock of them.
  static void block(const EntmaxRule& rule, const float* score, Index n, float top, float tau, float* y,
                    float* p) {
    for (Index i = 0; i < n; ++i) {
      const float d = __builtin_fmaf(rule.less, score[i] - top, -tau);
      y[i] = d > 0.0f ? d : 0.0f;
    }
    for (Index i = 0; i < n; ++i) p[i] = power_of(y[i], rule.power);
  }

  /// Newton's steps from below, which never pass tau: f is convex. For sums of lines (alpha 2) the last one
  /// is exact.
  static float newton_tau(const EntmaxRule& rule, const float* score, Index count, float top, float tau) {
    const F c = L::set(rule.less), most = L::set(top), one = L::set(1.0f);
    const bool line = rule.kind == EntmaxRule::Kind::line;
    for (int step = 0; step < 100; ++step) {
      const F minus = L::set(-tau);
      F down = L::zero(), over = L::zero();
      for (Index i = 0; i < count; i += W) {
        const F y = L::max(L::fma(c, L::sub(L::load(score + i), most), minus), L::zero());
        down = L::add(down, line ? L::select(L::greater(y, L::zero()), one, L::zero()) : y);
        over = line ? L::add(over, y) : L::fma(y, y, over);
      }
      const double slope = total(down) * (line ? 1 : 2), d = (total(over) - 1) / slope;
      const float next = static_cast<float>(static_cast<double>(tau) + d);
      if (!(next > tau)) break;
      tau = next;
      if (d < 3e-8) break;
    }
    return tau;
  }
  static float halley_tau(const EntmaxRule& rule, const float* score, Index count, float top, float tau) {
    float low = -1.0f, high = 0.0f;
    for (int step = 0; step < 60; ++step) {
      F f = L::zero(), slope = L::zero(), bend = L::zero();
      for (Index first = 0; first < count; first += kBlock) {
        float y[kBlock], p[kBlock];
        const Index left = count - first, n = left < kBlock ? (left + W - 1) / W * W : kBlock;
        block(rule, score + first, n, top, tau, y, p);
        for (Index i = 0; i < n; i += W) {
          const F yy = L::load(y + i), pp = L::load(p + i);
          const F by = L::select(L::greater(pp, L::zero()), L::div(pp, yy), L::zero());
          const F by2 = L::select(L::greater(pp, L::zero()), L::div(by, yy), L::zero());
          f = L::add(f, pp), slope = L::add(slope, by), bend = L::add(bend, by2);
        }
      }
      const auto e = static_cast<double>(rule.power);
      const double over = total(f) - 1, down = e * total(slope), curve = e * (e - 1) * total(bend);
      (over >= 0 ? low : high) = tau;
      const double step_by = 2 * over * down / (2 * down * down - over * curve);
      const float next = static_cast<float>(static_cast<double>(tau) + step_by);
      const float used = low < next && next < high ? next : 0.5f * (low + high);
      const float moved = used > tau ? used - tau : tau - used;
      tau = used;
      if (moved <= 6e-8f) break;
    }
    return tau;
  }
  static float tau(const EntmaxRule& rule, float* score, Index count, float top, float start) {
    if (rule.kind == EntmaxRule::Kind::softmax) return 0.0f;
    pad(score, count);
    return rule.kind == EntmaxRule::Kind::any ? halley_tau(rule, score, count, top, start)
                                              : newton_tau(rule, score, count, top, start);
  }

  static double weights(const EntmaxRule& rule, float* score, Index count, float top, float tau, float* w) {
    pad(score, count);
    F sum = L::zero();
    const F c = L::set(rule.less), most = L::set(top), minus = L::set(-tau), log2e = L::set(1.44269504f),
            low = lowest_for(log2e);
    if (rule.kind == EntmaxRule::Kind::any) {
      for (Index first = 0; first < count; first += kBlock) {
        float y[kBlock];
        const Index left = count - first, n = left < kBlock ? (left + W - 1) / W * W : kBlock;
        block(rule, score + first, n, top, tau, y, w + first);
        for (Index i = first; i < first + n; i += W) sum = L::add(sum, L::load(w + i));
      }
      return total(sum);
    }
    for (Index i = 0; i < count; i += W) {
      const F d = L::sub(L::load(score + i), most);
      F p;
      if (rule.kind == EntmaxRule::Kind::softmax) {
        p = exp2_product(d, log2e, low);
      } else {
        const F y = L::max(L::fma(c, d, minus), L::zero());
        p = rule.kind == EntmaxRule::Kind::square ? L::mul(y, y) : y;
      }
      L::store(w + i, p);
      sum = L::add(sum, p);
    }
    return total(sum);
  }
  static void slopes(const EntmaxRule& rule, const float* w, Index count, float* out) {
    switch (rule.kind) {
      case EntmaxRule::Kind::softmax:
        for (Index i = 0; i < count; ++i) out[i] = w[i];
        return;
      case EntmaxRule::Kind::square:
        for (Index i = 0; i < count; ++i) out[i] = __builtin_sqrtf(w[i]);
        return;
      case EntmaxRule::Kind::line:
        for (Index i = 0; i < count; ++i) out[i] = w[i] > 0.0f ? 1.0f : 0.0f;
        return;
      case EntmaxRule::Kind::any:
        for (Index i = 0; i < count; ++i) out[i] = power_of(w[i], 1.0f - rule.less);
        return;
    }
  }

  /// V vectors of columns: even and odd places of the list are chains of their own.
  template <int V>
  static void sum_columns(const float* w, const std::int32_t* key, Index count, const float* rows, Index step,
                          float* out) {
    F even[V], odd[V];
    for (int j = 0; j < V; ++j) even[j] = L::zero(), odd[j] = L::zero();
    Index i = 0;
    for (; i + 2 <= count; i += 2) {
      const float *a = rows + key[i] * step, *b = rows + key[i + 1] * step;
      const F x = L::bcast(w + i), y = L::bcast(w + i + 1);
      for (int j = 0; j < V; ++j) {
        even[j] = L::fma(x, L::load(a + j * W), even[j]);
        odd[j] = L::fma(y, L::load(b + j * W), odd[j]);
      }
    }
    if (i < count)
      for (int j = 0; j < V; ++j)
        even[j] = L::fma(L::bcast(w + i), L::load(rows + key[i] * step + j * W), even[j]);
    for (int j = 0; j < V; ++j) L::store(out + j * W, L::add(even[j], odd[j]));
  }
  static void sum_rows(const float* w, const std::int32_t* key, Index count, const float* rows, Index step,
                       Index columns, float* out) {
    Index c = 0;
    for (; c + 4 * W <= columns; c += 4 * W) sum_columns<4>(w, key, count, rows + c, step, out + c);
    for (; c < columns; c += W) sum_columns<1>(w, key, count, rows + c, step, out + c);
  }
  static void dot_rows(const float* x, const std::int32_t* key, Index count, const float* rows, Index step,
                       Index columns, float* out) {
    for (Index first = 0; first < count; first += W) {
      F t[W];
      for (int i = 0; i < W; ++i) {
        t[i] = L::zero();
        if (first + i >= count) continue;
        const float* row = rows + key[first + i] * step;
        for (Index c = 0; c < columns; c += W) t[i] = L::fma(L::load(x + c), L::load(row + c), t[i]);
      }
      L::transpose(t);
      F sum = t[0];
      for (int i = 1; i < W; ++i) sum = L::add(sum, t[i]);
      const int n = count - first < W ? static_cast<int>(count - first) : W;
      L::store_part(out + first, sum, n);
    }
  }
  template <int V>
  static void add_columns(const float* a, const std::int32_t* key, Index count, const float* x, float* rows,
                          Index step) {
    F own[V];
    for (int j = 0; j < V; ++j) own[j] = L::load(x + j * W);
    for (Index i = 0; i < count; ++i) {
      float* to = rows + key[i] * step;
      const F by = L::bcast(a + i);
      for (int j = 0; j < V; ++j) L::store(to + j * W, L::fma(by, own[j], L::load(to + j * W)));
    }
  }
  static void add_rows(const float* a, const std::int32_t* key, Index count, const float* x, Index columns,
                       float* rows, Index step) {
    Index c = 0;
    for (; c + 4 * W <= columns; c += 4 * W) add_columns<4>(a, key, count, x + c, rows + c, step);
    for (; c < columns; c += W) add_columns<1>(a, key, count, x + c, rows + c, step);
  }

  static constexpr SparseKernels table() {
    return {keep, tau, weights, slopes, sum_rows, dot_rows, add_rows};
  }
};

}  // namespace
}  // namespace headwise::cpu
