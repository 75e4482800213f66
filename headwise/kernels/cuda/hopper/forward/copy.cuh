// The forward pass on Hopper: an instance's sizes, its shared memory, and the two threads that copy tiles.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/hopper/forward/row_sums.cuh"
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::forward {

template <class T_, int HeadDim, int ValueDim, int Groups, int QSlots, TileTerms Passes>
struct ForwardConfig {
  using T = T_;
  static constexpr int kHeadDim = HeadDim, kValueDim = ValueDim, kGroups = Groups, kQSlots = QSlots;
  static constexpr int kKeys = forward_keys(HeadDim, ValueDim);
  static_assert(ValueDim <= HeadDim, "the output leaves through the room of q");
  static constexpr TileTerms kPasses = Passes;
  // Exponents a row's maximum may rise above its reference: weights of 2^kRise must be numbers of T, and sums
  // of their products with values far from the end of f32.
  static constexpr int kRise = std::is_same_v<T, bf16> ? 40 : 15;
  // Weights are made before maxima where references are seldom too low: one that is costs three steps. (Wider
  // than 128 the second way through a step moved descriptors to vector registers.)
  static constexpr bool kLooksFirst = (kRise < 40 && Passes == TileTerms::band) || HeadDim > 128;
  static constexpr bool kListed = Passes == TileTerms::terms;
  // What a group of 64 queries sees of a tile's keys begins and ends for itself: tiles outside cost it no
  // product. Where kFew or fewer keys of the last one are open, no others are weighed and multiplied with v;
  // but statistics of rows look at all.
  static constexpr bool kOwnEnd = Passes != TileTerms::terms, kNarrow = Passes == TileTerms::band;
  static constexpr int kFew = forward_few(HeadDim, ValueDim);
  static constexpr int kFactBytes = kOwnEnd ? 384 : 320;  // barriers and what a tile is
  // With two slots for q, the next tile's first product is issued together with this tile's last one.
  static constexpr bool kAcross = QSlots == 2;
  static constexpr int kRows = forward_rows(Groups), kSlots = 2;
  static constexpr int kPanels = (HeadDim + 63) / 64, kValuePanels = (ValueDim + 63) / 64;
  static constexpr int kQBytes = kPanels * kRows * kPanelRowBytes;
  static constexpr int kKeyBytes = kPanels * kKeys * kPanelRowBytes;
  static constexpr int kValueBytes = kValuePanels * kKeys * kPanelRowBytes;
  // Terms and statistics leave no registers to mend rows here: a launch behind this one does.
  static constexpr bool kMends = Passes == TileTerms::band;
  static constexpr bool kProbes =
      Passes == TileTerms::probes || (Passes == TileTerms::terms && forward_probes(ValueDim));
  // A tile of a bias for each slot of keys, in panels of 64 keys.
  static constexpr bool kBiasTiles = Passes == TileTerms::terms && forward_bias_tiles(HeadDim, ValueDim);
  static constexpr int kBiasPanels = (kKeys + 63) / 64,
                       kBiasBytes = kBiasTiles ? kBiasPanels * kRows * kPanelRowBytes : 0;
  static constexpr int kShared = kSlots * kBiasBytes + QSlots * kQBytes + kSlots * (kKeyBytes + kValueBytes) +
                                 kFactBytes + (kProbes ? 128 * Groups * RowSums::kBytes : 0) + kTileAlign;
  static constexpr int kThreads = 128 * (Groups + 1);
  // Registers after the exchange; 512 threads begin with 128 each, 384 with 168. Statistics beside terms need
  // all there are.
  static constexpr int kCopyRegisters = Groups == 3 ? 32
                                        : kListed   ? 24
                                                    : 40,
                       kProductRegisters = Groups == 3 ? 160
                                           : kListed   ? 240
                                                       : 232;
  static_assert(kCopyRegisters + Groups * kProductRegisters <= (Groups == 3 ? 4 * 128 : 3 * 168),
                "a group would wait for registers for ever");
};

/// Addresses in shared memory. Slot i & 1 of a ring, phase (i >> 1) & 1, always from one counter. With the
/// pair kept apart ptxas moved wgmma's descriptors to vector registers and the kernel lost 15 %.
template <class C>
struct ForwardShared {
  std::uint32_t q, k, v, bias, q_full, q_empty, k_full, k_empty, v_full, v_empty, info, listed, told, told_of,
      bias_at, sums;
  __device__ __forceinline__ explicit ForwardShared(const void* raw) {
    q = (ptx::shared_address(raw) + kTileAlign - 1) & ~static_cast<std::uint32_t>(kTileAlign - 1);
    k = q + C::kQSlots * C::kQBytes;
    v = k + C::kSlots * C::kKeyBytes;
    bias = v + C::kSlots * C::kValueBytes;
    q_full = bias + C::kSlots * C::kBiasBytes;
    q_empty = q_full + 16, k_full = q_full + 32, k_empty = q_full + 48, v_full = q_full + 64,
    v_empty = q_full + 80;
    info = q_full + 96, listed = info + 2 * kInfoBytes, told = listed + 16, told_of = told + 32,
    bias_at = told_of + 16, sums = q_full + C::kFactBytes;
  }
  // A tile's facts travel with its q: written before the arrival on q_full, read after the wait on it.
  // How many of a group's warps found NaN in its output.
  __device__ __forceinline__ std::uint32_t lost_of(int group) const {
    return q_full + C::kFactBytes - 4 * (group + 1);
  }
  static constexpr int kInfoBytes = C::kOwnEnd ? 48 + 16 * C::kGroups : C::kListed ? 64 : 48;
  static_assert(
      96 + 2 * kInfoBytes + 64 + (C::kBiasTiles ? 16 : 0) + 4 * C::kGroups <= C::kFactBytes,
      "facts of two tiles, four entries of a list, four tiles told of, where a bias lies, lost rows");
  __device__ __forceinline__ std::uint32_t info_of(int tile) const {
    return info + kInfoBytes * (tile % C::kQSlots);
  }
  // Of a group: 2 * last tile of keys open to it + (few of its keys are), the first one, begin and end of
  // those open to all of its queries.
  __device__ __forceinline__ std::uint32_t own_of(int tile, int group) const {
    return info_of(tile) + 48 + 16 * group;
  }
};

/// A tile of `rows` rows and all columns: a copy for each panel, of which the last may be cut. `x`: the
/// first.
template <int Dim>
__device__ __forceinline__ void load_panels(int rows, const ptx::TileCopy& x) {
#pragma unroll
  for (int c = 0; c < (Dim + 63) / 64; ++c)
    ptx::load_tile({x.to + c * panel_bytes(rows), x.map, x.bar, x.row, 0, x.head, x.batch, x.keep, 64 * c});
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
/// inside L2: the longest tiles first, heads in the inner loop, or the tiles of one head side by side.
struct ForwardTile {
  int pair, q_tile;
};
template <class C>
__device__ __forceinline__ ForwardTile forward_tile(const ForwardParams& p, int t) {
  const int section = min(t / (p.section * p.q_tiles), p.sections), first = section * p.section,
            r = t - first * p.q_tiles, count = section < p.sections ? p.section : p.batch * p.heads - first;
  return C::kPasses == TileTerms::band && p.side_by_side
             ? ForwardTile{first + r / p.q_tiles, r % p.q_tiles}
             : ForwardTile{first + r % count, p.q_tiles - 1 - r / count};
}

/// What the t-th tile is.
struct ForwardWork {
  int b, head, tensor_batch, row, left, position;
  Place place;
  KeyTiles keys;
};
template <class C>
__device__ __forceinline__ ForwardWork forward_work(const ForwardParams& p, int t) {
  ForwardWork w;
  const auto [pair, q_tile] = forward_tile<C>(p, t);
  w.b = pair / p.heads, w.head = pair - w.b * p.heads;
  w.place = p.places ? p.places[p.by_head ? pair : w.b] : p.place;
  w.tensor_batch = p.places ? w.place.batch : w.b, w.row = q_tile * C::kRows;
  w.left = w.place.q_tokens - w.row, w.position = w.place.q_start + w.row;
  w.keys = key_tiles(w.position, w.position + min(w.left, C::kRows) - 1, p.back, p.ahead, w.place.kv_tokens,
                     C::kKeys);
  return w;
}

/// Tile n of keys or values, in one piece or out of pages. A page outside the pool, and a piece past the last
/// key, arrives as zeros. `known`: the head of keys, but with pages it is found anew, as registers are short.
template <class C, int Dim, bool Paged>
__device__ __forceinline__ void load_keys_of(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar,
                                             const ForwardParams& p, const ForwardWork& w, int known, int n) {
  [[maybe_unused]] const ForwardPages& pages = p.pages;
  const int first = n * C::kKeys, kv_head = Paged ? w.head / p.group : known;
  if constexpr (!Paged) {
    load_panels<Dim>(C::kKeys, {.to = to,
                                .map = map,
                                .bar = bar,
                                .row = w.place.kv_row + first,
                                .head = kv_head,
                                .batch = w.tensor_batch,
                                .keep = ptx::kEvictLast});
  } else {
#pragma unroll 1
    for (int r = 0; r < C::kKeys; r += pages.piece) {
      const int key = first + r;
      const int page =
          key < w.place.kv_tokens
              ? __ldg(pages.table + (w.b * pages.step[0] + (key >> pages.log_size) * pages.step[1]))
              : -1;
      load_panels<Dim>(C::kKeys, {.to = to + r * kPanelRowBytes,
                                  .map = map,
                                  .bar = bar,
                                  .row = key & ((1 << pages.log_size) - 1),
                                  .head = kv_head,
                                  .batch = page,
                                  .keep = ptx::kEvictLast});
    }
  }
}

/// Which tiles of keys a tile of queries meets, from right to left: all of its band, or those a mask's blocks
/// leave. An entry is 4 * tile of keys + 2 * (another follows, to its left) + (that one is masked).
template <class C>
struct ForwardEntries {
  const int* list = nullptr;
  __device__ __forceinline__ ForwardEntries(const ForwardParams& p, const ForwardWork& w) {
    if (p.blocks.lists)
      list = p.blocks.lists +
             static_cast<std::int64_t>((p.places ? w.b : 0) * p.q_tiles + w.row / C::kRows) * p.blocks.step;
  }
  __device__ __forceinline__ int first(const KeyTiles& keys) const {
    return list ? *list : entry_of(keys, keys.end - 1);
  }
  __device__ __forceinline__ int next(const KeyTiles& keys, int now) {
    return list ? *++list : entry_of(keys, (now >> 2) - 1);
  }
  static __device__ __forceinline__ int entry_of(const KeyTiles& keys, int n) {
    return 4 * n + (n > keys.begin ? 2 : 0) + (n <= keys.full_begin || n > keys.full_end ? 1 : 0);
  }
};

/// One thread takes tiles in order, longest first, tells the other of them, and keeps the rings of keys and
/// values full. It is never more than three tiles ahead: keys of a tile find room once those of the tile
/// before the last have met their queries. A question after pages, and a division, between the wait for room
/// and a copy are time of all groups: they made the forward 1 to 4 % slower.
template <class C, bool Paged>
__device__ __forceinline__ void forward_copy_keys(const ForwardShared<C>& shared, const ForwardMaps& maps,
                                                  const ForwardParams& p) {
  const auto fetch = [&] {
    const int old = atomicAdd(p.counter, 1);
    if (old == p.tiles - 1) *p.counter = 0;  // one a tile, so this was the last: ready for the next launch
    return static_cast<int>(gridDim.x) + old;
  };
  int used = 0, tile = 0, next = static_cast<int>(blockIdx.x);
  ForwardWork next_work;
  const auto tell_next = [&] {
    if (p.places)  // ragged: some sequences are shorter
      for (; next < p.tiles; next = fetch()) {
        const auto [pair, q_tile] = forward_tile<C>(p, next);
        if (q_tile * C::kRows < p.places[p.by_head ? pair : pair / p.heads].q_tokens) break;
      }
    ptx::store_word(shared.told_of + 4 * (tile & 3), static_cast<std::uint32_t>(next));
    ptx::mbarrier_arrive(shared.told + 8 * (tile & 3));
    ++tile;
    if (next < p.tiles) next_work = forward_work<C>(p, next);
  };
  tell_next();
  while (next < p.tiles) {
    const ForwardWork w = next_work;
    if constexpr (C::kBiasTiles)  // read where it is needed: registers are short
      ptx::store_shared(shared.bias_at, w.place.first_query + w.row, w.place.first_key,
                        p.bias.step[1] ? w.head : 0, p.bias.step[0] ? w.b / p.pieces : 0);
    const int kv_head = Paged ? 0 : w.head / p.group;
    const auto load_keys = [&](int n, int use, int entry = 0) {
      const std::uint32_t full = shared.k_full + 8 * (use & 1);
      ptx::mbarrier_wait(shared.k_empty + 8 * (use & 1), ((use >> 1) & 1) ^ 1);
      if constexpr (C::kListed) ptx::store_word(shared.listed + 4 * (use & 3), entry);
      const bool bias = C::kBiasTiles && p.bias_tiles;
      ptx::mbarrier_expect(full, C::kKeyBytes + (bias ? C::kBiasBytes : 0));
      if (bias) {
        const int4 in = ptx::load_shared(shared.bias_at);
#pragma unroll 1
        for (int c = 0; c < C::kBiasPanels; ++c)
          ptx::load_tile({shared.bias + (use & 1) * C::kBiasBytes + c * panel_bytes(C::kRows), &maps.bias,
                          full, in.x, 0, in.z, in.w, ptx::kEvictNormal, in.y + n * C::kKeys + 64 * c});
      }
      load_keys_of<C, C::kHeadDim, Paged>(shared.k + (use & 1) * C::kKeyBytes, &maps.k, full, p, w, kv_head,
                                          n);
    };
    const auto load_values = [&](int n, int use) {
      const std::uint32_t full = shared.v_full + 8 * (use & 1);
      ptx::mbarrier_wait(shared.v_empty + 8 * (use & 1), ((use >> 1) & 1) ^ 1);
      ptx::mbarrier_expect(full, C::kValueBytes);
      load_keys_of<C, C::kValueDim, Paged>(shared.v + (use & 1) * C::kValueBytes, &maps.v, full, p, w,
                                           kv_head, n);
    };
    if constexpr (C::kListed) {
      ForwardEntries<C> entries(p, w);
      int now = entries.first(w.keys);
      load_keys(now >> 2, used);
      next = fetch();
      // Read one ahead: a list has one to spare.
      for (int then = entries.next(w.keys, now); now & 2; ++used) {
        load_keys(then >> 2, used + 1, then);
        load_values(now >> 2, used);
        now = then, then = entries.next(w.keys, now);
      }
      load_values(now >> 2, used);
      tell_next();
    } else {
      load_keys(w.keys.end - 1, used);
      next = fetch();  // its latency hides behind the ring
      for (int n = w.keys.end - 2; n >= w.keys.begin; --n, ++used) {
        load_keys(n, used + 1);
        load_values(n + 1, used);
        if (n == w.keys.end - 2) tell_next();
      }
      load_values(w.keys.begin, used);
      if (w.keys.end - 2 < w.keys.begin) tell_next();
    }
    ++used;
  }
}

/// The other brings their queries as soon as there is room, and what a tile is. (With one thread for both,
/// the queries came late or the keys did: causal 512 at head_dim 128 took 106 us instead of 100.)
template <class C>
__device__ __forceinline__ void forward_copy_queries(const ForwardShared<C>& shared, const ForwardMaps& maps,
                                                     const ForwardParams& p) {
  constexpr int kKeys = C::kKeys, kRows = C::kRows;
  for (int tile = 0;; ++tile) {
    const int slot = tile % C::kQSlots, phase = (tile / C::kQSlots) & 1;
    const std::uint32_t info = shared.info_of(tile), q_full = shared.q_full + 8 * slot;
    ptx::mbarrier_wait(shared.told + 8 * (tile & 3), (tile >> 2) & 1);
    const int t = static_cast<int>(ptx::load_word(shared.told_of + 4 * (tile & 3)));
    if (t >= p.tiles) {
      ptx::mbarrier_wait(shared.q_empty + 8 * slot, phase ^ 1);
      ptx::store_shared(info, ~0u, ~0u, ~0u, ~0u);
      ptx::mbarrier_arrive(q_full);
      return;
    }
    const ForwardWork w = forward_work<C>(p, t);
    const Place& place = w.place;
    const KeyTiles& keys = w.keys;
    int first = keys.end - 1, entry = 0;
    if constexpr (C::kListed) entry = ForwardEntries<C>(p, w).first(keys), first = entry >> 2;
    ptx::mbarrier_wait(shared.q_empty + 8 * slot, phase ^ 1);
    ptx::mbarrier_announce(q_full, C::kQBytes);  // on its way before the facts are made out
    load_panels<C::kHeadDim>(kRows, {.to = shared.q + slot * C::kQBytes,
                                     .map = &maps.q,
                                     .bar = q_full,
                                     .row = place.q_row + w.row,
                                     .head = w.head,
                                     .batch = w.tensor_batch,
                                     .keep = ptx::kEvictFirst});
    ptx::store_shared(info, first, C::kListed ? entry : keys.begin, keys.full_begin, keys.full_end);
    ptx::store_shared(info + 16, w.head, w.tensor_batch, place.q_row + w.row, w.left);
    if constexpr (C::kListed) {  // of the sequence, which may be cut into pieces
      ptx::store_shared(info + 32, place.kv_tokens, w.position, w.b / p.pieces, place.first_query + w.row);
      ptx::store_word(info + 48, place.first_key);
    } else {
      ptx::store_shared(info + 32, place.kv_tokens, w.position, w.b, w.row);
    }
    if constexpr (C::kOwnEnd) {
#pragma unroll 1
      for (int g = 0; g < C::kGroups; ++g) {
        const int from = w.position + 64 * g, final = min(from + 63, w.position + w.left - 1);
        const KeyTiles own = key_tiles(from, final, p.back, p.ahead, place.kv_tokens, kKeys);
        const int end = 64 * g < w.left ? max(own.end - 1, keys.begin) : keys.begin;  // one tile is the least
        const int begin = min(max(own.begin, keys.begin), end);
        const int open = min(place.kv_tokens, final + p.ahead + 1) - end * kKeys;
        const bool few = C::kNarrow && end > begin && open <= C::kFew;
        ptx::store_shared(shared.own_of(tile, g), 2 * end + few, begin, own.full_begin, own.full_end);
      }
    }
    ptx::mbarrier_arrive(q_full);
  }
}

}  // namespace headwise::cuda::hopper::forward
