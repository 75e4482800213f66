// The forward pass on Hopper as its host code sees it: tile shapes, parameters, and the instances by number
// format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include "headwise/base/random.h"
#include "headwise/kernels/cuda/device/launch.h"
#include "headwise/kernels/cuda/inputs/blocks.h"
#include "headwise/kernels/cuda/inputs/places.h"
#include "headwise/kernels/cuda/inputs/term_views.h"

namespace headwise::cuda::hopper {

/// What a tile of scores meets between the two products; one instance each.
enum class TileTerms {
  band,   // causal, window and the end of keys: tiles at the edges are masked; those on either side of what a
          // group of 64 queries sees are left out
  terms,  // band, and scores are scaled, capped and biased one by one, weights dropped; blocks of a mask and
          // statistics of rows if asked for
  probes  // band, and the statistics of rows
};

/// Where keys lie in pages: copies take `piece` keys of one page at a time, a divisor of a tile and of a
/// page.
struct ForwardPages {
  const std::int32_t* table = nullptr;  // [batch pages_each], or null: keys lie in one piece
  int step[2] = {};
  int log_size = 0, piece = 0;  // a page holds 2^log_size tokens
};

/// q, k and v as memory has them: [batch or page, row, head], columns side by side.
struct HopperTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  Index q_step[3] = {}, k_step[3] = {}, v_step[3] = {};
  Index page_count = 0;
  int page_size = 0, head_dim = 0, value_dim = 0;
};

/// Where a group of queries found NaN or infinity in its output, until it is through with its tiles:
/// [block group place]. Twelve times its even share is room for all but the most uneven runs.
struct LostGroups {
  int2* found = nullptr;  // (batch, head) pair and first query of a warp; or null: nobody asks
  int each = 0;
};
inline constexpr int kLostShare = 12;

struct ForwardParams {
  float scale_log2 = 0;  // scale * log2(e): scores to exponents of 2
  bool terms = false;    // instance `terms`: scores are scaled one by one; else it has the others' bits
  float inverse_cap = 0, cap = 0;   // terms: scale / softcap, softcap * log2(e); cap 0: none
  PerHead slopes = {}, sinks = {};  // ALiBi; sinks
  PairBias bias = {};               // terms
  bool bias_tiles = false;          // it comes by bulk copies; else its numbers are read one by one
  RowGate gate = {};
  bool drops = false;  // instance `terms`: weights of pairs the rule names are 0, the others times `kept`
  DropoutRule rule = {};
  float kept = 1;
  const Index* sequence_ids = nullptr;  // of the rule; or null: 0, 1, ...
  RowProbes probes = {};                // probes and terms, up to value_dim 128
  float* lse = nullptr;
  Index lse_step[3] = {};  // batch, head, row
  void* out = nullptr;
  Index out_step[3] = {};         // batch, row, head
  bool store_rows = false;        // tiles at the end of a sequence may not touch the rows below them
  bool clear_tail = false;        // rows of v past a sequence's last key hold anything: they must read as 0
  int* counter = nullptr;         // next tile; zero before and after every launch
  const Place* places = nullptr;  // one a sequence, or null: all lie at `place`
  bool by_head = false;           // places: one a head of a sequence
  Place place = {};
  int batch = 0, heads = 0, group = 0;
  int back = 0, ahead = 0;
  int q_tiles = 0, tiles = 0;  // of a head; in all
  int section = 0,
      sections = 0;           // order: `sections` of `section` (batch, head) pairs, the rest are the last one
  BlockLists blocks = {};     // terms. Last: elsewhere it cost the statistics of rows a register at D64
  int pieces = 1;             // of a sequence: batch counts them
  bool side_by_side = false;  // band: order of tiles, see forward_tile
  ForwardPages pages = {};
  int out_chunks = 0;          // of 8 columns in a row of out
  HopperTensors tensors = {};  // for what is mended
  LostGroups lost = {};        // band
  int* lost_any = nullptr;     // others: not 0 where some number of the output is NaN or infinite
};

struct ForwardMaps {
  CUtensorMap q, k, v, out, bias;
};

/// The widths of an instance. It takes every narrower one that is a multiple of 8: copies bring zeros for the
/// columns that are not there and store none of them.
struct ForwardWidths {
  int head = 0, value = 0;
};
/// The narrowest instance that takes these widths, or {0, 0}. `alike`: of those with one width for both,
/// which alone have terms and statistics of rows.
HW_FN constexpr ForwardWidths forward_widths(Index head_dim, Index value_dim, bool alike = false) {
  if (head_dim < 8 || value_dim < 8 || head_dim % 8 != 0 || value_dim % 8 != 0) return {};
  if (!alike && head_dim > 128 && head_dim <= 192 && value_dim <= 128) return {192, 128};
  for (const int width : {64, 96, 128, 192, 256})
    if (head_dim <= width && value_dim <= width) return {width, width};
  return {};
}
/// Keys in a tile: a constant of the two widths, so that every tile of queries rounds alike.
HW_FN constexpr int forward_keys(int head_dim, int value_dim) {
  return head_dim == 64 ? 128 : head_dim == 96 && value_dim == 96 ? 96 : 80;
}
/// Open keys that make the last tile of keys a narrow one, for a group of 64 queries.
HW_FN constexpr int forward_few(int head_dim, int value_dim) {
  return forward_keys(head_dim, value_dim) == 128 ? 64 : 32;
}
/// Widths whose instance for terms has room for two tiles of a bias.
HW_FN constexpr bool forward_bias_tiles(int head_dim, int value_dim) {
  return head_dim == value_dim && (head_dim == 64 || head_dim == 128);
}
/// Wider values leave no registers for the statistics of rows.
HW_FN constexpr bool forward_probes(Index value_dim) { return value_dim <= 128; }
/// Rows of queries in a tile; the bits of a row do not depend on it.
HW_FN constexpr int forward_rows(int groups) { return 64 * groups; }

/// Which instance, and where it runs; groups of 64 query rows: 2, or 3 up to value_dim 128, which head_dim
/// 192 with 3 has.
struct ForwardTask {
  int head_dim, groups;
  TileTerms passes;
  int device, processors;
  cudaStream_t stream;
};
namespace forward {
template <class T>
Status attend_tiles(const ForwardTask& task, const ForwardMaps& maps, const ForwardParams& params);
extern template Status attend_tiles<bf16>(const ForwardTask&, const ForwardMaps&, const ForwardParams&);
extern template Status attend_tiles<f16>(const ForwardTask&, const ForwardMaps&, const ForwardParams&);
}  // namespace forward

}  // namespace headwise::cuda::hopper
