// Divisor: division by a number that a launch knows, as a product and a shift.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise::cuda {

/// n / by for 0 <= n < 2^31, by >= 1. The factor is 2^(31 + shift) / by, rounded up by less than 1,
/// where 2^shift >= by: n times it is too large by less than 2^31 <= 2^(31 + shift) / by, so the quotient is
/// right. A division by a number the compiler does not know takes a GPU some 40 instructions, one after
/// another.
struct Divisor {
  int by = 1;
  std::uint32_t factor = 1u << 31;
  int shift = 0;

  constexpr Divisor() = default;
  constexpr explicit Divisor(int number) : by(number) {
    while ((std::int64_t{1} << shift) < number) ++shift;
    const auto wide = static_cast<std::uint64_t>(number);
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + wide - 1) / wide);
  }
  HW_FN constexpr int quotient(int n) const {
    const std::uint64_t product = std::uint64_t{factor} * (2u * static_cast<std::uint32_t>(n));
    return static_cast<int>(static_cast<std::uint32_t>(product >> 32) >> shift);
  }
};

}  // namespace headwise::cuda
