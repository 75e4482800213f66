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
  bool whole = false;             // boxes have both panels of a stage
  std::uint32_t a_panel = 0;      // bytes from one panel of a to the next
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

/// The first stages of b on their way to L2, where the forerunner may still write them.
template <class S>
__device__ __forceinline__ void foresee_stages(const StreamProduct& w) {
  const int column = static_cast<int>(blockIdx.x / w.row_tiles) * S::kColumns;
  if (!w.whole) return;
  for (int k = 0; k < w.p.k && k < S::kStages * S::kDeep; k += S::kDeep)
    prefetch_tile(w.b, column, k / 64, 0);
}
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
      ptx::TileCopy b{to + S::kABytes, &w.b, full, column, 0, 0, 0, ptx::kEvictFirst, k},
          a{to, &w.a, full, row, 0, 0, 0, ptx::kEvictLast, k};
      if (w.whole) b.panel = k / 64, b.column = 0;
      if (w.whole) a.panel = k / 64, a.column = 0;
      ptx::load_tile(b);
      if (!w.whole) b.to += panel_bytes(S::kColumns), b.column += 64, ptx::load_tile(b);
      ptx::load_tile(a);
      if (!w.whole) a.to += w.a_panel, a.column += 64, ptx::load_tile(a);
    }
  }
}

/// What one warp multiplies with at one step of 16.
template <class S>
struct Pieces {
  std::uint32_t left[S::kFragsDown][4], right[S::kFragsAcross / 2][4];

  __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t a_panel, int row, int column,
                                       int step, int lane) {
#pragma unroll
    for (int i = 0; i < S::kFragsDown; ++i)
      left_piece<S::kRows, false>(stage + static_cast<std::uint32_t>(step / 4) * a_panel, row + 16 * i,
                                  step % 4, lane, left[i]);
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
  const auto bar = [&](std::uint32_t use) { return base + S::kBars + 8 * (use % S::kStages); };
  const auto stage = [&](std::uint32_t use) { return base + use % S::kStages * S::kStageBytes; };
  const int deep = static_cast<int>((w.p.k + S::kDeep - 1) / S::kDeep);
  std::uint32_t use = 0;
  for (Index tile = blockIdx.x; tile < w.tiles; tile += gridDim.x) {
    float d[S::kFragsDown][S::kFragsAcross][4] = {};
    Pieces<S> pieces[2];  // those of the next step are fetched beside the products of this one
    ptx::mbarrier_wait(bar(use), use / S::kStages & 1);
    pieces[0].load(stage(use), w.a_panel, row0, column0, 0, lane);
#pragma unroll 1
    for (int i = 1; i <= deep; ++i, ++use) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) {
          pieces[(step + 1) % 2].load(stage(use), w.a_panel, row0, column0, step + 1, lane);
        } else if (i < deep) {
          ptx::mbarrier_wait(bar(use + 1), (use + 1) / S::kStages & 1);
          pieces[0].load(stage(use + 1), w.a_panel, row0, column0, 0, lane);
        }
        pieces[step % 2].template multiply<T>(d);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(bar(use) + 8 * S::kStages);
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
    ptx::prefetch_map(&w.a);
    for (std::uint32_t n = 0; n < S::kStages; ++n) {
      ptx::mbarrier_init(base + S::kBars + 8 * n, 1);
      ptx::mbarrier_init(base + S::kBars + 8 * (S::kStages + n), S::kWarps);
    }
    ptx::mbarrier_init_fence();
    foresee_stages<S>(w);
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
  w.whole = p.k % 64 == 0;
  const Index there = min_of(p.m, S::kRows), rows = w.whole ? round_up(there, 8) : there;
  w.a_panel = panel_bytes(w.whole ? static_cast<int>(rows) : S::kRows);
  w.stage_bytes = static_cast<std::uint32_t>((rows + S::kColumns) * S::kDeep * 2);
  const int panels = w.whole ? S::kDeep / 64 : 0;
  status = state->map_of(line_map<T>(p.a, p.m, p.k, p.a.rows.step, static_cast<int>(rows), panels), w.a);
  if (status.ok())
    status = state->map_of(line_map<T>(p.b, p.n, p.k, p.b.columns.step, S::kColumns, panels), w.b);
  if (!status.ok()) return status;
  const Index most = static_cast<Index>(facts_of(device).processors) * max_of(blocks, 1);
  Launch l{kName, dim3(static_cast<unsigned>(min_of(w.tiles, most))), S::kThreads + 32, S::kShared, stream};
  l.overlaps_forerunner = true;
  return launch(l, kernel, w);
}

template <class T>
Status stream_in_tiles(const Product& p, StreamTile tile, int device, cudaStream_t stream) {
  if (tile.rows == 16) {
    if (tile.columns == 16) return start_stream_tiles<T, StreamShape<16, 16, 1, 1, 6>>(p, device, stream);
    if (tile.columns == 32) return start_stream_tiles<T, StreamShape<16, 32, 1, 2, 6>>(p, device, stream);
    return start_stream_tiles<T, StreamShape<16, 64, 1, 4, 5>>(p, device, stream);
  }
  if (tile.rows == 32)
    return tile.columns == 16 ? start_stream_tiles<T, StreamShape<32, 16, 2, 1, 6>>(p, device, stream)
                              : start_stream_tiles<T, StreamShape<32, 32, 2, 1, 6>>(p, device, stream);
  if (tile.columns == 16) return start_stream_tiles<T, StreamShape<64, 16, 4, 1, 5>>(p, device, stream);
  return tile.columns == 32 ? start_stream_tiles<T, StreamShape<64, 32, 4, 1, 4>>(p, device, stream)
                            : start_stream_tiles<T, StreamShape<64, 64, 2, 2, 3>>(p, device, stream);
}

template <class T>
Status stream_product(const Product& p, int device, cudaStream_t stream) {
  return stream_in_tiles<T>(p, stream_tile(p.m, p.n, p.k, facts_of(device).processors), device, stream);
}
}  // namespace headwise::cuda::gemm
