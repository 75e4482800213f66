// Quantized numbers as f32: one unit at a time. Included by every ISA level after its Lanes; internal
// linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/stored/unit.h"

namespace headwise::cpu::stored {
namespace {

/// Codes stay where they lie in their words: code * 2^s becomes a float as it is, and scale * 2^-s undoes
/// that. What is counted without a sign then meets one fused step. Products of scales and codes are exact in
/// f32, and so are scale * (code - offset); with a minimum each number is rounded once.
template <int Format>
struct UnitWidener {
  using N = UnitNumbers<Format>;
  using F = Lanes::F;
  static constexpr UnitLayout u = N::u;
  static constexpr bool bytes = N::whole_bytes || u.high > 0;
  static constexpr int W = N::W, kBits = bytes ? 8 : 4, kPlaces = 32 / kBits, kHalves = N::two_scales ? 2 : 1;
  static constexpr int kOffset = N::whole_bytes ? 128 : u.offset;

  F scale[kHalves][kPlaces], base[kHalves];

  inline __attribute__((always_inline)) explicit UnitWidener(const N& n) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      base[h] = u.minima > 0 ? n.minimum : Lanes::mul(n.scale[h], Lanes::set(static_cast<float>(-kOffset)));
#pragma GCC unroll 8
      for (int p = 0; p < kPlaces; ++p)
        scale[h][p] = Lanes::mul(n.scale[h], Lanes::set(1.0f / static_cast<float>(1u << shift(p))));
    }
  }
  /// The last place would meet the sign: it is moved down.
  static constexpr int shift(int place) { return place == kPlaces - 1 ? 0 : place * kBits; }
  static inline __attribute__((always_inline)) F code(typename N::U word, int place) {
    const typename N::U in_place =
        place == kPlaces - 1 ? word >> (32 - kBits) : word & (((1u << kBits) - 1u) << (place * kBits));
    return __builtin_bit_cast(F, __builtin_convertvector((typename N::I)in_place, typename N::V));
  }
  /// To columns W j ... of out [32][16].
  inline __attribute__((always_inline)) void store(const N& n, float* out) const {
#pragma GCC unroll 8
    for (int t = 0; t < (bytes ? 8 : 4); ++t) {
      typename N::U word;
      if constexpr (bytes)
        word = n.word(t) ^ (N::whole_bytes ? 0x80808080u : 0u);
      else
        word = N::load(n.at + u.low + t * 64);
#pragma GCC unroll 8
      for (int p = 0; p < kPlaces; ++p) {
        const int k = bytes ? 4 * t + p : 4 * t + p % 2 * 16 + p / 2, h = k / 16 * (kHalves - 1);
        Lanes::store(out + k * 16, Lanes::fma(code(word, p), scale[h][p], base[h]));
      }
    }
  }
};

/// One unit as f32 [32][16].
template <int Format>
void widen_unit(const std::byte* unit, float* out) {
  constexpr int W = Lanes::width;
#pragma GCC unroll 4
  for (int j = 0; j < kUnitColumns / W; ++j) {
    const UnitNumbers<Format> n(unit, j);
    UnitWidener<Format>(n).store(n, out + j * W);
  }
}

}  // namespace
}  // namespace headwise::cpu::stored
