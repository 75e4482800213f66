// StoredParts in plain C++, number by number as AMX's manual has its product of tiles: runs on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "headwise/kernels/cpu/isa/stored_kernels.h"

namespace headwise::cpu {

struct PartsModel {
  static float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
  static float wide(std::uint16_t bits) {
    return flushed(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
  }
  static float upper(std::uint32_t bits) { return std::bit_cast<float>(bits & 0xffff0000u); }

  /// Three parts of 8 bits, the largest rounded with halves up.
  static void parts_of(float x, std::uint16_t (&part)[3]) {
    const float high = upper(std::bit_cast<std::uint32_t>(x) + 0x8000u), rest = x - high;
    const float middle = upper(std::bit_cast<std::uint32_t>(rest)), last = rest - middle;
    const float all[3] = {high, middle, last};
    for (int i = 0; i < 3; ++i)
      part[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(all[i]) >> 16);
  }

  static bool split(const float* x, Index k, Index rows, std::byte* to) {
    std::uint32_t most = 0;
    for (Index i = 0; i < k; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
    for (Index s = 0; s * kPartsDepth < k; ++s)
      for (int i = 0; i < 3; ++i) std::memset(to + (3 * s + i) * rows * kPartsLine, 0, kPartsLine);
    if (!is_ordinary(most)) return false;
    for (Index i = 0; i < k; ++i) {
      std::uint16_t part[3];
      parts_of(x[i], part);
      std::byte* step = to + i / kPartsDepth * 3 * rows * kPartsLine + i % kPartsDepth * 2;
      for (int n = 0; n < 3; ++n) std::memcpy(step + n * rows * kPartsLine, &part[n], 2);
    }
    return true;
  }

  /// One element of one product: 16 even and 16 odd terms as chains of their own, then both to the sum.
  static float product(float sum, const std::uint16_t* a, const std::uint16_t* b) {
    float chain[2] = {};
    for (int i = 0; i < 32; ++i) chain[i % 2] = flushed(std::fma(wide(a[i]), wide(b[i]), chain[i % 2]));
    return flushed(sum + flushed(chain[0] + chain[1]));
  }
  static void multiply(const PartsBlock& t) {
    for (Index j = 0; j < t.columns; ++j) {
      t.apart[j] = 0;
      for (int n = 0; n < kUnitColumns; ++n) {
        const auto* w = reinterpret_cast<const std::uint16_t*>(t.unit + j * t.unit_bytes) + n;
        std::vector<std::uint16_t> b(
            static_cast<std::size_t>((t.k + kPartsDepth - 1) / kPartsDepth * kPartsDepth));
        unsigned most = 0;
        for (Index k = 0; k < t.k; ++k) {
          b[static_cast<std::size_t>(k)] = w[k * kUnitColumns];
          most = std::max(most, w[k * kUnitColumns] & 0x7fffu);
        }
        if (!is_ordinary(most << 16)) t.apart[j] = static_cast<std::uint16_t>(t.apart[j] | 1u << n);
        for (Index row = 0; row < t.rows; ++row) {
          const Index group = row / kPartsGroup * kPartsGroup, live = std::min(kPartsGroup, t.rows - group);
          const std::byte* line = t.x + group * bytes_in_parts(t.k) + row % kPartsGroup * kPartsLine;
          float sum = 0;
          for (Index k = 0; k < t.k; k += kPartsDepth)
            for (int i = 2; i >= 0; --i)
              sum = product(sum,
                            reinterpret_cast<const std::uint16_t*>(line + (k / kPartsDepth * 3 + i) * live *
                                                                              kPartsLine),
                            b.data() + k);
          t.c[row * t.c_step + j * kUnitColumns + n] = sum;
        }
      }
    }
  }
  static constexpr StoredParts table() { return {split, multiply}; }
};

}  // namespace headwise::cpu
