// Lanes for AVX-512: sixteen floats a vector. Included by the AVX-512 levels alone; everything has internal
// linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headwise::cpu {
namespace {

struct Lanes {
  static constexpr int width = 16;
  static constexpr bool multiplies_by_lane = false;
  template <int MR, int NV>
  static constexpr bool own_tile = false;
  using F = __m512;
  using U = __m512i;
  using M = __mmask16;

  /// Hardware alone leaves memory idle between two streams.
  static constexpr bool fetches_rows = false;
  static constexpr bool prefetches = true;
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F bcast(const float* p) { return _mm512_set1_ps(*p); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F load_bf16(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_i8(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// Seven places up, without the second of the two signs, the byte is an f16 of 2^-8 its size. 480 is NaN.
  static F load_e4m3(const std::uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i half = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), _mm256_slli_epi16(wide, 7));
    const F x = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
    const M nan = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(480.0f), _CMP_GE_OQ);
    return _mm512_mask_mov_ps(x, nan, _mm512_set1_ps(__builtin_nanf("")));
  }
  static void store_bf16(std::uint16_t* p, F x) {
    const U u = _mm512_castps_si512(x);
    const U odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    U r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const M nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
  }
  static void store_f16(std::uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  /// The larger; b when either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static constexpr bool own_exp2 = false;         // see exp2_product
  static constexpr float lowest_power = -200.0f;  // surely 0 after scale2
  /// p * 2^n for p in [0.7, 1.5], whole n <= 0: exactly +0 below 2^-125; NaN stays NaN. The mask keeps SCALEF
  /// from underflowing, which costs a microcode assist a vector (seen: masked tiles took ten times as long).
  static constexpr bool closes_by_n = true;  // whatever p is: d needs no clamp
  static F scale2(F p, F n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ), p, n);
  }
  static M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static M bits(std::uint64_t open) { return static_cast<M>(open); }
  static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static bool any(M m) { return m != 0; }
  /// Bit i: lane i.
  static std::uint64_t word(M m) { return m; }
  static bool all_finite(F a) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_set1_ps(3.4028235e38f), _CMP_NLE_UQ) == 0;
  }

  static U setu(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static U loadu(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  static U addu(U a, U b) { return _mm512_add_epi32(a, b); }
  static U xoru(U a, U b) { return _mm512_xor_si512(a, b); }
  /// Low and high halves of the 64-bit products.
  static void mulu(U a, U b, U& low, U& high) {
    const U even = _mm512_mul_epu32(a, b);
    const U odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  }
  static M not_below(U a, U b) { return _mm512_cmp_epu32_mask(a, b, _MM_CMPINT_NLT); }

  /// Four rows of n columns (a multiple of 16) -> out[column][4].
  static void interleave4(const float* rows, std::int64_t step, std::int64_t n, float* out) {
    for (std::int64_t c = 0; c < n; c += 16) {
      F a[4], t[4];
      for (int i = 0; i < 4; ++i) a[i] = load(rows + i * step + c);
      t[0] = _mm512_unpacklo_ps(a[0], a[1]), t[1] = _mm512_unpackhi_ps(a[0], a[1]);
      t[2] = _mm512_unpacklo_ps(a[2], a[3]), t[3] = _mm512_unpackhi_ps(a[2], a[3]);
      for (int i = 0; i < 2; ++i) {
        const __m512d x = _mm512_castps_pd(t[i]), y = _mm512_castps_pd(t[2 + i]);
        a[2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
              a[2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
      }
      transpose_quarters(a);
      for (int i = 0; i < 4; ++i) store(out + 4 * c + 16 * i, a[i]);
    }
  }
  /// Four rows of n columns -> out[group of Group columns][row][Group]; returns sum + x * 0 of every x, NaN
  /// if one is not finite.
  template <int Group>
  static F regroup(const float* rows, std::int64_t step, std::int64_t n, float* out, std::int64_t group_step,
                   F sum) {
    static_assert(Group == 4);
    for (std::int64_t c = 0; c < n; c += 16) {
      F a[4];
      for (int i = 0; i < 4; ++i) a[i] = load(rows + i * step + c), sum = fma(a[i], zero(), sum);
      transpose_quarters(a);
      for (int i = 0; i < 4; ++i) store(out + (c / 4 + i) * group_step, a[i]);
    }
    return sum;
  }

  /// r[i] lane j <-> r[j] lane i.
  static void transpose(F (&r)[16]) {
    F t[16];
    for (int i = 0; i < 16; i += 2)
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 16; i += 4) {
      for (int j = 0; j < 2; ++j) {
        const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + 2 + j]);
        r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      }
    }
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
      t[4 + j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
      t[8 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
      t[12 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    }
    for (int j = 0; j < 4; ++j) {
      r[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
      r[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
      r[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
      r[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
    }
  }

 private:
  /// a[i] quarter j <-> a[j] quarter i.
  static void transpose_quarters(F (&a)[4]) {
    const F x = _mm512_shuffle_f32x4(a[0], a[1], 0x44), y = _mm512_shuffle_f32x4(a[2], a[3], 0x44);
    const F z = _mm512_shuffle_f32x4(a[0], a[1], 0xee), w = _mm512_shuffle_f32x4(a[2], a[3], 0xee);
    a[0] = _mm512_shuffle_f32x4(x, y, 0x88), a[1] = _mm512_shuffle_f32x4(x, y, 0xdd);
    a[2] = _mm512_shuffle_f32x4(z, w, 0x88), a[3] = _mm512_shuffle_f32x4(z, w, 0xdd);
  }
  static M first(int n) { return static_cast<M>((1u << n) - 1u); }
};

}  // namespace
}  // namespace headwise::cpu
