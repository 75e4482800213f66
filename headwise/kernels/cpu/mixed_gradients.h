// Parts of cpu/mixed_backward: packed panels of queries and dout, and the steps of one tile of pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/mixed_parts.h"

namespace headwise::cpu {

/// The numbers all tasks of one run share.
struct GradientRun {
  const BackwardProblem& problem;
  const BackwardArgs& args;
  MixedRun mixed;
  bool checks = false;
  // [panels of all sequences] of each, booked by book_shared
  std::byte *queries, *douts, *q_rows, *dout_rows;
  float *coefficients[2], *top, *live, *delta, *gate;
  double* dmatrix[2];
  std::uint8_t* finite;  // of dout

  Index panel_count() const;
  /// Where panel `q` of a sequence lies among all.
  Index panel_at(const SequencePlace& at, Index sequence, Index q) const;
};

/// A sequence a task works on.
struct RowTask {
  SequencePlace at;
  Index sequence;
};

/// One packed panel. top and live: the log-sum-exp, and 1 where the row has an open pair.
struct GradientPanelView {
  MixedPanel in;
  std::byte *douts, *q_rows, *dout_rows;
  float *top, *live, *delta, *gate;
  double* dmatrix[2];
  std::uint8_t* finite;
};

/// What a panel gathers over all keys.
struct RowSums {
  float *dq, *gate;  // [q_heads][columns(head_dim)][panel], [v_heads][panel]
  float* query[2];   // before, after: [2 rank + 1][heads][panel]; null: not asked
};

/// Everything one worker needs. Tiles are [heads][tile_step].
struct GradientScratch {
  MixedScratch in;                 // in.s: scores
  MixedPanel* lanes;               // room for lanes and open bits, one for each panel of a task
  RowSums* sums;                   // likewise
  std::byte *values, *key_values;  // of the present block: v packed as keys, k packed as values
  Index key_value_bytes;
  float *p, *du, *dp_own, *u;  // weights, slopes of the mixed weights, of the weights, and room for u and ds
  bool mixes_after;
  float* dp() const { return mixes_after ? dp_own : du; }
  float *dk, *dv;                   // [heads][kMixKeys][columns]
  float* key_sums[2];               // before, after: [kMixKeys][2 rank + 1][heads]; null: not asked
  std::uint64_t *some_open, *seen;  // [kMixKeys] pairs open in some head; lanes that met the key
  float *slope, *rows;
  double* lines;
  double worst;
};

GradientRun gradient_run_of(const BackwardProblem& p, const BackwardArgs& args, const TileKernels& kernels);
std::size_t whole_pieces(const Arena& arena);
/// Packed panels and matrices; the same call measures and hands out.
void book_shared(GradientRun& run, Arena& arena);
GradientScratch book_gradients(const GradientRun& run, Index panels, Arena& arena);
std::size_t worker_bytes(const GradientRun& run, Index panels);

void pack_panel(const GradientRun& run, GradientScratch& s, Index sequence, Index q);
GradientPanelView view_panel(const GradientRun& run, const RowTask& task, Index q, const MixedPanel& room);
void pack_block(const GradientRun& run, const SequencePlace& at, Index key0, Index keys, bool keys_as_values,
                GradientScratch& s);

/// s.in.s and s.p of a block; closed pairs are 0 in both.
void weights_of_block(const GradientRun& run, GradientScratch& s, GradientPanelView& panel,
                      const RowTask& task, const Opening& opening, Index key0);
/// s.u: weights after the second mix; as values meet them (dropped, gated), or before that.
void outputs_of_block(const GradientRun& run, GradientScratch& s, GradientPanelView& panel,
                      const RowTask& task, const Opening& opening, Index key0, bool as_values_meet_them);
/// s.du and s.dp(). gate_sum [v_heads][panel] += u * du before the gate; null: nobody asks.
void weight_slopes(const GradientRun& run, GradientScratch& s, GradientPanelView& panel, const RowTask& task,
                   const Opening& opening, Index key0, float* gate_sum);
/// s.dp() becomes the slope of the logits: p (dp - delta).
void logit_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel, Index to);
/// The slope of the scaled scores, of q's heads.
float* score_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel,
                    const Opening& opening);
/// Gradients of the coefficients of one mix, 0 before, 1 after; null: not asked.
void mix_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel, int which,
                Index to, float* dquery, float* dkey, double* dmatrix);
/// Rows from `to` on count nothing in add_rows.
void clear_rest(const GradientRun& run, float* tile, Index to);

void clear_row_sums(const GradientRun& run, RowSums& sums);
void write_row_sums(const GradientRun& run, GradientScratch& s, const RowTask& task,
                    const GradientPanelView& panel, RowSums& sums);
void clear_key_sums(const GradientRun& run, GradientScratch& s);
void note_open_keys(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel,
                    const Opening& opening);
/// dout that is not finite was packed as 0: its products with open pairs, one by one.
void add_unusual_douts(const GradientRun& run, GradientScratch& s, const RowTask& task,
                       const GradientPanelView& panel, const Opening& opening);
void write_key_sums(const GradientRun& run, GradientScratch& s, const RowTask& task, Index key0, Index keys);
/// dsinks, dmix_before, dmix_after from what panels hold, in ascending order.
void fold_shared(const GradientRun& run, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu
