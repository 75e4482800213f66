// The two 16-bit formats inside kernels: packing pairs, warp-wide products, names of their instructions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include <cstdint>

#include "headwise/base/half.h"

namespace headwise::cuda {

template <class T>
struct Number;

template <>
struct Number<bf16> {
  static constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  /// Two floats, rounded to nearest even; `low` in the low half.
  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
  static __device__ __forceinline__ float low(std::uint32_t x) { return __uint_as_float(x << 16); }
  static __device__ __forceinline__ float high(std::uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
  /// d [16 8] += a [16 16] b [16 8]
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                                      std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  /// d = c + a b, where d's old numbers are not needed.
  static __device__ __forceinline__ void multiply_from(float (&d)[4], const float (&c)[4],
                                                       const std::uint32_t (&a)[4], std::uint32_t b0,
                                                       std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
          "f"(c[3]));
  }
};

template <>
struct Number<f16> {
  static constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
  static __device__ __forceinline__ float low(std::uint32_t x) {
    float y;
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.f32.f16 %0, a;\n}" : "=f"(y) : "r"(x));
    return y;
  }
  static __device__ __forceinline__ float high(std::uint32_t x) { return low(x >> 16); }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                                      std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  /// d [16 8] += a [16 8] b [8 8]
  static __device__ __forceinline__ void multiply_add_8(float (&d)[4], const std::uint32_t (&a)[2],
                                                        std::uint32_t b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
  /// d = c + a b, where d's old numbers are not needed.
  static __device__ __forceinline__ void multiply_from(float (&d)[4], const float (&c)[4],
                                                       const std::uint32_t (&a)[4], std::uint32_t b0,
                                                       std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
          "f"(c[3]));
  }
};

}  // namespace headwise::cuda
