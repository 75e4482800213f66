// Lanes for AVX2 with FMA and F16C: eight floats a vector. Internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headwise::cpu {
namespace {

struct Lanes {
  static constexpr int width = 8;
  static constexpr bool multiplies_by_lane = false;
  template <int MR, int NV>
  static constexpr bool own_tile = false;
  using F = __m256;
  using U = __m256i;
  using M = __m256;  // all ones or all zeros a lane

  /// Hardware alone leaves memory idle between two streams.
  static constexpr bool fetches_rows = false;
  static constexpr bool prefetches = true;
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F bcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_part(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x); }
  static F load_bf16(const std::uint16_t* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_i8(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// Seven places up, without the second of the two signs, the byte is an f16 of 2^-8 its size. 480 is NaN.
  static F load_e4m3(const std::uint8_t* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i half = _mm_andnot_si128(_mm_set1_epi16(0x4000), _mm_slli_epi16(wide, 7));
    const F x = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
    const F size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_or_ps(x, _mm256_cmp_ps(size, _mm256_set1_ps(480.0f), _CMP_GE_OQ));
  }
  static void store_bf16(std::uint16_t* p, F x) {
    const U u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const U odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const U r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const U nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const U both = _mm256_blendv_epi8(r, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    const U packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(both, both), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_f16(std::uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  /// The larger; b when either is NaN.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static constexpr bool own_exp2 = false;         // see exp2_product
  static constexpr float lowest_power = -200.0f;  // surely 0 after scale2
  /// p * 2^n for p in [0.7, 1.5], whole n <= 0: exactly +0 below 2^-125; NaN stays NaN.
  static constexpr bool closes_by_n = false;  // p counts too: its d is clamped
  static F scale2(F p, F n) {
    const F lowest = _mm256_set1_ps(-125.0f);
    const U e = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_max_ps(lowest, n)), 23);
    const F r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    const F kept = _mm256_and_ps(r, _mm256_cmp_ps(n, lowest, _CMP_GE_OQ));
    return _mm256_blendv_ps(kept, p, is_nan(p));
  }
  static M greater(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static M is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static M bits(std::uint64_t open) {
    const U lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const U all = _mm256_set1_epi32(static_cast<int>(open & 0xff));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
  }
  static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  static bool any(M m) { return _mm256_movemask_ps(m) != 0; }
  /// Bit i: lane i.
  static std::uint64_t word(M m) { return static_cast<std::uint32_t>(_mm256_movemask_ps(m)); }
  static bool all_finite(F a) {
    return _mm256_movemask_ps(_mm256_cmp_ps(abs(a), _mm256_set1_ps(3.4028235e38f), _CMP_NLE_UQ)) == 0;
  }

  static U setu(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static U loadu(const std::uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static U addu(U a, U b) { return _mm256_add_epi32(a, b); }
  static U xoru(U a, U b) { return _mm256_xor_si256(a, b); }
  static void mulu(U a, U b, U& low, U& high) {
    const U even = _mm256_mul_epu32(a, b);
    const U odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  }
  static M not_below(U a, U b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a)); }

  /// Four rows of n columns (a multiple of 8) -> out[column][4].
  static void interleave4(const float* rows, std::int64_t step, std::int64_t n, float* out) {
    for (std::int64_t c = 0; c < n; c += 8) {
      F a[4];
      for (int i = 0; i < 4; ++i) a[i] = load(rows + i * step + c);
      const F x = _mm256_unpacklo_ps(a[0], a[1]), y = _mm256_unpackhi_ps(a[0], a[1]);
      const F z = _mm256_unpacklo_ps(a[2], a[3]), w = _mm256_unpackhi_ps(a[2], a[3]);
      a[0] = _mm256_shuffle_ps(x, z, 0x44), a[1] = _mm256_shuffle_ps(x, z, 0xee);
      a[2] = _mm256_shuffle_ps(y, w, 0x44), a[3] = _mm256_shuffle_ps(y, w, 0xee);
      store_halves(a, out + 4 * c, out + 4 * c + 16);
    }
  }
  /// Four rows of n columns -> out[group of Group columns][row][Group]; returns sum + x * 0 of every x, NaN
  /// if one is not finite.
  template <int Group>
  static F regroup(const float* rows, std::int64_t step, std::int64_t n, float* out, std::int64_t group_step,
                   F sum) {
    static_assert(Group == 4);
    for (std::int64_t c = 0; c < n; c += 8) {
      F a[4];
      for (int i = 0; i < 4; ++i) a[i] = load(rows + i * step + c), sum = fma(a[i], zero(), sum);
      store_halves(a, out + c / 4 * group_step, out + (c / 4 + 1) * group_step);
    }
    return sum;
  }

  static void transpose(F (&r)[8]) {
    F t[8];
    for (int i = 0; i < 8; i += 2)
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4) {
      for (int j = 0; j < 2; ++j) {
        r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
        r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
      }
    }
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
      t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
    }
    for (int j = 0; j < 8; ++j) r[j] = t[j];
  }

 private:
  /// Low halves of a[0..3] one after the other, then the high ones.
  static void store_halves(const F (&a)[4], float* low, float* high) {
    store(low, _mm256_permute2f128_ps(a[0], a[1], 0x20)),
        store(low + 8, _mm256_permute2f128_ps(a[2], a[3], 0x20));
    store(high, _mm256_permute2f128_ps(a[0], a[1], 0x31)),
        store(high + 8, _mm256_permute2f128_ps(a[2], a[3], 0x31));
  }
  static U first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace
}  // namespace headwise::cpu
