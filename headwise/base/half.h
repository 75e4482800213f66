// f16 and bf16 as values: storage of 16 bits, conversion to and from float with round to nearest even.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise {

struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  constexpr explicit f16(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    const std::uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    std::uint32_t h = 0;
    if (a > 0x7f800000u) {
      h = 0x7e00u | ((a >> 13) & 0x3ffu);
    } else if (a >= 0x477ff000u) {  // rounds to 65536 or more
      h = 0x7c00u;
    } else if (a >= 0x38800000u) {  // normal in f16
      h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    } else if (a > 0x33000000u) {  // subnormal in f16; below half of the smallest one it is zero
      const std::uint32_t shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
      const std::uint32_t kept = m >> shift, rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1u);
      h = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
    }
    bits = static_cast<std::uint16_t>(sign | h);
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, e = (bits >> 10) & 31u, m = bits & 0x3ffu;
    if (e == 31u) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
    if (e != 0u) return std::bit_cast<float>(sign | ((e + 112u) << 23) | (m << 13));
    const float tiny = static_cast<float>(m) * 0x1p-24f;
    return sign ? -tiny : tiny;
  }
};

static_assert(static_cast<float>(f16(1.0f)) == 1.0f && f16(65520.0f).bits == 0x7c00u &&
              f16(0x1p-24f).bits == 1u);
static_assert(f16(0x1p-25f).bits == 0u && f16(65504.0f).bits == 0x7bffu && bf16(1.0f).bits == 0x3f80u);

}  // namespace headwise
