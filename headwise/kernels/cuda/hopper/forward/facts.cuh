// What a tile of queries is, in shared memory: its copying thread writes it, groups read it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "headwise/kernels/cuda/device/ptx.cuh"

namespace headwise::cuda::hopper::forward {

/// Tiles of keys from right to left: the last one, the first one, begin and end of those open to all queries.
/// Where tiles are listed, `first` is the entry of the last one. Of a group of 64 queries, `last` is 2 * its
/// tile + (few of its keys are open).
struct KeyBounds {
  int last, first, full_begin, full_end;
};
/// Where a tile's rows lie in tensors, and how many are left in its sequence.
struct TileLocation {
  int head, batch, row, left;
};
/// The tile in its sequence.
struct TileSequence {
  int kv_tokens, position, sequence, row;
};
struct TileFacts {
  KeyBounds bounds;
  TileLocation location;
  TileSequence sequence;
  int first_key;  // of the sequence, where tiles are listed
};

/// Facts read where they are needed: no register holds them along the tiles of keys.
struct FactLoader {
  std::uint32_t at;

  static __device__ __forceinline__ KeyBounds bounds_at(std::uint32_t from) {
    const int4 x = ptx::load_shared(from);
    return {x.x, x.y, x.z, x.w};
  }
  __device__ __forceinline__ KeyBounds bounds() const { return bounds_at(at); }
  __device__ __forceinline__ TileLocation location() const {
    const int4 x = ptx::load_shared(at + static_cast<int>(offsetof(TileFacts, location)));
    return {x.x, x.y, x.z, x.w};
  }
  __device__ __forceinline__ TileSequence sequence() const {
    const int4 x = ptx::load_shared(at + static_cast<int>(offsetof(TileFacts, sequence)));
    return {x.x, x.y, x.z, x.w};
  }
  __device__ __forceinline__ int first_key() const {
    return static_cast<int>(ptx::load_word(at + static_cast<int>(offsetof(TileFacts, first_key))));
  }
};

}  // namespace headwise::cuda::hopper::forward
