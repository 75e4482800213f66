// Shared by the forward and the backward of cpu/mixed: head counts, packed coefficients, logits of one block.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::mixed {

using forward::Panel;

/// Keys of a block: all heads of a panel hold as many at a time. Part of the numerics class.
inline constexpr Index kMixKeys = 32;

/// One of the two mixes as a run packs it.
struct MixStage {
  Mix kind = Mix::none;
  Index from = 0, to = 0;             // heads
  Index row0 = 0;                     // its first row in mix_q and mix_k
  const float* matrix = nullptr;      // packed [to / mix_rows][from][mix_rows]; null: none
  const float* transposed = nullptr;  // the same of M^T; null: nobody asks
};

/// The numbers all tasks of one run share.
struct MixedRun {
  forward::OnlineRun forward;
  MixStage before, after;
  Index rank;             // even: a rank of 0 stands beside an odd one
  bool shared_mask;       // all heads have the same open pairs
  Index task_panels;      // panels of queries a task works on
  bool scaled_queries;    // packed queries carry their scale: no pass over scores
  const float* scales;    // [q_heads][panel]
  Index kept_blocks = 0;  // the forward: first ones, whose logits stay between its two looks

  const Core& core() const { return forward.core; }
  Index tile_step() const {
    return (kMixKeys + 1) * core().panel;
  }  // the row more keeps heads out of one set
  Index coefficient_rows() const { return 2 * rank + 1; }
  const MixStage& stage(int which) const { return which == 0 ? before : after; }
  /// Floats of a block of keys for one of the two mixes.
  Index key_coefficients(int which) const {
    return stage(which).kind == Mix::dynamic ? kMixKeys * coefficient_rows() * stage(which).from : 0;
  }
  /// Blocks of keys of all sequences, whole granules of them, and where a sequence's first one lies.
  Index granule_blocks() const { return core().granule / kMixKeys; }
  Index block_count() const;
  Index first_block(const SequenceLocation& at) const;
  Index key_slots() const { return forward.problem.heads.k.slots(); }
  Index value_slots() const { return forward.problem.heads.v.slots(); }
};

/// One panel of queries with all its heads.
struct MixedPanel {
  Panel lanes;             // who stands in which lane; head and slope are those of the head looked at
  std::byte* queries;      // [q_heads] packed
  float* coefficients[2];  // before, after: [2 rank + 1][heads][panel], gates with 1 added; null: not dynamic
  std::uint64_t* open;     // [heads or 1][kMixKeys]: bit per lane
};

/// What a worker needs to make the logits of a block.
struct MixedScratch {
  forward::Scratch terms;  // room for score terms and mask words
  float* l;                // [heads][tile_step]
  float *factor, *ones;    // [panel]: log2(e), 1
  // Of the block, booked by book_block or pointed at:
  std::byte* keys;             // [key_slots] packed block
  float* key_coefficients[2];  // before, after: [kMixKeys][2 rank + 1][heads]
  float* s;                    // [heads][tile_step]
};

/// What the mask says about one panel x one block.
struct Opening {
  bool some = false, mixed = false;
  Index to = 0;  // keys to look at
};

/// Heads one tile buffer must hold.
inline Index most_heads(const AttentionProblem& p) {
  return max_of(max_of(p.heads.q.heads, p.heads.normal_heads()), p.heads.v.heads);
}
const Core& core_of(const AttentionProblem& p, const TileKernels& kernels);
/// The run without its shared tensors; book_matrices adds them.
MixedRun mixed_run_of(const AttentionProblem& p, const AttentionArgs& args, const TileKernels& kernels,
                      const Core& core, Index task_panels);
/// Packs matrices and scales; the same call measures and hands out.
void book_matrices(MixedRun& run, bool transposed, Arena& arena);
MixedScratch book_mixed(const MixedRun& run, Arena& arena);
void book_block(const MixedRun& run, MixedScratch& s, Arena& arena);
MixedPanel book_mixed_panel(const MixedRun& run, Arena& arena);
/// A panel's lanes and open bits alone.
MixedPanel book_lanes(const MixedRun& run, Arena& arena);
Index key_block_bytes(const Core& core, Index dim);
/// Bytes of an arena that another one may follow.
std::size_t whole_pieces(const Arena& arena);
/// Lanes are queries first .. of a sequence, looking at head 0.
void place_lanes(const MixedRun& run, const SequenceLocation& at, Index first, Panel& lanes);

/// Fills lanes with queries first .. of a sequence and packs them and their coefficients.
void fill_mixed(const MixedRun& run, const SequenceLocation& at, Index first, MixedScratch& s,
                MixedPanel& panel);
/// Lanes look at head `head` of the normalizer.
void look_at_head(const MixedRun& run, Panel& lanes, Index head);
void pack_keys(const MixedRun& run, const SequenceLocation& at, Index key0, Index count, MixedScratch& s);
/// False when one of them is not finite.
bool pack_key_coefficients(const MixedRun& run, const SequenceLocation& at, Index key0, Index count,
                           const MixStage& stage, float* out);
Opening open_block(const MixedRun& run, const SequenceLocation& at, MixedScratch& s, MixedPanel& panel,
                   Index key0, Index keys);
/// scale * q.k and softcap of all heads into s.s.
void scores_of(const MixedRun& run, MixedScratch& s, const MixedPanel& panel, Index to, float* out);
/// What a mix does to a block: x and y are [heads][tile_step].
MixTile mix_tile(const MixedRun& run, const MixStage& stage, const float* query, const float* key,
                 const float* x, float* y, Index to);
/// Logits of all heads of a block into `l` [heads][tile_step]; closed pairs are -inf.
void logits_of(const MixedRun& run, const SequenceLocation& at, MixedScratch& s, MixedPanel& panel,
               const Opening& opening, Index key0, float* l);

}  // namespace headwise::cpu::mixed
