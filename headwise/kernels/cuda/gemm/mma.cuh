// Products of 16-bit numbers by mma.sync: tiles in shared memory by copies of 16 bytes, k in steps of 16.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/gemm/finish.cuh"
#include "headwise/kernels/cuda/gemm/kernels.h"

namespace headwise::cuda::gemm {

inline constexpr int kDeep = 64;  // of k a stage

/// A block's tile and its warps. turned: lines run across k. gather: numbers are fetched one by one.
template <int Rows, int Columns, int WarpsDown, int WarpsAcross, int Stages>
struct TileShape {
  static constexpr int kRows = Rows, kColumns = Columns, kDown = WarpsDown, kAcross = WarpsAcross,
                       kStages = Stages, kThreads = 32 * WarpsDown * WarpsAcross;
  static constexpr int kFragsDown = Rows / WarpsDown / 16, kFragsAcross = Columns / WarpsAcross / 8;
  static constexpr int kABytes = Rows * kDeep * 2, kStageBytes = (Rows + Columns) * kDeep * 2;
  static constexpr std::size_t kShared = static_cast<std::size_t>(Stages) * kStageBytes + 1024;
  static_assert(kFragsAcross % 2 == 0 && Rows * Columns * 4 <= Stages * kStageBytes);
  /// Where number (row, column) of the tile lies in f32: rows begin 8 numbers further on, so that warps meet
  /// few banks twice.
  static __device__ __forceinline__ std::uint32_t at(int row, int column) {
    return static_cast<std::uint32_t>(row * Columns + (column ^ (row & (Columns / 8 - 1) & 7) * 8)) * 4;
  }
};

/// One factor: its lines, where the block's tile begins, and how many of its numbers there are.
struct Side {
  const Operand& x;
  const Axis &own, &deep;  // along the tile's own axis, and along k
  Index first, size, k;
};

/// `Own` x 64 numbers from k0 on: rows of k, or turned: rows of the own axis.
template <class T, int Own, int Threads, bool Turned, bool Gather>
__device__ __forceinline__ void load_side(const Side& s, Index k0, std::uint32_t to, int thread) {
#pragma unroll
  for (int n = 0; n < Own * 8 / Threads; ++n) {
    const int i = thread + n * Threads;
    const int row = Turned ? i / (Own / 8) : i / 8, chunk = Turned ? i % (Own / 8) : i % 8;
    const std::uint32_t at = to + chunk_offset(Turned ? kDeep : Own, row, chunk);
    const Index along = (Turned ? s.first : k0) + 8 * chunk, across = (Turned ? k0 : s.first) + row;
    const Index left = across < (Turned ? s.k : s.size) ? (Turned ? s.size : s.k) - along : 0;
    const T* data = static_cast<const T*>(s.x.data);
    if constexpr (Gather) {
      std::uint32_t words[4] = {};
      for (int j = 0; j < 8; ++j)
        if (j < left)
          words[j / 2] |= static_cast<std::uint32_t>(data[s.own.at(across) + s.deep.at(along + j)].bits)
                          << 16 * (j % 2);
      ptx::store_shared(at, words[0], words[1], words[2], words[3]);
    } else {
      const int bytes = left >= 8 ? 16 : left > 0 ? static_cast<int>(left) * 2 : 0;
      const Index line = (Turned ? s.deep : s.own).step * across;
      ptx::copy_16(at, bytes > 0 ? data + line + along : data, bytes);
    }
  }
}

/// A 16 x 16 piece of a at (row, 16 step), as mma.sync wants it.
template <int Own, bool Turned>
__device__ __forceinline__ void left_piece(std::uint32_t tile, int row, int step, int lane,
                                           std::uint32_t (&r)[4]) {
  if constexpr (Turned)
    ptx::load_matrices_turned(
        tile + chunk_offset(kDeep, 16 * step + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2), r);
  else
    ptx::load_matrices(tile + chunk_offset(Own, row + lane % 16, 2 * step + lane / 16), r);
}
/// Two 16 x 8 pieces of b at (16 step, column) and (16 step, column + 8).
template <int Own, bool Turned>
__device__ __forceinline__ void right_pieces(std::uint32_t tile, int column, int step, int lane,
                                             std::uint32_t (&r)[4]) {
  if constexpr (Turned)
    ptx::load_matrices_turned(
        tile + chunk_offset(kDeep, 16 * step + lane / 8 % 2 * 8 + lane % 8, column / 8 + lane / 16), r);
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
    ptx::store_floats(base + S::at(r, c), x[0], x[1], x[2], x[3]);
    ptx::store_floats(base + S::at(r, c) + 16, x[4], x[5], x[6], x[7]);
  });
  __syncthreads();
}
template <class S>
__device__ __forceinline__ void finish_tile(const Product& p, std::uint32_t base, Index m0, Index n0) {
  __syncthreads();
  each_eight<S>(p, m0, n0, [&](int r, int c, int count) {
    const float4 x = ptx::load_floats(base + S::at(r, c)), y = ptx::load_floats(base + S::at(r, c) + 16);
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

template <class T, class S, bool TurnA, bool TurnB, bool Gather>
__global__ void __launch_bounds__(S::kThreads) mma_tiles(const __grid_constant__ Product p) {
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t base = (ptx::shared_address(raw) + 1023u) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const Index m0 = static_cast<Index>(blockIdx.x) * S::kRows,
              n0 = static_cast<Index>(blockIdx.y) * S::kColumns;
  const int row0 = warp % S::kDown * (S::kFragsDown * 16), column0 = warp / S::kDown * (S::kFragsAcross * 8);
  const Side a{p.a, p.a.rows, p.a.columns, m0, p.m, p.k}, b{p.b, p.b.columns, p.b.rows, n0, p.n, p.k};
  // The tile in f32, where the stages lie before and after: what sums begin with, and what they come to.
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < S::kFragsDown; ++i)
#pragma unroll
      for (int j = 0; j < S::kFragsAcross; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          body(base + S::at(row0 + 16 * i + lane / 4 + 8 * half, column0 + 8 * j + 2 * (lane % 4)), i, j,
               2 * half);
  };
  float d[S::kFragsDown][S::kFragsAcross][4] = {};
  if (p.accumulate) {
    start_tile<S>(p, base, m0, n0);
    each([&](std::uint32_t from, int i, int j, int e) {
      const float2 x = ptx::load_pair(from);
      d[i][j][e] = x.x, d[i][j][e + 1] = x.y;
    });
    __syncthreads();
  }
  const auto begin = [&](Index use) {
    const std::uint32_t to = base + static_cast<std::uint32_t>(use % S::kStages) * S::kStageBytes;
    if (use * kDeep < p.k) {
      load_side<T, S::kRows, S::kThreads, TurnA, Gather>(a, use * kDeep, to, thread);
      load_side<T, S::kColumns, S::kThreads, TurnB, Gather>(b, use * kDeep, to + S::kABytes, thread);
    }
    ptx::commit_copies();
  };
  for (int use = 0; use < S::kStages - 1; ++use) begin(use);
#pragma unroll 1
  for (Index use = 0; use * kDeep < p.k; ++use) {
    ptx::wait_copies<S::kStages - 2>();
    __syncthreads();
    begin(use + S::kStages - 1);
    const std::uint32_t at = base + static_cast<std::uint32_t>(use % S::kStages) * S::kStageBytes;
#pragma unroll
    for (int step = 0; step < kDeep / 16; ++step) {
      std::uint32_t left[S::kFragsDown][4], right[S::kFragsAcross / 2][4];
#pragma unroll
      for (int i = 0; i < S::kFragsDown; ++i)
        left_piece<S::kRows, TurnA>(at, row0 + 16 * i, step, lane, left[i]);
#pragma unroll
      for (int j = 0; j < S::kFragsAcross / 2; ++j)
        right_pieces<S::kColumns, TurnB>(at + S::kABytes, column0 + 16 * j, step, lane, right[j]);
#pragma unroll
      for (int i = 0; i < S::kFragsDown; ++i)
#pragma unroll
        for (int j = 0; j < S::kFragsAcross; ++j)
          Number<T>::multiply_add(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
  ptx::wait_copies<0>();
  __syncthreads();
  each([&](std::uint32_t to, int i, int j, int e) { ptx::store_pair(to, d[i][j][e], d[i][j][e + 1]); });
  finish_tile<S>(p, base, m0, n0);
}

template <class T, class S, bool TurnA = false, bool TurnB = false, bool Gather = false>
Status start_tiles(const Product& p, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  const auto kernel = mma_tiles<T, S, TurnA, TurnB, Gather>;
  const Status status = allow_shared("cuda/gemm_mma", kernel, S::kShared, allowed, device);
  if (!status.ok()) return status;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.m, S::kRows)),
                  static_cast<unsigned>(ceil_div(p.n, S::kColumns)));
  return launch({"cuda/gemm_mma", grid, S::kThreads, S::kShared, stream}, kernel, p);
}

using Large = TileShape<128, 128, 2, 4, 3>;
template <int Rows, int Columns>
using Few = TileShape<Rows, Columns,
                      Rows == 16      ? 1
                      : Columns == 16 ? 4
                                      : 2,
                      Columns == 16 ? 1
                      : Rows == 16  ? 4
                                    : 2,
                      Rows == 16 ? 10 : 6>;

/// Few rows: narrow tiles until there are blocks for every processor.
template <class T>
Status start_few(const Product& p, int device, cudaStream_t stream) {
  const bool narrow = ceil_div(p.n, 64) < 2 * facts_of(device).processors;
  if (p.m <= 16)
    return narrow ? start_tiles<T, Few<16, 16>>(p, device, stream)
                  : start_tiles<T, Few<16, 64>>(p, device, stream);
  return narrow ? start_tiles<T, Few<64, 16>>(p, device, stream)
                : start_tiles<T, Few<64, 64>>(p, device, stream);
}

template <class T>
Status start_mma(const Product& p, int device, cudaStream_t stream) {
  const Lines lines = lines_of(p);
  if (!lines.there) return start_tiles<T, Large, false, false, true>(p, device, stream);
  if (lines.turn_a)
    return lines.turn_b ? start_tiles<T, Large, true, true>(p, device, stream)
                        : start_tiles<T, Large, true, false>(p, device, stream);
  if (lines.turn_b) return start_tiles<T, Large, false, true>(p, device, stream);
  return p.m <= kFewRows ? start_few<T>(p, device, stream) : start_tiles<T, Large>(p, device, stream);
}

}  // namespace headwise::cuda::gemm
