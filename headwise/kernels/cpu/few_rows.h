// Few query rows against long KV: keys in the lanes for scores, value columns in the lanes for sums.
// Every score and every sum is the chain of the f32 core. Included by every ISA level after f32_core.h;
// internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/f32_core.h"

namespace headwise::cpu {
namespace {

/// Base is an F32Core with a panel of one vector.
template <class Base>
struct FewRows : Base {
  static constexpr int W = Lanes::width, kPanel = Base::kPanel;
  static constexpr int kBlock = 16, kVectors = kBlock / W;  // keys that lie together, vectors of them
  static constexpr int kSums = W == 8 ? 8 : 16;             // registers for sums: AVX2 has 16 in all
  static_assert(kPanel == W);

  template <int N>
  struct Number {
    static constexpr int value = N;
  };

  /// Rows of queries at a time, blocks of keys at a time: enough chains to hide the latency of one.
  static constexpr int rows_for(int left) {
    constexpr int most = kSums / kVectors < W ? kSums / kVectors : W;
    return left >= 8 && most >= 8 ? 8 : left > 2 && most >= 4 ? 4 : left > 1 ? 2 : 1;
  }
  static constexpr int blocks_for(int rows) {
    return rows == 1 ? (W == 16 ? 4 : 2) : rows == 2 && W > 4 ? 2 : 1;
  }

  static constexpr Index kMost = 4 * kBlock;      // keys at a time
  static constexpr Index kStep = Base::kGranule;  // scores of one query to those of the next
  template <RowType T>
  static constexpr Index kBytes = sizeof(typename Element<T>::type);

  /// Where nothing else looks far enough ahead (Neoverse N1): `bytes` of what is read so many numbers later.
  static constexpr Index kRowsAhead = 16;
  template <class T>
  static inline __attribute__((always_inline)) void fetch_later(const T* from, Index ahead, Index bytes) {
    if constexpr (Lanes::fetches_rows)
      for (Index at = 0; at < bytes; at += 64) {
        const auto place = reinterpret_cast<std::uintptr_t>(from) +
                           static_cast<std::uintptr_t>(ahead * static_cast<Index>(sizeof(T)) + at);
        __builtin_prefetch(reinterpret_cast<const void*>(place), 0, 2);
      }
  }
  /// sums[r][g * 16 + key] = one chain over dim for R queries x G blocks [dim][16] of keys.
  template <RowType T, int R, int G>
  static void products(const float* q, const typename Element<T>::type* keys, Index block, Index dim,
                       Fetch& fetch, Index lines, float* sums) {
    constexpr int V = G * kVectors;
    F c[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) c[r][v] = Lanes::zero();
    for (Index d = 0; d < dim; ++d) {
      fetch.next(lines);
      for (int g = 0; g < G; ++g) fetch_later(keys + g * block + d * kBlock, G * block, kBlock * kBytes<T>);
      F x[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        x[v] = Element<T>::load(keys + v / kVectors * block + d * kBlock + v % kVectors * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F y = Lanes::bcast(q + d * kPanel + r);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) c[r][v] = Lanes::fma(x[v], y, c[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) Lanes::store(sums + r * kStep + v * W, c[r][v]);
  }

  /// All rows of the panel against `blocks` blocks: sums [panel][kStep].
  template <RowType T>
  static void panel_products(const float* q, int count, const void* packed, Index blocks, Index dim,
                             Fetch& fetch, Index lines, float* sums) {
    const auto* keys = static_cast<const typename Element<T>::type*>(packed);
    const Index block = dim * kBlock;
    for (int r = 0; r < count;) {
      const int rows = rows_for(count - r);
      const auto each = [&](auto rows_taken) {
        constexpr int R = decltype(rows_taken)::value, G = blocks_for(R);
        const auto each_step = [&](int taken) {
          return r == 0 ? (taken * kBlock * lines + dim - 1) / dim : 0;
        };
        Index b = 0;
        for (; b + G <= blocks; b += G)
          products<T, R, G>(q + r, keys + b * block, block, dim, fetch, each_step(G),
                            sums + r * kStep + b * kBlock);
        for (; b < blocks; ++b)
          products<T, R, 1>(q + r, keys + b * block, block, dim, fetch, each_step(1),
                            sums + r * kStep + b * kBlock);
      };
      if (rows == 8)
        each(Number < kPanel >= 8 ? 8 : 4 > {});
      else if (rows == 4)
        each(Number<4>{});
      else if (rows == 2)
        each(Number<2>{});
      else
        each(Number<1>{});
      r += rows;
    }
  }

  static bool whole_rows(const Rows& rows, Index dim) {
    return rows.column_step == 1 && rows.begin == 0 && rows.end == dim && dim % W == 0;
  }
  /// The numbers of up to 16 rows from row `first` on -> out [dim][16] f32; rows from `count` on are 0.
  template <RowType T>
  static void gather_block(const Rows& rows, Index first, Index count, Index dim, Fetch& fetch, Index lines,
                           float* out) {
    using E = Element<T>;
    if (count == kBlock && whole_rows(rows, dim)) {
      const auto* from = static_cast<const typename E::type*>(rows.data) + first * rows.row_step;
      const Index each_step = (kBlock * lines * W + dim - 1) / dim;
      for (Index d = 0; d < dim; d += W) {
        fetch.next(each_step);
        if (d * kBytes<T> % 64 == 0)
          for (int i = 0; i < kBlock; ++i)
            fetch_later(from + i * rows.row_step + d, kRowsAhead * rows.row_step, 64);
        for (int b = 0; b < kBlock; b += W) {
          F t[W];
#pragma GCC unroll 16
          for (int i = 0; i < W; ++i) t[i] = E::load(from + (b + i) * rows.row_step + d);
          Lanes::transpose(t);
#pragma GCC unroll 16
          for (int i = 0; i < W; ++i) Lanes::store(out + (d + i) * kBlock + b, t[i]);
        }
      }
      return;
    }
    constexpr Index kPart = 64;
    float line[kPart];
    for (Index i = 0; i < kBlock; ++i)
      for (Index c0 = 0; c0 < dim; c0 += kPart) {
        const Index n = dim - c0 < kPart ? dim - c0 : kPart;
        if (i < count) load_row<T>(columns_from(numbers_of(rows), c0, dim), first + i, n, line);
        for (Index c = 0; c < n; ++c) out[(c0 + c) * kBlock + i] = i < count ? line[c] : 0.0f;
      }
  }

  /// `R` queries x the 16 keys of whole rows from row `first` on: turned in registers and multiplied there.
  /// What is turned through memory waits for it while nothing is fetched (one query, AVX-512, f32: 86 % of
  /// the read bandwidth that way, 95 % this way).
  template <RowType T, int R, class L = Lanes>
  static void turned_products(const float* q, const Rows& rows, Index first, Index dim, Fetch& fetch,
                              Index lines, float* sums) {
    using E = Element<T>;
    const auto* from = static_cast<const typename E::type*>(rows.data) + first * rows.row_step;
    F c[R][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) c[r][v] = L::zero();
    const Index each_step = (kBlock * lines + dim - 1) / dim;
    for (Index d = 0; d < dim; d += W) {
      if (rows.row_step == dim)  // memory gives more in the order it lies (N1: 12.7 -> 10.6 ms of 32k keys)
        fetch_later(from + d * kBlock, kRowsAhead * dim, W * kBlock * kBytes<T>);
      else if (d * kBytes<T> % 64 == 0)
        for (int i = 0; i < kBlock; ++i)
          fetch_later(from + i * rows.row_step + d, kRowsAhead * rows.row_step, 64);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        F t[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) t[i] = E::load(from + (v * W + i) * rows.row_step + d);
        L::transpose(t);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) {
          if (i % 4 == 0) fetch.next(4 * each_step);
          add_turned<R, L>(q + (d + i) * kPanel, t[i], v, c);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) L::store(sums + r * kStep + v * W, c[r][v]);
  }
  /// One column of W keys times what the R queries have there.
  template <int R, class L>
  static inline __attribute__((always_inline)) void add_turned(const float* q, F keys, int v,
                                                               F (&c)[R][kVectors]) {
    if constexpr (L::multiplies_by_lane) {
      const F y = L::load(q);
      c[0][v] = L::template fma_lane<0>(keys, y, c[0][v]);
      if constexpr (R > 1) c[1][v] = L::template fma_lane<1>(keys, y, c[1][v]);
      if constexpr (R > 2) c[2][v] = L::template fma_lane<2>(keys, y, c[2][v]);
      if constexpr (R > 2) c[3][v] = L::template fma_lane<3>(keys, y, c[3][v]);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) c[r][v] = L::fma(keys, L::bcast(q + r), c[r][v]);
    }
  }
  /// The same for the first `count` queries; false: some other way is needed.
  template <RowType T>
  static bool turned(const float* q, int count, const Rows& rows, Index first, Index keys, Index dim,
                     Fetch& fetch, Index lines, float* sums) {
    if constexpr (W == kBlock || Lanes::multiplies_by_lane) {
      if (keys < kBlock || count > (W == kBlock ? 8 : W) || !whole_rows(rows, dim)) return false;
      if (count == 1)
        turned_products<T, 1>(q, rows, first, dim, fetch, lines, sums);
      else if (count == 2)
        turned_products<T, 2>(q, rows, first, dim, fetch, lines, sums);
      else if (count <= 4)
        turned_products<T, 4>(q, rows, first, dim, fetch, lines, sums);
      else
        turned_products<T, W == kBlock ? 8 : 4>(q, rows, first, dim, fetch, lines, sums);
      return true;
    }
    return false;
  }

  /// What each of n keys from row `first` on counts, into the sums of `count` queries.
  static void scale_sums(const Rows& rows, Index first, Index n, int count, float* sums) {
    const RowScales scales = scales_from(rows, first);
    for (Index k = 0; k < n; k += W) {
      const int some = n - k < W ? static_cast<int>(n - k) : W;
      F times;
      if (scales.step == 1) {
        times = Lanes::load_part(scales.at + k, some);
      } else {
        float each[W] = {};
        for (int i = 0; i < some; ++i) each[i] = scales.at[(k + i) * scales.step];
        times = Lanes::load(each);
      }
      for (int r = 0; r < count; ++r) {
        float* at = sums + r * kStep + k;
        Lanes::store(at, Lanes::mul(Lanes::load(at), times));
      }
    }
  }

  /// Scores of keys first + from .. first + to, filled up to a multiple of 16: p[query][kStep].
  template <RowType T>
  static void scores_of(const float* q, int count, const Rows& rows, Index first, Index from, Index to,
                        Index dim, const Ahead& ahead, float* scratch, float* p) {
    const Index lines = lines_of(ahead);
    Fetch fetch(ahead);
    for (Index k = from; k < to; k += kMost) {
      const Index n = to - k < kMost ? to - k : kMost, blocks = (n + kBlock - 1) / kBlock;
      float* sums = p + k;
      if (rows.block > 0) {
        const auto* keys = static_cast<const typename Element<T>::type*>(rows.data);
        panel_products<T>(q, count, keys + (first + k) / kBlock * rows.block, blocks, dim, fetch, lines,
                          sums);
      } else {
        Index b = 0;  // blocks from b on go through scratch
        while (b < blocks && turned<T>(q, count, rows, first + k + b * kBlock, n - b * kBlock, dim, fetch,
                                       lines, sums + b * kBlock))
          ++b;
        for (Index i = b; i < blocks; ++i) {
          const Index left = n - i * kBlock;
          gather_block<T>(rows, first + k + i * kBlock, left < kBlock ? left : kBlock, dim, fetch, lines,
                          scratch + i * kBlock * dim);
        }
        panel_products<RowType::f32>(q, count, scratch + b * kBlock * dim, blocks - b, dim, fetch, 0,
                                     sums + b * kBlock);
      }
      if constexpr (is_eight_bits(T)) scale_sums(rows, first + k, n, count, sums);
    }
  }
  static void scores_of(const void* queries, int count, const Rows& rows, Index first, Index from, Index to,
                        Index dim, const Ahead& ahead, void* scratch, float* p) {
    const auto* q = static_cast<const float*>(queries);
    auto* room = static_cast<float*>(scratch);
    switch (rows.type) {
      case RowType::f32: return scores_of<RowType::f32>(q, count, rows, first, from, to, dim, ahead, room, p);
      case RowType::bf16:
        return scores_of<RowType::bf16>(q, count, rows, first, from, to, dim, ahead, room, p);
      case RowType::f16: return scores_of<RowType::f16>(q, count, rows, first, from, to, dim, ahead, room, p);
      case RowType::i8: return scores_of<RowType::i8>(q, count, rows, first, from, to, dim, ahead, room, p);
      case RowType::e4m3:
        return scores_of<RowType::e4m3>(q, count, rows, first, from, to, dim, ahead, room, p);
    }
  }
  static void few_scores(const void* queries, int count, const Rows& rows, Index first, Index from, Index to,
                         Index dim, const Ahead& ahead, void* scratch, float* s) {
    alignas(64) float p[kPanel * kStep];
    scores_of(queries, count, rows, first, from, to, dim, ahead, scratch, p);
    const Index end = rounded(to, kBlock);
    if (count <= 2) {  // lanes of no query keep what they held: nobody reads them
      for (Index k = from; k < end; ++k)
        for (int r = 0; r < count; ++r) s[k * kPanel + r] = p[r * kStep + k];
      return;
    }
    for (Index k = from; k < end; k += W) {
      F t[W];
      for (int r = 0; r < W; ++r) t[r] = r < count ? Lanes::load(p + r * kStep + k) : Lanes::zero();
      Lanes::transpose(t);
      for (int j = 0; j < W; ++j) Lanes::store(s + (k + j) * kPanel, t[j]);
    }
  }

  /// Weights of keys from .. to: of key k and row r at p[k * key_step + r * row_step].
  struct Weights {
    const float* p;
    Index key_step, row_step, from, to;
    float* sum;  // of each row, one chain over keys; null: nobody asks
  };
  /// R queries x V vectors of value columns from d on: one chain over keys. The sums of weights come with the
  /// first columns.
  template <RowType T, int R, int V>
  static void weighed(const Weights& t, int row, const Rows& values, Index first, Index d, float* sums,
                      Index sums_step, Fetch fetch, Index lines, F& unusual) {
    using E = Element<T>;
    F c[R][V], total[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = Lanes::zero();
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) c[r][v] = Lanes::zero();
    const Index step = values.row_step, key_step = t.key_step, row_step = t.row_step;
    const auto* from = static_cast<const typename E::type*>(values.data) + (first + t.from) * step + d;
    const float* weight = t.p + t.from * key_step + row * row_step;
    RowScales scales = scales_from(values, first + t.from);  // of 8 bits
    for (Index k = t.from; k < t.to; ++k, from += step, weight += key_step, scales.at += scales.step) {
      fetch.next(lines);
      fetch_later(from, step * kRowsAhead, V * W * kBytes<T>);
      F x[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) x[v] = E::load(from + v * W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F p = Lanes::bcast(weight + r * row_step);
        total[r] = Lanes::add(total[r], p);
        const F w = is_eight_bits(T) ? Lanes::mul(p, Lanes::bcast(scales.at)) : p;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) c[r][v] = Lanes::fma(x[v], w, c[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        unusual = Lanes::fma(c[r][v], Lanes::zero(), unusual);
        Lanes::store(sums + (row + r) * sums_step + d + v * W, c[r][v]);
      }
    if (!t.sum || d > 0) return;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float same[W];
      Lanes::store(same, total[r]);
      t.sum[row + r] = same[0];
    }
  }
  template <RowType T>
  static bool weighed_rows(const Weights& t, int count, const Rows& values, Index first, Index value_dim,
                           const Ahead& ahead, float* sums) {
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (int row = 0; row < count;) {
      const int left = count - row, rows = left > 2 ? 4 : left;
      const auto each = [&](auto rows_taken) {
        constexpr int R = decltype(rows_taken)::value, most = W == 4 ? 16 : 8,
                      V = kSums / R < most ? kSums / R : most;
        Index d = 0;
        const auto columns = [&](auto vectors) {
          constexpr int N = decltype(vectors)::value;
          for (; d + N * W <= value_dim; d += N * W)
            weighed<T, R, N>(t, row, values, first, d, sums, value_dim, Fetch(ahead),
                             row + d == 0 ? lines_of(ahead) : 0, unusual);
        };
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
  static bool weighed_rows(const Weights& t, int count, const Rows& values, Index first, Index value_dim,
                           const Ahead& ahead, float* sums) {
    switch (values.type) {
      case RowType::f32: return weighed_rows<RowType::f32>(t, count, values, first, value_dim, ahead, sums);
      case RowType::bf16: return weighed_rows<RowType::bf16>(t, count, values, first, value_dim, ahead, sums);
      case RowType::f16: return weighed_rows<RowType::f16>(t, count, values, first, value_dim, ahead, sums);
      case RowType::i8: return weighed_rows<RowType::i8>(t, count, values, first, value_dim, ahead, sums);
      case RowType::e4m3: return weighed_rows<RowType::e4m3>(t, count, values, first, value_dim, ahead, sums);
    }
    return false;
  }
  static bool weigh_few(const Tile& t, int count, const Rows& values, Index first, Index value_dim,
                        const float* shrink, const Ahead& ahead, float* sums, float* o) {
    if (!weighed_rows({t.s, kPanel, 1, t.from, t.to, nullptr}, count, values, first, value_dim, ahead, sums))
      return false;
    take_sums(sums, count, value_dim, shrink, o);
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
  static bool few_stripe(const Stripe& t, int count, const Rows& keys, const Rows& values, Index first,
                         Index dim, Index value_dim, const Ahead& to_values, const Ahead& to_keys,
                         void* scratch, float* sums) {
    alignas(64) float p[kPanel * kStep], top[kPanel], tile_top[kPanel], used[kPanel], shrink[kPanel],
        sum[kPanel] = {};
    scores_of(t.queries, count, keys, first, t.from, t.to, dim, to_values, scratch, p);
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
    if (!weighed_rows({p, 1, kStep, t.from, t.to, sum}, count, values, first, value_dim, to_keys, sums))
      return false;
    take_sums(sums, count, value_dim, shrink, t.o);
    for (int r = 0; r < count; ++r) t.top[r] = top[r], t.sum[r] = __builtin_fmaf(t.sum[r], shrink[r], sum[r]);
    return true;
  }

  static constexpr Core table() {
    Core c = Base::table();
    c.few_rows = 64, c.few_scores = few_scores, c.weigh_few = weigh_few, c.few_stripe = few_stripe;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
