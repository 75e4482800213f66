// Products of 16-bit numbers by wgmma in small tiles, one a block: where wide ones leave processors idle.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/gemm/wgmma_tile.cuh"

namespace headwise::cuda::gemm {

/// Stages of 128 of k, so many that up to 64 columns leave room for a second block; of 64 where lines of b
/// run across k.
template <int N, bool TurnB>
using BlockShape = WgmmaShape<1, N,
                              (TurnB     ? 8
                               : N == 64 ? 3
                               : N == 96 ? 5
                                         : 4),
                              true, (TurnB ? 64 : 128)>;
inline constexpr int kBlockThreads = 128 + 32;  // a warpgroup that multiplies, a warp that copies

/// One thread copies: with as few commands as can be.
template <class S, bool TurnB>
struct BlockCopier {
  static constexpr int N = S::kColumns, kPanels = S::kDeep / 64;
  const WgmmaProduct& w;
  std::uint32_t base;
  TileAt at;

  __device__ __forceinline__ void left(int k, std::uint32_t to, std::uint32_t bar) const {
    ptx::TileCopy x{to, &w.a, bar, at.row, 0, 0, 0, ptx::kEvictNormal, k};
    if (kPanels > 1 && w.whole_a) {
      x.panel = k / 64, x.column = 0;
      return ptx::load_tile(x);
    }
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::load_tile(x);
      x.column += 64, x.to += panel_bytes(64);
    }
  }
  __device__ __forceinline__ void right(int k, std::uint32_t to, std::uint32_t bar) const {
    ptx::TileCopy x{to, &w.b, bar, at.column, 0, 0, 0, ptx::kEvictNormal, k};
    if constexpr (TurnB) x.row = k, x.column = at.column;
    if (w.whole_b) {
      x.panel = (TurnB ? at.column : k) / 64, x.column = 0;
      return ptx::load_tile(x);
    }
    constexpr int kCopies = TurnB ? N / 64 : kPanels;
#pragma unroll
    for (int panel = 0; panel < kCopies; ++panel) {
      ptx::load_tile(x);
      x.column += 64, x.to += panel_bytes(TurnB ? 64 : N);
    }
  }
  /// The first stages of b on their way to L2, where the forerunner may still write them.
  __device__ __forceinline__ void foresee(int deep) const {
    if (TurnB || !w.whole_b) return;
    for (int k = 0; k < S::kStages && k < deep; ++k) prefetch_tile(w.b, at.column, k * kPanels, 0);
  }
  __device__ __forceinline__ void run(int deep) const {
    Ring<S::kStages> ring;
    for (int k = 0; k < deep; ++k, ++ring.uses) {
      const std::uint32_t full = base + S::kBars + ring.slot() * 8, to = base + ring.slot() * S::kStageBytes;
      ptx::mbarrier_wait(full + S::kStages * 8, ring.parity() ^ 1);
      ptx::mbarrier_expect(full, w.a_bytes + S::kBBytes);
      right(k * S::kDeep, to + S::kABytes, full);
      left(k * S::kDeep, to, full);
    }
  }
};

template <class T, class S, bool TurnB>
__global__ void __launch_bounds__(kBlockThreads, S::kColumns > 64 ? 1 : 2)
    wgmma_blocks(const __grid_constant__ WgmmaProduct w) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const std::uint32_t base = ptx::shared_address(raw);
  if (base % kTileAlign != 0) __trap();
  const int thread = static_cast<int>(threadIdx.x), last = 128,
            deep = static_cast<int>((w.p.k + S::kDeep - 1) / S::kDeep);
  const Index tile = blockIdx.x;
  const BlockCopier<S, TurnB> copier{w, base, tile_at(w, tile, 0, S::kRows, S::kColumns)};
  if (thread == last) {
    for (std::uint32_t n = 0; n < S::kStages; ++n) {
      ptx::mbarrier_init(base + S::kBars + 8 * n, 1);
      ptx::mbarrier_init(base + S::kBars + 8 * (S::kStages + n), 1);
    }
    ptx::mbarrier_init_fence();
    ptx::prefetch_map(&w.a);
    copier.foresee(deep);
  }
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  __syncthreads();
  if (thread < last)
    Multiplier<T, S, false, TurnB>{w, base, 0, 0, thread}.run(tile, 1, tile + 1, deep);
  else if (thread == last)
    copier.run(deep);
}

template <class T, class S, bool TurnB>
Status start_blocks(const Product& p, int device, cudaStream_t stream) {
  constexpr const char* kName = "cuda/gemm_hopper";
  static bool allowed[64] = {};
  const auto kernel = wgmma_blocks<T, S, TurnB>;
  Status status = allow_shared(kName, kernel, S::kShared, allowed, device);
  if (!status.ok()) return status;
  StreamState* state = state_of(device, stream);
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  WgmmaProduct w;
  status = describe<T, S, false, TurnB>(p, *state, w);
  if (!status.ok()) return status;
  Launch l{kName, dim3(static_cast<unsigned>(w.row_groups * w.columns)), kBlockThreads, S::kShared, stream};
  l.overlaps_forerunner = true;
  return launch(l, kernel, w);
}

template <class T, int N>
Status start_block(const Product& p, const Lines& lines, int device, cudaStream_t stream) {
  if constexpr (has_turned_block<T>(N))
    if (lines.turn_b) return start_blocks<T, BlockShape<N, true>, true>(p, device, stream);
  return start_blocks<T, BlockShape<N, false>, false>(p, device, stream);
}

}  // namespace headwise::cuda::gemm
