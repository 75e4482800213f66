// What the two roles of decode on Hopper share: items, shared memory, the warp that copies.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/hopper/decode/decode.h"

namespace headwise::cuda::hopper::decode {

/// What one block does next: a split of the keys of one (sequence, kv head, block of rows).
struct Item {
  /// b < 0: there is nothing more to do. Tiles from begin to end lie kPace keys apart.
  int b, kv_head, row_block, partial, partials, begin, end;
  struct {
    int q_row, kv_row, q_tokens, kv_tokens, q_start;
  } place;
  int full_begin, full_end;  // tiles every row sees whole

  __device__ __forceinline__ bool open() const { return partial >= 0; }
  __device__ __forceinline__ int rows_at(const Params& p) const {
    return (b * p.kv_heads + kv_head) * p.row_blocks + row_block;
  }
};

/// Shares: blocks of a cluster that share an item, each with some of the strands.
template <class T_, class Kv, int HeadDim, int Rows, int Shares = 1>
struct Config {
  using T = T_;
  static constexpr int kItemBytes = static_cast<int>(sizeof(Kv));
  static constexpr bool kEight = kItemBytes == 1;  // keys and values of 8 bits, with scales
  // 8 rows leave the lower half of a matrix instruction idle, and its registers; 32 are two instructions over
  // the same keys.
  static constexpr int kHeadDim = HeadDim, kRows = Rows, kBlocks = Rows == 32 ? 2 : 1,
                       kHalves = Rows == 8 ? 1 : 2;
  // A strand is 16 keys of every keys_of. Groups take tiles in turns, each of their warps a slice: a
  // strand; blocks that share an item have tiles of their own strands.
  static constexpr int kShares = Shares;
  static constexpr int kKeys = Shares > 1 ? keys_of(HeadDim) / Shares : tile_keys(Rows, HeadDim, kEight),
                       kPace = Shares > 1 ? keys_of(HeadDim) : kKeys,  // from a tile to the next
      kWarpKeys = 16, kSlices = kKeys / kWarpKeys;
  static constexpr int kGroups = keys_of(HeadDim) / kPace, kWarps = kGroups * kSlices,
                       kStrands = kWarps * Shares;
  // Eight warps need more registers than twelve share evenly: the warpgroup of the one that copies and the
  // one that counts gives its own away.
  static constexpr bool kExchanges = kWarps == 8;
  static constexpr int kGiven = 72, kTaken = 216;  // registers of a thread
  static constexpr int kConsumers = 32 * kWarps, kThreads = kConsumers + (kExchanges ? 128 : 64);
  // Rows of a panel have 128 bytes, also where a narrow head fills half of them.
  static constexpr int kPanels = kEight && HeadDim == 64 ? 1 : HeadDim * kItemBytes / 128,
                       kTileBytes = kKeys * kPanels * kPanelRowBytes;
  static constexpr bool kWholeRows = whole_rows_of(Rows, HeadDim, kEight);
  static constexpr int kPiecePanels = kWholeRows ? kPanels : 1;  // of one copy where a tile comes in pieces
  /// Byte offset of 8 columns from 8 * chunk on.
  static __device__ __forceinline__ std::uint32_t chunk_at(int row, int chunk) {
    return kWholeRows ? row_chunk_offset(kPanels, row, chunk) : chunk_offset(kKeys, row, chunk);
  }
  static constexpr int kResident = Shares > 2 ? 2 : 1,
                       kSlots = ((Shares > 2 ? 96 : 192) << 10) / (2 * kTileBytes);
  static constexpr int kScaleBytes = kEight ? 2 * kKeys * 4 : 0;  // of a slot: keys', then values'
  // The warps' states meet in the slot of the last tile: all columns at once, or some of them in one half of
  // it while those before are read from the other. Where 8 bits leave no registers, one after another.
  static constexpr bool kAhead = !kEight && Shares == 1;
  static constexpr int kMergeBytes = kWarps * Rows * HeadDim * 4,
                       kRoom = kAhead && kMergeBytes > 2 * kTileBytes ? kTileBytes : 2 * kTileBytes,
                       kMergePasses = (kMergeBytes + kRoom - 1) / kRoom, kColumns = HeadDim / kMergePasses;
  static constexpr int kStatFloats = kWarps * Rows * 2;
  // Blocks that share an item send one another the columns each of them sums.
  static constexpr int kOwnColumns = HeadDim / Shares, kOwnQuads = kOwnColumns / 4,
                       kJoinFloats = Shares > 1 ? (kOwnColumns + 2) * kStrands *Rows : 0;
  // What leaves no registers for q: it is read from shared memory at every tile.
  static constexpr bool kHoldsQ = HeadDim < 256 && kBlocks == 1;
  static constexpr int kQPitch = HeadDim * 2 + 16;  // bytes: rows begin in different banks
  static constexpr int kQBytes = Rows * kQPitch;
  static constexpr int kShared = kSlots * (2 * kTileBytes + kScaleBytes) + 2 * kQBytes +
                                 4 * (2 * kStatFloats + kJoinFloats + 6) + 8 * (2 * kSlots + 7) +
                                 4 * static_cast<int>(sizeof(Item)) + kTileAlign;
};

/// n / by. Products hold their factors in registers, which widening 8 bits leaves none for.
template <class C>
__device__ __forceinline__ int quotient(const Divisor& by, int n) {
  if constexpr (C::kEight)
    return n / by.by;
  else
    return by.quotient(n);
}

template <class C>
__device__ __forceinline__ Item item_at(const Params& p, int item) {
  Item d;
  const int rank = quotient<C>(p.by_blocks, item), block = item - rank * p.by_blocks.by,
            pair = quotient<C>(p.by_row_blocks, block);
  const int split = p.splits - 1 - rank;  // the long ones first
  d.row_block = block - pair * p.row_blocks;
  d.b = quotient<C>(p.by_kv_heads, pair), d.kv_head = pair - d.b * p.kv_heads;
  const Place& place = p.places ? p.places[d.b] : p.place;
  d.place = {place.q_row, place.kv_row, place.q_tokens, place.kv_tokens, place.q_start};
  const int first_token = quotient<C>(p.by_group, d.row_block * C::kRows),
            last_token = min(quotient<C>(p.by_group, (d.row_block + 1) * C::kRows - 1), d.place.q_tokens - 1);
  const KeyTiles keys = key_tiles(d.place.q_start + first_token, d.place.q_start + last_token, p.back,
                                  p.ahead, d.place.kv_tokens, C::kPace);
  const int first_partial = split_of(keys.begin * C::kPace);
  d.partial = split - first_partial, d.partials = split_of((keys.end - 1) * C::kPace) - first_partial + 1;
  d.full_begin = keys.full_begin, d.full_end = keys.full_end;
  d.begin = max(keys.begin, split_begin(split) / C::kPace);
  d.end = min(keys.end, split_begin(split + 1) / C::kPace);
  // A sequence without queries in this block of rows has nothing to write.
  if (d.partial >= d.partials || first_token >= d.place.q_tokens) d.partial = -1;
  return d;
}

/// Which of the blocks that share an item this is.
template <class C>
__device__ __forceinline__ int own_share() {
  return static_cast<int>(blockIdx.x) % C::kShares;
}

template <class C>
struct Shared {
  std::uint32_t ring, scales, full, empty;
  std::uint32_t written, counted;    // an item's partial is in memory; it has been counted
  std::uint32_t q, q_full, q_empty;  // these and below: two of each, for items in turns
  float *stats, *joined;  // joined: strands' rows of the columns this block sums, then their states
  std::uint32_t join;     // they are here
  int* last;              // the partial was the last of its row block
  int2* partial;  // the count of a partial and how many partials it has; -1: no partial, -2: no more items
  Item* items;    // four: the one before is asked for while q of two others is copied
  __device__ __forceinline__ explicit Shared(std::uint8_t* raw) {
    const std::uint32_t start = ptx::shared_address(raw);
    ring = (start + kTileAlign - 1) & ~static_cast<std::uint32_t>(kTileAlign - 1);
    scales = ring + C::kSlots * 2 * C::kTileBytes;
    q = scales + C::kSlots * C::kScaleBytes;
    joined = reinterpret_cast<float*>(raw + (q - start) + 2 * C::kQBytes);
    stats = joined + C::kJoinFloats;
    partial = reinterpret_cast<int2*>(stats + 2 * C::kStatFloats);
    last = reinterpret_cast<int*>(partial + 2);
    items = reinterpret_cast<Item*>(last + 2);
    full = ptx::shared_address(items + 4);
    empty = full + 8 * C::kSlots;
    q_full = empty + 8 * C::kSlots, q_empty = q_full + 16, written = q_empty + 16, counted = written + 8;
    join = counted + 8;
  }
  /// Widening 8 bits, and 32 rows, leave no registers for an item: it is read where it stands.
  __device__ __forceinline__ decltype(auto) published(int turn) const {
    if constexpr (C::kEight || C::kBlocks == 2)
      return static_cast<const Item&>(items[turn & 3]);
    else
      return Item(items[turn & 3]);
  }
};

/// A box of keys or values, from a panel on.
template <class C>
__device__ __forceinline__ void load_box(const ptx::TileCopy& x) {
  if constexpr (C::kWholeRows)
    ptx::load_tile({x.to, x.map, x.bar, x.panel, x.row, x.head, x.batch, x.keep});  // MapSpec's whole_rows
  else
    ptx::load_tile(x);
}

/// The rows of q of an item, while the keys of the one before are still multiplied. `turn` counts items.
template <class C>
__device__ __forceinline__ void copy_q(const Shared<C>& shared, const Params& p, const Item& d, int turn) {
  const int side = turn & 1;
  const std::uint32_t full = shared.q_full + 8 * side, to = shared.q + side * C::kQBytes;
  // The first two rooms are free, and Copy::begin() is here before this barrier is.
  if (turn > 1) ptx::mbarrier_wait(shared.q_empty + 8 * side, (turn >> 1 & 1) ^ 1);
  shared.items[turn & 3] = d;
  const int packed = d.row_block * C::kRows, count = min(C::kRows, d.place.q_tokens * p.group - packed),
            token = quotient<C>(p.by_group, packed);
  ptx::mbarrier_expect(full, static_cast<std::uint32_t>(count * C::kHeadDim * 2));
  const auto* from = static_cast<const std::uint16_t*>(p.q) + (p.ragged ? 0 : d.b) * p.q_step[0] +
                     (d.place.q_row + token) * p.q_step[1] + d.kv_head * p.group * p.q_step[2];
  int head = packed - token * p.group;
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    ptx::load_bytes(to + row * C::kQPitch, from + head * p.q_step[2], C::kHeadDim * 2, full);
    if (++head == p.group) head = 0, from += p.q_step[1];
  }
}
/// There are no more items.
template <class C>
__device__ __forceinline__ void end_items(const Shared<C>& shared, int turn) {
  ptx::mbarrier_wait(shared.q_empty + 8 * (turn & 1), (turn >> 1 & 1) ^ 1);
  shared.items[turn & 3].b = -1;
  ptx::mbarrier_arrive(shared.q_full + 8 * (turn & 1));
}

/// Items go to whoever is free: blocks far from memory take fewer. The next one is fetched when all tiles of
/// the one before are on their way, since who asks earlier gets work that others would have done by then; the
/// ring holds enough to wait. With as many blocks as items there is nothing to fetch. The last fetch of all
/// puts the counter back.
__device__ __forceinline__ int next_item(const Params& p) {
  if (p.items <= static_cast<int>(gridDim.x)) return p.items;
  const int fetched = atomicAdd(p.counter, 1);
  if (fetched == p.items - 1) *p.counter = 0;
  return static_cast<int>(gridDim.x) + fetched;
}

/// One thread copies tiles that lie in one piece. begin() fills the ring and needs no barriers but those that
/// tell of full slots and of q.
template <class C>
struct Copy {
  const Shared<C>& shared;
  const Maps& maps;
  const Params& p;
  Item d;
  int t = 0, slot = 0, phase = 1, turn = 0;

  /// The next tile of d into the next slot.
  __device__ __forceinline__ void load() {
    const std::uint32_t to = shared.ring + slot * 2 * C::kTileBytes, full = shared.full + 8 * slot;
    ptx::mbarrier_expect(full, 2 * C::kTileBytes);
    const int row = d.place.kv_row + t * C::kPace + own_share<C>() * C::kKeys, batch = p.ragged ? 0 : d.b;
    load_box<C>({to, &maps.k, full, row, 0, d.kv_head, batch, p.keep});
    load_box<C>({to + C::kTileBytes, &maps.v, full, row, 0, d.kv_head, batch, p.keep});
    if (t == d.begin) copy_q(shared, p, d, turn++);  // keys take longer to come
    if (++slot == C::kSlots) slot = 0, phase ^= 1;
    ++t;
  }
  __device__ __forceinline__ void begin() {
    d = item_at<C>(p, static_cast<int>(blockIdx.x) / C::kShares);
    if (!d.open()) return;
    t = d.begin;
#pragma unroll 1
    for (int n = min(d.end - d.begin, C::kSlots); n > 0; --n) load();
  }
  __device__ __forceinline__ void run() {
    for (;;) {
      if (d.open())
        while (t < d.end) {
          ptx::mbarrier_wait(shared.empty + 8 * slot, phase);
          load();
        }
      const int item = next_item(p);
      if (item >= p.items) break;
      d = item_at<C>(p, item), t = d.begin;
    }
    end_items(shared, turn);
  }
};

/// Which tile's scales a lane copies: tile `t` of pieces of `piece` keys, the lane's `page`, into `slot`.
struct ScaleCopy {
  int t, page, piece, slot, lane;
};
/// What the numbers of a tile's keys count: each lane copies those of its keys. Lane n holds the page of
/// piece n; a piece and a page have 2^i keys. Keys that are not there count 0.
template <class C>
__device__ __forceinline__ void copy_scales(const Shared<C>& shared, const Params& p, const Item& d,
                                            const ScaleCopy& copy_of) {
  const auto [t, page, piece, slot, lane] = copy_of;
  const std::uint32_t to = shared.scales + slot * C::kScaleBytes + 4 * lane;
  const int first = t * C::kKeys + lane, log_piece = 31 - __clz(piece);
  const float *k = p.k_scale.data + d.kv_head * p.k_scale.step[2],
              *v = p.v_scale.data + d.kv_head * p.v_scale.step[2];
  const auto copy = [&](int n, int batch, int row, bool there) {
    ptx::copy_4(to + 128 * n, k + batch * p.k_scale.step[0] + row * p.k_scale.step[1], there);
    ptx::copy_4(to + 128 * n + 4 * C::kKeys, v + batch * p.v_scale.step[0] + row * p.v_scale.step[1], there);
  };
#pragma unroll 2
  for (int n = 0; n < C::kKeys / 32; ++n) {
    const int key = first + 32 * n;
    if (p.pages) {
      const int at = __shfl_sync(~0u, page, (lane + 32 * n) >> log_piece);
      copy(n, at, key & (p.page_size - 1), key < d.place.kv_tokens && at >= 0 && at < p.page_count);
    } else {
      copy(n, page, d.place.kv_row + key, key < d.place.kv_tokens);
    }
  }
  ptx::mbarrier_arrive_copied(shared.full + 8 * slot);
}

/// A warp copies tiles in pieces, each lane one of a page, or the first lane all; the page of the next piece
/// is looked up a tile ahead. A page outside the pool, and a piece past the last key, arrives as zeros.
template <class C>
__device__ __forceinline__ void copy_pieces(const Shared<C>& shared, const Maps& maps, const Params& p) {
  int slot = 0, phase = 1, turn = 0;
  const int lane = threadIdx.x % 32, piece = p.pages ? page_piece(p.page_size) : C::kKeys;
  const int log_page = 31 - __clz(p.page_size);  // a page holds 2^i tokens
  const bool copies = lane < C::kKeys / piece;
  const auto page_of = [&](const Item& d, int t) {
    if (C::kEight && !p.pages) return p.ragged ? 0 : d.b;
    const int key = t * C::kKeys + lane * piece;
    return copies && key < d.place.kv_tokens
               ? __ldg(p.pages + d.b * p.pages_step[0] + (key >> log_page) * p.pages_step[1])
               : -1;
  };
  for (int item = static_cast<int>(blockIdx.x); item < p.items;
       item = __shfl_sync(~0u, lane == 0 ? next_item(p) : 0, 0)) {
    const Item d = item_at<C>(p, item);
    if (!d.open()) continue;
    int page = page_of(d, d.begin);
    for (int t = d.begin; t < d.end; ++t) {
      const int later = t + 1 < d.end ? page_of(d, t + 1) : -1;
      const std::uint32_t full = shared.full + 8 * slot, to = shared.ring + slot * 2 * C::kTileBytes +
                                                              lane * piece * C::kPiecePanels * kPanelRowBytes;
      ptx::mbarrier_wait(shared.empty + 8 * slot, phase);
      if (lane == 0) ptx::mbarrier_expect(full, 2 * C::kTileBytes);
      __syncwarp();
      if (copies) {
        const int key = t * C::kKeys + lane * piece,
                  row = C::kEight && !p.pages ? d.place.kv_row + key : key & (p.page_size - 1);
#pragma unroll
        for (int c = 0; c < C::kPanels; c += C::kPiecePanels) {
          const std::uint32_t panel = to + c * panel_bytes(C::kKeys);
          load_box<C>({panel, &maps.k, full, row, c, d.kv_head, page, ptx::kEvictFirst});
          load_box<C>({panel + C::kTileBytes, &maps.v, full, row, c, d.kv_head, page, ptx::kEvictFirst});
        }
      }
      if constexpr (C::kEight)
        copy_scales<C>(shared, p, d, {.t = t, .page = page, .piece = piece, .slot = slot, .lane = lane});
      if (lane == 0 && t == d.begin) copy_q(shared, p, d, turn++);
      page = later;
      if (++slot == C::kSlots) slot = 0, phase ^= 1;
    }
  }
  if (lane == 0) end_items(shared, turn);
}

/// One thread counts the partials of each row block: what it adds comes after this block's partials, and what
/// it finds after the others'. It stands aside since that order takes 4 us while copies are under way.
template <class C>
__device__ __forceinline__ void count_partials(const Shared<C>& shared, const Params& p) {
  for (int turn = 0;; ++turn) {
    ptx::mbarrier_wait(shared.written, turn & 1);
    const int2 partial = shared.partial[turn & 1];
    if (partial.x == -2) return;
    bool last = false;
    if (partial.x >= 0) {
      last = ptx::add_in_order(p.arrived + partial.x, 1) == partial.y - 1;
    }
    shared.last[turn & 1] = last;
    ptx::mbarrier_arrive(shared.counted);
  }
}

}  // namespace headwise::cuda::hopper::decode
