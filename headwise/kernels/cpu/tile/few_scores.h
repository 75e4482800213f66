// Scores of few query rows against long KV, keys in the lanes: every one is the chain of the f32 core.
// Included by every ISA level after f32_core.h; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/f32_core.h"

namespace headwise::cpu {
namespace {

/// Base is an F32Core with a panel of one vector.
template <class Base>
struct FewScores : Base {
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
  /// One query reads numbers that take one step to load in the order they lie. The processor fetches them
  /// itself, better than it can be asked to (Neoverse N1, f32, packed: 9.2 -> 8.0 ms of 32k keys).
  template <RowType T>
  static constexpr bool streams(int rows) {
    return Lanes::fetches_rows && rows == 1 && (T == RowType::f32 || T == RowType::bf16);
  }
  template <RowType T>
  static constexpr int blocks_for(int rows) {
    return streams<T>(rows) ? 1 : rows == 1 ? (W == 16 ? 4 : 2) : rows == 2 && W > 4 ? 2 : 1;
  }

  static constexpr Index kMost = 4 * kBlock;      // keys at a time
  static constexpr Index kStep = Base::kGranule;  // scores of one query to those of the next
  template <RowType T>
  static constexpr Index kBytes = sizeof(typename Element<T>::type);

  /// Where nothing else looks far enough ahead (Neoverse N1): `bytes` of what is read so many numbers later.
  /// Rows that lie one after another go into the first cache (one query of 8 heads over 2,048 keys: 553 ->
  /// 462 us beside the second). Rows apart would push each other out of it.
  static constexpr Index kRowsAhead = 16;
  template <bool First = false, class T>
  static inline __attribute__((always_inline)) void fetch_later(const T* from, Index ahead, Index bytes) {
    if constexpr (Lanes::fetches_rows)
      for (Index at = 0; at < bytes; at += 64) {
        const auto place = reinterpret_cast<std::uintptr_t>(from) +
                           static_cast<std::uintptr_t>(ahead * static_cast<Index>(sizeof(T)) + at);
        __builtin_prefetch(reinterpret_cast<const void*>(place), 0, First ? 3 : 2);
      }
  }
  /// 16 numbers that lie side by side.
  template <RowType T, class L = Lanes>
  static inline __attribute__((always_inline)) void load_sixteen(const typename Element<T>::type* from,
                                                                 F* x) {
    if constexpr (T == RowType::bf16 && requires { L::load_bf16s(from, x); }) {
      L::load_bf16s(from, x);
    } else if constexpr (T == RowType::i8 && requires { L::load_i8s(from, x); }) {
      L::load_i8s(from, x);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) x[v] = Element<T>::load(from + v * W);
    }
  }
  /// c[r][at + v] += x[v] * y[r]
  template <int R, int N, int V, class L = Lanes>
  static inline __attribute__((always_inline)) void add_rows_of(const float* y, const F (&x)[N], F (&c)[R][V],
                                                                int at = 0) {
    if constexpr (L::multiplies_by_lane) {
      add_by_lane(L::load(y), x, c, at);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F each = L::bcast(y + r);
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) c[r][at + v] = L::fma(x[v], each, c[r][at + v]);
      }
    }
  }
  template <int R, int N, int V, class L = Lanes>
  static inline __attribute__((always_inline)) void add_by_lane(F y, const F (&x)[N], F (&c)[R][V], int at) {
    static_assert(R <= 4);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      c[0][at + v] = L::template fma_lane<0>(x[v], y, c[0][at + v]);
      if constexpr (R > 1) c[1][at + v] = L::template fma_lane<1>(x[v], y, c[1][at + v]);
      if constexpr (R > 2) c[2][at + v] = L::template fma_lane<2>(x[v], y, c[2][at + v]);
      if constexpr (R > 3) c[3][at + v] = L::template fma_lane<3>(x[v], y, c[3][at + v]);
    }
  }
  /// The first `count` queries of a panel.
  struct Queries {
    const float* q;
    int count;
  };
  /// What is fetched beside products: `lines` for each row of keys.
  struct Beside {
    Fetch& fetch;
    Index lines;
  };
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
      if constexpr (!streams<T>(R))
        for (int g = 0; g < G; ++g) fetch_later(keys + g * block + d * kBlock, G * block, kBlock * kBytes<T>);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        F x[kVectors];
        load_sixteen<T>(keys + g * block + d * kBlock, x);
        add_rows_of(q + d * kPanel, x, c, g * kVectors);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) Lanes::store(sums + r * kStep + v * W, c[r][v]);
  }

  /// All rows of the panel against `blocks` blocks: sums [panel][kStep].
  template <RowType T>
  static void panel_products(const Queries& queries, const void* packed, Index blocks, Index dim,
                             const Beside& beside, float* sums) {
    const float* q = queries.q;
    const int count = queries.count;
    Fetch& fetch = beside.fetch;
    const Index lines = beside.lines;
    const auto* keys = static_cast<const typename Element<T>::type*>(packed);
    const Index block = dim * kBlock;
    for (int r = 0; r < count;) {
      const int rows = rows_for(count - r);
      const auto each = [&](auto rows_taken) {
        constexpr int R = decltype(rows_taken)::value, G = blocks_for<T>(R);
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

  /// `R` queries x up to 16 keys of whole rows from row `first` on, at least a vector of them: turned in
  /// registers and multiplied there; sums of no key are 0. The last vector ends with the last key.
  /// What is turned through memory waits for it while nothing is fetched (one query, AVX-512, f32: 86 % of
  /// the read bandwidth that way, 95 % this way).
  template <RowType T, int R, class L = Lanes>
  static void turned_products(const float* q, const Rows& rows, Index first, Index keys, Index dim,
                              const Beside& beside, float* sums) {
    using E = Element<T>;
    const auto* from = static_cast<const typename E::type*>(rows.data) + first * rows.row_step;
    const Index step = rows.row_step, last = keys < kBlock ? keys - W : kBlock - W;
    const auto start = [&](int v) { return v * W < last ? Index{v} * W : last; };
    const typename E::type* four[kVectors];  // rows that are turned together; 16 places are too many to keep
    for (int v = 0; v < kVectors; ++v) four[v] = from + start(v) * step;
    F c[kVectors][R][1];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) c[v][r][0] = L::zero();
    const Index each_step = (kBlock * beside.lines + dim - 1) / dim;
    for (Index d = 0; d < dim; d += W) {
      if (rows.row_step == dim)  // memory gives more in the order it lies (N1: 12.7 -> 10.6 ms of 32k keys)
        fetch_later<true>(from + d * kBlock, kRowsAhead * dim, W * kBlock * kBytes<T>);
      else if (d * kBytes<T> % 64 == 0)
        for (int i = 0; i < kBlock; ++i)
          fetch_later(from + i * rows.row_step + d, kRowsAhead * rows.row_step, 64);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        F t[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) t[i] = E::load(four[v] + i * step);
        four[v] += W;
        L::transpose(t);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) {
          if (i % 4 == 0) beside.fetch.next(4 * each_step);
          add_rows_of<R, 1>(q + (d + i) * kPanel, {t[i]}, c[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) L::store(sums + r * kStep + start(v), c[v][r][0]);
    for (int r = 0; r < R; ++r)
      for (Index k = keys; k < kBlock; ++k) sums[r * kStep + k] = 0.0f;
  }
  /// The same for the first `count` queries; false: some other way is needed.
  template <RowType T>
  static bool turned(const Queries& queries, const Rows& rows, Index first, Index keys, Index dim,
                     const Beside& beside, float* sums) {
    if constexpr (W == kBlock || Lanes::multiplies_by_lane) {
      const float* q = queries.q;
      const int count = queries.count;
      if (keys < W || count > (W == kBlock ? 8 : W) || !whole_rows(rows, dim)) return false;
      if (count == 1)
        turned_products<T, 1>(q, rows, first, keys, dim, beside, sums);
      else if (count == 2)
        turned_products<T, 2>(q, rows, first, keys, dim, beside, sums);
      else if (count <= 4)
        turned_products<T, 4>(q, rows, first, keys, dim, beside, sums);
      else
        turned_products<T, W == kBlock ? 8 : 4>(q, rows, first, keys, dim, beside, sums);
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
  static void scores_of(const FewScoresTask& t, float* p) {
    const Rows& rows = t.keys;
    const Index first = t.first, to = t.to, dim = t.dim;
    const Queries q{static_cast<const float*>(t.queries), t.count};
    auto* scratch = static_cast<float*>(t.scratch);
    Fetch fetch(t.ahead);
    const Beside beside{fetch, lines_of(t.ahead)};
    for (Index k = t.from; k < to; k += kMost) {
      const Index n = to - k < kMost ? to - k : kMost, blocks = (n + kBlock - 1) / kBlock;
      float* sums = p + k;
      if (rows.block > 0) {
        const auto* keys = static_cast<const typename Element<T>::type*>(rows.data);
        panel_products<T>(q, keys + (first + k) / kBlock * rows.block, blocks, dim, beside, sums);
      } else {
        Index b = 0;  // blocks from b on go through scratch
        while (b < blocks &&
               turned<T>(q, rows, first + k + b * kBlock, n - b * kBlock, dim, beside, sums + b * kBlock))
          ++b;
        for (Index i = b; i < blocks; ++i) {
          const Index left = n - i * kBlock;
          gather_block<T>(rows, first + k + i * kBlock, left < kBlock ? left : kBlock, dim, fetch,
                          beside.lines, scratch + i * kBlock * dim);
        }
        panel_products<RowType::f32>(q, scratch + b * kBlock * dim, blocks - b, dim, {fetch, 0},
                                     sums + b * kBlock);
      }
      if constexpr (is_eight_bits(T)) scale_sums(rows, first + k, n, t.count, sums);
    }
  }
  static void scores_of(const FewScoresTask& t, float* p) {
    switch (t.keys.type) {
      case RowType::f32: return scores_of<RowType::f32>(t, p);
      case RowType::bf16: return scores_of<RowType::bf16>(t, p);
      case RowType::f16: return scores_of<RowType::f16>(t, p);
      case RowType::i8: return scores_of<RowType::i8>(t, p);
      case RowType::e4m3: return scores_of<RowType::e4m3>(t, p);
    }
  }
  static void few_scores(const FewScoresTask& t, float* s) {
    alignas(64) float p[kPanel * kStep];
    scores_of(t, p);
    const Index from = t.from, end = rounded(t.to, kBlock);
    const int count = t.count;
    if (count <= 2) {  // lanes of no query keep what they held: nobody reads them
      for (Index k = from; k < end; ++k)
        for (int r = 0; r < count; ++r) s[k * kPanel + r] = p[r * kStep + k];
      return;
    }
    turn_rows(p, count, from, end, s);
  }
  /// p [query][kStep] of keys from .. to, whole vectors of them -> s [key][panel], 0 for no query.
  static void turn_rows(const float* p, int count, Index from, Index to, float* s) {
    for (Index k = from; k < to; k += W) {
      F t[W];
      for (int r = 0; r < W; ++r) t[r] = r < count ? Lanes::load(p + r * kStep + k) : Lanes::zero();
      Lanes::transpose(t);
      for (int j = 0; j < W; ++j) Lanes::store(s + (k + j) * kPanel, t[j]);
    }
  }
};

}  // namespace
}  // namespace headwise::cpu
