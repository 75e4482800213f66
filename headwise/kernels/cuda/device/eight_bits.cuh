// Numbers of 8 bits as factors of 16-bit products: two of the four in a word become a pair, exactly.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"

namespace headwise::cuda {

/// Bytes Low and High of a word of int8, or of e4m3, as a pair of T; kNan: a byte may be NaN.
template <class T>
struct FromInt8;
template <class T>
struct FromE4m3;

template <>
struct FromInt8<bf16> {
  static constexpr bool kNan = false;
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
  static constexpr bool kNan = false;
  /// 0x6400 with eight bits is 1,024 + them; with the sign bit turned these are the number + 128.
  template <int Low, int High>
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word) {
    const std::uint32_t x = __byte_perm(word ^ 0x80808080u, 0x64646464u, 0x4040 | Low | High << 8);
    std::uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0x64806480u));
    return r;
  }
};

template <>
struct FromE4m3<f16> {
  static constexpr bool kNan = true;
  template <int Low, int High>
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word) {
    static_assert(Low % 2 == 0 && High == Low + 1);
    std::uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<std::uint16_t>(word >> 8 * Low)));
    return r;
  }
};

template <>
struct FromE4m3<bf16> {
  static constexpr bool kNan = true;
  /// One byte as f32, by way of its pair in f16.
  template <int At>
  static __device__ __forceinline__ float wide(std::uint32_t word) {
    const std::uint32_t both = FromE4m3<f16>::pair<At / 2 * 2, At / 2 * 2 + 1>(word);
    return At % 2 == 0 ? Number<f16>::low(both) : Number<f16>::high(both);
  }
  template <int Low, int High>
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word) {
    return Number<bf16>::pack(wide<Low>(word), wide<High>(word));
  }
};

}  // namespace headwise::cuda
