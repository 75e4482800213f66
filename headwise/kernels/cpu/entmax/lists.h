// Shared by the forward and the backward of cpu/entmax: a worker's lists, and one tile on its way into
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/entmax/forward.h"
#include "headwise/kernels/cpu/forward/panel.h"
#include "headwise/kernels/cpu/isa/sparse_kernels.h"

namespace headwise::cpu::entmax {

using forward::OnlineRun;

/// Query rows of a task: their lists take rows * kv_tokens * 8 bytes, and packing keys for 128 rows is 5 % of
/// the time.
inline constexpr Index kListRows = 128;

/// Rows of keys or values as f32 side by side: where they lie, or a copy.
struct PlainRowsView {
  const float* data;
  Index step;
};

/// Everything one worker needs, booked in pieces of the workspace.
struct ListScratch {
  forward::Scratch tile;  // what the functions of the forward use
  KeptRow* rows;          // [panels][panel]
  Index* limit;           // [panels][panel] keys at which a list is looked through again
  float* floor;           // [panels][panel] scores at or below weigh nothing
  float *w, *u, *dp;      // [room] of one list
  float *q, *dout, *sum;  // [columns] of one row
  float *keys, *values;   // copies of rows; null: nobody asks
  float *dk, *dv;         // [keys of a task][columns]; null: nobody asks
};

/// One row of a panel with its list and the rule of its head.
struct ListedRow {
  const EntmaxRule& rule;
  const forward::Panel& panel;
  int lane;
  KeptRow& row;
};

EntmaxRule rule_of(double alpha);
double alpha_of(const AttentionArgs& args, Index head);
bool all_softmax(const AttentionProblem& p, const AttentionArgs& args);

/// Query rows one task of these kernels takes.
Index list_rows_for(const AttentionProblem& p, const Core& core, int threads);
/// wide: with what gradients need.
ListScratch book_lists(const AttentionProblem& p, const Core& core, Index task_rows, bool wide, Arena& arena);
/// Empties the lists of panel i.
void clear_lists(const OnlineRun& run, ListScratch& s, Index i);

/// Logits of panel i against the keys of a tile into s.tile.s, closed pairs as -inf; trims [from, to) to the
/// keys that are open; false: none is. s.tile.tile_keys: the granule's keys, packed now where it is null.
bool logits_of(const OnlineRun& run, const SequenceLocation& at, ListScratch& s, Index i,
               const Rows& key_rows, forward::TileKeys& t);

/// Rows first .. first + count.
PlainRowsView plain_rows(const OnlineRun& run, const Rows& rows, Index first, Index count, Index dim,
                         float* copy);

}  // namespace headwise::cpu::entmax
