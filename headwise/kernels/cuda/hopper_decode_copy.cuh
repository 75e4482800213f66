// The parts of decode on Hopper that its two roles share, shared memory, and the warp that copies keys and
// values. SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_decode.h"
#include "headwise/kernels/cuda/ptx.cuh"
#include "headwise/kernels/cuda/tile.h"

namespace headwise::cuda {

template <class T_, int HeadDim, int Rows>
struct DecodeConfig {
  using T = T_;
  // 8 rows leave the lower half of a matrix instruction idle, and its registers; 32 are two instructions,
  // each with warps of its own over the same keys.
  static constexpr int kHeadDim = HeadDim, kRows = Rows, kBlocks = Rows == 32 ? 2 : 1,
                       kHalves = Rows == 8 ? 1 : 2;
  static constexpr int kKeyWarps = 4, kWarps = kKeyWarps * kBlocks, kWarpKeys = kDecodeKeys / kKeyWarps;
  static constexpr int kConsumers = 32 * kWarps, kThreads = kConsumers + 32;
  static constexpr int kTileBytes = kDecodeKeys * HeadDim * 2;
  // Two blocks share a processor where they fit: worth 2 % over one block with a ring twice as deep.
  static constexpr int kResident = Rows <= 16 && HeadDim <= 128 ? 2 : 1;
  static constexpr int kSlots = HeadDim == 64 ? 6 : HeadDim == 128 ? 6 / kResident : 3;
  static constexpr int kColumns = Rows == 8 ? 64 : 32, kPitch = kColumns + 4;  // merged at a time
  static constexpr int kMergeFloats = kKeyWarps * Rows * kPitch, kStatFloats = kKeyWarps * Rows * 2 + 4;
  // head_dim 256 leaves no registers for q: it is read from shared memory at every tile.
  static constexpr bool kHoldsQ = HeadDim < 256;
  static constexpr int kQPitch = HeadDim * 2 + 16;  // bytes: rows begin in different banks
  static constexpr int kShared = kSlots * 2 * kTileBytes + Rows * kQPitch + 4 * (kMergeFloats + kStatFloats) +
                                 16 * (kSlots + 1) + kTileAlign;
};

/// What one block does next: a split of the keys of one (sequence, kv head, block of rows).
struct DecodeItem {
  int b, kv_head, row_block, split, parts, first_part;
  int begin, end;  // tiles of kDecodeKeys
  Place place;

  int full_begin, full_end;  // tiles every row sees whole

  __device__ __forceinline__ bool open() const { return split >= 0; }
  __device__ __forceinline__ int rows_at(const DecodeParams& p) const {
    return (b * p.kv_heads + kv_head) * p.row_blocks + row_block;
  }
};

template <class C>
__device__ __forceinline__ DecodeItem decode_item(const DecodeParams& p, int item) {
  DecodeItem d;
  d.split = item % p.splits;
  int rest = item / p.splits;
  d.row_block = rest % p.row_blocks, rest /= p.row_blocks;
  d.kv_head = rest % p.kv_heads, d.b = rest / p.kv_heads;
  d.place = p.places ? p.places[d.b] : p.place;
  const int first_token = d.row_block * C::kRows / p.group;
  const int last_token = min(((d.row_block + 1) * C::kRows - 1) / p.group, d.place.q_tokens - 1);
  constexpr int kTiles = kSplitKeys / kDecodeKeys;
  const KeyTiles keys = key_tiles(d.place.q_start + first_token, d.place.q_start + last_token, p.back,
                                  p.ahead, d.place.kv_tokens, kDecodeKeys);
  d.first_part = keys.begin / kTiles;
  d.parts = (keys.end - 1) / kTiles - d.first_part + 1;
  d.full_begin = keys.full_begin, d.full_end = keys.full_end;
  d.begin = max(keys.begin, d.split * kTiles), d.end = min(keys.end, (d.split + 1) * kTiles);
  // A sequence without queries in this block of rows has nothing to write.
  if (d.split < d.first_part || d.split >= d.first_part + d.parts || first_token >= d.place.q_tokens)
    d.split = -1;
  return d;
}

/// The next item of this block that has work, or one past the last.
template <class C>
__device__ __forceinline__ int decode_next(const DecodeParams& p, int item, DecodeItem& d) {
  for (; item < p.items; item += static_cast<int>(gridDim.x)) {
    d = decode_item<C>(p, item);
    if (d.open()) break;
  }
  return item;
}

template <class C>
struct DecodeShared {
  std::uint32_t ring, q, full, empty, q_full, q_empty;
  float *merge, *stats;
  int* last;  // the block was the last of a row block to finish
  __device__ __forceinline__ explicit DecodeShared(std::uint8_t* raw) {
    const std::uint32_t start = ptx::shared_address(raw);
    ring = (start + kTileAlign - 1) & ~static_cast<std::uint32_t>(kTileAlign - 1);
    q = ring + C::kSlots * 2 * C::kTileBytes;
    merge = reinterpret_cast<float*>(raw + (q - start) + C::kRows * C::kQPitch);
    stats = merge + C::kMergeFloats;
    last = reinterpret_cast<int*>(stats + C::kKeyWarps * C::kRows * 2);
    full = ptx::shared_address(stats + C::kStatFloats);
    empty = full + 8 * C::kSlots;
    q_full = empty + 8 * C::kSlots, q_empty = q_full + 8;
  }
};

/// The rows of q of an item, while the keys of the one before are still multiplied.
template <class C>
__device__ __forceinline__ void decode_copy_q(const DecodeShared<C>& shared, const DecodeParams& p,
                                              const DecodeItem& d, int& q_phase) {
  const int packed = d.row_block * C::kRows, count = min(C::kRows, d.place.q_tokens * p.group - packed);
  ptx::mbarrier_wait(shared.q_empty, q_phase);
  q_phase ^= 1;
  ptx::mbarrier_expect(shared.q_full, static_cast<std::uint32_t>(count * C::kHeadDim * 2));
  for (int row = 0; row < count; ++row) {
    const int token = (packed + row) / p.group, head = d.kv_head * p.group + (packed + row) % p.group;
    ptx::load_bytes(shared.q + row * C::kQPitch,
                    static_cast<const std::uint16_t*>(p.q) + (p.ragged ? 0 : d.b) * p.q_step[0] +
                        (d.place.q_row + token) * p.q_step[1] + head * p.q_step[2],
                    C::kHeadDim * 2, shared.q_full);
  }
}

/// One thread copies tiles that lie in one piece.
template <class C>
__device__ __forceinline__ void decode_copy(const DecodeShared<C>& shared, const DecodeMaps& maps,
                                            const DecodeParams& p) {
  int slot = 0, phase = 1, q_phase = 1;
  DecodeItem d;
  for (int item = static_cast<int>(blockIdx.x); (item = decode_next<C>(p, item, d)) < p.items;
       item += static_cast<int>(gridDim.x)) {
    decode_copy_q(shared, p, d, q_phase);
    for (int t = d.begin; t < d.end; ++t) {
      const std::uint32_t to = shared.ring + slot * 2 * C::kTileBytes, full = shared.full + 8 * slot;
      ptx::mbarrier_wait(shared.empty + 8 * slot, phase);
      ptx::mbarrier_expect(full, 2 * C::kTileBytes);
      const int row = d.place.kv_row + t * kDecodeKeys, batch = p.ragged ? 0 : d.b;
      ptx::load_tile(to, &maps.k, full, row, 0, d.kv_head, batch, ptx::kEvictFirst);
      ptx::load_tile(to + C::kTileBytes, &maps.v, full, row, 0, d.kv_head, batch, ptx::kEvictFirst);
      if (++slot == C::kSlots) slot = 0, phase ^= 1;
    }
  }
}

/// A warp copies tiles from pages, each lane a piece of one page; the page of the next piece is looked up a
/// tile ahead. A page outside the pool, and a piece past the last key, arrives as zeros.
template <class C>
__device__ __forceinline__ void decode_copy_pages(const DecodeShared<C>& shared, const DecodeMaps& maps,
                                                  const DecodeParams& p) {
  int slot = 0, phase = 1, q_phase = 1;
  const int lane = threadIdx.x % 32, piece = page_piece(p.page_size);
  const bool copies = lane < kDecodeKeys / piece;
  const auto page_of = [&](const DecodeItem& d, int t) {
    const int key = t * kDecodeKeys + lane * piece;
    return copies && key < d.place.kv_tokens
               ? __ldg(p.pages + d.b * p.pages_step[0] + key / p.page_size * p.pages_step[1])
               : -1;
  };
  DecodeItem d;
  for (int item = static_cast<int>(blockIdx.x); (item = decode_next<C>(p, item, d)) < p.items;
       item += static_cast<int>(gridDim.x)) {
    int page = page_of(d, d.begin);
    if (lane == 0) decode_copy_q(shared, p, d, q_phase);
    for (int t = d.begin; t < d.end; ++t) {
      const int next = t + 1 < d.end ? page_of(d, t + 1) : -1;
      const std::uint32_t full = shared.full + 8 * slot,
                          to = shared.ring + slot * 2 * C::kTileBytes + lane * piece * kPanelRowBytes;
      ptx::mbarrier_wait(shared.empty + 8 * slot, phase);
      if (lane == 0) ptx::mbarrier_expect(full, 2 * C::kTileBytes);
      __syncwarp();
      if (copies) {
        const int row = (t * kDecodeKeys + lane * piece) % p.page_size;
#pragma unroll
        for (int c = 0; c < C::kHeadDim / 64; ++c) {
          const std::uint32_t panel = to + c * panel_bytes(kDecodeKeys);
          ptx::load_tile(panel, &maps.k, full, row, c, d.kv_head, page, ptx::kEvictFirst);
          ptx::load_tile(panel + C::kTileBytes, &maps.v, full, row, c, d.kv_head, page, ptx::kEvictFirst);
        }
      }
      page = next;
      if (++slot == C::kSlots) slot = 0, phase ^= 1;
    }
  }
}

}  // namespace headwise::cuda
