// A block's tile around mma.sync: its pieces in shared memory, and its sums in f32 before they are finished.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/gemm/finish.cuh"

namespace headwise::cuda::gemm {

inline constexpr int kLineRows = 64;  // of k in a turned tile

/// Sums [Rows Columns] in f32; what has them adds kThreads and sync().
template <int Rows, int Columns>
struct SumTile {
  static constexpr int kRows = Rows, kColumns = Columns;
  /// Where number (row, column) lies: groups of eight are exchanged by the row, so that warps meet few banks
  /// twice.
  static __device__ __forceinline__ std::uint32_t place(int row, int column) {
    return static_cast<std::uint32_t>(row * Columns + (column ^ (row & (Columns / 8 - 1) & 7) * 8)) * 4;
  }
};

/// A 16 x 16 piece of a at (row, 16 step), as mma.sync wants it.
template <int Own, bool Turned>
__device__ __forceinline__ void left_piece(std::uint32_t tile, int row, int step, int lane,
                                           std::uint32_t (&r)[4]) {
  if constexpr (Turned)
    ptx::load_matrices_turned(
        tile + chunk_offset(kLineRows, 16 * step + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2), r);
  else
    ptx::load_matrices(tile + chunk_offset(Own, row + lane % 16, 2 * step + lane / 16), r);
}
/// Two 16 x 8 pieces of b at (16 step, column) and (16 step, column + 8).
template <int Own, bool Turned>
__device__ __forceinline__ void right_pieces(std::uint32_t tile, int column, int step, int lane,
                                             std::uint32_t (&r)[4]) {
  if constexpr (Turned)
    ptx::load_matrices_turned(
        tile + chunk_offset(kLineRows, 16 * step + lane / 8 % 2 * 8 + lane % 8, column / 8 + lane / 16), r);
  else
    ptx::load_matrices(tile + chunk_offset(Own, column + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2),
                       r);
}

/// Eight columns of a row at a time, of those that are there.
template <class S, class Body>
__device__ __forceinline__ void each_eight(const Product& p, Index m0, Index n0, Body&& body) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kColumns / 8; i += S::kThreads) {
    const int r = i / (S::kColumns / 8), c = i % (S::kColumns / 8) * 8;
    const Index left = p.n - n0 - c;
    if (m0 + r < p.m && left > 0) body(r, c, left < 8 ? static_cast<int>(left) : 8);
  }
}
template <class S>
__device__ __forceinline__ void start_tile(const Product& p, std::uint32_t base, Index m0, Index n0) {
  each_eight<S>(p, m0, n0, [&](int r, int c, int count) {
    float x[8];
    load_eight(p.out, m0 + r, n0 + c, count, x);
    ptx::store_floats(base + S::place(r, c), x[0], x[1], x[2], x[3]);
    ptx::store_floats(base + S::place(r, c) + 16, x[4], x[5], x[6], x[7]);
  });
  S::sync();
}
template <class S>
__device__ __forceinline__ void finish_tile(const Product& p, std::uint32_t base, Index m0, Index n0) {
  S::sync();
  each_eight<S>(p, m0, n0, [&](int r, int c, int count) {
    const float4 x = ptx::load_floats(base + S::place(r, c)),
                 y = ptx::load_floats(base + S::place(r, c) + 16);
    float sums[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
    if (p.bias) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (j < count)
          sums[j] = __fadd_rn(sums[j], number_at(p.bias, p.bias_dtype, (n0 + c + j) * p.bias_step));
    }
    finish_eight(p, m0 + r, n0 + c, count, sums);
  });
}

}  // namespace headwise::cuda::gemm
