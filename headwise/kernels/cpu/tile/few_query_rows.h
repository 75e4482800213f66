// Few query rows against long KV: keys in the lanes for scores, value columns in the lanes for sums.
// Every score and every sum is the chain of the f32 core. Included by every ISA level after f32_core.h;
// internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/few_scores.h"

namespace headwise::cpu {
namespace {

/// Base is an F32Core with a panel of one vector; Most: rows up to which this is quicker than packing keys.
template <class Base, int Most = 64>
struct FewQueryRows : FewScores<Base> {
  using Scores = FewScores<Base>;
  using Scores::few_scores, Scores::fetch_later, Scores::scores_of, Scores::turn_rows;
  using Scores::kPanel, Scores::kStep, Scores::kVectors, Scores::kSums, Scores::kRowsAhead, Scores::W;
  template <int N>
  using Number = typename Scores::template Number<N>;

  /// Weights of keys from .. to: of key k and row r at p[k * key_step + r * row_step]. Where lanes multiply,
  /// the rows of a panel lie side by side; those of one row may have its next keys beside it.
  struct Weights {
    const float* p;
    Index key_step, row_step, from, to;
    float* sum;  // of each row, one chain over keys; null: nobody asks
  };
  /// Weights of `count` rows, the values they meet and where their sums go, rows of value_dim.
  struct Weighing {
    Weights weights;
    int count;
    const Rows& values;
    Index first, value_dim;
    float* sums;
  };
  /// R queries x V vectors of value columns from d on: one chain over keys. The first columns alone add up
  /// the weights and fetch ahead: with both in all columns, decode of four rows takes 1.16x as long on AVX2.
  template <RowType T, int R, int V, bool First>
  static void weighed(const Weighing& weighing, int row, Index d, const Ahead& ahead, F& unusual) {
    using E = Element<T>;
    constexpr bool kAsks = V <= 16;
    const Weights& t = weighing.weights;
    const Rows& values = weighing.values;
    const Index first = weighing.first, sums_step = weighing.value_dim;
    float* sums = weighing.sums;
    Fetch fetch(ahead);
    const Index lines = First && row == 0 ? lines_of(ahead) : 0;
    constexpr int kTotals = Lanes::multiplies_by_lane ? 1 : R;  // of a row each, or of a lane
    F c[R][V], total[kTotals];
#pragma GCC unroll 32
    for (F& x : total) x = Lanes::zero();
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 32
      for (int v = 0; v < V; ++v) c[r][v] = Lanes::zero();
    const Index step = values.row_step, key_step = t.key_step, row_step = t.row_step;
    const auto* from = static_cast<const typename E::type*>(values.data) + (first + t.from) * step + d;
    const float* weight = t.p + t.from * key_step + row * row_step;
    RowScales scales = scales_from(values, first + t.from);  // of 8 bits
    for (Index k = t.from; k < t.to; ++k, from += step, weight += key_step, scales.at += scales.step) {
      if constexpr (First) fetch.next(lines);
      if constexpr (kAsks && Lanes::fetches_rows) {
        constexpr Index kRead = V * W * Scores::template kBytes<T>;
        if (step == sums_step)
          Scores::template fetch_later<true>(from, step * kRowsAhead, kRead);
        else
          fetch_later(from, step * kRowsAhead, kRead);
      }
      const F by = is_eight_bits(T) ? Lanes::bcast(scales.at) : Lanes::zero();
      const auto scaled = [&](F p) { return is_eight_bits(T) ? Lanes::mul(p, by) : p; };
      F w[kTotals];
#pragma GCC unroll 4
      for (int r = 0; r < kTotals; ++r) {
        const F p = Lanes::multiplies_by_lane ? Lanes::load(weight) : Lanes::bcast(weight + r * row_step);
        if constexpr (First) total[r] = Lanes::add(total[r], p);
        w[r] = scaled(p);
      }
      constexpr int N = V % kVectors == 0 ? kVectors : 1;  // vectors that are loaded together
#pragma GCC unroll 32
      for (int v = 0; v < V; v += N) {
        F x[N];
        if constexpr (N == kVectors)
          Scores::template load_sixteen<T>(from + v * W, x);
        else
          x[0] = E::load(from + v * W);
        if constexpr (Lanes::multiplies_by_lane) {
          Scores::add_by_lane(w[0], x, c, v);
        } else {
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i) c[r][v + i] = Lanes::fma(x[i], w[r], c[r][v + i]);
        }
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 32
      for (int v = 0; v < V; ++v) {
        unusual = Lanes::fma(c[r][v], Lanes::zero(), unusual);
        Lanes::store(sums + (row + r) * sums_step + d + v * W, c[r][v]);
      }
    if constexpr (First) {
      if (!t.sum) return;
#pragma GCC unroll 32
      for (int r = 0; r < R; ++r) {
        float lanes[W];
        Lanes::store(lanes, total[r % kTotals]);
        t.sum[row + r] = lanes[kTotals == 1 ? r : 0];
      }
    }
  }
  template <RowType T>
  static bool weighed_rows(const Weighing& t, const Ahead& ahead) {
    const int count = t.count;
    const Index value_dim = t.value_dim;
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (int row = 0; row < count;) {
      const int left = count - row, rows = left > 2 ? 4 : left;
      const auto each = [&](auto rows_taken) {
        constexpr int R = decltype(rows_taken)::value, most = W == 4 ? 16 : 8,
                      V = kSums / R < most ? kSums / R : most;
        Index d = 0;
        const auto columns = [&](auto vectors) {
          constexpr int N = decltype(vectors)::value;
          if (d == 0 && N * W <= value_dim) weighed<T, R, N, true>(t, row, 0, ahead, unusual), d = N * W;
          for (; d + N * W <= value_dim; d += N * W) weighed<T, R, N, false>(t, row, d, ahead, unusual);
        };
        if constexpr (Scores::template streams<T>(R))  // a few sums more than there are registers
          if (t.values.row_step == value_dim) columns(Number<32>{});
        columns(Number<V>{});
        if constexpr (V > 4) columns(Number<4>{});
        columns(Number<1>{});
      };
      if (rows == 4)
        each(Number<4>{});
      else if (rows == 2)
        each(Number<2>{});
      else
        each(Number<1>{});
      row += rows;
    }
    return !Lanes::any(Lanes::is_nan(unusual));
  }
  static bool weighed_rows(const Weighing& t, const Ahead& ahead) {
    switch (t.values.type) {
      case RowType::f32: return weighed_rows<RowType::f32>(t, ahead);
      case RowType::bf16: return weighed_rows<RowType::bf16>(t, ahead);
      case RowType::f16: return weighed_rows<RowType::f16>(t, ahead);
      case RowType::i8: return weighed_rows<RowType::i8>(t, ahead);
      case RowType::e4m3: return weighed_rows<RowType::e4m3>(t, ahead);
    }
    return false;
  }
  static bool weigh_few(const Tile& t, const FewWeighTask& task) {
    const Weights weights{t.s, kPanel, 1, t.from, t.to, nullptr};
    if (!weighed_rows({weights, task.count, task.values, task.first, task.value_dim, task.sums}, task.ahead))
      return false;
    take_sums(task.sums, task.count, task.value_dim, task.shrink, task.o);
    return true;
  }
  /// o = o * shrink + sums, rows of value_dim.
  static void take_sums(const float* sums, int count, Index value_dim, const float* shrink, float* o) {
    for (Index r = 0; r < count; ++r) {
      const F keep = Lanes::bcast(shrink + r);
      for (Index at = r * value_dim; at < (r + 1) * value_dim; at += W)
        Lanes::store(o + at, Lanes::fma(Lanes::load(o + at), keep, Lanes::load(sums + at)));
    }
  }

  /// All steps of one granule with keys in the lanes throughout. S would have a vector for every key, most of
  /// it idle, and nothing is fetched while it becomes weights.
  static bool few_stripe(const Stripe& t, const FewStripeTask& task) {
    const int count = task.count;
    alignas(64) float p[kPanel * kStep], top[kPanel], tile_top[kPanel], used[kPanel], shrink[kPanel],
        sum[kPanel] = {};
    scores_of({t.queries, count, task.keys, task.first, t.from, t.to, task.dim, task.to_values, task.scratch},
              p);
    const Index end = rounded(t.to, W);
    for (int r = 0; r < kPanel; ++r) top[r] = t.top[r], tile_top[r] = kMinusInf;
    for (int r = 0; r < count; ++r) {
      float* row = p + r * kStep;
      for (Index k = t.from; t.open && k < t.to; ++k)
        if (!(t.open[k] >> r & 1u)) row[k] = kMinusInf;
      for (Index k = t.to; k < end; ++k) row[k] = kMinusInf;
      F most = Lanes::set(kMinusInf);
      for (Index k = t.from; k < end; k += W) most = Lanes::max(Lanes::load(row + k), most);
      float lanes[W];
      Lanes::store(lanes, most);
      for (const float x : lanes) tile_top[r] = x > tile_top[r] ? x : tile_top[r];
    }
    Passes<1>::advance(top, tile_top, t.factor, used, shrink);
    for (Index r = count; r < rounded(count, 4); ++r)  // three rows are weighed as four
      for (Index k = t.from; k < end; ++k) p[r * kStep + k] = 0.0f;
    for (int r = 0; r < count; ++r) {
      const F most = Lanes::bcast(used + r), c = Lanes::bcast(t.factor + r), low = lowest_for(c);
      float* row = p + r * kStep;
      for (Index k = t.from; k < end; k += W)
        Lanes::store(row + k, exp2_product(Lanes::sub(Lanes::load(row + k), most), c, low));
    }
    alignas(64) float side_by_side[Lanes::multiplies_by_lane ? kPanel * kStep : 1];
    Weights weights{p, 1, kStep, t.from, t.to, sum};
    if (Lanes::multiplies_by_lane && count > 1) {
      turn_rows(p, count, t.from, end, side_by_side);
      weights.p = side_by_side, weights.key_step = kPanel, weights.row_step = 1;
    }
    if (!weighed_rows({weights, count, task.values, task.first, task.value_dim, task.sums}, task.to_keys))
      return false;
    take_sums(task.sums, count, task.value_dim, shrink, t.o);
    for (int r = 0; r < count; ++r) t.top[r] = top[r], t.sum[r] = __builtin_fmaf(t.sum[r], shrink[r], sum[r]);
    return true;
  }

  static constexpr Core table() {
    Core c = Base::table();
    c.few = {.rows = Most, .scores = few_scores, .weigh = weigh_few, .stripe = few_stripe};
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
