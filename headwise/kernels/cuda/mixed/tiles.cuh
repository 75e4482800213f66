// Tiles of mixed heads: rows in shared memory, keys in registers, pairs of all heads, mixes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_fp16.h>

#include "headwise/kernels/cuda/chunk/pairs.cuh"
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/mixed/tiles.h"

namespace headwise::cuda::mixed {

enum class TilePass { lse, weights, delta, gradients };

/// A tile has 32 queries, 32 keys and 16 heads. A warp multiplies one head, then mixes two queries.
inline constexpr int kTileHeads = 16, kTileRows = 32, kTileKeys = 32, kTileThreads = 32 * kTileHeads;
/// Left factors of a head: 2 x 16 rows, 4 x 16 columns, 16 bytes a lane.
inline constexpr int kTileLeftBytes = kTileRows * 128, kTileSideBytes = kTileHeads * kTileLeftBytes;
/// 16-bit numbers of one head's pairs: blocks of 8 queries x 8 keys. 16 bytes more, so that eight heads of
/// one query meet all banks.
inline constexpr int kTileBlockBytes = 128, kTileHeadBytes = kTileRows * kTileKeys * 2 + 16,
                     kTilePlaneBytes = kTileHeads * kTileHeadBytes;

/// Rows of all heads as left factors; what is not there is 0. Which columns meet in a product does not matter
/// as long as both sides agree: a lane has columns 8 t .. 8 t + 7 and 32 more, so that it reads 16 bytes of a
/// key.
template <class T, int Rows = kTileRows>
__device__ __forceinline__ void put_side(std::uint32_t to, const HeadsView& x, Index batch, Index row,
                                         int there) {
  constexpr int kEach = kTileHeads * Rows * 8 / kTileThreads, kStep = kTileHeads / kEach;
  const int dim = static_cast<int>(x.layout.dim), heads = static_cast<int>(x.layout.heads);
  const T* base = static_cast<const T*>(x.data) + batch * x.step[0] + row * x.step[1];
  const int c = static_cast<int>(threadIdx.x) % 8, r0 = static_cast<int>(threadIdx.x) / 8;
  uint4 own[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int r = r0 % Rows, h = kStep * n + r0 / Rows;
    own[n] =
        r < there && h < heads && c * 8 < dim
            ? *reinterpret_cast<const uint4*>(base + r * x.step[1] + x.layout.slot(h) * x.step[2] + c * 8)
            : uint4{};
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int r = r0 % Rows, h = kStep * n + r0 / Rows;
    const std::uint32_t at = to + static_cast<std::uint32_t>(h * Rows * 128 + (r / 16 * 4 + c / 4 * 2) * 512 +
                                                             (r % 8 * 4 + c % 4) * 16 + r / 8 % 2 * 4);
    ptx::store_word(at, own[n].x), ptx::store_word(at + 8, own[n].y);
    ptx::store_word(at + 512, own[n].z), ptx::store_word(at + 520, own[n].w);
  }
}

/// 32 keys of one head as right factors.
struct TileRight {
  uint4 x[4][2];

  /// `row`: key g, column 8 t of the tile; `keys` and `columns` there are from these on.
  template <class T>
  __device__ __forceinline__ void load(const T* row, Index step, int keys, int columns) {
    if (keys > 24 && columns > 32) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto* from = reinterpret_cast<const uint4*>(row + 8 * n * step);
        x[n][0] = from[0], x[n][1] = from[4];
      }
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto* from = reinterpret_cast<const uint4*>(row + 8 * n * step);
        x[n][0] = 8 * n < keys && 0 < columns ? from[0] : uint4{};
        x[n][1] = 8 * n < keys && 32 < columns ? from[4] : uint4{};
      }
    }
  }
};

/// s[16 rows][8 keys] of one head.
template <class T, int Blocks>
__device__ __forceinline__ void multiply(float (&s)[Blocks][4][4], std::uint32_t left,
                                         const TileRight& right) {
  const std::uint32_t at = left + static_cast<std::uint32_t>(threadIdx.x % 32 * 16);
#pragma unroll
  for (int m = 0; m < Blocks; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int4 x = ptx::load_shared(at + static_cast<std::uint32_t>((4 * m + i) * 512));
      const std::uint32_t a[4] = {static_cast<std::uint32_t>(x.x), static_cast<std::uint32_t>(x.y),
                                  static_cast<std::uint32_t>(x.z), static_cast<std::uint32_t>(x.w)};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint4& b = right.x[n][i / 2];
        Number<T>::multiply_add(s[m][n], a, i % 2 ? b.z : b.x, i % 2 ? b.w : b.y);
      }
    }
  }
}

/// Where a lane's two numbers of rows 8 block + g and eight keys n lie in a head's plane.
__device__ __forceinline__ std::uint32_t pair_at(int block, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return static_cast<std::uint32_t>((block * 4 + n) * kTileBlockBytes + lane * 4);
}

/// x = high + low, 22 bits in two numbers of 11. Scores past their range are halved `exponent` times for the
/// whole head.
__device__ __forceinline__ int put_scores(std::uint32_t high, std::uint32_t low, float (&s)[2][4][4]) {
  using Half = Number<f16>;
  const auto put = [&](float factor) {
    __half2 most = __half2half2(__ushort_as_half(0));
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float x = s[m][n][2 * r] * factor, y = s[m][n][2 * r + 1] * factor;
          const std::uint32_t top = Half::pack(x, y);
          most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&top)));
          ptx::store_word(high + pair_at(2 * m + r, n), top);
          const float2 taken = __half22float2(*reinterpret_cast<const __half2*>(&top));
          ptx::store_word(low + pair_at(2 * m + r, n), Half::pack(x - taken.x, y - taken.y));
        }
    return __hisinf(__low2half(most)) || __hisinf(__high2half(most));
  };
  if (!__any_sync(~0u, put(1.f))) return 0;
  float most = 0.f;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(s[m][n][e]));
#pragma unroll
  for (int n = 16; n > 0; n /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
  const int exponent = most > 3e38f ? 113 : static_cast<int>(__float_as_uint(most) >> 23) - 127 - 14;
  put(__uint_as_float(static_cast<std::uint32_t>(127 - exponent) << 23));
  return exponent;
}

/// M[in out] of a stage; no mix is 1 on the diagonal, and heads that are not there are 0.
__device__ __forceinline__ float coefficient(const MixStage& s, int in, int out) {
  if (in >= s.from || out >= s.to) return 0.f;
  return s.kind == Mix::none ? (in == out ? 1.f : 0.f) : s.given[in * s.to + out];
}

/// A power of 2 that brings the largest number of a matrix to 2^13: small ones then keep their bits.
template <class At>
__device__ __forceinline__ float matrix_factor_of(int count, At&& at) {
  float most = 0.f;
  for (int n = static_cast<int>(threadIdx.x) % 32; n < count; n += 32) most = fmaxf(most, fabsf(at(n)));
#pragma unroll
  for (int n = 16; n > 0; n /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
  const int exponent =
      most > 1e-30f && most < 1e30f ? 13 + 127 - static_cast<int>(__float_as_uint(most) >> 23) : 0;
  return exp2f(static_cast<float>(exponent));
}

/// y_out = sum_in M[in out] x_in of 16 pairs; Whole: M in two numbers of the format. y: pair g (+ 8), heads
/// 2 t, 2 t + 1 (+ 8); packed again it is the left factor of the next mix.
template <class N, bool Whole>
struct TileMix {
  std::uint32_t high[2][2], low[2][2];  // low: Whole alone

  template <class At>
  __device__ __forceinline__ void load(At&& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = at(8 * i + 2 * t, 8 * j + g), y = at(8 * i + 2 * t + 1, 8 * j + g);
        high[j][i] = Number<N>::pack(x, y);
        if constexpr (Whole)
          low[j][i] = Number<N>::pack(x - Number<N>::low(high[j][i]), y - Number<N>::high(high[j][i]));
      }
  }
  /// y = from + ..., `from` being numbers of heads 2 t, 2 t + 1 (+ 8) for all pairs alike; f16 alone.
  template <bool Low = false>
  __device__ __forceinline__ void begin(float (&y)[2][4], const float (&from)[4],
                                        const std::uint32_t (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t(&m)[2] = Low ? low[j] : high[j];
      const float c[4] = {from[2 * j], from[2 * j + 1], from[2 * j], from[2 * j + 1]};
      Number<N>::multiply_from(y[j], c, x, m[0], m[1]);
    }
  }
  __device__ __forceinline__ void high_of(float (&y)[2][4], const std::uint32_t (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) Number<N>::multiply_add(y[j], x, high[j][0], high[j][1]);
  }
  __device__ __forceinline__ void low_of(float (&y)[2][4], const std::uint32_t (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) Number<N>::multiply_add(y[j], x, low[j][0], low[j][1]);
  }
  __device__ __forceinline__ void apply(float (&y)[2][4], const std::uint32_t (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) y[j][0] = y[j][1] = y[j][2] = y[j][3] = 0.f;
    if constexpr (Whole) low_of(y, x);
    high_of(y, x);
  }
};
template <class N>
__device__ __forceinline__ void pack_left(std::uint32_t (&x)[4], const float (&y)[2][4]) {
  x[0] = Number<N>::pack(y[0][0], y[0][1]), x[1] = Number<N>::pack(y[0][2], y[0][3]);
  x[2] = Number<N>::pack(y[1][0], y[1][1]), x[3] = Number<N>::pack(y[1][2], y[1][3]);
}
/// Two scores of one head as T; Special: times 2^exponent.
template <class T, bool Special>
__device__ __forceinline__ std::uint32_t score_as(std::uint32_t x, float factor) {
  if constexpr (std::is_same_v<T, f16> && !Special) return x;
  float2 y = __half22float2(*reinterpret_cast<const __half2*>(&x));
  if constexpr (Special) y.x *= factor, y.y *= factor;
  if constexpr (std::is_same_v<T, f16>)
    y.x = fminf(fmaxf(y.x, -65504.f), 65504.f), y.y = fminf(fmaxf(y.y, -65504.f), 65504.f);
  return Number<T>::pack(y.x, y.y);
}
__device__ __forceinline__ std::uint32_t turned(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace headwise::cuda::mixed
