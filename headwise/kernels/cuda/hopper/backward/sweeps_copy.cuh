// Gradients in two sweeps on Hopper: sizes and shared memory of the two kernels, and the warps that copy.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/copy.cuh"
#include "headwise/kernels/cuda/hopper/forward/copy.cuh"

namespace headwise::cuda::hopper::backward {

using forward::load_panels;

/// Every tile has 64 rows of all columns: 32 KB at 256. 24 + 2 * 240 registers as in BackwardConfig.
template <class T_, int HeadDim, bool Terms>
struct SweepConfig {
  using T = T_;
  static constexpr int kDim = HeadDim, kRows = kSweepRows;
  static constexpr bool kTerms = Terms;
  static constexpr int kTileBytes = (kDim + 63) / 64 * kRows * kPanelRowBytes, kRowBytes = kRows * 4,
                       kPairBytes = kRows * kRows * 2;
  static constexpr int kThreads = 384, kCopyRegisters = 24, kProductRegisters = 240;
  static constexpr int kKeysShared = 6 * kTileBytes + 2 * kPairBytes + 4 * kRowBytes + 80 + 64,
                       kQueriesShared = 7 * kTileBytes + 64 + 64;
  static_assert(kKeysShared <= 227 * 1024 && kQueriesShared <= 227 * 1024);
};

/// Barriers of a block: weights handed from one group to the other, in two slots.
enum SweepBarrier { kPairFull = 1, kPairEmpty = 3, kSweepGroup = 5 };

/// The kernel of dk and dv: a tile of k and v stays, q and dout pass in rings of two.
template <class C>
struct SweepKeysShared {
  std::uint32_t k, v, q, dout, pair, lse, delta, kv_full, kv_empty, q_full, q_empty, dout_full, dout_empty,
      info;
  __device__ __forceinline__ explicit SweepKeysShared(const void* raw) {
    k = ptx::shared_address(raw);
    v = k + C::kTileBytes, q = k + 2 * C::kTileBytes, dout = k + 4 * C::kTileBytes;
    pair = k + 6 * C::kTileBytes;
    lse = pair + 2 * C::kPairBytes;
    delta = lse + 2 * C::kRowBytes;
    kv_full = delta + 2 * C::kRowBytes;
    kv_empty = kv_full + 8, q_full = kv_full + 16, q_empty = kv_full + 32, dout_full = kv_full + 48,
    dout_empty = kv_full + 64;
    info = kv_full + 80;
  }
};

/// The kernel of dq: q and dout of two groups stay, k passes in a ring of two, v in one slot.
template <class C>
struct SweepQueriesShared {
  std::uint32_t q, dout, k, v, own_full, own_empty, k_full, k_empty, v_full, v_empty, info;
  __device__ __forceinline__ explicit SweepQueriesShared(const void* raw) {
    q = ptx::shared_address(raw);
    dout = q + 2 * C::kTileBytes, k = q + 4 * C::kTileBytes, v = q + 6 * C::kTileBytes;
    own_full = q + 7 * C::kTileBytes;
    own_empty = own_full + 8, k_full = own_full + 16, k_empty = own_full + 32, v_full = own_full + 48,
    v_empty = own_full + 56;
    info = own_full + 64;
  }
};

/// After the last tile: tells the others, and leaves the counter at 0 for the next launch.
__device__ __forceinline__ void end_of_tiles(const BackwardParams& p, int t, std::uint32_t info,
                                             std::uint32_t full) {
  if (t == p.tiles + static_cast<int>(gridDim.x) - 1)
    *p.counter = 0;  // every block fetches one tile too many: this was the last fetch
  ptx::store_shared(info, ~0u, ~0u, ~0u, ~0u);
  ptx::mbarrier_arrive(full);
}
/// A tile, which tiles it meets, its heads.
struct SweepFacts {
  int tile, begin, end, head, kv_head;
};
/// As BackwardShared::info_of lists them.
__device__ __forceinline__ void store_facts(std::uint32_t info, const SweepFacts& facts,
                                            const BackwardPlace& at) {
  const auto& [tile, begin, end, head, kv_head] = facts;
  ptx::store_shared(info, tile, begin, end, head);
  ptx::store_shared(info + 16, at.kv_tokens, at.q_tokens, at.q_start, kv_head);
  ptx::store_shared(info + 32, at.batch, at.q_row, at.kv_row, 0);
  ptx::store_shared(info + 48, at.q_padded, at.kv_padded, 0, 0);
}

/// A tile of keys: its facts, and the tile of queries that it meets now.
struct SweepKeyTile {
  int4 what, where;
  int first_key, steps, m, head;
  float slope;

  __device__ __forceinline__ int kv_tokens() const { return where.x; }
  __device__ __forceinline__ int q_tokens() const { return where.y; }
  __device__ __forceinline__ int q_start() const { return where.z; }
};

/// A warpgroup's queries: their facts, and the tile of keys that they meet now.
struct SweepQueryTile {
  int4 what, where;
  int first, position, n;
  float slope;

  __device__ __forceinline__ int kv_tokens() const { return where.x; }
  __device__ __forceinline__ int q_tokens() const { return where.y; }
};

template <class C>
__device__ __forceinline__ void sweep_copy(const SweepKeysShared<C>& shared, const BackwardMaps& maps,
                                           const BackwardParams& p) {
  constexpr int kRows = C::kRows;
  int used = 0, tile = 0;
  for (int t = atomicAdd(p.counter, 1);;) {
    if (t >= p.tiles) {
      ptx::mbarrier_wait(shared.kv_empty, (tile & 1) ^ 1);
      return end_of_tiles(p, t, shared.info, shared.kv_full);
    }
    const auto [n, unit] = tile_at(p, t, p.batch * p.kv_heads);
    const int kv_head = unit % p.kv_heads;
    const BackwardPlace at = p.place_of(unit / p.kv_heads);
    if (n * kRows >= at.kv_tokens) {  // this sequence is shorter
      t = atomicAdd(p.counter, 1);
      continue;
    }
    const QueryTiles m =
        query_tiles({n * kRows, kRows, at.kv_tokens}, {at.q_tokens, at.q_start, p.back, p.ahead}, kRows);
    const int head = kv_head * p.group;
    ptx::mbarrier_wait(shared.kv_empty, (tile & 1) ^ 1);
    store_facts(shared.info, {.tile = n, .begin = m.begin, .end = m.end, .head = head, .kv_head = kv_head},
                at);
    ptx::mbarrier_expect(shared.kv_full, 2 * C::kTileBytes);
    load_panels<C::kDim>(kRows, {.to = shared.k,
                                 .map = &maps.k,
                                 .bar = shared.kv_full,
                                 .row = at.kv_row + n * kRows,
                                 .head = kv_head,
                                 .batch = at.batch,
                                 .keep = ptx::kEvictFirst});
    load_panels<C::kDim>(kRows, {.to = shared.v,
                                 .map = &maps.v,
                                 .bar = shared.kv_full,
                                 .row = at.kv_row + n * kRows,
                                 .head = kv_head,
                                 .batch = at.batch,
                                 .keep = ptx::kEvictFirst});
    t = atomicAdd(p.counter, 1);  // the next tile; its latency hides behind the rings
    for (int h = head; h < head + p.group; ++h)
      for (int i = m.begin; i < m.end; ++i, ++used) {
        const int s = used & 1, phase = ((used >> 1) & 1) ^ 1, row = at.q_row + i * kRows;
        const int padded = h * p.q_padded + at.q_padded + i * kRows;
        ptx::mbarrier_wait(shared.q_empty + 8 * s, phase);
        ptx::mbarrier_expect(shared.q_full + 8 * s, C::kTileBytes + C::kRowBytes);
        load_panels<C::kDim>(kRows, {.to = shared.q + s * C::kTileBytes,
                                     .map = &maps.q,
                                     .bar = shared.q_full + 8 * s,
                                     .row = row,
                                     .head = h,
                                     .batch = at.batch,
                                     .keep = ptx::kEvictLast});
        ptx::load_bytes(shared.lse + s * C::kRowBytes, p.lse + padded, C::kRowBytes, shared.q_full + 8 * s);
        ptx::mbarrier_wait(shared.dout_empty + 8 * s, phase);
        ptx::mbarrier_expect(shared.dout_full + 8 * s, C::kTileBytes + C::kRowBytes);
        load_panels<C::kDim>(kRows, {.to = shared.dout + s * C::kTileBytes,
                                     .map = &maps.dout,
                                     .bar = shared.dout_full + 8 * s,
                                     .row = row,
                                     .head = h,
                                     .batch = at.batch,
                                     .keep = ptx::kEvictLast});
        ptx::load_bytes(shared.delta + s * C::kRowBytes, p.delta + padded, C::kRowBytes,
                        shared.dout_full + 8 * s);
      }
    ++tile;
  }
}

template <class C>
__device__ __forceinline__ void sweep_copy(const SweepQueriesShared<C>& shared, const BackwardMaps& maps,
                                           const BackwardParams& p) {
  constexpr int kRows = C::kRows, kOwn = 2 * kRows;
  int used = 0, tile = 0;
  for (int t = atomicAdd(p.counter, 1);;) {
    if (t >= p.tiles) {
      ptx::mbarrier_wait(shared.own_empty, (tile & 1) ^ 1);
      return end_of_tiles(p, t, shared.info, shared.own_full);
    }
    const auto [nth, unit] = tile_at(p, t, p.batch * p.kv_heads * p.group);
    const int heads = p.kv_heads * p.group, head = unit % heads, kv_head = head / p.group;
    const BackwardPlace at = p.place_of(unit / heads);
    const int m = p.down ? p.unit_tiles - 1 - nth : nth;
    if (m * kOwn >= at.q_tokens) {
      t = atomicAdd(p.counter, 1);
      continue;
    }
    const int first = at.q_start + m * kOwn, last = at.q_start + min(m * kOwn + kOwn, at.q_tokens) - 1;
    const KeyTiles n = key_tiles(first, last, p.back, p.ahead, at.kv_tokens, kRows);
    ptx::mbarrier_wait(shared.own_empty, (tile & 1) ^ 1);
    store_facts(shared.info, {.tile = m, .begin = n.begin, .end = n.end, .head = head, .kv_head = kv_head},
                at);
    ptx::mbarrier_expect(shared.own_full, 4 * C::kTileBytes);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int row = at.q_row + m * kOwn + g * kRows;
      load_panels<C::kDim>(kRows, {.to = shared.q + g * C::kTileBytes,
                                   .map = &maps.q,
                                   .bar = shared.own_full,
                                   .row = row,
                                   .head = head,
                                   .batch = at.batch,
                                   .keep = ptx::kEvictFirst});
      load_panels<C::kDim>(kRows, {.to = shared.dout + g * C::kTileBytes,
                                   .map = &maps.dout,
                                   .bar = shared.own_full,
                                   .row = row,
                                   .head = head,
                                   .batch = at.batch,
                                   .keep = ptx::kEvictFirst});
    }
    t = atomicAdd(p.counter, 1);
    for (int i = n.begin; i < n.end; ++i, ++used) {
      const int s = used & 1, row = at.kv_row + i * kRows;
      ptx::mbarrier_wait(shared.k_empty + 8 * s, ((used >> 1) & 1) ^ 1);
      ptx::mbarrier_expect(shared.k_full + 8 * s, C::kTileBytes);
      load_panels<C::kDim>(kRows, {.to = shared.k + s * C::kTileBytes,
                                   .map = &maps.k,
                                   .bar = shared.k_full + 8 * s,
                                   .row = row,
                                   .head = kv_head,
                                   .batch = at.batch,
                                   .keep = ptx::kEvictLast});
      ptx::mbarrier_wait(shared.v_empty, (used & 1) ^ 1);
      ptx::mbarrier_expect(shared.v_full, C::kTileBytes);
      load_panels<C::kDim>(kRows, {.to = shared.v,
                                   .map = &maps.v,
                                   .bar = shared.v_full,
                                   .row = row,
                                   .head = kv_head,
                                   .batch = at.batch,
                                   .keep = ptx::kEvictLast});
    }
    ++tile;
  }
}

}  // namespace headwise::cuda::hopper::backward
