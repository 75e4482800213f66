// The gradients on Hopper: an instance's sizes, its shared memory, the warp that copies, the warps that add.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/hopper/backward/backward.h"
#include "headwise/kernels/cuda/hopper/forward/copy.cuh"

namespace headwise::cuda::hopper::backward {

using forward::load_panels;

template <class T_, int HeadDim, BackwardPasses Passes>
struct BackwardConfig {
  using T = T_;
  static constexpr int kDim = HeadDim, kQueries = backward_queries(HeadDim), kKeys = kBackwardKeys;
  static constexpr bool kTerms = Passes == BackwardPasses::terms, kPairs = Passes == BackwardPasses::pairs;
  static constexpr bool kRoundedWeights =
      kTerms || kPairs || HeadDim == 64;                // registers are short: ds from p as dv reads it
  static constexpr int kSlots = HeadDim == 64 ? 2 : 1;  // of k and v; q and dout have two
  static constexpr int kQBytes = kQueries * HeadDim * 2, kKeyBytes = kKeys * HeadDim * 2;
  static constexpr int kScoreBytes = kQueries * kKeys * 2, kSumBytes = kQueries * HeadDim * 4;
  static constexpr int kSlabBytes = kSumBytes / 2, kRowBytes = kQueries * 4;
  static constexpr int kInfoBytes = kPairs ? 80 : 64;
  // The base is a multiple of 1,024 as it stands: there are no bytes left to round it up.
  static constexpr int kShared = 2 * kSlots * kKeyBytes + 4 * kQBytes + 2 * kScoreBytes + kSumBytes +
                                 4 * kRowBytes + 64 + 2 * kInfoBytes;
  // 24 + 2 * 240 = 3 * 168, all that 384 threads begin with: one step more and setmaxnreg waits for ever.
  static constexpr int kThreads = 384, kCopyRegisters = 24, kProductRegisters = 240;
  static_assert(kSlabBytes == 16384 && kShared <= 227 * 1024);
};

/// Barriers of the block. Slabs are this group's half of a tile of dq.
enum BackwardBarrier { kBothGroups = 1, kSlabEmpty = 2, kSlabFull = 4, kOwnGroup = 8 };

template <class C>
struct BackwardShared {
  std::uint32_t k, v, q, dout, score, sum, lse, delta, kv_full, kv_empty, full, empty, info;
  __device__ __forceinline__ explicit BackwardShared(const void* raw) {
    k = ptx::shared_address(raw);
    v = k + C::kSlots * C::kKeyBytes;
    q = v + C::kSlots * C::kKeyBytes;
    dout = q + 2 * C::kQBytes;
    score = dout + 2 * C::kQBytes;
    sum = score + 2 * C::kScoreBytes;
    lse = sum + C::kSumBytes;
    delta = lse + 2 * C::kRowBytes;
    kv_full = delta + 2 * C::kRowBytes;
    kv_empty = kv_full + 16, full = kv_full + 32, empty = kv_full + 48, info = kv_full + 64;
  }
  // A tile's facts travel with its k and v: (tile of keys, first and end tile of queries, first head), (keys,
  // queries, position of query 0, kv head), (batch, row of q, row of k, part), (padded rows of q and k,
  // heads, end of heads); pairs: (sequence, its first query in it, the tile's first key in it).
  __device__ __forceinline__ std::uint32_t info_of(int tile) const {
    return info + C::kInfoBytes * (tile % C::kSlots);
  }
};

/// Tile t in the run's order: `n` of a unit's tiles.
struct BackwardTile {
  int n, unit;
};
__device__ __forceinline__ BackwardTile tile_at(const BackwardParams& p, int t, int units) {
  const int section = min(t / (p.section * p.unit_tiles), p.sections), first = section * p.section,
            r = t - first * p.unit_tiles, count = section < p.sections ? p.section : units - first;
  if (p.keys_outside) return {r / count, first + r % count};
  return {r % p.unit_tiles, first + r / p.unit_tiles};
}

/// The warp that copies: takes tiles of keys in order and keeps the ring of queries full. The first tile
/// comes from the counter too: whoever waits for a turn waits for a block that runs.
template <class C>
__device__ __forceinline__ void backward_copy(const BackwardShared<C>& shared, const BackwardMaps& maps,
                                              const BackwardParams& p) {
  constexpr int kKeys = C::kKeys, kQueries = C::kQueries;
  int used = 0, tile = 0;
  for (int t = atomicAdd(p.counter, 1);;) {
    const int slot = tile % C::kSlots, phase = (tile / C::kSlots) & 1;
    const std::uint32_t info = shared.info_of(tile), kv_full = shared.kv_full + 8 * slot;
    if (t >= p.tiles) {
      if (t == p.tiles + static_cast<int>(gridDim.x) - 1)
        *p.counter = 0;  // every block fetches one tile too many: this was the last fetch
      ptx::mbarrier_wait(shared.kv_empty + 8 * slot, phase ^ 1);
      ptx::store_shared(info, ~0u, ~0u, ~0u, ~0u);
      ptx::mbarrier_arrive(kv_full);
      return;
    }
    const auto [n, unit] = tile_at(p, t, p.batch * p.kv_heads * p.parts);
    const int part = unit % p.parts, kv_head = unit / p.parts % p.kv_heads,
              b = p.first + unit / p.parts / p.kv_heads;
    const BackwardPlace at = p.place_of(b);
    const bool whole = p.parts_at(at) == 1;                  // one part does all of the group's heads
    if (n * kKeys >= at.kv_tokens || (whole && part > 0)) {  // this sequence is shorter
      t = atomicAdd(p.counter, 1);
      continue;
    }
    const QueryTiles m =
        query_tiles({n * kKeys, kKeys, at.kv_tokens}, {at.q_tokens, at.q_start, p.back, p.ahead}, kQueries);
    const int head = (kv_head * p.parts + part) * p.group, heads = whole ? p.parts * p.group : p.group;
    ptx::mbarrier_wait(shared.kv_empty + 8 * slot, phase ^ 1);
    ptx::store_shared(info, n, m.begin, m.end, head);
    ptx::store_shared(info + 16, at.kv_tokens, at.q_tokens, at.q_start, kv_head);
    ptx::store_shared(info + 32, at.batch, at.q_row, at.kv_row, part);
    ptx::store_shared(info + 48, at.q_padded, at.kv_padded, heads, head + heads);
    if constexpr (C::kPairs)
      ptx::store_shared(info + 64, b / p.pieces, at.first_query, at.first_key + n * kKeys, 0);
    ptx::mbarrier_expect(kv_full, 2 * C::kKeyBytes);
    load_panels<C::kDim>(kKeys, {.to = shared.k + slot * C::kKeyBytes,
                                 .map = &maps.k,
                                 .bar = kv_full,
                                 .row = at.kv_row + n * kKeys,
                                 .head = kv_head,
                                 .batch = at.batch,
                                 .keep = ptx::kEvictFirst});
    load_panels<C::kDim>(kKeys, {.to = shared.v + slot * C::kKeyBytes,
                                 .map = &maps.v,
                                 .bar = kv_full,
                                 .row = at.kv_row + n * kKeys,
                                 .head = kv_head,
                                 .batch = at.batch,
                                 .keep = ptx::kEvictFirst});
    t = atomicAdd(p.counter, 1);  // the next tile; its latency hides behind the ring
    for (int h = head; h < head + heads; ++h)
      for (int i = m.begin; i < m.end; ++i, ++used) {
        const int row = (p.down ? m.begin + m.end - 1 - i : i) * kQueries, s = used & 1;
        const std::uint32_t full = shared.full + 8 * s;
        const int padded = h * p.q_padded + at.q_padded + row;
        ptx::mbarrier_wait(shared.empty + 8 * s, ((used >> 1) & 1) ^ 1);
        const bool bias = C::kPairs && p.bias_tiles;
        ptx::mbarrier_expect(full, 2 * C::kQBytes + 2 * C::kRowBytes + (bias ? C::kScoreBytes : 0));
        load_panels<C::kDim>(kQueries, {.to = shared.q + s * C::kQBytes,
                                        .map = &maps.q,
                                        .bar = full,
                                        .row = at.q_row + row,
                                        .head = h,
                                        .batch = at.batch,
                                        .keep = ptx::kEvictLast});
        if (bias) {  // where the gradients of these scores will lie; read here: registers are short
          const int4 in = ptx::load_shared(info + 64);
#pragma unroll 1
          for (int c = 0; c < kKeys / 64; ++c)
            ptx::load_tile({shared.score + s * C::kScoreBytes + c * panel_bytes(kQueries), &maps.bias, full,
                            in.y + row, 0, p.bias.step[1] ? h : 0, p.bias.step[0] ? in.x : 0,
                            ptx::kEvictNormal, in.z + 64 * c});
        }
        ptx::load_bytes(shared.lse + s * C::kRowBytes, p.lse + padded, C::kRowBytes, full);
        load_panels<C::kDim>(kQueries, {.to = shared.dout + s * C::kQBytes,
                                        .map = &maps.dout,
                                        .bar = full,
                                        .row = at.q_row + row,
                                        .head = h,
                                        .batch = at.batch,
                                        .keep = ptx::kEvictLast});
        ptx::load_bytes(shared.delta + s * C::kRowBytes, p.delta + padded, C::kRowBytes, full);
      }
    ++tile;
  }
}

/// The two warps that add dq, in turns: slabs leave shared memory by bulk adds. In order, tiles of keys add
/// from first to last; they were fetched in that order, so whoever waits waits for a tile that is under way.
template <class C>
__device__ __forceinline__ void backward_add(const BackwardShared<C>& shared, const BackwardParams& p,
                                             int turn) {
  constexpr int kQueries = C::kQueries;
  const int lane = threadIdx.x % 32;
  if (turn == 0) ptx::barrier_arrive(kSlabEmpty, 160), ptx::barrier_arrive(kSlabEmpty + 1, 160);
  int used = 0;
  for (int tile = 0;; ++tile) {
    const int slot = tile % C::kSlots;
    ptx::mbarrier_wait(shared.kv_full + 8 * slot, (tile / C::kSlots) & 1);
    const std::uint32_t info = shared.info_of(tile);
    const int4 what = ptx::load_shared(info);
    const int q_start = ptx::load_shared(info + 16).z;
    const int4 padded = ptx::load_shared(info + 48);
    __syncwarp();
    // A short tile may end before its adders look at it: the slot waits for them too.
    if (lane == 0) ptx::mbarrier_arrive(shared.kv_empty + 8 * slot);
    if (what.x < 0) break;
#pragma unroll 1
    for (int h = what.w; h < padded.w; ++h)
#pragma unroll 1
      for (int i = what.y; i < what.z; ++i, ++used) {
        if ((used & 1) != turn) continue;
        const int m = p.down ? what.y + what.z - 1 - i : i;
        const int block = (h * p.q_padded + padded.x) / kQueries + m;
        if (p.turns && lane == 0) {
          const int mine = what.x - first_adder(q_start + m * kQueries, p.back, C::kKeys);
          while (ptx::load_acquire(p.turns + block) != mine) {
          }
        }
        __syncwarp();
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          ptx::barrier_sync(kSlabFull + 2 * turn + g, 160);
          if (lane == 0) {
            ptx::add_floats(p.dq + static_cast<Index>(block) * (kQueries * C::kDim) + g * (C::kSlabBytes / 4),
                            shared.sum + g * C::kSlabBytes, C::kSlabBytes);
            ptx::commit_stores();
          }
          __syncwarp();
        }
        if (lane == 0) ptx::wait_stores_read<1>();
        __syncwarp();
        ptx::barrier_arrive(kSlabEmpty, 160);
        if (lane == 0) ptx::wait_stores_read();
        __syncwarp();
        ptx::barrier_arrive(kSlabEmpty + 1, 160);
        if (p.turns && lane == 0) {
          ptx::wait_stores();
          ptx::add_release(p.turns + block, 1);
        }
      }
  }
  if (lane == 0) ptx::wait_stores();
}

}  // namespace headwise::cuda::hopper::backward
