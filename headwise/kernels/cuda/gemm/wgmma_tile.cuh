// A tile of a product by wgmma: stages that one thread copies, warpgroups that multiply, and what goes out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/gemm/finish.cuh"
#include "headwise/kernels/cuda/gemm/kernels.h"

namespace headwise::cuda::gemm {

inline constexpr int kTileDeep = 64, kGroupRows = 64;
/// Tiles of so many cluster rows are walked before the next columns: their lines stay in L2.
inline constexpr Index kRowsTogether = 8;

struct WgmmaProduct {
  CUtensorMap a, b, out;
  Product p;
  bool plain_end = false;  // out in 16 bits on lines, nothing but a bias: stored by bulk copies
  int cluster = 1;         // blocks one below the other share b
  bool whole_a = false, whole_b = false;  // boxes have all panels of a stage
  std::uint32_t a_bytes = 0;  // of a stage that are copied: zeros of rows that are not there take time
  Index row_groups = 0, columns = 0;  // cluster rows and tile columns
};

/// Shared memory: stages of a [64 Groups Deep] and b [N Deep], 16 KB a warpgroup for what goes out, its bias,
/// barriers. Reused: what goes out lies where the stages lay, in blocks that have one tile.
template <int Groups, int Columns, int Stages, bool Reused, int Deep = kTileDeep>
struct WgmmaShape {
  static constexpr int kGroups = Groups, kColumns = Columns, kStages = Stages, kRows = kGroupRows * Groups;
  static constexpr int kDeep = Deep, kABytes = kRows * Deep * 2, kBBytes = Columns * Deep * 2;
  static constexpr bool kReused = Reused;
  static constexpr int kStageBytes = kABytes + kBBytes, kOutBytes = 64 * 64 * 4;
  static constexpr int kOut = Reused ? 0 : kStages * kStageBytes,
                       kBias = kStages * kStageBytes + (Reused ? 0 : Groups * kOutBytes),
                       kBars = kBias + Groups * Columns * 4;
  static constexpr std::size_t kShared = kBars + 2 * kStages * 8;
  static_assert(kShared <= 227 * 1024 && Groups * kOutBytes <= kStages * kStageBytes);
};

/// load_tile() into this place of every block of a cluster of two.
__device__ __forceinline__ void load_tile_twice(const ptx::TileCopy& x) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8, %9;" ::"r"(x.to),
      "l"(x.map), "r"(x.bar), "r"(x.column), "r"(x.row), "r"(x.panel), "r"(x.head), "r"(x.batch),
      "h"(static_cast<std::uint16_t>(3)), "l"(x.keep)
      : "memory");
}
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Where in a ring of stages a warp stands.
template <int Stages>
struct Ring {
  std::uint32_t uses = 0;
  __device__ __forceinline__ std::uint32_t slot() const { return uses % Stages; }
  __device__ __forceinline__ std::uint32_t parity() const { return uses / Stages & 1; }
};

struct TileAt {
  int row, column;
};
/// Tile `number` of this block: cluster rows in groups, columns inside a group.
__device__ __forceinline__ TileAt tile_at(const WgmmaProduct& w, Index number, int rank, int height,
                                          int width) {
  const Index each = kRowsTogether * w.columns, group = number / each, first = group * kRowsTogether,
              rows = min(w.row_groups - first, kRowsTogether), local = number - group * each;
  return {static_cast<int>(((first + local % rows) * w.cluster + rank) * height),
          static_cast<int>(local / rows * width)};
}

template <class S, bool TurnA, bool TurnB>
struct Copier {
  static constexpr int N = S::kColumns;
  const WgmmaProduct& w;
  std::uint32_t base;
  int rank;

  __device__ __forceinline__ void left(TileAt at, int k0, std::uint32_t to, std::uint32_t bar) const {
    ptx::TileCopy x{to, &w.a, bar, at.row, 0, 0, 0, ptx::kEvictNormal, k0};
    if constexpr (!TurnA) return ptx::load_tile(x);
    x.row = k0;
#pragma unroll
    for (int panel = 0; panel < S::kGroups; ++panel) {
      x.column = at.row + 64 * panel, x.to = to + static_cast<std::uint32_t>(panel) * panel_bytes(64);
      ptx::load_tile(x);
    }
  }
  /// One half of b: of its columns, or turned: of k. In a cluster each block brings one to both.
  __device__ __forceinline__ void right(TileAt at, int k0, int half, std::uint32_t to,
                                        std::uint32_t bar) const {
    ptx::TileCopy x{to, &w.b, bar, at.column + half * (N / 2), 0, 0, 0, ptx::kEvictLast, k0};
    const auto load = [&] { w.cluster > 1 ? load_tile_twice(x) : ptx::load_tile(x); };
    if constexpr (!TurnB) {
      x.to = to + static_cast<std::uint32_t>(half) * panel_bytes(N / 2);
      return load();
    }
    x.row = k0 + 32 * half;
#pragma unroll
    for (int panel = 0; panel < N / 64; ++panel) {
      x.column = at.column + 64 * panel;
      x.to = to + static_cast<std::uint32_t>(panel) * panel_bytes(64) +
             static_cast<std::uint32_t>(half) * panel_bytes(32);
      load();
    }
  }
  __device__ __forceinline__ void run(Index first, Index step, Index tiles, int deep) const {
    Ring<S::kStages> ring;
    for (Index tile = first; tile < tiles; tile += step) {
      const TileAt at = tile_at(w, tile, rank, S::kRows, N);
      for (int k = 0; k < deep; ++k, ++ring.uses) {
        const std::uint32_t full = base + S::kBars + ring.slot() * 8, empty = full + S::kStages * 8,
                            to = base + ring.slot() * S::kStageBytes;
        ptx::mbarrier_wait(empty, ring.parity() ^ 1);
        const bool there = at.row < w.p.m;
        ptx::mbarrier_expect(full, there ? w.a_bytes + S::kBBytes : S::kBBytes);
        if (there) left(at, k * kTileDeep, to, full);
        if (w.cluster > 1) {
          right(at, k * kTileDeep, rank, to + S::kABytes, full);
        } else {
          right(at, k * kTileDeep, 0, to + S::kABytes, full);
          right(at, k * kTileDeep, 1, to + S::kABytes, full);
        }
      }
    }
  }
};

template <class T, class S, bool TurnA, bool TurnB>
struct Multiplier {
  static constexpr int N = S::kColumns;
  const WgmmaProduct& w;
  std::uint32_t base;
  int rank, group, thread;  // of the warpgroup, and in it
  Ring<S::kStages> ring = {};
  std::uint32_t panels = 0;  // stored so far: two places take turns

  __device__ __forceinline__ void sync() const { ptx::barrier_sync(1 + group, 128); }
  __device__ __forceinline__ std::uint32_t out_at() const {
    return base + S::kOut + static_cast<std::uint32_t>(group) * S::kOutBytes;
  }
  __device__ __forceinline__ std::uint32_t bias_at(int column) const {
    return base + S::kBias + static_cast<std::uint32_t>(group * N + column) * 4;
  }
  /// Stage `slot` has been read by this warpgroup: told to every block that writes into it.
  __device__ __forceinline__ void release(std::uint32_t slot) const {
    const std::uint32_t empty = base + S::kBars + (S::kStages + slot) * 8;
    if (w.cluster == 1) {
      if (thread == 0) ptx::mbarrier_arrive(empty);
    } else if (thread < 2) {
      ptx::mbarrier_arrive_at(thread, empty);
    }
  }
  __device__ __forceinline__ void multiply(float (&d)[N / 2], std::uint32_t stage) const {
    const std::uint32_t a = stage + static_cast<std::uint32_t>(group) * panel_bytes(64),
                        b = stage + S::kABytes;
    const std::uint64_t left = TurnA ? columns_descriptor(a, 64) : rows_descriptor(a),
                        right = TurnB ? columns_descriptor(b, 64) : rows_descriptor(b);
#pragma unroll
    for (int i = 0; i < S::kDeep / 16; ++i) {
      const std::uint64_t x = advanced(left,
                                       TurnA ? kRowStep * static_cast<std::uint32_t>(i) : k_step(64, i)),
                          y = advanced(right,
                                       TurnB ? kRowStep * static_cast<std::uint32_t>(i) : k_step(N, i));
      if constexpr (TurnA && TurnB)
        Wgmma<N, T>::both_turned(d, x, y);
      else if constexpr (TurnA)
        Wgmma<N, T>::left_turned(d, x, y);
      else
        Wgmma<N, T>::template more_shared<TurnB ? 1 : 0>(d, x, y);
    }
  }
  __device__ __forceinline__ void begin(float (&d)[N / 2]) const {
    ptx::mbarrier_wait(base + S::kBars + ring.slot() * 8, ring.parity());
    ptx::wgmma_fence();
    multiply(d, base + ring.slot() * S::kStageBytes);
    ptx::wgmma_commit();
  }
  /// One stage is under way while the one before it is handed back.
  __device__ __forceinline__ void sum(float (&d)[N / 2], int deep) {
    ptx::pin(d);
    begin(d);
    ++ring.uses;
#pragma unroll 1
    for (int k = 1; k < deep; ++k, ++ring.uses) {
      begin(d);
      ptx::wgmma_wait<1>();
      release((ring.uses - 1) % S::kStages);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(d);
    release((ring.uses - 1) % S::kStages);
  }
  __device__ __forceinline__ void start(float (&d)[N / 2], Index row0, Index column0) const {
    const Product& p = w.p;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) d[i] = 0;
    if (p.accumulate) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const Index row = row0 + 16 * (thread / 32) + thread % 32 / 4 + (i >> 1 & 1) * 8,
                    column = column0 + 8 * (i / 4) + 2 * (thread % 4) + (i & 1);
        if (row < p.m && column < p.n) d[i] = number_at(p.out.data, p.out.dtype, p.out.at(row, column));
      }
    }
    if (p.bias)
      for (int i = thread; i < N; i += 128)
        ptx::store_float(bias_at(i), column0 + i < p.n
                                         ? number_at(p.bias, p.bias_dtype, (column0 + i) * p.bias_step)
                                         : 0.0f);
  }
  /// Panels of 64 columns in 16 bits, by bulk copies that go on beside the next tile.
  __device__ __forceinline__ void store_plain(const float (&d)[N / 2], int row0, int column0) {
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int panel = 0; panel < N / 64; ++panel) {
      const std::uint32_t to = out_at() + panels++ % 2 * panel_bytes(64);
      if (thread == 0) ptx::wait_stores_read<1>();  // the panel this one overwrites
      sync();
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        const int i = 4 * (8 * panel + n), column = 64 * panel + 8 * n + 2 * (lane % 4);
        float2 x = make_float2(0, 0), y = x;
        if (w.p.bias) x = ptx::load_pair(bias_at(column)), y = ptx::load_pair(bias_at(column + 8));
        ptx::store_matrices(
            to + chunk_offset(64, 16 * warp + lane / 8 % 2 * 8 + lane % 8, n + lane / 16),
            Number<T>::pack(d[i] + x.x, d[i + 1] + x.y), Number<T>::pack(d[i + 2] + x.x, d[i + 3] + x.y),
            Number<T>::pack(d[i + 4] + y.x, d[i + 5] + y.y), Number<T>::pack(d[i + 6] + y.x, d[i + 7] + y.y));
      }
      ptx::fence_shared_for_async();
      sync();
      if (thread == 0) {
        if (row0 < w.p.m && column0 + 64 * panel < w.p.n)
          ptx::store_tile(&w.out, to, row0, 0, 0, 0, column0 + 64 * panel);
        ptx::commit_stores();
      }
    }
  }
  /// Panels of 64 columns in f32, from which threads take eight columns of a row at a time.
  __device__ __forceinline__ void store_finished(const float (&d)[N / 2], Index row0, Index column0) const {
    const int warp = thread / 32, lane = thread % 32;
    const std::uint32_t to = out_at();
    const auto place = [&](int row, int eight) {
      return to + static_cast<std::uint32_t>(row * 64 + ((eight ^ (row & 7)) * 8)) * 4;
    };
#pragma unroll 1
    for (int panel = 0; panel < (N + 63) / 64; ++panel) {
      sync();
#pragma unroll
      for (int one = 0; one < (N + 63) / 64; ++one) {
        if (one != panel) continue;  // registers are named by constants
#pragma unroll
        for (int n = 0; n < 8 && 8 * one + n < N / 8; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            ptx::store_pair(
                place(16 * warp + lane / 4 + 8 * half, n) + static_cast<std::uint32_t>(lane % 4) * 8,
                d[4 * (8 * one + n) + 2 * half], d[4 * (8 * one + n) + 2 * half + 1]);
      }
      sync();
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const int r = 16 * i + thread / 8, eight = thread % 8;
        const Index row = row0 + r, column = column0 + 64 * panel + 8 * eight, left = w.p.n - column;
        if (row >= w.p.m || left <= 0 || (N % 64 != 0 && 64 * panel + 8 * eight >= N)) continue;
        const float4 x = ptx::load_floats(place(r, eight)), y = ptx::load_floats(place(r, eight) + 16);
        float sums[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
        if (w.p.bias) {
          const float4 s = ptx::load_floats(bias_at(64 * panel + 8 * eight)),
                       t = ptx::load_floats(bias_at(64 * panel + 8 * eight) + 16);
          const float bias[8] = {s.x, s.y, s.z, s.w, t.x, t.y, t.z, t.w};
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[j] = __fadd_rn(sums[j], bias[j]);
        }
        finish_eight(w.p, row, column, left < 8 ? static_cast<int>(left) : 8, sums);
      }
    }
  }
  __device__ __forceinline__ void run(Index first, Index step, Index tiles, int deep) {
    for (Index tile = first; tile < tiles; tile += step) {
      const TileAt at = tile_at(w, tile, rank, S::kRows, N);
      const int row0 = at.row + kGroupRows * group;
      float d[N / 2];
      start(d, row0, at.column);
      sum(d, deep);
      if constexpr (S::kReused) ptx::barrier_sync(1 + S::kGroups, 128 * S::kGroups);  // all stages are read
      if (w.plain_end)
        store_plain(d, row0, at.column);
      else
        store_finished(d, row0, at.column);
      sync();  // the bias of the next tile
    }
    if (w.plain_end && thread == 0) ptx::wait_stores_read();
  }
};

/// What a launch hands its blocks; the cluster is set.
template <class T, class S, bool TurnA, bool TurnB>
Status describe(const Product& p, StreamState& state, WgmmaProduct& w) {
  w.p = p;
  w.row_groups = ceil_div(ceil_div(p.m, S::kRows), w.cluster), w.columns = ceil_div(p.n, S::kColumns);
  w.plain_end = S::kColumns % 64 == 0 && p.out.dtype == p.a.dtype && p.out.wide &&
                p.activation == Activation::none && !p.factor.data && !p.residual.data && !p.slope.data &&
                !p.accumulate;
  constexpr bool kWide = S::kGroups > 1;  // its halves of b are copied by two blocks
  w.whole_a = S::kDeep > kTileDeep && p.k % 64 == 0;
  w.whole_b = !kWide && (TurnB ? p.n : p.k) % 64 == 0;
  const Index rows = TurnA || w.whole_a ? S::kRows : min_of(p.m, S::kRows);
  w.a_bytes = static_cast<std::uint32_t>(rows * S::kDeep * 2);
  Status status = state.map_of(TurnA ? line_map<T>(p.a, p.k, p.m, p.a.columns.step, 64)
                                     : line_map<T>(p.a, p.m, p.k, p.a.rows.step, static_cast<int>(rows),
                                                   w.whole_a ? S::kDeep / 64 : 0),
                               w.a);
  if (status.ok())
    status = state.map_of(
        TurnB ? line_map<T>(p.b, p.k, p.n, p.b.rows.step, kWide ? 32 : 64, w.whole_b ? S::kColumns / 64 : 0)
              : line_map<T>(p.b, p.n, p.k, p.b.columns.step, kWide ? S::kColumns / 2 : S::kColumns,
                            w.whole_b ? S::kDeep / 64 : 0),
        w.b);
  if (status.ok() && w.plain_end)
    status = state.map_of(line_map<T>(p.out, p.m, p.n, p.out.rows.step, 64), w.out);
  return status;
}

}  // namespace headwise::cuda::gemm
