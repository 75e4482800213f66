// What the tiles of the Hopper gradients share: products of rows, weights of capped scores, rows that leave.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/hopper/backward/copy.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda {

/// d = a b^T over `Steps` of 16 columns, rows of a and b in shared memory.
template <int N, class T, int Steps, int ARows, int BRows>
__device__ __forceinline__ void multiply_rows(float (&d)[N / 2], std::uint32_t a, std::uint32_t b) {
  const std::uint64_t left = rows_descriptor(a), right = rows_descriptor(b);
#pragma unroll
  for (int i = 0; i < Steps; ++i) {
    if (i == 0)
      Wgmma<N, T>::template first_shared<0>(d, left, right);
    else
      Wgmma<N, T>::template more_shared<0>(d, advanced(left, k_step(ARows, i)),
                                           advanced(right, k_step(BRows, i)));
  }
}

/// The capped score in exponents of 2. tanh(y) = 1 - 2 u, u = 1 / (1 + e^2y); its slope 1 - tanh^2 = 4 u (1 -
/// u).
__device__ __forceinline__ float capped(const BackwardParams& p, float x, float& slant) {
  const float u = ptx::reciprocal(1.f + ptx::exp2(x * p.inverse_cap * (2.f * 1.44269504088896341f)));
  slant = 4.f * u * (1.f - u);
  return p.cap * fmaf(-2.f, u, 1.f);
}

/// A warpgroup sets rows [from, rows) of a tile to 0. Two may clear the same: zeros over zeros disturb
/// nobody.
template <int Dim>
__device__ __forceinline__ void clear_tile_rows(std::uint32_t tile, int rows, int from, int thread) {
  for (int i = thread; i < (rows - from) * (Dim / 8); i += 128)
    ptx::store_shared(tile + chunk_offset(rows, from + i / (Dim / 8), i % (Dim / 8)), 0u, 0u, 0u, 0u);
}

/// 64 rows of a gradient [batch row head dim] and what of them there is.
struct GradientRows {
  const CUtensorMap* map;  // boxes of 64 rows x 64 columns
  void* to;                // null: not asked
  int chunks;              // of 8 columns in a row
  const Index (&step)[3];
  int row, left, head, batch;
};
/// A warpgroup's factor * d leaves through rows first .. first + 63 of a tile of `TileRows`.
template <class T, int Dim, int TileRows>
__device__ __forceinline__ void store_gradient(const float (&d)[Dim / 2], float factor, std::uint32_t staged,
                                               int first, const GradientRows& to, bool by_rows, int barrier) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int j = 0; j < Dim / 16; ++j)
    ptx::store_matrices(staged + chunk_offset(TileRows, first + warp * 16 + (lane & 15), 2 * j + (lane >> 4)),
                        Number<T>::pack(factor * d[8 * j], factor * d[8 * j + 1]),
                        Number<T>::pack(factor * d[8 * j + 2], factor * d[8 * j + 3]),
                        Number<T>::pack(factor * d[8 * j + 4], factor * d[8 * j + 5]),
                        Number<T>::pack(factor * d[8 * j + 6], factor * d[8 * j + 7]));
  ptx::fence_shared_for_async();
  ptx::barrier_sync(barrier, 128);
  if (!to.to) return;
  if (by_rows && to.left < 64) {  // a bulk store would run into the next sequence
    auto* out = static_cast<std::uint16_t*>(to.to) + to.batch * to.step[0] + to.head * to.step[2];
    for (int i = thread; i < to.left * (Dim / 8); i += 128) {
      const int row = i / (Dim / 8), chunk = i % (Dim / 8);
      if (chunk >= to.chunks) continue;
      *reinterpret_cast<int4*>(out + (to.row + row) * to.step[1] + chunk * 8) =
          ptx::load_shared(staged + chunk_offset(TileRows, first + row, chunk));
    }
  } else if (thread == 0) {
#pragma unroll
    for (int c = 0; c < (Dim + 63) / 64; ++c)
      ptx::store_tile(to.map, staged + c * panel_bytes(TileRows) + first * kPanelRowBytes, to.row, 0, to.head,
                      to.batch, 64 * c);
    ptx::commit_stores();
  }
}

}  // namespace headwise::cuda
