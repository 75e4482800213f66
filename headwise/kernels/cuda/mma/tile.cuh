// MmaTile: one warp's 16 rows times tiles in shared memory by mma.sync; f32 as three products of tf32.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"

namespace headwise::cuda::mma {

/// A tile of rows of 16-byte chunks. Accumulators lie as m16n8 does: row lane / 4 (+ 8),
/// columns 2 (lane % 4) and the next one of each 8.
template <class T>
struct MmaTile {
  static constexpr int kKeys = 64, kChunk = 8, kWidest = 256;
  std::uint32_t address;
  int rows;

  HW_FN static constexpr int padded(int dim) { return (dim + 15) / 16 * 16; }
  HW_FN static constexpr int bytes(int rows, int dim) { return (dim + 63) / 64 * rows * kPanelRowBytes; }
  __device__ __forceinline__ MmaTile(std::uint32_t at, int tile_rows, int) : address(at), rows(tile_rows) {}
  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    return address + chunk_offset(rows, row, chunk);
  }

  /// s += q k^T over `dim` columns; `row` is the warp's first one in q. A fragment's row has the last three
  /// bits of its lane everywhere, so that step i of a panel exchanges chunks by one ^ of a constant.
  static __device__ __forceinline__ void scores(float (&s)[kKeys / 8][4], const MmaTile& q, const MmaTile& k,
                                                int row, int dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t q_at = q.at(row + (lane & 15), lane >> 4);
    std::uint32_t k_at = k.at((lane & 7) + ((lane >> 4) & 1) * 8, (lane >> 3) & 1);
    const auto step = [&](std::uint32_t column) {
      std::uint32_t a[4], b[kKeys / 16][4];
      ptx::load_matrices(q_at ^ column, a);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n)  // rows of k are keys: as they lie they are the right factor
        ptx::load_matrices((k_at ^ column) + n * 16 * kPanelRowBytes, b[n]);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        Number<T>::multiply_add(s[2 * n], a, b[n][0], b[n][1]);
        Number<T>::multiply_add(s[2 * n + 1], a, b[n][2], b[n][3]);
      }
    };
    int c = 0;
    // Whole panels without a branch: loads of a step then stand before the products of the one before.
#pragma unroll 1
    for (; c + kPanelColumns <= dim;
         c += kPanelColumns, q_at += panel_bytes(q.rows), k_at += panel_bytes(kKeys))
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) step(32 * i);
#pragma unroll 1
    for (std::uint32_t i = 0; c < dim; c += 16, ++i) step(32 * i);
  }
  /// o += w v
  template <int Width>
  static __device__ __forceinline__ void values(float (&o)[Width / 8][4], const float (&w)[kKeys / 8][4],
                                                const MmaTile& v) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t v_at = v.at(lane & 15, lane >> 4);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const std::uint32_t a[4] = {Number<T>::pack(w[2 * i][0], w[2 * i][1]),
                                  Number<T>::pack(w[2 * i][2], w[2 * i][3]),
                                  Number<T>::pack(w[2 * i + 1][0], w[2 * i + 1][1]),
                                  Number<T>::pack(w[2 * i + 1][2], w[2 * i + 1][3])};
#pragma unroll
      for (int n = 0; n < Width / 16; ++n) {  // rows of v are keys: turned, they are the right factor
        std::uint32_t b[4];
        ptx::load_matrices_turned((v_at ^ (32u * (n % 4))) +
                                      static_cast<std::uint32_t>(n / 4) * panel_bytes(kKeys) +
                                      i * 16 * kPanelRowBytes,
                                  b);
        Number<T>::multiply_add(o[2 * n], a, b[0], b[1]);
        Number<T>::multiply_add(o[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  static __device__ __forceinline__ void store_pair(T* to, float x, float y) {
    *reinterpret_cast<std::uint32_t*>(to) = Number<T>::pack(x, y);
  }
};

/// f32: x = high + low of 11 bits each; high high + high low + low high leaves 2^-22 of a product.
template <>
struct MmaTile<float> {
  static constexpr int kKeys = 32, kChunk = 4, kWidest = 128;
  std::uint32_t address;
  int pitch;  // bytes; 4 floats past a multiple of 32, so that the fragments below meet all banks

  HW_FN static constexpr int padded(int dim) { return (dim + 7) / 8 * 8; }
  HW_FN static constexpr int row_bytes(int dim) { return ((dim + 31) / 32 * 32 + 4) * 4; }
  HW_FN static constexpr int bytes(int rows, int dim) { return rows * row_bytes(dim); }
  __device__ __forceinline__ MmaTile(std::uint32_t at, int, int dim) : address(at), pitch(row_bytes(dim)) {}
  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    return address + static_cast<std::uint32_t>(row * pitch + chunk * 16);
  }
  __device__ __forceinline__ float element(int row, int column) const {
    return __uint_as_float(ptx::load_word(address + static_cast<std::uint32_t>(row * pitch + column * 4)));
  }

  struct Split {
    std::uint32_t high, low;
    __device__ __forceinline__ explicit Split(float x) {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
    }
  };
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                                      std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  struct Left {
    std::uint32_t high[4], low[4];
    __device__ __forceinline__ Left(float x0, float x1, float x2, float x3) {
      const Split x[4] = {Split(x0), Split(x1), Split(x2), Split(x3)};
#pragma unroll
      for (int i = 0; i < 4; ++i) high[i] = x[i].high, low[i] = x[i].low;
    }
  };
  /// The units cut off what they add: a sum of its own each step, joined by rounded additions. Without it
  /// 9,000 keys gave an error of 6e-5.
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const Left& a, float x0, float x1) {
    const Split b0(x0), b1(x1);
    float step[4] = {};
    multiply_add(step, a.low, b0.high, b1.high);
    multiply_add(step, a.high, b0.low, b1.low);
    multiply_add(step, a.high, b0.high, b1.high);
#pragma unroll
    for (int e = 0; e < 4; ++e) d[e] += step[e];
  }

  static __device__ __forceinline__ void scores(float (&s)[kKeys / 8][4], const MmaTile& q, const MmaTile& k,
                                                int row, int dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int c = 0; c < padded(dim); c += 8) {
      const Left a(q.element(row + g, c + t), q.element(row + g + 8, c + t), q.element(row + g, c + t + 4),
                   q.element(row + g + 8, c + t + 4));
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        multiply_add(s[n], a, k.element(8 * n + g, c + t), k.element(8 * n + g, c + t + 4));
    }
  }
  /// The accumulator holds keys 2t and 2t + 1 where a left factor has columns t and t + 4: both factors take
  /// the keys in that order.
  template <int Width>
  static __device__ __forceinline__ void values(float (&o)[Width / 8][4], const float (&w)[kKeys / 8][4],
                                                const MmaTile& v) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const Left a(w[i][0], w[i][2], w[i][1], w[i][3]);
#pragma unroll
      for (int n = 0; n < Width / 8; ++n)
        multiply_add(o[n], a, v.element(8 * i + 2 * t, 8 * n + g), v.element(8 * i + 2 * t + 1, 8 * n + g));
    }
  }
  static __device__ __forceinline__ void store_pair(float* to, float x, float y) {
    *reinterpret_cast<float2*>(to) = make_float2(x, y);
  }
};

}  // namespace headwise::cuda::mma
