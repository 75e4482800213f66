// BlockLists: a mask's blocks(...) as bits, what a tile meets of them, and the tiles of keys they leave.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/band.h"

namespace headwise::cuda {

struct BlockLists {
  const std::uint32_t* bits = nullptr;  // [rows words]: block c of keys is open to block row r
  int rows = 0, words = 0, q_block = 1, kv_block = 1;
  int* lists = nullptr;  // [sequences q_tiles step] of 4 * tile + 2 * (another follows) + (that one is
                         // masked), from right to left; or null: there are no blocks
  int step = 0;
};

/// Smaller blocks of keys would be asked for one by one in every masked tile.
inline constexpr Index kLeastBlock = 8;

/// Words of a block row: every block a tile of `keys` keys touches has a bit, past the last key too.
inline Index block_words(const MaskStep& blocks, Index kv_tokens, int keys) {
  return (kv_tokens + keys) / blocks.b / 32 + 1;
}
/// Numbers of a list: all tiles, and one to read ahead of.
inline Index list_step(Index kv_tokens, int keys) { return ceil_div(max_of(kv_tokens, 1), keys) + 1; }

/// Calls put(word) for all words of all rows, in order, until it answers false.
template <class Put>
void each_block_word(const MaskStep& blocks, Index words, Put&& put) {
  for (Index row = 0; row < blocks.n; ++row) {
    Index at = blocks.offsets[row];
    for (Index word = 0; word < words; ++word) {
      std::uint32_t x = 0;
      for (; at < blocks.offsets[row + 1] && blocks.columns[at] < 32 * (word + 1); ++at)
        x |= std::uint32_t{1} << (blocks.columns[at] % 32);
      if (!put(x)) return;
    }
  }
}

/// What queries [q0, q1) meet in keys [k0, k1), by position, both not empty: some pairs that are open, some
/// that are closed.
struct TileOfBlocks {
  bool open = false, closed = false;
};
HW_FN constexpr TileOfBlocks tile_of_blocks(const BlockLists& b, int q0, int q1, int k0, int k1) {
  TileOfBlocks t{false, q0 < 0};
  for (int row = (q0 < 0 ? 0 : q0) / b.q_block; q1 > 0 && row <= (q1 - 1) / b.q_block; ++row) {
    if (row >= b.rows) {
      t.closed = true;
      break;
    }
    for (int c = k0 / b.kv_block; c <= (k1 - 1) / b.kv_block && !(t.open && t.closed); ++c)
      if (b.bits[static_cast<Index>(row) * b.words + c / 32] >> (c % 32) & 1u)
        t.open = true;
      else
        t.closed = true;
  }
  return t;
}

}  // namespace headwise::cuda
