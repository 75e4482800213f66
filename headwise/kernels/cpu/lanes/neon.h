// Lanes for NEON: four floats a vector. Internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "headwise/kernels/cpu/lanes/neon_tile.h"

namespace headwise::cpu {
namespace {

/// What exp2_product adds: to round, then the coefficients of 2^-f from the fifth power down.
alignas(16) constexpr float kExp2[7][4] = {{12583039.0f, 12583039.0f, 12583039.0f, 12583039.0f},
                                           {-0.0013398875f, -0.0013398875f, -0.0013398875f, -0.0013398875f},
                                           {0.009618437f, 0.009618437f, 0.009618437f, 0.009618437f},
                                           {-0.055503324f, -0.055503324f, -0.055503324f, -0.055503324f},
                                           {0.24022648f, 0.24022648f, 0.24022648f, 0.24022648f},
                                           {-0.6931472f, -0.6931472f, -0.6931472f, -0.6931472f},
                                           {1.0f, 1.0f, 1.0f, 1.0f}};

/// Where the bytes of four floats come from: one of 16 numbers, then 0, 0 and 0x4b of the constant beside
/// them.
alignas(16) constexpr std::uint32_t kBytePlaces[4][4] = {{0x10111100, 0x10111101, 0x10111102, 0x10111103},
                                                         {0x10111104, 0x10111105, 0x10111106, 0x10111107},
                                                         {0x10111108, 0x10111109, 0x1011110a, 0x1011110b},
                                                         {0x1011110c, 0x1011110d, 0x1011110e, 0x1011110f}};

struct Lanes {
  static constexpr int width = 4;
  static constexpr bool multiplies_by_lane = true;  // LD1R takes a vector slot, FMLA by lane does not
  template <int MR, int NV>
  static constexpr bool own_tile = MR == 8 && NV == 2;
  using Tile = TileNeon;
  using F = float32x4_t;
  using U = uint32x4_t;
  using M = uint32x4_t;

  static constexpr bool prefetches = false;  // Neoverse V1: fetching rows ahead halved the speed of a stream
  static void prefetch(const void*) {}
  static void prefetch_far(const void*) {}
  static constexpr bool fetches_rows = true;  // one after another, those that lie apart

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set(float x) { return vdupq_n_f32(x); }
  static F bcast(const float* p) { return vld1q_dup_f32(p); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F load_part(const float* p, int n) {
    float t[4] = {};
    for (int i = 0; i < n; ++i) t[i] = p[i];
    return vld1q_f32(t);
  }
  static void store_part(float* p, F x, int n) {
    float t[4];
    vst1q_f32(t, x);
    for (int i = 0; i < n; ++i) p[i] = t[i];
  }
  /// 16 numbers at a time where that is quicker: SHLL and SCVTF of Neoverse N1 have one pipe, ZIP and TBL
  /// two.
  static inline __attribute__((always_inline)) void load_bf16s(const std::uint16_t* p, F* x) {
    const uint16x8_t none = vdupq_n_u16(0);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const uint16x8_t eight = vld1q_u16(p + 8 * i);
      x[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(none, eight));
      x[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(none, eight));
    }
  }
  /// Byte u = x + 128 below the exponent of 2^23 is 2^23 + u. TBL of two registers wants them side by side:
  /// named here, since the compiler fills the second anew for each.
  static inline __attribute__((always_inline)) void load_i8s(const std::int8_t* p, F* x) {
    register uint8x16_t biased asm("v30") = veorq_u8(vreinterpretq_u8_s8(vld1q_s8(p)), vdupq_n_u8(0x80));
    register uint8x16_t above asm("v31") = vreinterpretq_u8_u32(vdupq_n_u32(0x4b));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      F sum;
      asm("tbl %0.16b, {%1.16b, %2.16b}, %3.16b"
          : "=w"(sum)
          : "w"(biased), "w"(above), "w"(vld1q_u32(kBytePlaces[i])));
      x[i] = vsubq_f32(sum, vdupq_n_f32(8388736.0f));
    }
  }
  static F load_bf16(const std::uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static F load_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static F load_i8(const std::int8_t* p) {
    std::uint32_t word;
    __builtin_memcpy(&word, p, 4);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }
  /// Seven places up, without the second of the two signs, the byte is an f16 of 2^-8 its size. 480 is NaN.
  static F load_e4m3(const std::uint8_t* p) {
    std::uint32_t word;
    __builtin_memcpy(&word, p, 4);
    const int16x4_t wide = vget_low_s16(vshll_n_s8(vreinterpret_s8_u32(vdup_n_u32(word)), 7));
    const uint16x4_t half = vbic_u16(vreinterpret_u16_s16(wide), vdup_n_u16(0x4000));
    const F x = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), 256.0f);
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(x), vcageq_f32(x, vdupq_n_f32(480.0f))));
  }
  static void store_bf16(std::uint16_t* p, F x) {
    const U u = vreinterpretq_u32_f32(x), high = vshrq_n_u32(u, 16);
    const U odd = vandq_u32(high, vdupq_n_u32(1));
    const U r = vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    vst1_u16(p, vmovn_u32(vbslq_u32(is_nan(x), vorrq_u32(high, vdupq_n_u32(0x40)), r)));
  }
  static void store_f16(std::uint16_t* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
  static F fms(F a, F b, F c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  /// x * y[Lane] + c
  template <int Lane>
  static F fma_lane(F x, F y, F c) {
    return vfmaq_laneq_f32(c, x, y, Lane);
  }
  /// c[i][j] += a[i] * x[j]
  template <int MR, int NV>
  static inline __attribute__((always_inline)) void add_products(const float* a, const F (&x)[NV],
                                                                 F (&c)[MR][NV]) {
#pragma GCC unroll 4
    for (int g = 0; g < MR; g += 4) {
      const F y = vld1q_f32(a + g);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        c[g][j] = vfmaq_laneq_f32(c[g][j], x[j], y, 0);
        c[g + 1][j] = vfmaq_laneq_f32(c[g + 1][j], x[j], y, 1);
        c[g + 2][j] = vfmaq_laneq_f32(c[g + 2][j], x[j], y, 2);
        c[g + 3][j] = vfmaq_laneq_f32(c[g + 3][j], x[j], y, 3);
      }
    }
  }
  /// The larger; NaN when either is.
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F min(F a, F b) { return vminq_f32(a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  /// p * 2^n for p in [0.7, 1.5], whole n <= 0: exactly +0 for n < -126; NaN stays NaN. Adding 1.5 * 2^23 +
  /// 127 leaves n + 127, the exponent of 2^n, in the low bits (FCVT is slow); that of -127 is 0.
  static constexpr bool closes_by_n = false;  // p counts too: its d is clamped
  static F scale2(F p, F n) {
    const F shifted = vaddq_f32(vmaxq_f32(n, vdupq_n_f32(-127.0f)), vdupq_n_f32(12583039.0f));
    return vmulq_f32(p, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23)));
  }
  /// See exp2_product: one sum rounds d * c and holds the exponent of 2^n, since d stays above `lowest`;
  /// exactly +0 from 2^-126.5 on.
  static constexpr bool own_exp2 = true;
  static constexpr float lowest_power = -127.0f;
  static F exp2_product(F d, F c, F lowest) {
    d = vmaxq_f32(lowest, d);
    const F shifted = vfmaq_f32(load(kExp2[0]), d, c);
    const F f = vfmsq_f32(vsubq_f32(shifted, load(kExp2[0])), d, c);  // n - d * c
    F p = vfmaq_f32(load(kExp2[1]), set(kFirst), f);
    for (int i = 2; i < 7; ++i) p = vfmaq_f32(load(kExp2[i]), p, f);
    return vmulq_f32(p, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23)));
  }
  /// The same for eight vectors, c[0] and c[1] by turns, side by side in this order, which asm volatile
  /// keeps. Addends, which FMLA overwrites, come from memory, not by MOV (Neoverse N1: 9 cycles a vector; 13
  /// in the compiler's order).
  static inline __attribute__((always_inline)) void exp2_products(F (&d)[8], const F (&c)[2],
                                                                  const F (&lowest)[2],
                                                                  float* clamped = nullptr) {
    F t[8], f[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      d[i] = vmaxq_f32(lowest[i % 2], d[i]);
      if (clamped) store(clamped + i * width, d[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) t[i] = constant_plus(0, d[i], c[i % 2]);
    const F magic = load(kExp2[0]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) f[i] = difference(t[i], magic);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) subtract_product(f[i], d[i], c[i % 2]);
    const F first = set(kFirst);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) d[i] = constant_plus(1, f[i], first);
    F scale[8];
#pragma GCC unroll 5
    for (int k = 2; k < 7; ++k)
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        d[i] = constant_plus(k, d[i], f[i]);
        if (k < 4 && i % 2 == k - 2) scale[i] = power(t[i]);
      }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) d[i] = vmulq_f32(d[i], scale[i]);
  }
  static M greater(F a, F b) { return vcgtq_f32(a, b); }
  static M is_nan(F a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static M bits(std::uint64_t open) {
    static const std::uint32_t lane[4] = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(static_cast<std::uint32_t>(open)), vld1q_u32(lane));
  }
  static F select(M m, F yes, F no) { return vbslq_f32(m, yes, no); }
  static bool any(M m) { return vmaxvq_u32(m) != 0; }
  /// Bit i: lane i.
  static std::uint64_t word(M m) {
    static const std::uint32_t lane[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, vld1q_u32(lane)));
  }
  static bool all_finite(F a) { return vminvq_u32(vcleq_f32(vabsq_f32(a), vdupq_n_f32(3.4028235e38f))) != 0; }

  static U setu(std::uint32_t x) { return vdupq_n_u32(x); }
  static U loadu(const std::uint32_t* p) { return vld1q_u32(p); }
  static U addu(U a, U b) { return vaddq_u32(a, b); }
  static U xoru(U a, U b) { return veorq_u32(a, b); }
  static void mulu(U a, U b, U& low, U& high) {
    const uint64x2_t x = vmull_u32(vget_low_u32(a), vget_low_u32(b)), y = vmull_high_u32(a, b);
    low = vuzp1q_u32(vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y));
    high = vuzp2q_u32(vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y));
  }
  static M not_below(U a, U b) { return vcgeq_u32(a, b); }

  /// Four rows of n columns (a multiple of 4) -> out[column][4].
  static void interleave4(const float* rows, std::int64_t step, std::int64_t n, float* out) {
    for (std::int64_t c = 0; c < n; c += 4) {
      F a[4];
      for (int i = 0; i < 4; ++i) a[i] = load(rows + i * step + c);
      transpose(a);
      for (int i = 0; i < 4; ++i) store(out + 4 * (c + i), a[i]);
    }
  }
  /// Four rows of n columns -> out[group of Group columns][row][Group]; returns sum + x * 0 of every x, NaN
  /// if one is not finite.
  template <int Group>
  static F regroup(const float* rows, std::int64_t step, std::int64_t n, float* out, std::int64_t group_step,
                   F sum) {
    for (std::int64_t c = 0; c < n; c += Group)
      for (int i = 0; i < 4; ++i)
        for (int g = 0; g < Group; g += 4) {
          const F x = load(rows + i * step + c + g);
          sum = fma(x, zero(), sum);
          store(out + c / Group * group_step + Group * i + g, x);
        }
    return sum;
  }
  static void transpose(F (&r)[4]) {
    const F a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]), c = vtrn1q_f32(r[2], r[3]),
            d = vtrn2q_f32(r[2], r[3]);
    const auto low = [](F x, F y) {
      return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    const auto high = [](F x, F y) {
      return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    r[0] = low(a, c), r[1] = low(b, d), r[2] = high(a, c), r[3] = high(b, d);
  }

 private:
  static constexpr float kFirst = 0.00015353362f;
  static F constant_plus(int i, F a, F b) {
    F sum;
    asm volatile("ldr %q0, %3\n\tfmla %0.4s, %1.4s, %2.4s" : "=&w"(sum) : "w"(a), "w"(b), "m"(kExp2[i]));
    return sum;
  }
  /// 2^n of n + 127 in the low bits.
  static F power(F shifted) {
    U x;
    asm volatile("shl %0.4s, %1.4s, 23" : "=w"(x) : "w"(shifted));
    return vreinterpretq_f32_u32(x);
  }
  static F difference(F a, F b) {
    F x;
    asm volatile("fsub %0.4s, %1.4s, %2.4s" : "=w"(x) : "w"(a), "w"(b));
    return x;
  }
  static void subtract_product(F& sum, F a, F b) {
    asm volatile("fmls %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
  }
};

}  // namespace
}  // namespace headwise::cpu
