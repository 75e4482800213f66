// bf16 as operands of AMX tiles: rows packed as they are, weights rounded to pairs of keys. Included by the
// AMX level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/tiles.h"
#include "headwise/kernels/cpu/tile/passes.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu {
namespace {

/// Columns c0 .. c0 + 31 of one row of bf16; what does not exist is 0.
inline __m512i piece(const Rows& rows, Index row, Index c0, Index dim) {
  const Index end = rows.end < dim ? rows.end : dim;
  const auto* at = static_cast<const std::uint16_t*>(rows.data) + row * rows.row_step + c0 * rows.column_step;
  if (rows.column_step == 1 && rows.begin <= c0 && c0 + 32 <= end) return _mm512_loadu_si512(at);
  const Index from = rows.begin > c0 ? rows.begin - c0 : 0, to = end - c0 < 32 ? end - c0 : 32;
  if (from >= to) return _mm512_setzero_si512();
  if (rows.column_step == 1) {
    const std::uint32_t open = (~0u >> (32 - (to - from))) << from;
    return _mm512_maskz_loadu_epi16(open, at);
  }
  alignas(64) std::uint16_t spare[32] = {};
  for (Index c = from; c < to; ++c) spare[c] = at[c * rows.column_step];
  return _mm512_load_si512(spare);
}

/// 16 rows of 16 pairs of bf16 -> [pair][row], lines of kLine bytes.
inline void transpose_pairs(const char* in, Index step, char* out) {
  for (int c = 0; c < 16; c += 4) {
    __m512i x[4];
    four_columns(in + c * 4, step, x);
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(out + (c + i) * kLine, x[i]);
  }
}

/// 32 rows of 32 bf16 -> [column][row], lines of 64 bytes; returns the largest exponent field met, in place.
inline __m512i transpose_halves(const char* in, Index step, char* out) {
  __m512i most = _mm512_setzero_si512();
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (int c = 0; c < 32; c += 8) {
    __m512i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = gather_lanes(in + i * step + c * 2, 8 * step);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        a[i + 2 * j] = _mm512_unpacklo_epi32(b[i + j], b[i + j + 2]);
        a[i + 2 * j + 1] = _mm512_unpackhi_epi32(b[i + j], b[i + j + 2]);
      }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i x = _mm512_unpacklo_epi64(a[j], a[4 + j]), y = _mm512_unpackhi_epi64(a[j], a[4 + j]);
      _mm512_storeu_si512(out + (c + 2 * j) * 64, x);
      _mm512_storeu_si512(out + (c + 2 * j + 1) * 64, y);
      most = _mm512_max_epu16(most, _mm512_and_si512(x, exponent));
      most = _mm512_max_epu16(most, _mm512_and_si512(y, exponent));
    }
  }
  return most;
}

/// 2^x: the fraction above the floor through a polynomial with p(0) = 1 and p(1) = 2, then scaled by the
/// floor. It is 1.0e-7 off at most, since the sum, and so the log-sum-exp, is an f32 result. -inf gives
/// exactly +0 and NaN stays NaN without a clamp.
inline __attribute__((always_inline)) F exp2_floor(F x) {
  const F f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  F p = Lanes::fma(f, Lanes::set(0.00187931862f), Lanes::set(0.00899099465f));
  p = Lanes::fma(p, f, Lanes::set(0.0558186769f));
  p = Lanes::fma(p, f, Lanes::set(0.240159273f));
  p = Lanes::fma(p, f, Lanes::set(0.693151712f));
  p = Lanes::fma(p, f, Lanes::set(1.0f));
  return _mm512_scalef_ps(p, x);
}
/// Two keys' weights of 16 queries as bf16 pairs, rounded to nearest (halves up).
inline __attribute__((always_inline)) __m512i pair_up(F even, F odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i a = _mm512_add_epi32(_mm512_castps_si512(even), half);
  const __m512i b = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_mask_mov_epi16(b, 0x55555555u, _mm512_srli_epi32(a, 16));
}

struct Bf16Operands {
  static constexpr const char* kName = "bf16";
  static constexpr int kParts = 1, kPanel = 32, kGranule = 256;
  static constexpr int kApart = 1;  // keys between the two of a pair of weights
  static constexpr float kWeightUnit = 1.0f, kValueLow = 0.0f, kValueHigh = __builtin_inff();
  static constexpr Index kFlags = 0;
  static constexpr int kKeyGroup = 16;  // packed keys lie as scores takes them

  static constexpr int first_of_pair(int n) { return 2 * n; }
  /// Which half of the queries unit i of Exponent's eight takes.
  static constexpr Index half_of(Index, int i) { return i % 2; }
  static inline __attribute__((always_inline)) void store_pair(F even, F odd, char* to) {
    _mm512_store_si512(to, pair_up(even, odd));
  }
  static inline __attribute__((always_inline)) F weight_of(F d, F c) { return exp2_floor(Lanes::mul(d, c)); }
  /// Weights against one top, and their sum: chain i takes keys i, i + 4, ...
  struct Exponent {
    F c[2], top[2], sum[4][2];

    Exponent(const float* tops, const float* factors) {
      for (int j = 0; j < 2; ++j) {
        c[j] = Lanes::load(factors + j * 16), top[j] = Lanes::load(tops + j * 16);
        for (auto& chain : sum) chain[j] = Lanes::zero();
      }
    }
    void total(float* to) const {
      for (int j = 0; j < 2; ++j)
        Lanes::store(to + j * 16,
                     Lanes::add(Lanes::add(sum[0][j], sum[1][j]), Lanes::add(sum[2][j], sum[3][j])));
    }
    /// The top is taken off before the factor: one fma would round top * factor, which is far from 0 when
    /// logits are huge.
    template <class Look>
    inline __attribute__((always_inline)) F weight(float* s, Index k, int h, int j, Look& look) const {
      const F x = Lanes::load(s + k * kPanel + j * 16), d = Lanes::sub(x, top[j]);
      const F p = weight_of(d, c[j]);
      look(s, k, h, j, x, d, p);
      return p;
    }
    /// Unit I of the eight of keys k .. k + 7: one pair of keys, half of the queries.
    template <int I, class Look, class Between>
    inline __attribute__((always_inline)) void unit(float* s, char* p, Index k, Look& look,
                                                    Between&& between) {
      constexpr int j = I % 2, pair = I / 2, chain = pair % 2 * 2;
      const F even = weight(s, k + 2 * pair, 0, j, look);
      between();
      const F odd = weight(s, k + 2 * pair + 1, 1, j, look);
      sum[chain][j] = Lanes::add(sum[chain][j], even);
      sum[chain + 1][j] = Lanes::add(sum[chain + 1][j], odd);
      store_pair(even, odd, p + (k + 2 * pair) * 64 + j * 64);
    }
  };
  static void mend_scores(const void*, const void*, Index, Index, Index, float*) {}

  /// All columns exist, side by side, in whole tiles.
  static bool plain(const Rows& rows, Index dim) {
    return rows.column_step == 1 && rows.begin == 0 && rows.end >= dim && dim % 32 == 0;
  }
  static const char* address(const Rows& rows, Index row) {
    return static_cast<const char*>(rows.data) + row * rows.row_step * 2;
  }
  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out, float*) {
    auto* to = static_cast<char*>(out);
    const char* from = address(rows[0], row[0]);
    const Index step = address(rows[1], row[1]) - from;
    bool even = count == kPanel;  // full and evenly spaced: no copy on the way
    for (int i = 0; i < kPanel && even; ++i)
      even = plain(rows[i], dim) && address(rows[i], row[i]) == from + i * step;
    alignas(64) char block[16 * 64];
    for (Index c = 0; c < dim; c += 32)
      for (int lane = 0; lane < kPanel; lane += 16) {
        char* at = to + c / 2 * kLine + lane * 4;
        if (even) {
          transpose_pairs(from + lane * step + c * 2, step, at);
          continue;
        }
        for (int i = 0; i < 16; ++i)
          _mm512_store_si512(block + i * 64, lane + i < count ? piece(rows[lane + i], row[lane + i], c, dim)
                                                              : _mm512_setzero_si512());
        transpose_pairs(block, 64, at);
      }
  }
  /// Tiles [key / 16][dim / 32].
  static void pack_keys(const Rows& rows, Index first, Index count, Index dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index tiles = rounded(dim, 32) / 32, padded = rounded(count, 32), step = rows.row_step * 2;
    const bool direct = plain(rows, dim);
    for (Index k = 0; k < padded; k += 16)
      for (Index c = 0; c < tiles; ++c, to += kTileBytes) {
        const char* from = address(rows, first + k) + c * 64;
        if (direct && k + 16 <= count) {
#pragma GCC unroll 16
          for (Index i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, _mm512_loadu_si512(from + i * step));
          continue;
        }
        for (Index i = 0; i < 16; ++i)
          _mm512_store_si512(
              to + i * 64, k + i < count ? piece(rows, first + k + i, c * 32, dim) : _mm512_setzero_si512());
      }
  }
  /// Tiles [key / 32][value_dim / 16] of 16 dims x 32 keys.
  static bool pack_values(const Rows& rows, Index first, Index count, Index value_dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index wide = rounded(value_dim, 32), end = rows.end < value_dim ? rows.end : value_dim;
    __m512i most = _mm512_setzero_si512();
    alignas(64) char block[32 * 64];
    for (Index k = 0; k < count; k += 32)
      for (Index c = 0; c < wide; c += 32) {
        const char* from = static_cast<const char*>(rows.data) + ((first + k) * rows.row_step + c) * 2;
        Index step = rows.row_step * 2;
        if (rows.column_step != 1 || rows.begin > c || c + 32 > end || k + 32 > count) {
          for (Index i = 0; i < 32; ++i)
            _mm512_store_si512(block + i * 64, k + i < count ? piece(rows, first + k + i, c, value_dim)
                                                             : _mm512_setzero_si512());
          from = block, step = 64;
        }
        most = _mm512_max_epu16(most, transpose_halves(from, step, to + k * wide * 2 + c * 64));
      }
    const __m512i limit = _mm512_set1_epi16(0x7f80);
    if (_mm512_cmpeq_epi16_mask(most, limit) == 0) return true;
    for (Index i = 0; i < rounded(count, 32) * wide * 2; i += 64) {
      const __m512i x = _mm512_load_si512(to + i);
      const __mmask32 usual = _mm512_cmpneq_epi16_mask(_mm512_and_si512(x, limit), limit);
      _mm512_store_si512(to + i, _mm512_maskz_mov_epi16(usual, x));
    }
    return false;
  }
};

}  // namespace
}  // namespace headwise::cpu
