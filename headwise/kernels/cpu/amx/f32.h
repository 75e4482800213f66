// f32 as three bf16 parts for AMX tiles, x = hi + mid + lo exactly; rows and values of a size that tiles
// would flush or overflow go another way. Included by the AMX level after its Lanes; internal linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/tiles.h"
#include "headwise/kernels/cpu/tile/passes.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu {
namespace {

/// The parts of x: hi rounded to nearest (halves up), mid cut, lo what is left; 24 bits are 8 + 8 + 8, so
/// hi + mid + lo = x. mid and lo have either sign alike, so what products leave out has no preferred one.
struct Parts {
  __m512i word[3];  // the part in the upper half, something in the lower
  F part[3];

  explicit inline __attribute__((always_inline)) Parts(F x) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    word[0] = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    part[0] = _mm512_castsi512_ps(_mm512_and_si512(word[0], upper));
    const F rest = Lanes::sub(x, part[0]);
    word[1] = _mm512_castps_si512(rest);
    part[1] = _mm512_castsi512_ps(_mm512_and_si512(word[1], upper));
    part[2] = Lanes::sub(rest, part[1]);
    word[2] = _mm512_castps_si512(part[2]);
  }
};
/// Pairs (even, odd) of the three parts, `step` bytes from part to part.
inline __attribute__((always_inline)) void store_pairs(const Parts& even, const Parts& odd, char* to,
                                                       Index step) {
  // Bytes 2 and 3 of each word; an index counts within 16 bytes.
  const __m512i upper_to_lower = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i)
    _mm512_store_si512(to + i * step, _mm512_mask_shuffle_epi8(odd.word[i], 0x3333333333333333u, even.word[i],
                                                               upper_to_lower));
}
inline __attribute__((always_inline)) void store_parts(F even, F odd, char* to, Index step) {
  store_pairs(Parts(even), Parts(odd), to, step);
}
/// The bits of |x| order as |x| does, NaN above inf.
inline __m512i magnitude(F x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
/// 2^e as such bits.
inline __m512i power(int e) { return _mm512_set1_epi32((127 + e) << 23); }

/// Columns c0 .. c0 + 15 of one row of f32; what does not exist is 0.
inline F sixteen(const Rows& rows, Index row, Index c0, Index dim) {
  const Index end = rows.end < dim ? rows.end : dim;
  const auto* at = static_cast<const float*>(rows.data) + row_offset(rows, row) + c0 * rows.column_step;
  if (rows.column_step == 1 && rows.begin <= c0 && c0 + 16 <= end) return Lanes::load(at);
  const Index from = rows.begin > c0 ? rows.begin - c0 : 0, to = end - c0 < 16 ? end - c0 : 16;
  if (from >= to) return Lanes::zero();
  if (rows.column_step == 1)
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((0xffffu >> (16 - (to - from))) << from), at);
  alignas(64) float spare[16] = {};
  for (Index c = from; c < to; ++c) spare[c] = at[c * rows.column_step];
  return Lanes::load(spare);
}

/// Column i = 0 .. 15 of 16 rows at `even`, and of those at `odd`.
template <class Store>
inline __attribute__((always_inline)) void in_pairs(const char* even, Index step, const char* odd,
                                                    Store&& store) {
  for (int c = 0; c < 16; c += 4) {
    __m512i x[4], y[4];
    four_columns(even + c * 4, step, x), four_columns(odd + c * 4, step, y);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) store(_mm512_castsi512_ps(x[i]), _mm512_castsi512_ps(y[i]), c + i);
  }
}

/// Tiles flush what is below 2^-126, and 2^128 is inf. So a row is *ordinary* when its largest element is in
/// [2^-40, 2^50), or all are 0: what tiles lose of a score is then below 2^-60 of the largest product's
/// rounding. A pair of rows that are not both ordinary (inf and NaN are not) is one chain of fused
/// multiply-adds over the dims, ascending, on the side: no other pair notices.
template <int Granule>
struct F32OperandsOf {
  static constexpr const char* kName = "f32x3";
  static constexpr int kParts = 3, kPanel = 32, kGranule = Granule;
  static constexpr int kApart = 16;  // keys between the two of a pair of weights, dims in a pair of a score
  /// Weights go down to 2^-125: in larger units neither their parts nor their products with values from
  /// 2^-100 on are flushed.
  static constexpr float kWeightUnit = 0x1p40f, kValueLow = 0x1p-100f, kValueHigh = 0x1p70f;
  static constexpr Index kFlags = 64;  // a bit for every row that is not ordinary, after the tiles
  static constexpr Index kTile = kParts * kTileBytes;
  static constexpr int kKeyGroup = 0;  // packed keys are f32 and packed again

  static constexpr int first_of_pair(int n) { return n; }
  static constexpr Index half_of(Index k, int) { return k >> 4 & 1; }
  static inline __attribute__((always_inline)) void store_pair(F even, F odd, char* to) {
    store_parts(even, odd, to, 2 * kTileBytes);
  }
  /// exp2_product in units of kWeightUnit and without its clamp: what is below 2^-125, and -inf, is masked.
  static inline __attribute__((always_inline)) F weight_of(F d, F c) {
    constexpr float u = kWeightUnit;
    const F magic = Lanes::set(12582912.0f), n = Lanes::sub(Lanes::fma(d, c, magic), magic);
    const F f = _mm512_fmsub_ps(d, c, n), f2 = Lanes::mul(f, f);
    const F high = Lanes::fma(Lanes::set(0.00015353362f * u), f, Lanes::set(0.0013398875f * u));
    const F middle = Lanes::fma(Lanes::set(0.009618437f * u), f, Lanes::set(0.055503324f * u));
    const F low = Lanes::fma(Lanes::set(0.24022648f * u), f, Lanes::set(0.6931472f * u));
    F p = Lanes::fma(high, f2, middle);
    p = Lanes::fma(p, f2, low);
    return Lanes::scale2(Lanes::fma(p, f, Lanes::set(u)), n);
  }
  /// Weights against one top, and their sum as a tile adds up products with values of 1. Of every part, the
  /// first and the second keys of the pairs of a block come from 0, then mid, lo, hi onto the sum. So values
  /// of 1 give exactly 1.
  struct Exponent {
    F c[2], top[2], sum[2], chain[3][2];

    Exponent(const float* tops, const float* factors) {
      for (int j = 0; j < 2; ++j) {
        c[j] = Lanes::load(factors + j * 16), top[j] = Lanes::load(tops + j * 16), sum[j] = Lanes::zero();
        for (auto& part : chain) part[j] = Lanes::zero();
      }
    }
    void total(float* to) const {
      for (int j = 0; j < 2; ++j)
        Lanes::store(to + j * 16, Lanes::mul(sum[j], Lanes::set(1.0f / kWeightUnit)));
    }
    template <class Look>
    inline __attribute__((always_inline)) F weight(float* s, Index k, int h, int j, Look& look) const {
      const F x = Lanes::load(s + k * kPanel + j * 16), d = Lanes::sub(x, top[j]), p = weight_of(d, c[j]);
      look(s, k, h, j, x, d, p);
      return p;
    }
    /// Unit I of eight: one pair of keys, half of the queries. A block of 32 keys is 16 units of the first
    /// queries, then 16 of the others.
    template <int I, class Look, class Between>
    inline __attribute__((always_inline)) void unit(float* s, char* p, Index k, Look& look,
                                                    Between&& between) {
      const int j = static_cast<int>(k >> 4 & 1);
      const Index block = k & ~Index{31}, n = (k & 8) + I;
      const Parts even(weight(s, block + n, 0, j, look));
      between();
      const Parts odd(weight(s, block + n + 16, 1, j, look));
#pragma GCC unroll 3
      for (int part = 0; part < 3; ++part) {
        chain[part][0] = Lanes::add(chain[part][0], even.part[part]);
        chain[part][1] = Lanes::add(chain[part][1], odd.part[part]);
      }
      store_pairs(even, odd, p + block / 32 * 2 * kTile + n * kLine + j * 64, 2 * kTileBytes);
      if (I == 7 && (k & 8)) {
        constexpr int order[] = {1, 2, 0};
        for (const int part : order) {
          sum[j] = Lanes::add(sum[j], Lanes::add(chain[part][0], chain[part][1]));
          chain[part][0] = chain[part][1] = Lanes::zero();
        }
      }
    }
  };

  /// Lines [dim / 32][part][16] of pairs (dim i, dim i + 16). A lane that is not ordinary holds its f32 in
  /// the lines of the first two parts.
  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out, float*) {
    auto* to = static_cast<char*>(out);
    const Index wide = rounded(dim, 32);
    std::uint32_t unusual = 0;
    for (int lane = 0; lane < kPanel; lane += 16) {
      const char* from = address(rows[lane], row[lane]);
      const Index step = address(rows[lane + 1], row[lane + 1]) - from;
      bool even_steps = lane + 16 <= count;  // whole and evenly spaced: no copy on the way
      for (int i = 0; i < 16 && even_steps; ++i)
        even_steps = plain(rows[lane + i], dim) && address(rows[lane + i], row[lane + i]) == from + i * step;
      const auto each = [&](auto&& store) {
        alignas(64) float block[16 * 32];
        for (Index c = 0; c < wide; c += 32) {
          if (!even_steps)
            for (int i = 0; i < 16; ++i)
              for (int h = 0; h < 32; h += 16)
                Lanes::store(block + i * 32 + h, lane + i < count
                                                     ? sixteen(rows[lane + i], row[lane + i], c + h, dim)
                                                     : Lanes::zero());
          const char* at = even_steps ? from + c * 4 : reinterpret_cast<const char*>(block);
          in_pairs(at, even_steps ? step : kLine, at + 64, [&](F even, F odd, int i) {
            store(even, odd, to + c / 32 * 2 * kTile + i * kLine + lane * 4);
          });
        }
      };
      __m512i most = _mm512_setzero_si512();
      each([&](F even, F odd, char* at) {
        most = _mm512_max_epu32(most, _mm512_max_epu32(magnitude(even), magnitude(odd)));
        store_parts(even, odd, at, 2 * kTileBytes);
      });
      const __mmask16 others = unusual_lanes(most) & ~_mm512_testn_epi32_mask(most, most);
      if (others)
        each([&](F even, F odd, char* at) {
          _mm512_mask_storeu_ps(at, others, even);
          _mm512_mask_storeu_ps(at + 2 * kTileBytes, others, odd);
        });
      unusual |= static_cast<std::uint32_t>(others) << lane;
    }
    *reinterpret_cast<std::uint32_t*>(to + wide / 32 * 2 * kTile) = unusual;
  }
  /// Tiles [key / 16][dim / 32][part], rows of pairs (dim i, dim i + 16). A key that is not ordinary holds
  /// its f32 in the rows of the first two parts.
  static void pack_keys(const Rows& rows, Index first, Index count, Index dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index tiles = rounded(dim, 32) / 32, padded = rounded(count, 32);
    const bool direct = plain(rows, dim);
    auto* flags = reinterpret_cast<std::uint32_t*>(to + kGranule / 16 * tiles * kTile);
    for (int i = 0; i < kGranule / 32; ++i) flags[i] = 0;
    for (Index k = 0; k < padded; ++k) {
      char* at = to + k / 16 * tiles * kTile + k % 16 * 64;
      const auto* from = reinterpret_cast<const float*>(address(rows, first + k));
      const auto load = [&](Index c) {
        return k >= count ? Lanes::zero() : direct ? Lanes::load(from + c) : sixteen(rows, first + k, c, dim);
      };
      __m512i most = _mm512_setzero_si512();
      for (Index c = 0; c < tiles; ++c) {
        const F even = load(c * 32), odd = load(c * 32 + 16);
        most = _mm512_max_epu32(most, _mm512_max_epu32(magnitude(even), magnitude(odd)));
        store_parts(even, odd, at + c * kTile, kTileBytes);
      }
      const bool usual = unusual_lanes(most) != 0xffffu && !_mm512_cmpge_epu32_mask(most, power(50));
      if (usual || _mm512_test_epi32_mask(most, most) == 0) continue;
      flags[k / 32] |= 1u << (k % 32);
      for (Index c = 0; c < tiles; ++c)
        for (int h = 0; h < 2; ++h)
          Lanes::store(reinterpret_cast<float*>(at + c * kTile + h * kTileBytes), load(c * 32 + h * 16));
    }
  }
  /// Tiles [key / 32][value_dim / 16][part] of 16 dims x 32 keys, in pairs (key i, key i + 16).
  static bool pack_values(const Rows& rows, Index first, Index count, Index value_dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index wide = rounded(value_dim, 32), end = rows.end < value_dim ? rows.end : value_dim;
    const auto each = [&](auto&& store) {
      alignas(64) float block[32 * 16];
      for (Index k = 0; k < count; k += 32)
        for (Index c = 0; c < wide; c += 16) {
          const char* from = address(rows, first + k) + c * 4;
          Index step = rows.row_step * 4;
          if (rows.column_step != 1 || rows.begin > c || c + 16 > end || k + 32 > count) {
            for (Index i = 0; i < 32; ++i)
              Lanes::store(block + i * 16,
                           k + i < count ? sixteen(rows, first + k + i, c, value_dim) : Lanes::zero());
            from = reinterpret_cast<const char*>(block), step = 64;
          }
          in_pairs(from, step, from + 16 * step, [&](F even, F odd, int i) {
            store(even, odd, to + (k / 32 * (wide / 16) + c / 16) * kTile + i * 64);
          });
        }
    };
    __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi32(-1);  // least: of what is not 0, less 1
    each([&](F even, F odd, char* at) {
      const __m512i one = _mm512_set1_epi32(1), a = magnitude(even), b = magnitude(odd);
      most = _mm512_max_epu32(most, _mm512_max_epu32(a, b));
      least = _mm512_min_epu32(least, _mm512_min_epu32(_mm512_sub_epi32(a, one), _mm512_sub_epi32(b, one)));
      store_parts(even, odd, at, kTileBytes);
    });
    if (!_mm512_cmpge_epu32_mask(most, power(70)) &&
        !_mm512_cmplt_epu32_mask(least, _mm512_sub_epi32(power(-100), _mm512_set1_epi32(1))))
      return true;
    each([&](F even, F odd, char* at) { store_parts(usual(even), usual(odd), at, kTileBytes); });
    return false;
  }

  /// The scores of pairs that are not both ordinary.
  static void mend_scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    const Index tiles = rounded(dim, 32) / 32;
    const auto* q = static_cast<const char*>(queries);
    const auto* k = static_cast<const char*>(keys);
    const auto lanes = *reinterpret_cast<const std::uint32_t*>(q + tiles * 2 * kTile);
    const auto* flags = reinterpret_cast<const std::uint32_t*>(k + kGranule / 16 * tiles * kTile);
    for (Index key = from; key < to; ++key) {
      const bool plain = flags[key / 32] >> (key % 32) & 1u;
      if (!plain && lanes == 0) continue;
      for (int j = 0; j < 2; ++j) {
        const auto own = static_cast<__mmask16>(lanes >> (16 * j));
        F sum = Lanes::zero();
        for (Index c = 0; c < tiles; ++c) {
          const char* row = k + (key / 16 * tiles + c) * kTile + key % 16 * 64;
          F x[2];
          whole(row, kTileBytes, plain ? 0xffffu : 0u, x);
          alignas(64) float element[32];
          Lanes::store(element, x[0]), Lanes::store(element + 16, x[1]);
          for (int i = 0; i < 32; ++i) {
            whole(q + c * 2 * kTile + i % 16 * kLine + j * 64, 2 * kTileBytes, own, x);
            sum = Lanes::fma(Lanes::set(element[i]), x[i / 16], sum);
          }
        }
        _mm512_mask_storeu_ps(s + key * kPanel + j * 16, plain ? 0xffffu : own, sum);
      }
    }
  }

  /// Of vectors of largest magnitudes, those that are not ordinary, or 0.
  static __mmask16 unusual_lanes(__m512i most) {
    return _mm512_cmplt_epu32_mask(most, power(-40)) | _mm512_cmpge_epu32_mask(most, power(50));
  }

  /// 0 in place of what is outside [kValueLow, kValueHigh).
  static F usual(F x) { return _mm512_maskz_mov_ps(usual_lanes(x), x); }
  static __mmask16 usual_lanes(F x) {
    const __m512i m = magnitude(x);
    return _mm512_cmpge_epu32_mask(m, power(-100)) & _mm512_cmplt_epu32_mask(m, power(70));
  }
  /// The f32 numbers a line of pairs stands for; lanes `plain` hold them as they are.
  static void whole(const char* at, Index step, unsigned plain, F (&x)[2]) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    F sum[2];
    for (int i = 0; i < 3; ++i) {
      const __m512i pair = _mm512_loadu_si512(at + i * step);
      const F even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      const F odd = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
      sum[0] = i == 0 ? even : Lanes::add(sum[0], even), sum[1] = i == 0 ? odd : Lanes::add(sum[1], odd);
    }
    for (int i = 0; i < 2; ++i)
      x[i] = Lanes::select(static_cast<__mmask16>(plain), _mm512_loadu_ps(at + i * step), sum[i]);
  }

 private:
  /// All columns exist, side by side, in whole tiles.
  static bool plain(const Rows& rows, Index dim) {
    return rows.column_step == 1 && rows.begin == 0 && rows.end >= dim && dim % 32 == 0;
  }
  static const char* address(const Rows& rows, Index row) {
    return static_cast<const char*>(rows.data) + row_offset(rows, row) * 4;
  }
};
using F32Operands = F32OperandsOf<256>;

}  // namespace
}  // namespace headwise::cpu
