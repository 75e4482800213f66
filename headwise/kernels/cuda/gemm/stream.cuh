// Products of 16-bit numbers bound by memory: one warp copies, others multiply; the class of mma.cuh.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/gemm/sum_tile.cuh"

namespace headwise::cuda::gemm {

struct StreamProduct {
  CUtensorMap a, b;
  Product p;
  Index row_tiles = 0, tiles = 0;
  std::uint32_t stage_bytes = 0;  // of a stage that are copied: rows that are not there cost time as zeros
};

template <int Rows, int Columns, int WarpsDown, int WarpsAcross, int Stages>
struct StreamShape : SumTile<Rows, Columns> {
  static constexpr int kDown = WarpsDown, kStages = Stages, kWarps = WarpsDown * WarpsAcross;
  static constexpr int kThreads = 32 * kWarps;  // those that multiply; one warp more copies
  static constexpr int kFragsDown = Rows / WarpsDown / 16, kFragsAcross = Columns / WarpsAcross / 8;
  static constexpr int kDeep = 128;  // of k a stage
  static constexpr int kABytes = Rows * kDeep * 2, kStageBytes = (Rows + Columns) * kDeep * 2;
  static constexpr int kSums = Stages * kStageBytes, kBars = kSums + Rows * Columns * 4;
  static constexpr std::size_t kShared = kBars + 2 * Stages * 8;
  static_assert(kFragsAcross % 2 == 0);
  static __device__ __forceinline__ void sync() { ptx::barrier_sync(1, kThreads); }
};

template <class S>
__device__ __forceinline__ void copy_stages(const StreamProduct& w, std::uint32_t base) {
  std::uint32_t use = 0;
  for (Index tile = blockIdx.x; tile < w.tiles; tile += gridDim.x) {
    const int row = static_cast<int>(tile % w.row_tiles) * S::kRows,
              column = static_cast<int>(tile / w.row_tiles) * S::kColumns;
    for (int k = 0; k < w.p.k; k += S::kDeep, ++use) {
      const std::uint32_t slot = use % S::kStages, full = base + S::kBars + 8 * slot,
                          to = base + slot * S::kStageBytes;
      ptx::mbarrier_wait(full + 8 * S::kStages, (use / S::kStages & 1) ^ 1);
      ptx::mbarrier_expect(full, w.stage_bytes);
#pragma unroll
      for (std::uint32_t panel = 0; panel < 2; ++panel) {
        const int at = k + 64 * static_cast<int>(panel);
        ptx::load_tile({to + S::kABytes + panel * panel_bytes(S::kColumns), &w.b, full, column, 0, 0, 0,
                        ptx::kEvictFirst, at});
        ptx::load_tile({to + panel * panel_bytes(S::kRows), &w.a, full, row, 0, 0, 0, ptx::kEvictLast, at});
      }
    }
  }
}

/// What one warp multiplies with at one step of 16.
template <class S>
struct Pieces {
  std::uint32_t left[S::kFragsDown][4], right[S::kFragsAcross / 2][4];

  __device__ __forceinline__ void load(std::uint32_t stage, int row, int column, int step, int lane) {
#pragma unroll
    for (int i = 0; i < S::kFragsDown; ++i)
      left_piece<S::kRows, false>(stage, row + 16 * i, step, lane, left[i]);
#pragma unroll
    for (int j = 0; j < S::kFragsAcross / 2; ++j)
      right_pieces<S::kColumns, false>(stage + S::kABytes, column + 16 * j, step, lane, right[j]);
  }
  template <class T>
  __device__ __forceinline__ void multiply(float (&d)[S::kFragsDown][S::kFragsAcross][4]) const {
#pragma unroll
    for (int i = 0; i < S::kFragsDown; ++i)
#pragma unroll
      for (int j = 0; j < S::kFragsAcross; ++j)
        Number<T>::multiply_add(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
  }
};

template <class T, class S>
__device__ __forceinline__ void multiply_stages(const StreamProduct& w, std::uint32_t base, int warp,
                                                int lane) {
  const int row0 = warp % S::kDown * (S::kFragsDown * 16), column0 = warp / S::kDown * (S::kFragsAcross * 8);
  constexpr int kSteps = S::kDeep / 16;
  std::uint32_t use = 0;
  for (Index tile = blockIdx.x; tile < w.tiles; tile += gridDim.x) {
    float d[S::kFragsDown][S::kFragsAcross][4] = {};
#pragma unroll 1
    for (Index k = 0; k < w.p.k; k += S::kDeep, ++use) {
      const std::uint32_t slot = use % S::kStages, full = base + S::kBars + 8 * slot,
                          stage = base + slot * S::kStageBytes;
      ptx::mbarrier_wait(full, use / S::kStages & 1);
      Pieces<S> pieces[2];  // those of the next step are fetched beside the products of this one
      pieces[0].load(stage, row0, column0, 0, lane);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) pieces[(step + 1) % 2].load(stage, row0, column0, step + 1, lane);
        pieces[step % 2].template multiply<T>(d);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(full + 8 * S::kStages);
    }
    S::sync();  // the sums of the tile before are finished
#pragma unroll
    for (int i = 0; i < S::kFragsDown; ++i)
#pragma unroll
      for (int j = 0; j < S::kFragsAcross; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_pair(base + S::kSums +
                              S::place(row0 + 16 * i + lane / 4 + 8 * half, column0 + 8 * j + 2 * (lane % 4)),
                          d[i][j][2 * half], d[i][j][2 * half + 1]);
    finish_tile<S>(w.p, base + S::kSums, tile % w.row_tiles * S::kRows, tile / w.row_tiles * S::kColumns);
  }
}

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads + 32, 1) stream_tiles(const __grid_constant__ StreamProduct w) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const std::uint32_t base = ptx::shared_address(raw);
  if (base % kTileAlign != 0) __trap();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == S::kThreads) {
    ptx::prefetch_map(&w.a), ptx::prefetch_map(&w.b);
    for (std::uint32_t n = 0; n < S::kStages; ++n) {
      ptx::mbarrier_init(base + S::kBars + 8 * n, 1);
      ptx::mbarrier_init(base + S::kBars + 8 * (S::kStages + n), S::kWarps);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  __syncthreads();
  if (warp < S::kWarps)
    multiply_stages<T, S>(w, base, warp, lane);
  else if (lane == 0)
    copy_stages<S>(w, base);
}

template <class T, class S>
Status start_stream_tiles(const Product& p, int device, cudaStream_t stream) {
  constexpr const char* kName = "cuda/gemm_stream";
  static bool allowed[64] = {};
  static int at_once[64] = {};  // blocks a processor holds
  const auto kernel = stream_tiles<T, S>;
  Status status = allow_shared(kName, kernel, S::kShared, allowed, device);
  int& blocks = at_once[device % 64];
  if (status.ok() && blocks == 0)
    status = status_of(
        kName, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, S::kThreads + 32, S::kShared));
  if (!status.ok()) return status;
  StreamState* state = state_of(device, stream);
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  StreamProduct w;
  w.p = p, w.row_tiles = ceil_div(p.m, S::kRows), w.tiles = w.row_tiles * ceil_div(p.n, S::kColumns);
  // Of one tile only the rows that are there are copied; the others hold what lay there and reach no output.
  const Index rows = min_of(p.m, S::kRows);
  w.stage_bytes = static_cast<std::uint32_t>((rows + S::kColumns) * S::kDeep * 2);
  status = state->map_of(line_map<T>(p.a, p.m, p.k, p.a.rows.step, static_cast<int>(rows)), w.a);
  if (status.ok()) status = state->map_of(line_map<T>(p.b, p.n, p.k, p.b.columns.step, S::kColumns), w.b);
  if (!status.ok()) return status;
  const Index most = static_cast<Index>(facts_of(device).processors) * max_of(blocks, 1);
  Launch l{kName, dim3(static_cast<unsigned>(min_of(w.tiles, most))), S::kThreads + 32, S::kShared, stream};
  l.overlaps_forerunner = true;
  return launch(l, kernel, w);
}

template <class T>
Status stream_product(const Product& p, int device, cudaStream_t stream) {
  const StreamTile tile = stream_tile(p.m, p.n, facts_of(device).processors);
  if (tile.rows == 16)
    return tile.columns == 16 ? start_stream_tiles<T, StreamShape<16, 16, 1, 1, 8>>(p, device, stream)
                              : start_stream_tiles<T, StreamShape<16, 64, 1, 4, 5>>(p, device, stream);
  return tile.columns == 32 ? start_stream_tiles<T, StreamShape<64, 32, 4, 1, 4>>(p, device, stream)
                            : start_stream_tiles<T, StreamShape<64, 64, 2, 2, 3>>(p, device, stream);
}

}  // namespace headwise::cuda::gemm
