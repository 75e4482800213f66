// Lanes without intrinsics: four floats in an array, for any CPU the compiler knows. Internal linkage
// throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/e4m3.h"
#include "headwise/base/half.h"

namespace headwise::cpu {
namespace {

struct Lanes {
  static constexpr int width = 4;
  static constexpr bool multiplies_by_lane = false;
  template <int MR, int NV>
  static constexpr bool own_tile = false;
  struct F {
    float v[4];
  };
  struct U {
    std::uint32_t v[4];
  };
  struct M {
    bool v[4];
  };

  template <class G>
  static F each(G g) {
    F r;
    for (int i = 0; i < 4; ++i) r.v[i] = g(i);
    return r;
  }
  template <class G>
  static M test(G g) {
    M r;
    for (int i = 0; i < 4; ++i) r.v[i] = g(i);
    return r;
  }
  template <class G>
  static U eachu(G g) {
    U r;
    for (int i = 0; i < 4; ++i) r.v[i] = g(i);
    return r;
  }
  static constexpr bool fetches_rows = false;
  static constexpr bool prefetches = false;
  static void prefetch(const void*) {}
  static void prefetch_far(const void*) {}

  static F zero() { return set(0.0f); }
  static F set(float x) {
    return each([=](int) { return x; });
  }
  static F bcast(const float* p) { return set(*p); }
  static F load(const float* p) {
    return each([=](int i) { return p[i]; });
  }
  static void store(float* p, F x) { store_part(p, x, 4); }
  static F load_part(const float* p, int n) {
    return each([=](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store_part(float* p, F x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x.v[i];
  }
  static F load_bf16(const std::uint16_t* p) {
    return each([=](int i) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(p[i]) << 16); });
  }
  static F load_f16(const std::uint16_t* p) {
    return each([=](int i) { return static_cast<float>(__builtin_bit_cast(f16, p[i])); });
  }
  static F load_i8(const std::int8_t* p) {
    return each([=](int i) { return static_cast<float>(p[i]); });
  }
  static F load_e4m3(const std::uint8_t* p) {
    return each([=](int i) { return static_cast<float>(__builtin_bit_cast(e4m3, p[i])); });
  }
  static void store_bf16(std::uint16_t* p, F x) {
    for (int i = 0; i < 4; ++i) p[i] = bf16(x.v[i]).bits;
  }
  static void store_f16(std::uint16_t* p, F x) {
    for (int i = 0; i < 4; ++i) p[i] = f16(x.v[i]).bits;
  }

  static F add(F a, F b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  static F fnma(F a, F b, F c) {
    return each([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
  }
  static F fms(F a, F b, F c) {
    return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], -c.v[i]); });
  }
  static F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F abs(F a) {
    return each([&](int i) { return __builtin_fabsf(a.v[i]); });
  }
  static constexpr bool own_exp2 = false;         // see exp2_product
  static constexpr float lowest_power = -200.0f;  // surely 0 after scale2
  /// p * 2^n for p in [0.7, 1.5], whole n <= 0: exactly +0 below 2^-125; NaN stays NaN.
  static constexpr bool closes_by_n = false;  // p counts too: its d is clamped
  static F scale2(F p, F n) {
    return each([&](int i) {
      if (p.v[i] != p.v[i]) return __builtin_nanf("");  // one sign, whatever the compiler made of a negation
      if (!(n.v[i] >= -125.0f)) return 0.0f;
      const auto e = static_cast<std::uint32_t>(static_cast<std::int32_t>(n.v[i])) << 23;
      return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p.v[i]) + e);
    });
  }
  static M greater(F a, F b) {
    return test([&](int i) { return a.v[i] > b.v[i]; });
  }
  static M is_nan(F a) {
    return test([&](int i) { return a.v[i] != a.v[i]; });
  }
  static M bits(std::uint64_t open) {
    return test([=](int i) { return (open >> i & 1u) != 0; });
  }
  static F select(M m, F yes, F no) {
    return each([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
  }
  static bool any(M m) { return m.v[0] || m.v[1] || m.v[2] || m.v[3]; }
  /// Bit i: lane i.
  static std::uint64_t word(M m) {
    std::uint64_t w = 0;
    for (int i = 0; i < 4; ++i) w |= std::uint64_t{m.v[i]} << i;
    return w;
  }
  static bool all_finite(F a) {
    bool ok = true;
    for (int i = 0; i < 4; ++i) ok = ok && __builtin_fabsf(a.v[i]) <= 3.4028235e38f;
    return ok;
  }

  static U setu(std::uint32_t x) {
    return eachu([=](int) { return x; });
  }
  static U loadu(const std::uint32_t* p) {
    return eachu([=](int i) { return p[i]; });
  }
  static U addu(U a, U b) {
    return eachu([&](int i) { return a.v[i] + b.v[i]; });
  }
  static U xoru(U a, U b) {
    return eachu([&](int i) { return a.v[i] ^ b.v[i]; });
  }
  static void mulu(U a, U b, U& low, U& high) {
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t p = static_cast<std::uint64_t>(a.v[i]) * b.v[i];
      low.v[i] = static_cast<std::uint32_t>(p), high.v[i] = static_cast<std::uint32_t>(p >> 32);
    }
  }
  static M not_below(U a, U b) {
    return test([&](int i) { return a.v[i] >= b.v[i]; });
  }
  /// Four rows of n columns -> out[column][4].
  static void interleave4(const float* rows, std::int64_t step, std::int64_t n, float* out) {
    for (std::int64_t c = 0; c < n; ++c)
      for (int i = 0; i < 4; ++i) out[4 * c + i] = rows[i * step + c];
  }
  /// Four rows of n columns -> out[group of Group columns][row][Group]; returns sum + x * 0 of every x, NaN
  /// if one is not finite.
  template <int Group>
  static F regroup(const float* rows, std::int64_t step, std::int64_t n, float* out, std::int64_t group_step,
                   F sum) {
    static_assert(Group == 4);
    for (std::int64_t c = 0; c < n; ++c)
      for (int i = 0; i < 4; ++i) {
        const float x = rows[i * step + c];
        sum.v[i] += x * 0.0f;
        out[c / 4 * group_step + 4 * i + c % 4] = x;
      }
    return sum;
  }
  static void transpose(F (&r)[4]) {
    for (int i = 0; i < 4; ++i)
      for (int j = i + 1; j < 4; ++j) {
        const float t = r[i].v[j];
        r[i].v[j] = r[j].v[i], r[j].v[i] = t;
      }
  }
};

}  // namespace
}  // namespace headwise::cpu
