// Few query rows in bf16: the bits of the tiles of Bf16Operands from keys and values as they lie. Included by
// the AMX level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/bf16.h"
#include "headwise/kernels/cpu/amx/few.h"

namespace headwise::cpu {
namespace {

template <>
struct AmxFew<Bf16Operands> {
  static constexpr int kRows = 4;
  static constexpr Index kPairs = kFewGranule / 2, kNumbers = kRows * kFewGranule;

  static F even_of(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F odd_of(__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  /// Numbers to be broadcast: of row r, the first and the second of pair i at data[(2 * r) * step + i] and
  /// step further on.
  struct Paired {
    const float* data;
    Index step;
  };

  /// R rows x 16 keys of `tiles` times 32 dims: row i of tile c at keys + c * tile_step + i * step.
  template <int R>
  [[gnu::noinline]] static void products(const Paired& q, const char* keys, Index tile_step, Index step,
                                         Index tiles, Index ahead, float* sums) {
    F total[R];
    for (F& x : total) x = Lanes::zero();
    for (Index c = 0; c < tiles; ++c) {
      F first[R], second[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) first[r] = second[r] = Lanes::zero();
#pragma GCC unroll 4
      for (int j = 0; j < 16; j += 4) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) _mm_prefetch(keys + c * tile_step + (j + i) * step + ahead, _MM_HINT_T0);
        four_columns(keys + c * tile_step + j * 4, step, x);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const F even = even_of(x[i]), odd = odd_of(x[i]);
          const float* y = q.data + c * 16 + j + i;
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            first[r] = Lanes::fma(even, Lanes::bcast(y + 2 * r * q.step), first[r]);
            second[r] = Lanes::fma(odd, Lanes::bcast(y + (2 * r + 1) * q.step), second[r]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) total[r] = Lanes::add(total[r], Lanes::add(first[r], second[r]));
    }
    for (int r = 0; r < R; ++r) Lanes::store(sums + r * kFewGranule, total[r]);
  }

  /// Rows of `out`: scores of keys [from, to), something up to a whole 16 of them.
  static void scores(const FewScoresTask& t, float* out) {
    const void* queries = t.queries;
    const int count = t.count;
    const Rows& rows = t.keys;
    const Index first = t.first, to = t.to, dim = t.dim;
    const Index tiles = rounded(dim, 32) / 32, pairs = tiles * 16;
    auto* numbers = static_cast<float*>(t.scratch);
    auto* copied = reinterpret_cast<char*>(numbers + 2 * kRows * pairs);
    const int padded = count == 3 ? 4 : count;
    for (int r = 0; r < padded; ++r)
      for (Index c = 0; c < tiles; ++c) {
        F even, odd;
        line_pairs(static_cast<const char*>(queries) + c * 2 * kTileBytes, r, even, odd);
        Lanes::store(numbers + 2 * r * pairs + c * 16, even);
        Lanes::store(numbers + (2 * r + 1) * pairs + c * 16, odd);
      }
    const bool packed = rows.block > 0, direct = !packed && Bf16Operands::plain(rows, dim);
    for (Index k = t.from; k < to; k += kFewKeys) {
      const Index n = to - k < kFewKeys ? to - k : kFewKeys, blocks = (n + 15) / 16;
      for (Index b = 0; b < blocks; ++b) {
        const Index key = first + k + b * 16, left = n - b * 16;
        const char* at = packed ? static_cast<const char*>(rows.data) + key * tiles * 64 : nullptr;
        Index tile_step = kTileBytes, step = 64;
        if (direct && left >= 16) {
          at = Bf16Operands::address(rows, key), tile_step = 64, step = rows.row_step * 2;
        } else if (!packed) {
          for (Index c = 0; c < tiles; ++c)
            for (Index i = 0; i < 16; ++i)
              _mm512_storeu_si512(copied + c * kTileBytes + i * 64,
                                  i < left ? piece(rows, key + i, c * 32, dim) : _mm512_setzero_si512());
          at = copied;
        }
        const Flushing on;
        in_groups(count, [&](auto taken, int row) {
          products<decltype(taken)::value>({numbers + 2 * row * pairs, pairs}, at, tile_step, step, tiles,
                                           16 * (packed ? tiles * 64 : step),
                                           out + row * kFewGranule + k + b * 16);
        });
      }
    }
  }

  /// Values at .. at + n and where their sums go.
  struct ValueBlock {
    const std::uint16_t* values;
    Index row_step, at, n, columns;
    float* sums;
    Index sums_step;
  };
  /// One block of keys onto sums, where each 32 columns are the even ones, then the odd ones.
  template <int R, int V>
  [[gnu::noinline]] static void weigh_block(const Paired& weights, const ValueBlock& t) {
    const std::uint16_t* values = t.values;
    const Index row_step = t.row_step, at = t.at, n = t.n, columns = t.columns, sums_step = t.sums_step;
    float* sums = t.sums;
    for (Index d = 0; d < columns; d += V * 32) {
      // The next columns of this row, or the first ones of the row of the next block.
      const Index near = d + V * 32 < columns ? V * 32 : 32 * row_step - d;
      F c[R][V][2][2];  // of row and vector, pairs' first and second keys, even and odd columns
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v)
          for (int h = 0; h < 2; ++h) c[r][v][h][0] = c[r][v][h][1] = Lanes::zero();
      const auto add = [&](Index k, int h) __attribute__((always_inline)) {
        const std::uint16_t* from = values + (at + k) * row_step + d;
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          _mm_prefetch(reinterpret_cast<const char*>(from + v * 32 + near), _MM_HINT_T0);
          const __m512i x = columns - d - v * 32 >= 32 ? _mm512_loadu_si512(from + v * 32)
                                                       : _mm512_maskz_loadu_epi16(0xffffu, from + v * 32);
          const F even = even_of(x), odd = odd_of(x);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            const F w = Lanes::bcast(weights.data + (2 * r + h) * weights.step + (at + k) / 2);
            c[r][v][h][0] = Lanes::fma(even, w, c[r][v][h][0]);
            c[r][v][h][1] = Lanes::fma(odd, w, c[r][v][h][1]);
          }
        }
      };
      Index k = 0;
      for (; k + 2 <= n; k += 2) add(k, 0), add(k + 1, 1);
      if (k < n) add(k, 0);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v)
#pragma GCC unroll 2
          for (int j = 0; j < 2; ++j) {
            float* to = sums + r * sums_step + d + v * 32 + j * 16;
            Lanes::store(to, Lanes::add(Lanes::load(to), Lanes::add(c[r][v][0][j], c[r][v][1][j])));
          }
    }
  }
  /// Row r of the operand of a tile.
  static void read_weights(const Tile& t, int r, float* weights) {
    for (Index k = t.from; k < t.to; k += 32) {
      F even, odd;
      line_pairs(static_cast<const char*>(t.p) + k / 32 * 2 * kTileBytes, r, even, odd);
      Lanes::store(weights + 2 * r * kPairs + k / 2, even);
      Lanes::store(weights + (2 * r + 1) * kPairs + k / 2, odd);
    }
  }
  static void clear_weights(int r, float* weights) {
    for (Index k = 0; k < 2 * kPairs; k += 16) Lanes::store(weights + 2 * r * kPairs + k, Lanes::zero());
  }
  /// Row r of weights from its scores, rounded as pair_up does, and the sum of those not rounded in the order
  /// of Exponent.
  static float weights(const float* scores, Index from, Index end, float top, float factor, int r,
                       float* weights) {
    alignas(64) static constexpr std::int32_t kEven[16] = {0,  2,  4,  6,  8,  10, 12, 14,
                                                           16, 18, 20, 22, 24, 26, 28, 30};
    const __m512i even = _mm512_load_si512(kEven), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const F t = Lanes::set(top), c = Lanes::set(factor);
    __m128 sum = _mm_setzero_ps();
    for (Index k = from; k < end; k += 32) {
      F near[2];
      for (int h = 0; h < 2; ++h) {
        const F p = Bf16Operands::weight_of(Lanes::sub(Lanes::load(scores + k + h * 16), t), c);
        near[h] = odd_of(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000)));
        sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p, 0));
        sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p, 1));
        sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p, 2));
        sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(p, 3));
      }
      Lanes::store(weights + 2 * r * kPairs + k / 2, _mm512_permutex2var_ps(near[0], even, near[1]));
      Lanes::store(weights + (2 * r + 1) * kPairs + k / 2, _mm512_permutex2var_ps(near[0], odd, near[1]));
    }
    alignas(16) float chain[4];
    _mm_store_ps(chain, sum);
    return (chain[0] + chain[1]) + (chain[2] + chain[3]);
  }
  static bool weigh(const float* numbers, Index from, Index to, const FewWeighTask& t) {
    const int count = t.count;
    const Rows& rows = t.values;
    const Index value_dim = t.value_dim;
    float* sums = t.sums;
    const int padded = count == 3 ? 4 : count;
    const Index wide = rounded(value_dim, 32);
    for (Index i = 0; i < padded * wide; i += 16) Lanes::store(sums + i, Lanes::zero());
    const auto* values = static_cast<const std::uint16_t*>(rows.data) + t.first * rows.row_step;
    {
      const Flushing on;
      for (Index k = from; k < to; k += 32)
        in_groups(count, [&](auto taken, int row) {
          constexpr int R = decltype(taken)::value, V = R == 4 ? 1 : 2;
          const Paired weights{numbers + 2 * row * kPairs, kPairs};
          const Index n = to - k < 32 ? to - k : 32, whole = value_dim / (V * 32) * (V * 32);
          float* own = sums + row * wide;
          weigh_block<R, V>(weights, {values, rows.row_step, k, n, whole, own, wide});
          if (whole < value_dim)
            weigh_block<R, 1>(weights,
                              {values + whole, rows.row_step, k, n, value_dim - whole, own + whole, wide});
        });
    }
    alignas(64) static constexpr std::int32_t kLow[16] = {0, 16, 1, 17, 2, 18, 3, 19,
                                                          4, 20, 5, 21, 6, 22, 7, 23};
    alignas(64) static constexpr std::int32_t kHigh[16] = {8,  24, 9,  25, 10, 26, 11, 27,
                                                           12, 28, 13, 29, 14, 30, 15, 31};
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (Index i = 0; i < count * wide; i += 32) {
      const F even = Lanes::load(sums + i), odd = Lanes::load(sums + i + 16);
      unusual = Lanes::fma(even, Lanes::zero(), Lanes::fma(odd, Lanes::zero(), unusual));
      Lanes::store(sums + i, _mm512_permutex2var_ps(even, _mm512_load_si512(kLow), odd));
      Lanes::store(sums + i + 16, _mm512_permutex2var_ps(even, _mm512_load_si512(kHigh), odd));
    }
    if (Lanes::any(Lanes::is_nan(unusual))) return false;
    take_rows(sums, wide, count, value_dim, t.shrink, 1.0f, t.o);
    return true;
  }
};

}  // namespace
}  // namespace headwise::cpu
