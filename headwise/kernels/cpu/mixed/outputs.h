// The outputs of cpu/mixed: what a panel gathers, and the second look at one block of logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/mixed/block.h"

namespace headwise::cpu::mixed {

/// The normalizers and the output of a panel.
struct OutPanel {
  MixedPanel in;
  float *top, *sum, *weight;  // [heads][panel]; weight: what exp(l - top) counts, sink included
  float* o;                   // [v_heads][value_rows][panel]
  std::uint8_t* visited;      // [kept_blocks] keys looked at, for the second look at kept logits
};
/// Keys and values of all blocks, packed once for all tasks by the kept form, which is linear in tokens
/// anyway. Keys and coefficients lie by block, values by granule, and whether all of a granule is finite.
struct PackedBlocks {
  std::byte *keys, *values;
  float* coefficients[2];
  std::uint8_t* finite;
};
struct OutScratch {
  MixedScratch in;
  const PackedBlocks* packed;  // null: tasks pack
  OutPanel* panels;
  std::byte *values, *operand;
  Index key0;   // of the present block in its granule of values
  float* kept;  // [kept_blocks][panels][heads][tile_step]
  float *tile_top, *used, *shrink, *tile_sum, *gate;
  float* rows;
  std::uint64_t* kept_pairs;  // [v_heads][kMixKeys]: pairs whose values count, for values that are not finite
};

/// The second look at one block: logits l of a panel with keys key0 .. key0 + to.
struct Look {
  const SequenceLocation& at;
  OutPanel& panel;
  const float* l;
  Index key0, to;
  bool finite;  // values and coefficients of the block
};

/// Of a granule of one head's values.
inline Index value_slot_bytes(const MixedRun& run) {
  return round_up(run.core().products.value_bytes(run.forward.problem.heads.v.dim), Index{Arena::kAlign});
}
/// Weights, the mix after, dropout, values.
void weigh_block(const MixedRun& run, OutScratch& s, const Look& look);

}  // namespace headwise::cpu::mixed
