// Products of 16-bit numbers by wgmma: persistent blocks, one warpgroup that copies and two that multiply.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/gemm/wgmma_tile.cuh"

namespace headwise::cuda::gemm {

inline constexpr int kTileRows = 128, kThreads = 384;
template <int N>
using WideShape = WgmmaShape<2, N, (N >= 192 ? 4 : 6), false>;

template <class T, int N, bool TurnA, bool TurnB>
__global__ void __launch_bounds__(kThreads, 1) wgmma_tiles(const __grid_constant__ WgmmaProduct w) {
  using S = WideShape<N>;
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const std::uint32_t base = ptx::shared_address(raw);
  if (base % kTileAlign != 0) __trap();
  const int thread = static_cast<int>(threadIdx.x), rank = w.cluster > 1 ? cluster_rank() : 0;
  if (thread == 0) {
    for (std::uint32_t n = 0; n < S::kStages; ++n) {
      ptx::mbarrier_init(base + S::kBars + 8 * n, 1);
      ptx::mbarrier_init(base + S::kBars + 8 * (S::kStages + n), 2 * w.cluster);
    }
    ptx::mbarrier_init_fence();
    ptx::prefetch_map(&w.a), ptx::prefetch_map(&w.b);
  }
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  __syncthreads();
  if (w.cluster > 1) ptx::cluster_sync();
  const Index first = blockIdx.x / static_cast<unsigned>(w.cluster),
              step = gridDim.x / static_cast<unsigned>(w.cluster), tiles = w.row_groups * w.columns;
  const int deep = static_cast<int>((w.p.k + kTileDeep - 1) / kTileDeep);
  if (thread < 128) {
    ptx::give_registers<40>();
    if (thread == 0) Copier<S, TurnA, TurnB>{w, base, rank}.run(first, step, tiles, deep);
  } else {
    ptx::take_registers<232>();
    Multiplier<T, S, TurnA, TurnB>{w, base, rank, thread / 128 - 1, thread % 128}.run(first, step, tiles,
                                                                                      deep);
  }
  if (w.cluster > 1) {
    __syncwarp();
    ptx::cluster_sync();  // no block leaves while another writes to it
  }
}

template <class T, int N, bool TurnA, bool TurnB>
Status start_wgmma(const Product& p, int device, cudaStream_t stream) {
  using S = WideShape<N>;
  constexpr const char* kName = "cuda/gemm_hopper";
  static bool allowed[64] = {};
  const auto kernel = wgmma_tiles<T, N, TurnA, TurnB>;
  Status status = allow_shared(kName, kernel, S::kShared, allowed, device);
  if (!status.ok()) return status;
  StreamState* state = state_of(device, stream);
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  WgmmaProduct w;
  const Index blocks = ceil_div(p.m, kTileRows);
  w.cluster = blocks > 1 ? 2 : 1;
  status = describe<T, S, TurnA, TurnB>(p, *state, w);
  if (!status.ok()) return status;
  Launch l{kName, dim3(static_cast<unsigned>(w.cluster)), kThreads, S::kShared, stream};
  l.cluster = static_cast<unsigned>(w.cluster), l.overlaps_forerunner = true;
  Index most = facts_of(device).processors;
  if (w.cluster > 1) {
    static int at_once[64] = {};  // clusters of two, asked once a device
    int& pairs = at_once[device % 64];
    if (pairs == 0) {
      Launch many = l;
      many.grid = dim3(static_cast<unsigned>(most / 2 * 2));
      status = clusters_at_once(many, kernel, pairs);
      if (!status.ok()) return status;
    }
    most = min_of(most / 2, pairs);
  }
  l.grid = dim3(static_cast<unsigned>(min_of(max_of(most, 1), w.row_groups * w.columns) * w.cluster));
  return launch(l, kernel, w);
}

template <class T, int N>
Status start_width(const Product& p, const Lines& lines, int device, cudaStream_t stream) {
  if constexpr (has_turned<T>(N)) {
    if (lines.turn_a) return start_wgmma<T, N, true, true>(p, device, stream);
    if (lines.turn_b) return start_wgmma<T, N, false, true>(p, device, stream);
  }
  return start_wgmma<T, N, false, false>(p, device, stream);
}

}  // namespace headwise::cuda::gemm
