// The gradients of an f32 core: rows of keys times rows of queries with columns in the lanes, and the sweep
// that turns scores and dP into weights and dS. Included by every ISA level after its Lanes; internal
// linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/f32_core.h"
#include "headwise/kernels/cpu/tile/mix_gradients.h"

namespace headwise::cpu {
namespace {

/// NV vectors of queries a panel, as in the f32 core; RV vectors of columns x RR keys a tile of add_rows.
template <class L, int NV, int RV, int RR>
struct GradientCore {
  static constexpr int W = Lanes::width, kPanel = NV * W;
  static constexpr Index kPad = 16;  // keeps the rows of one slice of columns out of the same cache sets

  static Index columns(Index dim) { return rounded(dim, 16); }
  static Index row_step(Index dim) { return rounded(dim, 16) + kPad; }
  static Index row_bytes(Index dim) { return kPanel * row_step(dim) * 4; }
  static bool pack_rows(const Rows* rows, const Index* row, int count, Index dim, const float* factor,
                        void* packed) {
    auto* out = static_cast<float*>(packed);
    const Index wide = rounded(dim, 16), step = row_step(dim);
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (int i = 0; i < count; ++i) {
      float* to = out + i * step;
      load_row(rows[i], row[i], wide, to);
      const F by = Lanes::set(factor[i]);
      for (Index c = 0; c < wide; c += W) {
        const F x = Lanes::mul(Lanes::load(to + c), by);
        unusual = Lanes::fma(x, Lanes::zero(), unusual);
        Lanes::store(to + c, x);
      }
    }
    if (!Lanes::any(Lanes::is_nan(unusual))) return true;
    for (int i = 0; i < count; ++i)
      for (Index c = 0; c < wide; ++c) {
        float& x = out[i * step + c];
        if (!(__builtin_fabsf(x) <= 3.4028235e38f)) x = 0.0f;
      }
    return false;
  }

  /// c[i][j] += a[i * kPanel + k] * b[k * b_step + j * W] for one k.
  template <int V>
  static inline __attribute__((always_inline)) void add_one(const float* a, const float* b, F (&c)[RR][V]) {
    F x[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) x[j] = Lanes::load(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < RR; ++i) {
      const F y = Lanes::bcast(a + i * kPanel);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) c[i][j] = Lanes::fma(y, x[j], c[i][j]);
    }
  }
  /// One of the four k that y holds of each row.
  template <int V, int Lane>
  static inline __attribute__((always_inline)) void add_lane(const F (&y)[RR], const float* b,
                                                             F (&c)[RR][V]) {
    F x[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) x[j] = Lanes::load(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < RR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) c[i][j] = L::template fma_lane<Lane>(x[j], y[i], c[i][j]);
  }
  /// Rows from .. to of `out` and what is added to them.
  struct RowSums {
    const PanelRows* panels;
    Index count, from, to, b_step;
    float* out;
    Index out_step;
  };
  template <int V>
  static void add_columns(const RowSums& t, Index column) {
    const PanelRows* panels = t.panels;
    const Index count = t.count, from = t.from, to = t.to, b_step = t.b_step, out_step = t.out_step;
    float* out = t.out;
    Index whole = 0;  // panels that the level's own tile takes
    if constexpr (L::template own_tile<RR, V> && kPanel == 8)
      while (whole < count && panels[whole].count == kPanel) ++whole;
    for (Index row = from; row < to; row += RR) {
      float* at = out + row * out_step + column;
      if constexpr (L::template own_tile<RR, V> && kPanel == 8) {
        if (whole > 0)
          L::Tile::add_panels(panels, whole, row * kPanel * 4, column * 4, b_step * 4, at, out_step * 4);
        if (whole == count) continue;
      }
      F c[RR][V];
#pragma GCC unroll 16
      for (int i = 0; i < RR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) {
          c[i][j] = Lanes::load(at + i * out_step + j * W);
          // Sums of many keys lie far away, and the chains begin with them.
          if constexpr (Lanes::prefetches) __builtin_prefetch(at + (RR + i) * out_step + j * W);
        }
      for (Index p = whole; p < count; ++p) {
        const float *a = static_cast<const float*>(panels[p].a) + row * kPanel,
                    *b = static_cast<const float*>(panels[p].b) + column;
        Index k = 0;
        if constexpr (L::multiplies_by_lane) {
          for (; k + 4 <= panels[p].count; k += 4) {
            F y[RR];
#pragma GCC unroll 16
            for (int i = 0; i < RR; ++i) y[i] = Lanes::load(a + i * kPanel + k);
            add_lane<V, 0>(y, b + k * b_step, c);
            add_lane<V, 1>(y, b + (k + 1) * b_step, c);
            add_lane<V, 2>(y, b + (k + 2) * b_step, c);
            add_lane<V, 3>(y, b + (k + 3) * b_step, c);
          }
        }
#pragma GCC unroll 2
        for (; k < panels[p].count; ++k) add_one<V>(a + k, b + k * b_step, c);
      }
#pragma GCC unroll 16
      for (int i = 0; i < RR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) Lanes::store(at + i * out_step + j * W, c[i][j]);
    }
  }
  static void add_rows(const PanelRows* panels, Index count, Index from, Index to, Index dim, float* c) {
    const Index wide = rounded(dim, 16);
    const RowSums sums{panels, count, from, to, row_step(dim), c, wide};
    for (Index column = 0; column < wide;) {  // even shares: five vectors are 3 + 2, not 4 + 1
      const Index left = (wide - column) / W, shares = (left + RV - 1) / RV;
      const Index v = (left + shares - 1) / shares;
      if (v == 4) {
        if constexpr (RV >= 4) add_columns<4>(sums, column);
      } else if (v == 3) {
        if constexpr (RV >= 3) add_columns<3>(sums, column);
      } else if (v == 2) {
        add_columns<2>(sums, column);
      } else {
        add_columns<1>(sums, column);
      }
      column += v * W;
    }
  }

  static void dots(const void* outs, const void* douts, Index dim, float* sum) {
    const auto *o = static_cast<const float*>(outs), *d = static_cast<const float*>(douts);
    for (int j = 0; j < NV; ++j) {
      F total = Lanes::zero();
      for (Index c = 0; c < dim; ++c) {
        const F x = Lanes::load(o + c * kPanel + j * W);
        const F more = Lanes::fma(x, Lanes::load(d + c * kPanel + j * W), total);
        total = Lanes::select(Lanes::greater(Lanes::abs(x), Lanes::zero()), more,
                              Lanes::select(Lanes::is_nan(x), more, total));
      }
      Lanes::store(sum + j * W, total);
    }
  }

  /// What the lanes of a sweep bring; low: the exponent's d at which a weight is surely 0.
  struct SweepLanes {
    F top, c, low, delta;
  };
  /// p = exp2((s - top) * c) and dS = p * (dp - delta), both +0 where s is -inf.
  static inline __attribute__((always_inline)) void weight_and_slope(F s, F dp, const SweepLanes& lanes, F& p,
                                                                     F& ds) {
    const auto closed = Lanes::greater(Lanes::set(-3.4028235e38f), s);
    p = Lanes::select(closed, Lanes::zero(), weight_of(s, lanes.top, lanes.c, lanes.low));
    ds = Lanes::select(closed, Lanes::zero(), Lanes::mul(p, Lanes::sub(dp, lanes.delta)));
  }
  /// No weight is above 1, but logits of 1e30 differ from a rounded lse by more than an exponent holds.
  static inline __attribute__((always_inline)) F weight_of(F s, F top, F c, F low) {
    const F d = Lanes::min(Lanes::zero(), Lanes::sub(s, top));  // NaN passes: min returns its second operand
    return exp2_product(d, c, low);
  }
  /// One vector of the sweep. General: with a gate and perhaps dropped weights.
  template <bool General>
  static inline __attribute__((always_inline)) void sweep_one(const GradientTile& t, Index at,
                                                              const SweepLanes& lanes, F gate, F& gate_sum) {
    const F s = Lanes::load(t.s + at), dp = Lanes::load(t.dp + at);
    if constexpr (!General) {
      F p, ds;
      weight_and_slope(s, dp, lanes, p, ds);
      Lanes::store(t.s + at, p), Lanes::store(t.dp + at, ds);
    } else {
      const auto closed = Lanes::greater(Lanes::set(-3.4028235e38f), s);
      const F p = Lanes::select(closed, Lanes::zero(), weight_of(s, lanes.top, lanes.c, lanes.low));
      F kept = dp, used = p;
      if (t.drop) {
        const F drop = Lanes::load(t.drop + at);
        const auto keeps = Lanes::greater(drop, Lanes::zero());
        kept = Lanes::select(keeps, Lanes::mul(dp, drop), Lanes::zero());
        used = Lanes::select(keeps, Lanes::mul(p, drop), Lanes::zero());
      }
      gate_sum = Lanes::add(gate_sum, Lanes::select(closed, Lanes::zero(), Lanes::mul(p, kept)));
      const F slope = Lanes::fma(gate, kept, Lanes::sub(Lanes::zero(), lanes.delta));
      Lanes::store(t.s + at, Lanes::mul(used, gate));
      Lanes::store(t.dp + at, Lanes::select(closed, Lanes::zero(), Lanes::mul(p, slope)));
    }
  }
  /// The plain sweep of four rows at a time, where the level has exponentials of many vectors side by side;
  /// returns the first row that is left.
  template <class T = L>
  static Index sweep_fours(const GradientTile& t) {
    if constexpr (!T::own_exp2 || NV != 2) {
      return t.from;
    } else {
      F top[2], c[2], low[2], delta[2];
      for (int j = 0; j < 2; ++j) {
        top[j] = Lanes::load(t.top + j * W), c[j] = Lanes::load(t.factor + j * W), low[j] = lowest_for(c[j]);
        delta[j] = Lanes::load(t.delta + j * W);
      }
      float *const scores = t.s, *const dps = t.dp;
      const Index end = t.to;
      Index k = t.from;
      for (; k + 4 <= end; k += 4) {
        float *s = scores + k * kPanel, *dp = dps + k * kPanel;
        F d[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
          d[i] = Lanes::min(Lanes::zero(), Lanes::sub(Lanes::load(s + i * W), top[i % 2]));
        T::exp2_products(d, c, low);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const auto closed = Lanes::greater(Lanes::set(-3.4028235e38f), Lanes::load(s + i * W));
          const F p = Lanes::select(closed, Lanes::zero(), d[i]);
          const F slope = Lanes::mul(p, Lanes::sub(Lanes::load(dp + i * W), delta[i % 2]));
          Lanes::store(s + i * W, p);
          Lanes::store(dp + i * W, Lanes::select(closed, Lanes::zero(), slope));
        }
      }
      return k;
    }
  }
  template <bool General>
  static void sweep(const GradientTile& t) {
    const Index first = General ? t.from : sweep_fours(t);
    for (int j = 0; j < NV; ++j) {
      const F c = Lanes::load(t.factor + j * W);
      const SweepLanes lanes{Lanes::load(t.top + j * W), c, lowest_for(c), Lanes::load(t.delta + j * W)};
      const F gate = General && t.gate ? Lanes::load(t.gate + j * W) : Lanes::set(1.0f);
      F sum = t.gate_sum ? Lanes::load(t.gate_sum + j * W) : Lanes::zero();
      Index k = first;
      for (; k + 4 <= t.to; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sweep_one<General>(t, (k + i) * kPanel + j * W, lanes, gate, sum);
      for (; k < t.to; ++k) sweep_one<General>(t, k * kPanel + j * W, lanes, gate, sum);
      if (t.gate_sum) Lanes::store(t.gate_sum + j * W, sum);
    }
  }
  static void gradients(const GradientTile& t) {
    if (t.gate || t.drop || t.gate_sum)
      sweep<true>(t);
    else
      sweep<false>(t);
  }

  static void multiply(float* s, Index from, Index to, const float* by) {
    for (Index at = from * kPanel; at < to * kPanel; at += W) {
      const F x = Lanes::load(s + at), y = Lanes::mul(x, Lanes::load(by + at));
      Lanes::store(s + at, Lanes::select(Lanes::greater(Lanes::abs(x), Lanes::zero()), y, x));
    }
  }
  static void alibi_sum(const float* s, Index from, Index to, const float* q_distance, float* sum) {
    for (int j = 0; j < NV; ++j) {
      const F q = Lanes::load(q_distance + j * W);
      F total = Lanes::load(sum + j * W);
      for (Index k = from; k < to; ++k) {
        const F distance = Lanes::abs(Lanes::sub(q, Lanes::set(static_cast<float>(k))));
        total = Lanes::fnma(Lanes::load(s + k * kPanel + j * W), distance, total);
      }
      Lanes::store(sum + j * W, total);
    }
  }
  static void unpanel(const float* o, Index columns, const float* factor, float* out, Index out_step) {
    for (int j = 0; j < NV; ++j) {
      const F by = Lanes::load(factor + j * W);
      for (Index c = 0; c < columns; c += W) {
        const int n = columns - c < W ? static_cast<int>(columns - c) : W;
        F t[W];
        for (int i = 0; i < W; ++i)
          t[i] = i < n ? Lanes::add(Lanes::mul(Lanes::load(o + (c + i) * kPanel + j * W), by), Lanes::zero())
                       : Lanes::zero();
        Lanes::transpose(t);
        for (int i = 0; i < W; ++i) {
          float* at = out + (j * W + i) * out_step + c;
          if (n == W)
            Lanes::store(at, t[i]);
          else
            Lanes::store_part(at, t[i], n);
        }
      }
    }
  }

  /// The passes of gradients, whatever a core multiplies with.
  static constexpr GradientPasses passes() {
    GradientPasses g{};
    g.sweep = gradients, g.multiply = multiply, g.alibi_sum = alibi_sum, g.unpanel = unpanel;
    return g;
  }
  /// The f32 core with its gradients. Two tiles of 64 keys x 64 queries stay in L1 beside the rows they meet.
  static constexpr Core joined(Core c) {
    GradientPasses g = MixGradients<NV>::joined(passes());
    g.step_keys = 64, g.step_rows = 64;
    g.columns = columns, g.row_bytes = row_bytes, g.pack_rows = pack_rows, g.add_rows = add_rows;
    g.weigh_on = c.gradients.weigh_on, g.dots = dots;
    c.gradients = g;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
