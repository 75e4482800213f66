// Shared by the files of cpu/backward: what one run and one panel of queries hold, and one tile of
// weights and dS.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/backward/backward.h"
#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::backward {

/// Buckets of the relative table one task sums.
inline constexpr Index kBuckets = 1024;
/// Panels of one step at most.
inline constexpr Index kMostPanels = 64;

/// The numbers every task of one run shares; no allocation, lives on the caller's stack.
struct BackwardRun {
  const BackwardProblem& problem;
  const BackwardArgs& args;
  const forward::OnlineRun& forward;
  const Core& core;
  Index block_rows;       // query rows packed at a time
  Index step_keys;        // keys of one step
  Index group;            // panels of one step
  float* delta;           // [rows_of_q] sum over columns of dout * out
  double *scale, *slope;  // [rows_of_q] a row's share of dscale and dslopes; null: not asked
  float *q_shares, *k_shares,
      *v_shares;  // [tensor batch][heads or runs][tokens][dim]; null: written straight

  Index q_rows() const { return problem.forward.ragged ? problem.forward.q_total : problem.forward.q_tokens; }
  Index kv_rows() const {
    return problem.forward.ragged ? problem.forward.kv_total : problem.forward.kv_tokens;
  }
  /// Where the numbers of one query row of one head lie.
  Index row(const SequenceLocation& at, Index head, Index token) const {
    return (at.tensor_batch * problem.forward.heads.q.heads + head) * q_rows() + at.q_row + token;
  }
  /// Floats of one tile of s or ds.
  Index tile() const { return step_keys * core.panel; }
  bool needs_dq() const { return problem.wants.q || problem.wants.scale; }
  /// Some gradient of one row of queries; of one row of keys; of the terms alone.
  bool row_side() const { return needs_dq() || problem.wants.slopes || problem.wants.gate; }
  bool key_side() const { return problem.wants.k || problem.wants.v; }
};

/// A panel of queries with what gradients need beside its places.
struct GradientPanel {
  forward::Panel lanes;
  void* douts;                             // rows of dout, packed as queries are
  void *q_rows, *dout_rows;                // the same rows with columns in the lanes; q times its scale where
                                           // the heads of a run differ in it
  float *top, *delta, *gate;               // [panel]; top: the log-sum-exp in units of scores
  float *gate_sum, *slope_sum, *q_factor;  // [panel]
  float* dq;                               // [columns(head_dim)][panel], not yet scaled
  bool finite;                             // nothing in q_rows and dout_rows was replaced by 0
};

/// Everything one worker needs, booked in pieces of the workspace.
struct BackwardScratch {
  forward::Scratch forward;  // what the functions of the forward use
  GradientPanel* panels;
  void *keys, *values, *key_values;  // packed: k and v as keys are, k as values are; of the present block
  std::byte *all_keys, *all_values, *all_key_values;  // of `slots` blocks
  Index slots;
  std::uint8_t *packed, *finite;  // [slots] whether a slot holds its block, and whether all k in it is finite
  void* outs;                     // rows of out, packed as queries are
  float *s, *ds;                  // [group][step_keys][panel]
  float *drop, *cap_slope;        // [step_keys][panel]
  std::uint64_t *open, *kept;     // [group][step_keys] bits of lanes, where something is not finite:
                                  // open pairs, and those not dropped
  PanelRows *dv_panels, *dk_panels;  // [group]
  float *dk, *dv;                    // [keys][columns(dim)]
  float* rows;                       // [panel][widest]
  float *ones, *lane_sum;            // [panel]
  float* bias;                       // [kv_tokens][panel]
  double* buckets;                   // [kBuckets] sums of drelative
  float* by_distance;                // [panel + step_keys] sums of dS, or of a bias, along one axis
  double* line;                      // a row of q, k or v of all heads
  std::byte* operands;               // [group][3][operand_bytes], where the core has them
};

/// Books a worker's scratch for `acc_keys` rows of dk and dv; the same call measures and hands out.
BackwardScratch book_backward(const BackwardProblem& p, const Core& core, Index block_rows, Index acc_keys,
                              Arena& arena);
/// Makes the present block of keys the one in this slot.
void enter_slot(const BackwardRun& run, BackwardScratch& s, Index slot);
const Core& backward_core(const BackwardProblem& p, const TileKernels& kernels);
Index block_rows_for(const BackwardProblem& p, const Core& core);

/// Fills lanes as the forward's fill_panel does, with dout, log-sum-exps and deltas.
void fill_gradients(const BackwardRun& run, const SequenceLocation& at, const forward::RowBlock& rows,
                    BackwardScratch& scratch, GradientPanel& panel, bool needs_rows);

/// One panel against one packed block of keys, at place `i` of the group. Its tiles of s and ds become
/// weights and dS with respect to the logits; the softcap's slope is left to the caller. Trims [from, to) to
/// the keys that are open; false: none is.
bool gradient_tile(const BackwardRun& run, const SequenceLocation& at, BackwardScratch& s,
                   GradientPanel& panel, Index i, forward::TileKeys& t);

/// What a task works on: rows of one run of heads x keys, and which side's gradients it makes.
struct Piece {
  Index head0, row0, row1, key0, key1;
  bool row_side, key_side;
};
/// A group of panels and a block of keys.
struct GradientStep {
  Index panel0, panels;
  const forward::KvHeadRows& rows;  // where the keys and values came from
  Index key0, count;
  std::uint8_t &packed, &finite;  // of the block's slot: packed before or now
  float *dk, *dv;                 // the rows of the block; null: not asked
};
void gradient_step(const BackwardRun& run, const SequenceLocation& at, const Piece& piece, BackwardScratch& s,
                   const GradientStep& step);

/// Rows of dk or dv of a piece on their way to where they are wanted.
struct KeyGradient {
  const HeadLayout& layout;
  const AnyView& to;
  const float* rows;
  float* shares;  // null: written straight
  float scale;
};

/// The gradients of the bias and of the relative table; each task recomputes the tiles it needs.
void bias_gradient(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept;
void relative_gradient(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool,
                       int threads) noexcept;

/// delta of every row, before anything else.
void row_deltas(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept;
/// Gradients of rows that their head does not list: 0.
void clear_unlisted(const BackwardRun& run, ThreadPool& pool, int threads) noexcept;
/// to [heads] or [1] = sums of the rows' shares, in ascending order of sequence and token.
void fold_shares(const BackwardRun& run, const AnyView& to, const double* shares, ThreadPool& pool,
                 int threads) noexcept;
/// dsinks, dslopes and dscale from the shares of rows, in ascending order of sequence and token.
void fold_terms(const BackwardRun& run, ThreadPool& pool, int threads) noexcept;
/// dq, dk and dv whose elements several heads share, from q_shares, k_shares and v_shares.
void fold_tensors(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept;

/// Several heads own one element, or an element may have no owner: gradients go through shares.
bool q_is_shared(const BackwardProblem& p);
bool k_is_shared(const BackwardProblem& p);
bool v_is_shared(const BackwardProblem& p);

}  // namespace headwise::cpu::backward
