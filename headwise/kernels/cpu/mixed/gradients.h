// Shared by the files of cpu/mixed_backward: packed panels, and the steps of one tile of pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/mixed/block.h"
#include "headwise/kernels/cpu/mixed/forward.h"

namespace headwise::cpu::mixed {

/// Tasks that sum a relative table, each over its share of the panels: as many for any number of threads; and
/// buckets they sum at a time.
inline constexpr Index kRelativeTasks = 16, kMixedBuckets = 512;

/// The numbers all tasks of one run share. Keys lie in granules, each of several blocks of kMixKeys.
struct MixedBackwardRun {
  const BackwardProblem& problem;
  const BackwardArgs& args;
  MixedRun mixed;
  Form form;
  bool checks = false;
  // Booked by book_shared. Blocks of keys of all sequences: k and v packed as keys, by granule k packed as
  // values. What a block gathers over all queries is [heads][kMixKeys][columns], [kMixKeys][2 rank +
  // 1][heads] and, of each key, the lanes that met it.
  std::byte *keys = nullptr, *values = nullptr, *key_values = nullptr;
  float* key_coefficients[2] = {};
  float *dk = nullptr, *dv = nullptr, *key_sums[2] = {};
  std::uint64_t* seen = nullptr;
  // Panels of queries of all sequences. top and live: the log-sum-exp, and 1 where the row has an open pair.
  float *top = nullptr, *live = nullptr, *delta = nullptr;
  float* dslopes = nullptr;  // [heads][panel]
  double *dmatrix[2] = {}, *dscale = nullptr;
  Index* passed = nullptr;      // blocks of keys a panel is done with
  double* drelative = nullptr;  // [kRelativeTasks][heads][kMixedBuckets]

  Index panel_count() const;
  /// Where a sequence's first panel lies among all.
  Index first_panel(const SequenceLocation& at) const;
  Index key_value_bytes() const;
  bool gathers_dq() const { return problem.wants.q || problem.wants.scale; }
  /// Keys of the sums of dbias.
  Index bias_keys() const { return round_up(max_of(problem.forward.kv_tokens, 1), kMixKeys); }
  bool mixes_after() const { return mixed.after.kind != Mix::none; }
  /// Keys' coefficients ask for du again at the second look; it is kept then, and dp computed from it.
  bool keeps_du() const {
    return !mixes_after() || (mixed.after.kind == Mix::dynamic && problem.wants.mix_k);
  }
};

/// One packed panel and what it gathers over all keys.
struct MixedGradientPanel {
  MixedPanel in;
  std::byte *douts, *q_rows, *dout_rows;
  float *top, *live, *delta, *gate, *dslopes;
  double *dmatrix[2], *dscale;
  float *dq, *dgate;  // [q_heads][columns(head_dim)][panel], [v_heads][panel]
  float* dquery[2];   // before, after: [2 rank + 1][heads][panel]; null: not asked
  bool finite;        // dout
};

/// Everything one worker needs. Tiles are [heads][tile_step].
struct GradientScratch {
  MixedScratch in;  // in.s: scores; in.l: slopes of scores
  MixedGradientPanel panel;
  std::byte *values, *key_values;   // of the present block, as in MixedBackwardRun
  Index key0;                       // of the present block in its granule
  float *p, *u;                     // weights, mixed weights
  float *du, *dp, *dl;              // slopes of the mixed weights, of the weights, of the logits
  float* tiles;                     // [blocks or 1][in.s, p, du or dp]
  float *dk, *dv, *key_sums[2];     // of the present block
  std::uint64_t *seen, *some_open;  // likewise; pairs open in some head
  float *slope, *rows;
  float* bias;  // [heads][bias_keys][panel] sums of dbias
  double* lines;
  double worst;
};

/// Bytes of what the kept form keeps of a panel, a thread.
Index kept_gradient_bytes(const BackwardProblem& p, const Core& core);
MixedBackwardRun gradient_run_of(const BackwardProblem& p, const BackwardArgs& args,
                                 const TileKernels& kernels, Form form);
/// Packed keys and sums; the same call measures and hands out.
void book_shared(MixedBackwardRun& run, Arena& arena);
GradientScratch book_gradients(const MixedBackwardRun& run, Arena& arena);
std::size_t worker_bytes(const MixedBackwardRun& run);

/// Looks at block `block` of a sequence: its packed keys, sums and tiles.
void look_at_block(const MixedBackwardRun& run, const SequenceLocation& location, Index block,
                   GradientScratch& s);
/// Packs the keys of a granule of a sequence and clears its sums.
void pack_granule(const MixedBackwardRun& run, const SequenceLocation& location, Index granule,
                  GradientScratch& s);
/// Packs panel `q` of a sequence.
void pack_panel(const MixedBackwardRun& run, const SequenceLocation& location, Index q, GradientScratch& s);
void clear_sums(const MixedBackwardRun& run, MixedGradientPanel& panel);

/// s.some_open, of a block whose pairs are not all open.
void note_open_pairs(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening);
/// Calls body(opening, key0) for every block of keys the packed panel may see.
template <class Body>
void each_block(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                Body&& body) {
  for (Index key0 = 0; key0 < location.kv_tokens; key0 += kMixKeys) {
    const Index keys = min_of(kMixKeys, location.kv_tokens - key0);
    const Opening opening = open_block(run.mixed, location, s.in, s.panel.in, key0, keys);
    if (!opening.some) continue;
    note_open_pairs(run, s, opening);
    look_at_block(run, location, key0 / kMixKeys, s);
    body(opening, key0);
  }
}
/// s.in.s and s.p of a block; closed pairs are 0 in both.
void weights_of_block(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                      const Opening& opening, Index key0);
/// s.u: weights after the second mix; as values meet them (dropped, gated), or before that.
void outputs_of_block(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                      const Opening& opening, Index key0, bool as_values_meet_them);
/// s.du; dgate [v_heads][panel] += s.u * du before the gate. Null: nobody asks.
void output_slopes(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                   const Opening& opening, Index key0, float* dgate);
/// s.dp from s.du.
void weight_slopes(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening);
/// s.dl = p (dp - delta).
void logit_slopes(const MixedBackwardRun& run, GradientScratch& s, Index to);
/// dslopes of ALiBi from s.dl.
void add_alibi_slopes(const MixedBackwardRun& run, GradientScratch& s, Index key0, Index to);
/// The slope of the scaled scores, of q's heads.
float* score_slopes(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening);
/// Gradients of the coefficients of one mix, 0 before, 1 after; null: not asked.
void mix_slopes(const MixedBackwardRun& run, GradientScratch& s, int which, Index to, float* dquery,
                float* dkey, double* dmatrix);
/// Rows from `to` on count nothing in add_rows.
void clear_rest(const MixedBackwardRun& run, float* tile, Index to);

void write_row_sums(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location);
void note_open_keys(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening);
/// dout that is not finite was packed as 0: its products with open pairs, one by one.
void add_unusual_douts(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                       const Opening& opening);
/// Gradients of the keys of the block looked at.
void write_key_sums(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                    Index key0, Index keys);
/// What has no token, from what panels hold, in ascending order.
void fold_shared(const MixedBackwardRun& run, ThreadPool& pool) noexcept;
/// The gradients of the bias and of the relative table, once deltas are known.
void bias_gradient(const MixedBackwardRun& run, GradientScratch* scratch, ThreadPool& pool) noexcept;
void relative_gradient(const MixedBackwardRun& run, GradientScratch* scratch, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::mixed
