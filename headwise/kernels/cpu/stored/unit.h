// UnitNumbers: scales, minima and codes of one vector of columns of a unit. Included by every ISA level
// after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/stored/layout.h"

namespace headwise::cpu::stored {
namespace {

template <int Format>
struct UnitNumbers {
  static constexpr int W = Lanes::width;
  static constexpr UnitLayout u = kUnits[Format];
  static constexpr bool whole_bytes = Format == static_cast<int>(StoredFormat::q8_0),
                        two_scales = Format == static_cast<int>(StoredFormat::q6_k),
                        stepped_minima = Format == static_cast<int>(StoredFormat::q4_k);
  using F = Lanes::F;
  typedef float V __attribute__((vector_size(4 * W)));
  typedef std::uint32_t U __attribute__((vector_size(4 * W)));
  typedef std::int32_t I __attribute__((vector_size(4 * W)));

  const std::byte* at;
  F scale[2], minimum;  // scale: of each half of k

  /// Columns W j .. W j + W - 1.
  inline __attribute__((always_inline)) UnitNumbers(const std::byte* unit, int j) : at(unit + j * 4 * W) {
    scale[0] = scale[1] = halves(unit, j);
    minimum = u.minima > 0 ? halves(unit + u.minima, j) : Lanes::zero();
    if constexpr (two_scales) {
      scale[0] = Lanes::mul(scale[0], steps(unit, j, 0));
      scale[1] = Lanes::mul(scale[1], steps(unit, j, 1));
    }
    if constexpr (stepped_minima) {
      scale[0] = scale[1] = Lanes::mul(scale[0], steps(unit, j, 0));
      minimum = Lanes::mul(Lanes::sub(Lanes::zero(), minimum), steps(unit, j, 1));
    }
  }
  static inline __attribute__((always_inline)) F halves(const std::byte* p, int j) {
    return Lanes::load_f16(reinterpret_cast<const std::uint16_t*>(p) + j * W);
  }
  static inline __attribute__((always_inline)) I whole_steps(const std::byte* unit, int j, int which) {
    const std::byte* p = unit + u.steps + which * 16 + j * W;
    I n;
    for (int i = 0; i < W; ++i)
      n[i] = two_scales ? static_cast<int>(static_cast<std::int8_t>(p[i])) : static_cast<int>(p[i]);
    return n;
  }
  static inline __attribute__((always_inline)) F steps(const std::byte* unit, int j, int which) {
    return __builtin_bit_cast(F, __builtin_convertvector(whole_steps(unit, j, which), V));
  }
  static inline __attribute__((always_inline)) U load(const std::byte* p) {
    U x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  /// Four codes of every column, a byte each, those of k = 4 t .. 4 t + 3; `at` is the unit, 4 bytes further
  /// for each column.
  static inline __attribute__((always_inline)) U word_of(const std::byte* at, int t) {
    if constexpr (whole_bytes) {
      return load(at + u.low + t * 64);
    } else {
      U low = load(at + u.low + t % 4 * 64);
      low = (t < 4 ? low : low >> 4) & 0x0f0f0f0fu;
      if constexpr (u.high > 0) low |= ((load(at + u.high + t % 2 * 64) >> (t / 2 * 2)) & 0x03030303u) << 4;
      return low;
    }
  }
  inline __attribute__((always_inline)) U word(int t) const { return word_of(at, t); }
  static inline __attribute__((always_inline)) I byte(U word, int b) {
    if constexpr (whole_bytes)
      return (I)(word << (24 - 8 * b)) >> 24;
    else
      return (I)((word >> (8 * b)) & 255u);
  }
};

}  // namespace
}  // namespace headwise::cpu::stored
