// Products of 16-bit numbers by mma.sync: tiles in shared memory by copies of 16 bytes, k in steps of 16.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/gemm/sum_tile.cuh"

namespace headwise::cuda::gemm {

inline constexpr int kDeep = kLineRows;  // of k a stage

/// A block's tile and its warps. turned: lines run across k. gather: numbers are fetched one by one.
template <int Rows, int Columns, int WarpsDown, int WarpsAcross, int Stages>
struct TileShape : SumTile<Rows, Columns> {
  static constexpr int kDown = WarpsDown, kAcross = WarpsAcross, kStages = Stages,
                       kThreads = 32 * WarpsDown * WarpsAcross;
  static constexpr int kFragsDown = Rows / WarpsDown / 16, kFragsAcross = Columns / WarpsAcross / 8;
  static constexpr int kABytes = Rows * kDeep * 2, kStageBytes = (Rows + Columns) * kDeep * 2;
  static constexpr std::size_t kShared = static_cast<std::size_t>(Stages) * kStageBytes + 1024;
  static_assert(kFragsAcross % 2 == 0 && Rows * Columns * 4 <= Stages * kStageBytes);
  static __device__ __forceinline__ void sync() { __syncthreads(); }
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
          body(base + S::place(row0 + 16 * i + lane / 4 + 8 * half, column0 + 8 * j + 2 * (lane % 4)), i, j,
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
