// Entropy term: -w ln w of a weight, in floats that compilers put side by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace headwise {

/// -w ln w, 0 at 0, to 2e-7 of its size: ln is the exponent, and a series in (m - 1) / (m + 1) of the rest.
inline float entropy_term(float w) {
  const auto bits = std::bit_cast<std::uint32_t>(w > 1e-30f ? w : 1e-30f);
  const auto shifted = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(shifted) << 23));
  const float r = (m - 1) / (m + 1), s = r * r;
  const float ln = static_cast<float>(shifted) * 0.69314718f +
                   r * (2 + s * (0.66666669f + s * (0.40000000f + s * (0.28571430f + s * 0.22390900f))));
  return -w * ln;
}

}  // namespace headwise
