// Shared by the files of cpu/online: where a head's rows lie, what a panel of queries holds, a
// worker's scratch.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#include "headwise/base/arena.h"
#include "headwise/base/random.h"
#include "headwise/kernels/cpu/forward/online.h"
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::cpu::forward {

/// The numbers every task of one run shares; no allocation, lives on the caller's stack.
struct OnlineRun {
  const AttentionProblem& problem;
  const AttentionArgs& args;
  const TileKernels& kernels;
  const Core& core;
  Index run_heads;    // consecutive heads that share their keys and values
  Index task_rows;    // query rows a task works on, a multiple of the panel
  bool scaled_first;  // scores are scaled by a pass of their own, not inside the exponent
  DropoutRule dropout;
  float*
      tops;  // [batch heads q][2] when a second look needs it, else null: top, and what exp(s - top) weighs
  std::atomic<Index>* visits;  // counts the tiles worked on; null: nobody asks
  bool keys_ready;             // packed keys lie as the core's scores takes them

  Index value_rows() const { return round_up(problem.heads.v.dim, 16); }
};

Rows rows_of(const AnyView& tensor, const HeadLayout& layout, Index head, Index batch, Index first_row);
/// The rows with the scales of a tensor of 8 bits, [batch tokens kv_heads].
Rows with_scales(Rows rows, const AnyView& scale, const HeadLayout& layout, Index head, Index batch,
                 Index first_row);
/// Rows that are read later, from row `first` on; none where their columns do not lie side by side.
Ahead ahead_of(const Rows& rows, Index first, Index count, Index width);
/// The rows of k and of v that head `head` of a sequence reads.
Rows key_rows(const OnlineRun& run, const SequenceLocation& at, Index head);
Rows value_rows_of(const OnlineRun& run, const SequenceLocation& at, Index head);
/// Keys key0 .. key0 + count as `scores` takes them: packed into `scratch`, or where they lie ready. 8 bits:
/// the numbers alone, since a scale is cheaper on a score, and more accurate, than on every number.
const void* keys_for_scores(const OnlineRun& run, const Rows& keys, Index key0, Index count, void* scratch);
/// Values key0 .. key0 + count as `weigh` takes them, 8 bits likewise: its scales belong to the weights.
/// False: some value or scale is unusual, as pack_values says.
bool values_for_weigh(const OnlineRun& run, const Rows& values, Index key0, Index count, void* scratch);
RowType row_type(DType t);
const Core& core_for(const AttentionProblem& p, const TileKernels& kernels);
/// The core that looks at ordinary scores again for column sums, with the panels and granules of the one
/// above: its scores need only be near those, since tops and sums are known.
const Core& columns_core(const AttentionProblem& p, const TileKernels& kernels);
float scale_of(const OnlineRun& run, Index head);
/// Scales inside the exponent stay exact only while scale * log2(e) and its inverse are ordinary numbers.
bool scale_is_ordinary(const OnlineRun& run);
/// The number of a sequence that dropout goes by.
Index sequence_id(const AttentionArgs& args, Index sequence);

/// What probes gather of a panel in one split: statistics of rows, mass of classes [classes][panel].
struct PanelProbes {
  RowStats stats;
  float* class_mass;
};

/// One panel of queries: who stands in which lane, and the softmax state of every lane.
struct Panel {
  int count = 0;
  void* queries;
  Index *head, *token, *position;              // [panel]
  std::uint32_t *head32, *position32;          // for dropout
  float *scale, *factor, *slope, *q_distance;  // q_distance: position - first key of the granule
  float *top, *sum, *o;                        // state of the present split
  float *total_top, *total_sum, *total_o;      // state folded so far
  RowStats stats, total_stats;
  float *best_scores, *class_mass;  // top-k: [panel][k]; classes: [classes][panel]
  float* total_class_mass;
  Index* best_keys;
  bool started, folded;
};

/// Rows first .. end of the flattened (head, row) pairs of heads head0..
struct RowBlock {
  Index head0, first, end;
};
/// The rows of k and of v that one kv head has.
struct KvHeadRows {
  Rows keys, values;
};
/// The keys that a panel meets at a time: from .. to of the granule or block that begins at key0.
struct TileKeys {
  Index key0, from, to;
  TileKind kind = TileKind::full;  // what the mask says about them and the panel
  bool finite = true;              // all their packed values are
};

/// Room for the rows of a granule that lie in several pages, and for what they count.
struct PagedRoom {
  std::byte* numbers;
  float* scales;  // 8 bits alone
};

/// Keys key0 .. key0 + count of a sequence.
struct KeyRange {
  Index key0, count;
};
/// k or v of one head as a pool of pages, with the scales of 8 bits.
struct PagedPool {
  const AnyView &numbers, &scales;
  const HeadLayout& layout;
  Index head;
};

/// Everything one worker needs, booked in pieces of the workspace.
struct Scratch {
  Panel* panels;
  void *keys, *values, *weights;
  PagedRoom paged_keys, paged_values;
  const void* tile_keys;  // of the present granule, as scores takes them
  float *s, *gather, *rows, *term, *by_distance, *column_lanes;
  float* cap_slope;  // [granule][panel] slope of the softcap, for gradients; null: nobody asks
  float *tile_top, *used, *shrink, *tile_sum, *ones, *a, *b;
  std::uint64_t *opens, *open, *words;  // open: the present panel's part of opens
  Stripe* stripes;
  float* lane_f[6];
  PanelProbes kept;  // of a panel, in case its granule is worked on again
};

PagedPool key_pool(const OnlineRun& run, Index head);
/// Rows of a pool of pages, numbered by their keys: where they lie when one page holds them all, else put
/// together in `to`, or no rows where that is null. Rows of pages that are gone (-1), which the mask closes,
/// are 0.
Rows paged_rows(const OnlineRun& run, const SequenceLocation& at, const PagedPool& pool, const KeyRange& keys,
                const PagedRoom* to);
/// Keys and values of one granule of a sequence in pages.
KvHeadRows granule_rows(const OnlineRun& run, const SequenceLocation& at, Index head, const KeyRange& keys,
                        const Scratch& s);

/// Granules of keys whose column sums one task of the second look gathers.
inline constexpr Index kColumnGranules = 4;

/// Books a worker's scratch; the same call measures and hands out.
Scratch book(const AttentionProblem& p, const Core& core, Index task_rows, Arena& arena);
Index task_rows_for(const AttentionProblem& p, const Core& core, int threads);

/// How many rows heads head0.. of one run have in a sequence: all, or those their lists name.
Index rows_of_run(const OnlineRun& run, const SequenceLocation& at, Index head0);
/// Calls f(first, end) for the stretches of query rows that head `head` does not list.
template <class F>
void each_unlisted(const OnlineRun& run, const SequenceLocation& at, Index head, F&& f) {
  const RowLists& rows = run.args.inputs.rows;
  const Index list = at.sequence * run.problem.heads.q.heads + head;
  Index next = 0;
  for (Index n = rows.begin(list); n < rows.begin(list + 1); ++n) {
    if (rows.row(n) > next) f(next, rows.row(n));
    next = rows.row(n) + 1;
  }
  if (next < at.q_tokens) f(next, at.q_tokens);
}
/// The scores of a panel against keys that keys_for_scores gave, which are `keys` from key0 on.
void tile_scores(const OnlineRun& run, const Panel& panel, const void* packed, const Rows& keys,
                 const TileKeys& t, float* s);
/// Fills lanes with the first rows of a block; packs the queries.
void fill_panel(const OnlineRun& run, const SequenceLocation& at, const RowBlock& rows, Scratch& scratch,
                Panel& panel);
/// Score terms between the product and the mask, in the order of the contract.
void apply_terms(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
                 const TileKeys& t);
/// Those of them that are added: bias, ALiBi, relative.
void add_terms(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
               const TileKeys& t);
/// What the mask says about the panel's rows x keys [key0, key0 + keys).
TileKind tile_kind(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Index key0,
                   Index keys);
/// Bits of open lanes per key into scratch.open; trims [from, to) to keys that some lane may attend.
void open_bits(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
               TileKeys& t);
/// Dropout of a panel's pairs with the keys of the granule at key0.
TileDropout dropout_of(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Index key0);

OnlineRun run_of(const AttentionProblem& p, const AttentionArgs& args, const TileKernels& kernels,
                 const Core& core, Index task_rows);
/// Trims [from, to) to the keys of a tile that are open and starts the panel's split; false: none is open.
bool open_tile(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel, TileKeys& t);
/// From the products in S to the operand of `weigh`: terms, mask, the running max, weights, their sum,
/// dropout.
Tile make_weights(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                  const TileKeys& t);
/// One panel against the packed keys and values of a tile; `rows` is where they came from.
void attend_tile(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                 const KvHeadRows& rows, TileKeys t);
/// Folds the state of the split into the total: the same `merge` whatever the number of splits.
void fold(const OnlineRun& run, Scratch& s, Panel& panel);
/// One block of query rows of one run of heads against all keys the mask lets it see.
void attend_rows(const OnlineRun& run, Scratch& s, Index sequence, Index head0, Index block);
/// Rows that head `head` does not list: 0 and -inf.
void write_unlisted(const OnlineRun& run, Index sequence, Index head);
/// Folds what is left, divides, gates, writes the rows and their log-sum-exp.
void finish_panel(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel);

/// Probes: their state, before the weights are made, after, and at the end of a row.
Index probe_floats(const AttentionProblem& p, const Core& core);
Index probe_keys(const AttentionProblem& p, const Core& core);
/// Lays the state of a panel into so many floats and keys.
PanelProbes lay_probes(const AttentionProblem& p, const Core& core, float* floats, Index* keys);
inline PanelProbes probes_of(const Panel& panel) { return {panel.stats, panel.class_mass}; }
void copy_probes(const OnlineRun& run, const PanelProbes& from, const PanelProbes& to);
/// The panel has gathered `probes` in a later split than those before: a best key of theirs stays unless a
/// better one was found.
void take_probes(const OnlineRun& run, Panel& panel, const PanelProbes& probes);
void push_best(const OnlineRun& run, const Panel& panel, const float* s, const TileKeys& t);
void push_classes(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, const float* p,
                  const TileKeys& t);
void rebase_stats(const OnlineRun& run, const RowStats& stats, const float* sum, const float* delta,
                  const float* shrink, float* class_mass);
/// weight[lane]: what a p counts in the row's normalized weights, sink included; 0 for an empty row.
void write_probes(const OnlineRun& run, const SequenceLocation& at, const Panel& panel,
                  const float* sink_mass, const float* weight);

/// The second look: column sums and picked rows from known log-sum-exps.
void second_look(const OnlineRun& run, std::span<std::byte> workspace, Index worker_bytes,
                 ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::forward
