// Rows of any float type and step as blocks of doubles, and back with one rounding: what the small row
// kernels share.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "headwise/base/half.h"

namespace headwise::cpu {

/// Arithmetic happens in blocks of this many doubles on the stack, so it is the same code for every layout
/// and dtype.
inline constexpr Index kRowBlock = 64;

inline double widen(float x) { return static_cast<double>(x); }
inline double widen(double x) { return x; }
inline double widen(bf16 x) { return static_cast<double>(static_cast<float>(x)); }
/// Without branches, so that a loop of it vectorizes: 2^112 moves the exponent's bias and makes subnormals
/// normal.
inline double widen(f16 x) {
  const std::uint32_t magnitude = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  const float moved = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // inf and NaN
  return static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(moved) | special | sign));
}

/// Rounds to nearest even once. The 16-bit types go through a float rounded to odd: its last bit remembers
/// that something was cut off, so the second step rounds as if it saw the double.
template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    const float near = static_cast<float>(x);
    if constexpr (std::is_same_v<T, float>) {
      return near;
    } else {
      // On bits, without branches: signs and remainders are random, and a mispredicted branch costs more than
      // the rest.
      const std::uint64_t magnitude = std::bit_cast<std::uint64_t>(x) << 1;
      const std::uint64_t over = magnitude - (std::bit_cast<std::uint64_t>(static_cast<double>(near)) << 1);
      const auto away = static_cast<std::uint32_t>(over >> 63),
                 cut = static_cast<std::uint32_t>((over | (0 - over)) >> 63);
      return T(std::bit_cast<float>((std::bit_cast<std::uint32_t>(near) - away) | cut));
    }
  }
}

/// to[i] = from[i * step]. Steps 1 and 2 (pairs side by side) are constants in their loops: those vectorize.
template <class T>
void load_row(const T* from, Index step, Index count, double* to) {
  if (step == 1) {
    for (Index i = 0; i < count; ++i) to[i] = widen(from[i]);
  } else if (step == 2) {
    for (Index i = 0; i < count; ++i) to[i] = widen(from[2 * i]);
  } else {
    for (Index i = 0; i < count; ++i) to[i] = widen(from[i * step]);
  }
}

/// to[i * step] = from[i], rounded once.
template <class T>
void store_row(const double* from, Index count, T* to, Index step) {
  if (step == 1) {
    for (Index i = 0; i < count; ++i) to[i] = narrow<T>(from[i]);
  } else {
    for (Index i = 0; i < count; ++i) to[i * step] = narrow<T>(from[i]);
  }
}

}  // namespace headwise::cpu
