// round_group: 32 numbers of a row as 8 bits and a scale. Included by every ISA level; internal linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/stored_kernels.h"

namespace headwise::cpu::stored {
namespace {

/// q = x / scale rounded to the nearest even, scale = the largest |x| / 127. What is not finite makes its
/// group NaN. half: the sums of q over each half. Loops are plain: compilers turn them into vectors of the
/// level, and no product is fused with a sum, so all levels give the same bits.
void round_group(const float* x, std::int8_t* q, float* scale, std::int32_t* half) {
  constexpr std::int32_t kInfinite = 0x7f800000;
  std::int32_t bits[kGroup], most = 0;
  __builtin_memcpy(bits, x, sizeof bits);
  for (const std::int32_t b : bits)
    most = most < (b & 0x7fffffff) ? b & 0x7fffffff : most;  // in the order of |x|
  half[0] = half[1] = 0;
  if (most >= kInfinite) {
    __builtin_memset(q, 0, kGroup);
    *scale = __builtin_nanf("");
    return;
  }
  const float top = __builtin_bit_cast(float, most), inverse = top > 0 ? 127.0f / top : 0.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  *scale = top / 127.0f;
  std::int32_t whole[kGroup];
  for (Index i = 0; i < kGroup; ++i) {
    const float n = (x[i] * inverse + kRound) - kRound;
    // Beside a top below 4e-37 the inverse is infinite, and 0 times that is no number.
    whole[i] = static_cast<std::int32_t>(n > 127.0f ? 127.0f : n < -127.0f ? -127.0f : n == n ? n : 0.0f);
  }
  for (Index i = 0; i < kGroup; ++i) q[i] = static_cast<std::int8_t>(whole[i]);
  for (Index i = 0; i < kGroup / 2; ++i) half[0] += whole[i], half[1] += whole[kGroup / 2 + i];
}

}  // namespace
}  // namespace headwise::cpu::stored
