// e4m3 as a value: 8 bits with four of exponent and three of mantissa (OCP E4M3FN), to and from float.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise {

/// Up to 448, down to 2^-9; no infinity, NaN is 0x7f and 0xff. From float: the nearest, ties to even; what is
/// larger than 448 becomes 448; NaN stays NaN.
struct e4m3 {
  static constexpr float kMost = 448;

  std::uint8_t bits = 0;

  e4m3() = default;
  constexpr explicit e4m3(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    const std::uint32_t sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    std::uint32_t h = 0;
    if (a > 0x7f800000u) {
      h = 0x7fu;
    } else if (a >= 0x43e00000u) {  // 448
      h = 0x7eu;
    } else if (a >= 0x3c800000u) {  // 2^-6: normal
      h = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
    } else if (a > 0x3a800000u) {  // subnormal; up to half of the smallest one it is zero
      const std::uint32_t shift = 141u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
      const std::uint32_t kept = m >> shift, rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1u);
      h = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
    }
    bits = static_cast<std::uint8_t>(sign | h);
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = (bits & 0x80u) << 24, a = bits & 0x7fu;
    if (a == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (a >= 8u) return std::bit_cast<float>(sign | ((a << 20) + 0x3c000000u));
    const float tiny = static_cast<float>(a) * 0x1p-9f;
    return sign ? -tiny : tiny;
  }
};

static_assert(static_cast<float>(e4m3(1.0f)) == 1.0f && e4m3(1.0f).bits == 0x38u &&
              e4m3(-1e9f).bits == 0xfeu);
static_assert(e4m3(0x1p-9f).bits == 1u && e4m3(0x1p-10f).bits == 0u && e4m3(0x3p-10f).bits == 2u);

}  // namespace headwise
