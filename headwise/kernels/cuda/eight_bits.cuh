// Numbers of 8 bits as factors of 16-bit products: two of the four in a word become a pair, exactly.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/number.cuh"

namespace headwise::cuda {

/// Bytes Low and High of a word of int8 as a pair of T.
template <class T>
struct FromInt8;

template <>
struct FromInt8<bf16> {
  /// 0x4300 with the low seven bits is 128 + them, with the sign bit 128 or 256: the number is their
  /// difference.
  template <int Low, int High>
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word) {
    const std::uint32_t x = __byte_perm(word, 0x43434343u, 0x4040 | Low | High << 8);
    std::uint32_t r;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x & 0xff7fff7fu), "r"(x & 0xff80ff80u));
    return r;
  }
};

template <>
struct FromInt8<f16> {
  /// 0x6400 with eight bits is 1,024 + them; with the sign bit turned these are the number + 128.
  template <int Low, int High>
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word) {
    const std::uint32_t x = __byte_perm(word ^ 0x80808080u, 0x64646464u, 0x4040 | Low | High << 8);
    std::uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0x64806480u));
    return r;
  }
};

}  // namespace headwise::cuda
