// The forward pass on Hopper: an instance's sizes, its shared memory, and the warp that copies tiles.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_forward.h"
#include "headwise/kernels/cuda/hopper_row_sums.cuh"
#include "headwise/kernels/cuda/ptx.cuh"
#include "headwise/kernels/cuda/tile.h"

namespace headwise::cuda {

template <class T_, int HeadDim, int ValueDim, int Groups, int QSlots, TilePasses Passes,
          bool FewFirst = false>
struct ForwardConfig {
  using T = T_;
  static constexpr int kHeadDim = HeadDim, kValueDim = ValueDim, kGroups = Groups, kQSlots = QSlots;
  static constexpr int kKeys = forward_keys(HeadDim, ValueDim);
  static_assert(ValueDim <= HeadDim, "the output leaves through the room of q");
  static constexpr TilePasses kPasses = Passes;
  static constexpr bool kListed = Passes == TilePasses::terms;
  // What a group of 64 queries sees of a tile's keys begins and ends for itself: tiles outside cost it no
  // product, and where kFew or fewer keys of the last one are open, no others are weighed and multiplied
  // with v.
  static constexpr bool kOwnEnd = (Passes == TilePasses::whole && kKeys != 128) || Passes == TilePasses::band;
  static constexpr int kFew = forward_few(HeadDim, ValueDim);
  // Every sequence ends in a tile of few keys: scores of the others are not multiplied either.
  static constexpr int kFirst = FewFirst ? kFew : kKeys;
  static constexpr int kFactBytes = kOwnEnd ? 320 : 256;  // barriers and what a tile is
  // With two slots for q, the next tile's first product is issued together with this tile's last one.
  static constexpr bool kAcross = QSlots == 2;
  static constexpr int kRows = forward_rows(Groups), kSlots = 2;
  static constexpr int kPanels = (HeadDim + 63) / 64, kValuePanels = (ValueDim + 63) / 64;
  static constexpr int kQBytes = kPanels * kRows * kPanelRowBytes;
  static constexpr int kKeyBytes = kPanels * kKeys * kPanelRowBytes;
  static constexpr int kValueBytes = kValuePanels * kKeys * kPanelRowBytes;
  static constexpr bool kFewProbes = Passes == TilePasses::probes,
                        kProbes = kFewProbes || (Passes == TilePasses::terms && forward_probes(ValueDim));
  static constexpr int kShared = QSlots * kQBytes + kSlots * (kKeyBytes + kValueBytes) + kFactBytes +
                                 (kProbes ? 128 * Groups * RowSums::kBytes : 0) + kTileAlign;
  static constexpr int kThreads = 128 * (Groups + 1);
  // Registers after the exchange; 512 threads begin with 128 each, 384 with 168.
  static constexpr int kCopyRegisters = Groups == 3 ? 32 : 24, kProductRegisters = Groups == 3 ? 160 : 240;
  static_assert(kCopyRegisters + Groups * kProductRegisters <= (Groups == 3 ? 4 * 128 : 3 * 168),
                "a group would wait for registers for ever");
};

/// Addresses in shared memory. Slot i & 1 of a ring, phase (i >> 1) & 1, always from one counter: with the
/// pair kept apart ptxas moved the descriptors of wgmma to vector registers and the kernel lost 15 %.
template <class C>
struct ForwardShared {
  std::uint32_t q, k, v, q_full, q_empty, k_full, k_empty, v_full, v_empty, info, listed, sums;
  __device__ __forceinline__ explicit ForwardShared(const void* raw) {
    q = (ptx::shared_address(raw) + kTileAlign - 1) & ~static_cast<std::uint32_t>(kTileAlign - 1);
    k = q + C::kQSlots * C::kQBytes;
    v = k + C::kSlots * C::kKeyBytes;
    q_full = v + C::kSlots * C::kValueBytes;
    q_empty = q_full + 16, k_full = q_full + 32, k_empty = q_full + 48, v_full = q_full + 64,
    v_empty = q_full + 80;
    info = q_full + 96, listed = info + 2 * kInfoBytes, sums = q_full + C::kFactBytes;
  }
  // A tile's facts travel with its q: written before the arrival on q_full, read after the wait on it.
  static constexpr int kInfoBytes = C::kOwnEnd ? 48 + 16 * C::kGroups : C::kListed ? 64 : 48;
  static_assert(96 + 2 * kInfoBytes + 16 <= C::kFactBytes, "facts of two tiles and four entries of a list");
  __device__ __forceinline__ std::uint32_t info_of(int tile) const {
    return info + kInfoBytes * (tile % C::kQSlots);
  }
  // Of a group: 2 * last tile of keys open to it + (few of its keys are), the first one, begin and end of
  // those open to all of its queries.
  __device__ __forceinline__ std::uint32_t own_of(int tile, int group) const {
    return info_of(tile) + 48 + 16 * group;
  }
};

/// A tile of all columns: one copy of whole panels, or one a panel where the last is cut.
template <int Dim>
__device__ __forceinline__ void load_panels(std::uint32_t to, int rows, const CUtensorMap* map,
                                            std::uint32_t bar, int row, int head, int batch,
                                            std::uint64_t keep) {
  if constexpr (Dim % 64 == 0) {
    ptx::load_tile(to, map, bar, row, 0, head, batch, keep);
  } else {
#pragma unroll
    for (int c = 0; c < (Dim + 63) / 64; ++c)
      ptx::load_tile(to + c * panel_bytes(rows), map, bar, row, 0, head, batch, keep, 64 * c);
  }
}

/// Rows of v past the last key are multiplied by weights of 0, which a NaN survives. Every group clears them
/// all: zeros over zeros disturb nobody, and no group waits for another.
template <class C>
__device__ __forceinline__ void clear_rows(std::uint32_t v, int from, int thread) {
  constexpr int kChunks = C::kValueDim / 8;
  if (from >= C::kKeys) return;
  for (int i = thread; i < (C::kKeys - from) * kChunks; i += 128)
    ptx::store_shared(v + chunk_offset(C::kKeys, from + i / kChunks, i % kChunks), 0, 0, 0, 0);
  ptx::fence_shared_for_async();
}

/// (batch, head) pair and tile of its queries that come t-th. Sections of heads keep the k and v in use
/// inside L2. Band: the longest tiles first, heads in the inner loop. Whole: tiles of one head side by side.
struct ForwardTile {
  int pair, q_tile;
};
template <class C>
__device__ __forceinline__ ForwardTile forward_tile(const ForwardParams& p, int t) {
  const int section = min(t / (p.section * p.q_tiles), p.sections), first = section * p.section,
            r = t - first * p.q_tiles, count = section < p.sections ? p.section : p.batch * p.heads - first;
  if constexpr (C::kPasses == TilePasses::whole)
    return {first + r / p.q_tiles, r % p.q_tiles};
  else
    return {first + r % count, p.q_tiles - 1 - r / count};
}

/// The queries of the next tile are on their way to L2 while this one's keys are copied, where a tile has so
/// few that its successor would wait: up to 8 tiles a head. (At head_dim 64 ptxas then lays out the products
/// another way: 512 gained 2 %, 8k causal lost 6.)
template <class C>
__device__ __forceinline__ void forward_fetch(const ForwardMaps& maps, const ForwardParams& p, int t) {
  if (C::kHeadDim != 128 || p.q_tiles > 8 || p.places || t >= p.tiles) return;
  const auto [pair, q_tile] = forward_tile<C>(p, t);
  const int b = pair / p.heads;
  ptx::fetch_tile(&maps.q, p.place.q_row + q_tile * C::kRows, 0, pair - b * p.heads, b);
}

/// The warp that copies: takes tiles in order, longest first, and keeps the rings full.
template <class C>
__device__ __forceinline__ void forward_copy(const ForwardShared<C>& shared, const ForwardMaps& maps,
                                             const ForwardParams& p) {
  constexpr int kKeys = C::kKeys, kRows = C::kRows;
  int used = 0, tile = 0;
  for (int t = static_cast<int>(blockIdx.x);;) {
    const int slot = tile % C::kQSlots, phase = (tile / C::kQSlots) & 1;
    if (t >= p.tiles) {
      ptx::mbarrier_wait(shared.q_empty + 8 * slot, phase ^ 1);
      ptx::store_shared(shared.info_of(tile), ~0u, ~0u, ~0u, ~0u);
      ptx::mbarrier_arrive(shared.q_full + 8 * slot);
      return;
    }
    const auto [pair, q_tile] = forward_tile<C>(p, t);
    const int b = pair / p.heads, head = pair - b * p.heads, kv_head = head / p.group;
    const Place place = p.places ? p.places[p.by_head ? pair : b] : p.place;
    const int tensor_batch = p.places ? place.batch : b, row = q_tile * kRows;
    if (row >= place.q_tokens) {  // ragged: this sequence is shorter
      const int old = atomicAdd(p.counter, 1);
      if (old == p.tiles - 1) *p.counter = 0;
      t = static_cast<int>(gridDim.x) + old;
      continue;
    }
    const int left = place.q_tokens - row, position = place.q_start + row;
    const KeyTiles keys =
        key_tiles(position, position + min(left, kRows) - 1, p.back, p.ahead, place.kv_tokens, kKeys);
    // 4 * tile of keys + 2 * (another follows, to its left) + (that one is masked)
    const auto entry_of = [&](int n) {
      return 4 * n + (n > keys.begin ? 2 : 0) + (n <= keys.full_begin || n > keys.full_end ? 1 : 0);
    };
    const int* list = nullptr;  // these, where a mask's blocks leave some of them
    if constexpr (C::kListed)
      if (p.blocks.lists)
        list = p.blocks.lists +
               static_cast<std::int64_t>((p.places ? b : 0) * p.q_tiles + q_tile) * p.blocks.step;
    const auto load_keys = [&](int n, int use, int entry = 0) {
      const std::uint32_t full = shared.k_full + 8 * (use & 1);
      ptx::mbarrier_wait(shared.k_empty + 8 * (use & 1), ((use >> 1) & 1) ^ 1);
      if constexpr (C::kListed) ptx::store_word(shared.listed + 4 * (use & 3), entry);
      ptx::mbarrier_expect(full, C::kKeyBytes);
      load_panels<C::kHeadDim>(shared.k + (use & 1) * C::kKeyBytes, kKeys, &maps.k, full,
                               place.kv_row + n * kKeys, kv_head, tensor_batch, ptx::kEvictLast);
    };
    const auto load_values = [&](int n, int use) {
      const std::uint32_t full = shared.v_full + 8 * (use & 1);
      ptx::mbarrier_wait(shared.v_empty + 8 * (use & 1), ((use >> 1) & 1) ^ 1);
      ptx::mbarrier_expect(full, C::kValueBytes);
      load_panels<C::kValueDim>(shared.v + (use & 1) * C::kValueBytes, kKeys, &maps.v, full,
                                place.kv_row + n * kKeys, kv_head, tensor_batch, ptx::kEvictLast);
    };
    int now = 0, last = keys.end - 1;
    if constexpr (C::kListed) now = list ? *list : entry_of(last), last = now >> 2;
    load_keys(last, used);  // before q: its slot is free earlier
    ptx::mbarrier_wait(shared.q_empty + 8 * slot, phase ^ 1);
    const std::uint32_t info = shared.info_of(tile), q_full = shared.q_full + 8 * slot;
    ptx::mbarrier_announce(q_full, C::kQBytes);  // on its way before the facts are made out
    load_panels<C::kHeadDim>(shared.q + slot * C::kQBytes, kRows, &maps.q, q_full, place.q_row + row, head,
                             tensor_batch, ptx::kEvictFirst);
    ptx::store_shared(info, last, C::kListed ? now : keys.begin, keys.full_begin, keys.full_end);
    ptx::store_shared(info + 16, head, tensor_batch, place.q_row + row, left);
    if constexpr (C::kListed) {  // of the sequence, which may be cut into pieces
      ptx::store_shared(info + 32, place.kv_tokens, position, b / p.pieces, place.first_query + row);
      ptx::store_word(info + 48, place.first_key);
    } else {
      ptx::store_shared(info + 32, place.kv_tokens, position, b, row);
    }
    if constexpr (C::kOwnEnd) {
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        const int first = position + 64 * g, final = min(first + 63, position + left - 1);
        const KeyTiles own = key_tiles(first, final, p.back, p.ahead, place.kv_tokens, kKeys);
        const int end = 64 * g < left ? max(own.end - 1, keys.begin) : keys.begin;  // one tile is the least
        const int begin = min(max(own.begin, keys.begin), end);
        const int open = min(place.kv_tokens, final + p.ahead + 1) - end * kKeys;
        const bool few = end > begin && open <= C::kFew;
        ptx::store_shared(shared.own_of(tile, g), 2 * end + few, begin, own.full_begin, own.full_end);
      }
    }
    ptx::mbarrier_arrive(q_full);
    const int old = atomicAdd(p.counter, 1);  // the next tile; its latency hides behind the ring
    if constexpr (C::kListed) {
      const auto next_of = [&] { return list ? *++list : entry_of((now >> 2) - 1); };
      for (int next = next_of(); now & 2; ++used) {  // read one ahead: a list has a number to spare
        load_keys(next >> 2, used + 1, next);
        load_values(now >> 2, used);
        now = next, next = next_of();
      }
      load_values(now >> 2, used);
    } else {
      for (int n = keys.end - 2; n >= keys.begin; --n, ++used) {
        load_keys(n, used + 1);
        load_values(n + 1, used);
        if (n == keys.end - 2) forward_fetch<C>(maps, p, static_cast<int>(gridDim.x) + old);
      }
      load_values(keys.begin, used);
    }
    ++used, ++tile;
    if (old == p.tiles - 1)
      *p.counter = 0;  // one fetch a tile, so this was the last: ready for the next launch
    t = static_cast<int>(gridDim.x) + old;
  }
}

}  // namespace headwise::cuda
