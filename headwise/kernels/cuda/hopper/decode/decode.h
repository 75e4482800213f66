// Decode on Hopper as its host code sees it: few queries against many keys, cut into splits of fixed width.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/divisor.h"
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::decode {

/// Keys after which a warp comes to its next 16: a constant of head_dim, as the splits are.
HW_FN constexpr int keys_of(int head_dim) { return head_dim == 256 ? 64 : 128; }
/// Rows (query token, head of the group) one block multiplies. The bits of a row do not depend on it.
/// `items`: in blocks of 16. Up to 3 for 2 processors they take less time than half as many of 32.
HW_FN constexpr int rows_of(Index rows, int head_dim, Index items, int processors) {
  if (rows <= 8 && head_dim == 128) return 8;
  return rows <= 16 || head_dim == 256 || 2 * items <= 3 * processors ? 16 : 32;
}

/// Keys of one tile. Small ones keep more bytes on their way, since a slot waits for its last. 32 rows have
/// no registers for two groups of warps by turns. 8 bits fill as many bytes with twice the keys. No bit
/// depends on it.
HW_FN constexpr int tile_keys(int rows, int head_dim, bool eight) {
  return rows == 32 || eight ? keys_of(head_dim) : 64;
}

/// Whether a tile lies in shared memory row by row, not panel by panel. Its copy then reads memory in one
/// sweep, but a matrix finds its eight rows in half the banks: good where there is more to read than to
/// multiply. No bit depends on it.
HW_FN constexpr bool whole_rows_of(int rows, int head_dim, bool eight) {
  return rows == 32 && head_dim == 128 && !eight;
}

/// Blocks of a cluster that share an item where there are few items: each has 16 keys of every keys_of,
/// as a warp has elsewhere. No bit depends on it.
HW_FN constexpr int shares_of(int head_dim) { return keys_of(head_dim) / 16; }

/// What the numbers of each key count, [batch tokens kv_heads] or [pages page_size kv_heads]: 8 bits alone.
struct Scales {
  const float* data = nullptr;
  Index step[3] = {};
};

struct Params {
  float scale_log2 = 0, inverse_cap = 0, cap = 0;
  PerHead slopes = {}, sinks = {};
  RowGate gate = {};
  const void* q = nullptr;
  Index q_step[3] = {};  // batch, row, head
  void* out = nullptr;
  Index out_step[3] = {};
  float* lse = nullptr;
  Index lse_step[3] = {};     // batch, head, row
  float* partials = nullptr;  // [pair row_block split row head_dim], then [pair row_block split row share 2]
  float* partial_stats = nullptr;
  int* counter = nullptr;               // next item; zero before and after every launch
  int* arrived = nullptr;               // [pair row_block share]; likewise
  const std::int32_t* pages = nullptr;  // [batch pages_each], or null: keys lie in one piece
  Index pages_step[2] = {};
  int page_size = 0, page_count = 0;  // in one piece: the count of sequences
  Scales k_scale = {}, v_scale = {};
  const Place* places = nullptr;
  Place place = {};
  bool ragged = false, clear_tail = false, e4m3 = false;  // e4m3: keys and values of 8 bits are floats
  int batch = 0, kv_heads = 0, group = 0;
  int back = 0, ahead = 0;
  int row_blocks = 0, splits = 0, items = 0;  // items = batch * kv_heads * row_blocks * splits
  std::uint64_t keep = 0;                     // what L2 is told of keys and values
  Divisor by_group = {}, by_row_blocks = {}, by_kv_heads = {}, by_blocks = {};  // blocks: items of a split
  int* lost = nullptr;  // not 0: some number of the output is NaN; or null: nobody asks
};

/// Keys one copy takes from a page.
HW_FN constexpr int page_piece(int page_size) { return page_size < 64 ? page_size : 64; }

struct Maps {
  CUtensorMap k, v;
};

/// Which instance starts, and where. Rows: of a block.
struct Instance {
  int head_dim, rows;
  int device, processors;
  cudaStream_t stream;
};
/// T: of q and out; Kv: of keys and values.
template <class T, class Kv>
Status attend(const Instance& instance, const Maps& maps, const Params& params);
using Function = Status(const Instance&, const Maps&, const Params&);
extern template Function attend<bf16, bf16>;
extern template Function attend<f16, f16>;
extern template Function attend<bf16, std::int8_t>;
extern template Function attend<f16, std::int8_t>;
/// The same where shares_of blocks share every item: keys in one piece, of q's own type.
template <class T>
Status attend_in_shares(const Instance& instance, const Maps& maps, const Params& params);
extern template Function attend_in_shares<bf16>;
extern template Function attend_in_shares<f16>;
/// Items that a device shares at once: with more, some wait for others to end. Rows: 8 or 16.
template <class T>
Status shared_items(int head_dim, int rows, int device, int& items);
extern template Status shared_items<bf16>(int, int, int, int&);
extern template Status shared_items<f16>(int, int, int, int&);

}  // namespace headwise::cuda::hopper::decode
