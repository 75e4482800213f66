// Passes over a tile of scores S [keys][panel]: queries in the lanes, so no pass ever sums across lanes.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::cpu {
namespace {

using F = Lanes::F;
constexpr float kMinusInf = -__builtin_inff();

/// 2^(d * c) for d * c <= 0, the same bits on every level: whole part by adding 1.5 * 2^23, the rest by a
/// minimax polynomial with p(0) = 1 exactly. Degree 6 is 1.6e-8 off after rounding its coefficients, below
/// half an ulp of f32.
inline F exp2_alike(F d, F c, F lowest) {
  const F magic = Lanes::set(12582912.0f);
  if constexpr (!Lanes::closes_by_n)
    d = Lanes::max(lowest, d);  // NaN passes: max returns its second operand then
  const F n = Lanes::sub(Lanes::fma(d, c, magic), magic);
  const F f = Lanes::fms(d, c, n);
  const F f2 = Lanes::mul(f, f);
  const F high = Lanes::fma(Lanes::set(0.00015353362f), f, Lanes::set(0.0013398875f));
  const F middle = Lanes::fma(Lanes::set(0.009618437f), f, Lanes::set(0.055503324f));
  const F low = Lanes::fma(Lanes::set(0.24022648f), f, Lanes::set(0.6931472f));
  F p = Lanes::fma(high, f2, middle);
  p = Lanes::fma(p, f2, low);
  p = Lanes::fma(p, f, Lanes::set(1.0f));
  return Lanes::scale2(p, n);
}
/// The same for the weights of attention, where a level may sum the polynomial in the order that suits it.
template <class L = Lanes>
inline F exp2_product(F d, F c, F lowest) {
  if constexpr (L::own_exp2)
    return L::exp2_product(d, c, lowest);
  else
    return exp2_alike(d, c, lowest);
}
/// The d at which exp2_product(d, c) is surely 0, never infinite.
inline F lowest_for(F c) {
  return Lanes::max(Lanes::div(Lanes::set(Lanes::lowest_power), c), Lanes::set(-3.4028235e38f));
}
template <int NV>
struct Passes {
  static constexpr int kPanel = NV * Lanes::width, W = Lanes::width;

  static void row_max(const float* s, Index from, Index to, float* top) {
    F m[NV], m2[NV];
    for (int j = 0; j < NV; ++j) m[j] = Lanes::load(top + j * W), m2[j] = m[j];
    Index k = from;
    for (; k + 2 <= to; k += 2)
      for (int j = 0; j < NV; ++j) {
        m[j] = Lanes::max(Lanes::load(s + k * kPanel + j * W), m[j]);
        m2[j] = Lanes::max(Lanes::load(s + (k + 1) * kPanel + j * W), m2[j]);
      }
    for (; k < to; ++k)
      for (int j = 0; j < NV; ++j) m[j] = Lanes::max(Lanes::load(s + k * kPanel + j * W), m[j]);
    for (int j = 0; j < NV; ++j) Lanes::store(top + j * W, Lanes::max(m2[j], m[j]));
  }
  static void advance(float* top, const float* tile_top, const float* factor, float* used, float* shrink) {
    for (int j = 0; j < NV; ++j) {
      const F old = Lanes::load(top + j * W), c = Lanes::load(factor + j * W);
      const F now = Lanes::max(Lanes::load(tile_top + j * W), old);
      const F safe = Lanes::select(Lanes::greater(now, Lanes::set(kMinusInf)), now,
                                   Lanes::select(Lanes::is_nan(now), now, Lanes::zero()));
      Lanes::store(top + j * W, now);
      Lanes::store(used + j * W, safe);
      Lanes::store(shrink + j * W, exp2_product(Lanes::sub(old, safe), c, lowest_for(c)));
    }
  }
  static void add_sum(float* sum, const float* shrink, const float* tile_sum) {
    for (int j = 0; j < NV; ++j)
      Lanes::store(sum + j * W, Lanes::fma(Lanes::load(sum + j * W), Lanes::load(shrink + j * W),
                                           Lanes::load(tile_sum + j * W)));
  }
  /// The statistics of a panel whose top moved by `shrink`, as rebase_stats has them.
  static void rebase(const Stripe& t, const float* old_top, const float* used, const float* shrink) {
    for (int j = 0; j < kPanel; j += W) {
      const F keep = Lanes::load(shrink + j), sum = Lanes::load(t.sum + j);
      const F moved =
          Lanes::mul(Lanes::sub(Lanes::load(old_top + j), Lanes::load(used + j)), Lanes::load(t.factor + j));
      const F delta = Lanes::select(Lanes::greater(sum, Lanes::zero()), moved, Lanes::zero());
      const RowStats& r = *t.stats;
      const F score = Lanes::add(Lanes::load(r.weighted_score + j), Lanes::mul(delta, sum));
      Lanes::store(r.weighted_score + j, Lanes::mul(keep, score));
      Lanes::store(r.square + j, Lanes::mul(Lanes::load(r.square + j), Lanes::mul(keep, keep)));
      Lanes::store(r.distance + j, Lanes::mul(Lanes::load(r.distance + j), keep));
    }
  }
  static void scale(float* s, Index from, Index to, const float* scale) {
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        Lanes::store(at, Lanes::mul(Lanes::load(at), Lanes::load(scale + j * W)));
      }
  }
  static void scale_rows(float* s, Index from, Index to, const RowScales& scales, const std::uint64_t* open) {
    for (Index k = from; k < to; ++k) {
      const F times = Lanes::bcast(scales.at + k * scales.step);
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        const F x = Lanes::mul(Lanes::load(at), times);
        Lanes::store(at, open ? Lanes::select(Lanes::bits(open[k] >> (j * W)), x, Lanes::zero()) : x);
      }
    }
  }
  /// cap * tanh(x), x = s / cap: x P(x^2) below 0.625, 1 - 2 / (e^2x + 1) above.
  static void softcap(float* s, Index from, Index to, float cap) {
    const F up = Lanes::set(cap), down = Lanes::set(1.0f / cap), one = Lanes::set(1.0f),
            minus2 = Lanes::set(-2.0f);
    const F c = Lanes::set(1.44269504f), lowest = lowest_for(c);
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        const F x = Lanes::mul(Lanes::load(at), down), a = Lanes::abs(x), a2 = Lanes::mul(a, a);
        // tanh(a) / a - 1 on [0, 0.625], minimax in a^2 (relative error 4.4e-9)
        F t = Lanes::fma(Lanes::set(kTanh5), a2, Lanes::set(kTanh4));
        t = Lanes::fma(t, a2, Lanes::set(kTanh3));
        t = Lanes::fma(t, a2, Lanes::set(kTanh2));
        t = Lanes::fma(t, a2, Lanes::set(kTanh1));
        const F small = Lanes::fma(Lanes::mul(t, a2), a, a);
        const F e = exp2_product(Lanes::mul(minus2, a), c, lowest);  // e^-2a, never overflows
        const F large = Lanes::div(Lanes::sub(one, e), Lanes::add(one, e));
        const F y = Lanes::mul(Lanes::select(Lanes::greater(a, Lanes::set(0.625f)), large, small), up);
        Lanes::store(at, Lanes::select(Lanes::greater(Lanes::zero(), x), Lanes::sub(Lanes::zero(), y), y));
      }
  }
  static void cap_slope(const float* s, Index from, Index to, float cap, float* out) {
    const F down = Lanes::set(1.0f / cap), one = Lanes::set(1.0f);
    for (Index at = from * kPanel; at < to * kPanel; at += W) {
      const F x = Lanes::mul(Lanes::load(s + at), down);
      Lanes::store(out + at, Lanes::fnma(x, x, one));
    }
  }
  static void alibi(float* s, Index from, Index to, const float* slope, const float* q_distance) {
    for (Index k = from; k < to; ++k) {
      const F key = Lanes::set(static_cast<float>(k));
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        const F distance = Lanes::abs(Lanes::sub(Lanes::load(q_distance + j * W), key));
        Lanes::store(at, Lanes::fnma(Lanes::load(slope + j * W), distance, Lanes::load(at)));
      }
    }
  }
  static void select(float* s, Index from, Index to, const std::uint64_t* open) {
    const F closed = Lanes::set(kMinusInf);
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        Lanes::store(at, Lanes::select(Lanes::bits(open[k] >> (j * W)), Lanes::load(at), closed));
      }
  }
  static void add(float* s, Index from, Index to, const float* term, Index term_step) {
    Index k = from;
    for (; k + W <= to; k += W)
      for (int j = 0; j < NV; ++j) {
        F t[W];
        for (int i = 0; i < W; ++i) t[i] = Lanes::load(term + (j * W + i) * term_step + k);
        Lanes::transpose(t);
        for (int i = 0; i < W; ++i) {
          float* at = s + (k + i) * kPanel + j * W;
          Lanes::store(at, Lanes::add(Lanes::load(at), t[i]));
        }
      }
    for (; k < to; ++k)
      for (int lane = 0; lane < kPanel; ++lane) s[k * kPanel + lane] += term[lane * term_step + k];
  }
  static void shrink(float* o, Index rows, const float* factor) {
    for (Index r = 0; r < rows; ++r)
      for (int j = 0; j < NV; ++j) {
        float* at = o + r * kPanel + j * W;
        Lanes::store(at, Lanes::mul(Lanes::load(at), Lanes::load(factor + j * W)));
      }
  }
  static void join(float* o, const float* other, Index rows, const float* a, const float* b) {
    for (Index r = 0; r < rows; ++r)
      for (int j = 0; j < NV; ++j) {
        float* at = o + r * kPanel + j * W;
        const F old = Lanes::mul(Lanes::load(at), Lanes::load(a + j * W));
        Lanes::store(at, Lanes::fma(Lanes::load(other + r * kPanel + j * W), Lanes::load(b + j * W), old));
      }
  }

  /// One look at W columns: the quotient is corrected by its residual, so o == sum gives exactly 1.
  static F quotient(F o, F inverse, F sum, F gate) {
    const F y = Lanes::mul(o, inverse);
    const F exact = Lanes::fma(Lanes::fnma(y, sum, o), inverse, y);
    return Lanes::mul(Lanes::add(exact, Lanes::zero()), gate);  // adding +0 turns -0 into +0
  }
  static void finish(const float* o, Index value_dim, const float* sum, const float* gate, float* out,
                     Index out_step) {
    for (int j = 0; j < NV; ++j) {
      const F total = Lanes::load(sum + j * W), g = Lanes::load(gate + j * W);
      const F inverse = Lanes::div(Lanes::set(1.0f), total);
      Index c = 0;
      for (; c < value_dim; c += W) {
        const int n = value_dim - c < W ? static_cast<int>(value_dim - c) : W;
        F t[W];
        for (int i = 0; i < W; ++i)
          t[i] =
              i < n ? quotient(Lanes::load(o + (c + i) * kPanel + j * W), inverse, total, g) : Lanes::zero();
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
  /// exp2_product of four rows of S; `clamped`: also what went into them, where the level has its own.
  template <class L = Lanes>
  static inline __attribute__((always_inline)) void exp2_of_four(const float* s, const F (&top)[NV],
                                                                 const F (&c)[NV], const F (&low)[NV],
                                                                 F (&p)[4][NV], float* clamped = nullptr) {
    if constexpr (L::own_exp2 && NV == 2) {
      F d[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) d[i] = L::sub(L::load(s + i * W), top[i % 2]);
      L::exp2_products(d, c, low, clamped);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) p[i / 2][i % 2] = d[i];
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j)
          p[i][j] = exp2_product(L::sub(L::load(s + i * kPanel + j * W), top[j]), c[j], low[j]);
    }
  }
  /// A closed pair stays 0 in a row whose weight is NaN.
  static void place_weights(const float* s, Index from, Index to, const float* factor, const float* top,
                            const float* weight, float* p) {
    const F least = Lanes::set(-3.4028235e38f);
    F c[NV], low[NV], most[NV], w[NV];
    for (int j = 0; j < NV; ++j) {
      c[j] = Lanes::load(factor + j * W), low[j] = lowest_for(c[j]);
      most[j] = Lanes::load(top + j * W), w[j] = Lanes::load(weight + j * W);
    }
    const auto place = [&](Index k, int j, F e) {
      const auto closed = Lanes::greater(least, Lanes::load(s + k * kPanel + j * W));
      e = Lanes::select(closed, Lanes::zero(), Lanes::mul(e, w[j]));
      Lanes::store(p + k * kPanel + j * W, e);
    };
    Index k = from;
    for (; k + 4 <= to; k += 4) {
      F e[4][NV];
      exp2_of_four(s + k * kPanel, most, c, low, e);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) place(k + i, j, e[i][j]);
    }
    for (; k < to; ++k)
      for (int j = 0; j < NV; ++j)
        place(k, j, exp2_product(Lanes::sub(Lanes::load(s + k * kPanel + j * W), most[j]), c[j], low[j]));
  }
  /// exp2((s - top) * factor) of a tile, left in S where `Stores`, and its sum.
  template <bool Stores>
  static void weights_of(const Tile& t) {
    F top[NV], c[NV], low[NV], sum[NV];
    for (int j = 0; j < NV; ++j) {
      top[j] = Lanes::load(t.top + j * W), c[j] = Lanes::load(t.factor + j * W);
      low[j] = lowest_for(c[j]), sum[j] = Lanes::zero();
    }
    float* at = t.s + t.from * kPanel;
    Index k = t.from;
    for (const Index end = t.to - 3; k < end; k += 4, at += 4 * kPanel) {
      F p[4][NV];
      exp2_of_four(at, top, c, low, p);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
          if constexpr (Stores) Lanes::store(at + i * kPanel + j * W, p[i][j]);
          sum[j] = Lanes::add(sum[j], p[i][j]);
        }
    }
    for (; k < t.to; ++k)
      for (int j = 0; j < NV; ++j) {
        const F p = exp2_product(Lanes::sub(Lanes::load(t.s + k * kPanel + j * W), top[j]), c[j], low[j]);
        if constexpr (Stores) Lanes::store(t.s + k * kPanel + j * W, p);
        sum[j] = Lanes::add(sum[j], p);
      }
    for (int j = 0; j < NV; ++j) Lanes::store(t.sum + j * W, sum[j]);
  }
  /// What a lane has gathered of a tile on its way.
  struct LaneStats {
    F sum, score, square, distance, best, best_key;  // score: of p * d, below 0.6 / c, and c is above 1e-30

    LaneStats(const Tile& t, const RowStats& r, int j)
        : sum(Lanes::load(t.sum + j * W)),
          score(Lanes::zero()),
          square(Lanes::load(r.square + j * W)),
          distance(Lanes::load(r.distance + j * W)),
          best(Lanes::load(r.best + j * W)),
          best_key(Lanes::set(-1.0f)) {}
    /// Key k with score s, d = s - top and weight p.
    inline __attribute__((always_inline)) void add(F s, F d, F p, F q, F key) {
      sum = Lanes::add(sum, p);
      score = Lanes::fma(p, d, score);
      square = Lanes::fma(p, p, square);
      distance = Lanes::fma(p, Lanes::abs(Lanes::sub(q, key)), distance);
      const auto better = Lanes::greater(s, best);
      best = Lanes::select(better, s, best), best_key = Lanes::select(better, key, best_key);
    }
    void store(const Tile& t, const RowStats& r, int j, Index key0) const {
      Lanes::store(t.sum + j * W, sum);
      const F old = Lanes::load(r.weighted_score + j * W), c = Lanes::load(t.factor + j * W);
      Lanes::store(r.weighted_score + j * W, Lanes::fma(score, c, old)),
          Lanes::store(r.square + j * W, square);
      Lanes::store(r.distance + j * W, distance), Lanes::store(r.best + j * W, best);
      float found[W];
      Lanes::store(found, best_key);
      for (int i = 0; i < W; ++i)
        if (found[i] >= 0.0f) r.best_key[j * W + i] = key0 + static_cast<Index>(found[i]);
    }
  };
  /// weights_stats where the level has exponentials of many vectors side by side, which leave no registers
  /// for statistics: those come after, so many rows at a time. Returns the first row that is left.
  static constexpr Index kBeside = 32;
  template <class L = Lanes>
  static Index stats_of_fours(const Tile& t, const RowStats& r, const float* q_distance, Index key0) {
    if constexpr (!L::own_exp2 || NV != 2) {
      return t.from;
    } else {
      F top[2], c[2], low[2], q[2];
      for (int j = 0; j < 2; ++j) {
        top[j] = L::load(t.top + j * W), c[j] = L::load(t.factor + j * W), low[j] = lowest_for(c[j]);
        q[j] = L::load(q_distance + j * W);
      }
      LaneStats left(t, r, 0), right(t, r, 1);  // an array would live in memory
      const Index end = t.from + (t.to - t.from) / 4 * 4;
      F key = L::set(static_cast<float>(t.from));
      for (Index k = t.from; k < end; k += kBeside) {
        alignas(64) float weights[kBeside * kPanel], distances[kBeside * kPanel];
        float* const s = t.s + k * kPanel;
        const Index n = (end - k < kBeside ? end - k : kBeside) * kPanel;
        for (Index at = 0; at < n; at += 4 * kPanel) {
          F p[4][2];
          exp2_of_four(s + at, top, c, low, p, distances + at);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) L::store(weights + at + i * W, p[i / 2][i % 2]);
        }
        for (Index at = 0; at < n; at += kPanel) {
          const F p = L::load(weights + at), w = L::load(weights + at + W);
          left.add(L::load(s + at), L::load(distances + at), p, q[0], key);
          right.add(L::load(s + at + W), L::load(distances + at + W), w, q[1], key);
          L::store(s + at, p), L::store(s + at + W, w);
          key = L::add(key, L::set(1.0f));
        }
      }
      left.store(t, r, 0, key0), right.store(t, r, 1, key0);
      return end;
    }
  }
  /// The same weights and sum, with statistics beside. A closed pair (s = -inf) counts nowhere: its d is
  /// finite, its p is 0.
  static void weights_stats(const Tile& t, const RowStats& r, const float* q_distance, Index key0) {
    for (int j = 0; j < kPanel; j += W) Lanes::store(t.sum + j, Lanes::zero());
    const Index first = stats_of_fours(t, r, q_distance, key0);
    for (int j = 0; j < NV; ++j) {
      const F top = Lanes::load(t.top + j * W), c = Lanes::load(t.factor + j * W), low = lowest_for(c);
      const F q = Lanes::load(q_distance + j * W);
      LaneStats lane(t, r, j);
      for (Index k = first; k < t.to; ++k) {
        float* at = t.s + k * kPanel + j * W;
        const F s = Lanes::load(at), d = Lanes::max(low, Lanes::sub(s, top)), p = exp2_product(d, c, low);
        Lanes::store(at, p);
        lane.add(s, d, p, q, Lanes::set(static_cast<float>(k)));
      }
      lane.store(t, r, j, key0);
    }
  }
  static void dropout(float* s, Index from, Index to, const TileDropout& t) {
    using U = Lanes::U;
    const F kept = Lanes::set(t.keep_scale);
    const std::uint32_t *head = t.head, *query = t.query;
    const Index key0 = t.key0;
    const std::uint64_t seed = t.seed;
    const std::uint32_t sequence = t.sequence, threshold = t.threshold;
    for (Index k = from; k < to;
         k += 4)  // `from` is a multiple of 4 and key0 of a granule: one Philox block serves four keys
      for (int j = 0; j < NV; ++j) {
        U c0 = Lanes::setu(static_cast<std::uint32_t>((key0 + k) >> 2)), c1 = Lanes::loadu(query + j * W);
        U c2 = Lanes::loadu(head + j * W), c3 = Lanes::setu(sequence);
        auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
          U low0, high0, low1, high1;
          Lanes::mulu(c0, Lanes::setu(0xD2511F53u), low0, high0);
          Lanes::mulu(c2, Lanes::setu(0xCD9E8D57u), low1, high1);
          c0 = Lanes::xoru(Lanes::xoru(high1, c1), Lanes::setu(k0));
          c2 = Lanes::xoru(Lanes::xoru(high0, c3), Lanes::setu(k1));
          c1 = low1, c3 = low0;
          k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        const U word[4] = {c0, c1, c2, c3};
        for (int i = 0; i < 4 && k + i < to; ++i) {
          float* at = s + (k + i) * kPanel + j * W;
          const auto keep = Lanes::not_below(word[i], Lanes::setu(threshold));
          Lanes::store(at, Lanes::select(keep, Lanes::mul(Lanes::load(at), kept), Lanes::zero()));
        }
      }
  }

  /// The passes of a core; its own functions join them.
  static constexpr ScorePasses table() {
    return {.weights = weights_of<true>,
            .weights_plain = weights_of<true>,
            .weights_stats = weights_stats,
            .sum_weights = weights_of<false>,
            .place_weights = place_weights,
            .row_max = row_max,
            .scale = scale,
            .scale_rows = scale_rows,
            .softcap = softcap,
            .cap_slope = cap_slope,
            .alibi = alibi,
            .select = select,
            .add = add,
            .dropout = dropout,
            .advance = advance,
            .add_sum = add_sum,
            .shrink = shrink,
            .join = join,
            .finish = finish};
  }

  static constexpr float kTanh1 = -0.3333328f, kTanh2 = 0.133314416f, kTanh3 = -0.053739708f,
                         kTanh4 = 0.020639064f, kTanh5 = -0.00570496f;
};

}  // namespace
}  // namespace headwise::cpu
