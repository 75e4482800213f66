#include "headwise/kernels/cpu/forward/decode.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "headwise/kernels/cpu/forward/decode_run.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::forward {
namespace {

constexpr Index kLeastRows = 128;  // of a task where rows are cut: each packs the keys again

/// How a run is cut. `apart`: every split is a task and leaves its state in a slot; else a task takes all
/// splits of some rows of its heads one after the other. No bit depends on it.
struct Cut {
  Index run_heads, runs, rows, panels, splits;
  bool apart;
  Index parts;  // of the rows of a run
};
Cut cut_of(const AttentionProblem& p, const Core& core, int threads) {
  Cut c{};
  c.run_heads = std::gcd(p.heads.k.group, p.heads.v.group);
  c.runs = ceil_div(p.heads.q.heads, c.run_heads);
  c.rows = round_up(c.run_heads * std::max<Index>(1, p.q_tokens), core.panel);
  c.splits = ceil_div(p.kv_tokens, kSplit);
  c.apart = c.splits > 1 && p.batch * c.runs < Index{4} * threads;
  const Index least = round_up(kLeastRows, core.panel);
  const Index rows =
      c.apart || threads == 1 ? c.rows : std::min(c.rows, std::max(least, task_rows_for(p, core, threads)));
  c.parts = ceil_div(c.rows, rows), c.rows = rows;
  c.panels = c.rows / core.panel;
  return c;
}

/// The state a panel has after one split.
struct Slot {
  float *o, *top, *sum;
  PanelProbes probes;
  bool started;
};
Index slot_floats(const AttentionProblem& p, const Core& core) {
  return (round_up(p.heads.v.dim, 16) + 2) * core.panel + probe_floats(p, core);
}

/// The workspace: slots and their states, the workers' books, then a scratch each.
struct Books {
  Slot* slots;
  float* states;
  Index* keys;  // that row probes have found
  Scratch* workers;
};
Books book_shared(const AttentionProblem& p, const Core& core, const Cut& cut, int threads, Arena& arena) {
  const Checked slots =
      Checked(cut.apart ? p.batch * cut.runs : 0) * Checked(cut.splits) * Checked(cut.panels);
  Books b{};
  b.slots = arena.take<Slot>("attention.slots", saturated(slots));
  b.states = arena.take<float>("attention.states", saturated(slots * Checked(slot_floats(p, core))));
  b.keys = arena.take<Index>("attention.states", saturated(slots * Checked(probe_keys(p, core))));
  b.workers = arena.take<Scratch>("attention.workers", threads);
  return b;
}
std::size_t aligned_used(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}
std::size_t worker_bytes(const AttentionProblem& p, const Core& core, const Cut& cut) {
  Arena count = Arena::measuring();
  book(p, core, cut.rows, count);
  return aligned_used(count);
}

}  // namespace

Heads heads_of(const OnlineRun& run, Index sequence, Index head0, Index row0) {
  Heads h{place_of(run.problem, run.args, sequence), head0, 0, row0, 0};
  h.rows = std::min(run.run_heads, run.problem.heads.q.heads - head0) * h.at.q_tokens;
  h.panels = ceil_div(std::clamp<Index>(h.rows - row0, 0, run.task_rows), run.core.panel);
  return h;
}
void fill_panels(const OnlineRun& run, const Heads& h, Scratch& s) {
  for (Index i = 0; i < h.panels; ++i)
    fill_panel(run, h.at, {h.head0, h.row0 + i * run.core.panel, h.rows}, s, s.panels[i]);
}

namespace {

/// Query rows that meet the same keys and values.
Index rows_together(const AttentionProblem& p) {
  return std::gcd(p.heads.k.group, p.heads.v.group) * p.q_tokens;
}
}  // namespace

const Core& decode_core(const AttentionProblem& p, const TileKernels& kernels) {
  const Core& core = core_for(p, kernels);
  const bool multiplies = &core == &kernels.f32 || &core == kernels.narrow;
  return multiplies && kernels.few && rows_together(p) <= kernels.few->few.rows ? *kernels.few : core;
}
namespace {

/// Sums over keys want value columns side by side, in whole vectors.
bool columns_fit(const Rows& values, Index value_dim) {
  return values.column_step == 1 && values.begin == 0 && values.end == value_dim && value_dim % 16 == 0;
}

/// o [count][value_dim] while a split is worked on with keys in the lanes <-> o [value_dim][panel] as it is
/// folded; `spare` has panel * value_rows floats.
void turn(const OnlineRun& run, const Panel& panel, float* spare, bool to_columns) {
  const Index width = run.problem.heads.v.dim, n = run.core.panel, rows = panel.count;
  std::copy_n(panel.o, run.value_rows() * n, spare);
  if (to_columns) std::fill_n(panel.o, run.value_rows() * n, 0.0f);
  for (Index r = 0; r < rows; ++r)
    for (Index d = 0; d < width; ++d)
      (to_columns ? panel.o[d * n + r] : panel.o[r * width + d]) =
          spare[to_columns ? r * width + d : d * n + r];
}

/// All steps of a granule at once; else its scores, weights and sums one after the other.
bool at_once(const OnlineRun& run) {
  return run.core.few.stripe && !run.scaled_first && !run.problem.heads.terms.dropout &&
         !run.problem.probe.any();
}

/// One panel against one granule with keys in the lanes; o is [count][value_dim]. A granule with values,
/// weights or sums that are not finite goes through the packed tile as in cpu/online. `to_keys`: of the next
/// granule.
void attend_few(const OnlineRun& run, const Heads& h, Scratch& s, Panel& panel, const KvHeadRows& rows,
                const TileKeys& whole, const Ahead& to_keys) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const Index value_dim = p.heads.v.dim, key0 = whole.key0;
  TileKeys t = whole;
  if (!open_tile(run, h.at, s, panel, t)) return;
  const Ahead to_values = ahead_of(rows.values, key0 + t.from, t.to - t.from, value_dim);
  if (at_once(run)) {
    const Stripe stripe{.queries = panel.queries,
                        .from = t.from,
                        .to = t.to,
                        .open = t.kind == TileKind::mixed ? s.open : nullptr,
                        .factor = panel.factor,
                        .top = panel.top,
                        .sum = panel.sum,
                        .o = panel.o,
                        .stats = nullptr,
                        .q_distance = nullptr,
                        .key0 = key0};
    if (core.few.stripe(stripe, {.count = panel.count,
                                 .keys = rows.keys,
                                 .values = rows.values,
                                 .first = key0,
                                 .dim = p.heads.q.dim,
                                 .value_dim = value_dim,
                                 .to_values = to_values,
                                 .to_keys = to_keys,
                                 .scratch = s.keys,
                                 .sums = s.rows}))
      return;
  } else {
    float *top = s.lane_f[4], *sum = s.lane_f[5];
    std::copy_n(panel.top, core.panel, top), std::copy_n(panel.sum, core.panel, sum);
    copy_probes(run, probes_of(panel), s.kept);
    core.few.scores({.queries = panel.queries,
                     .count = panel.count,
                     .keys = rows.keys,
                     .first = key0,
                     .from = t.from,
                     .to = t.to,
                     .dim = p.heads.q.dim,
                     .ahead = to_values,
                     .scratch = s.keys},
                    s.s);
    const Tile tile = make_weights(run, h.at, s, panel, t);
    if (core.few.weigh(tile, {.count = panel.count,
                              .values = rows.values,
                              .first = key0,
                              .value_dim = value_dim,
                              .shrink = s.shrink,
                              .ahead = to_keys,
                              .sums = s.rows,
                              .o = panel.o}))
      return;
    std::copy_n(top, core.panel, panel.top), std::copy_n(sum, core.panel, panel.sum);
    copy_probes(run, s.kept, probes_of(panel));
  }
  turn(run, panel, s.rows, true);
  s.tile_keys = keys_for_scores(run, rows.keys, key0, whole.to, s.keys);
  TileKeys again = whole;
  again.finite = values_for_weigh(run, rows.values, key0, whole.to, s.values);
  attend_tile(run, h.at, s, panel, rows, again);
  turn(run, panel, s.rows, false);
}

}  // namespace

void clear_scores(const OnlineRun& run, Scratch& s) {
  if (run.core.few.scores && !at_once(run)) std::fill_n(s.s, run.core.granule * run.core.panel, 0.0f);
}

namespace {

/// Keys key0 .. key0 + n as far as they lie in order.
Ahead keys_ahead(const OnlineRun& run, const Heads& h, Rows keys, Index key0, Index n) {
  const AttentionProblem& p = run.problem;
  if (n <= 0) return {};
  if (p.keys == KeyForm::paged) keys = paged_rows(run, h.at, key_pool(run, h.head0), {key0, n}, nullptr);
  return keys.data ? ahead_of(keys, key0, n, p.heads.k.dim) : Ahead{};
}

/// No panel may see a key: rows in pages need not be put together.
bool all_closed(const OnlineRun& run, const Heads& h, const Scratch& s, Index key0, Index n) {
  for (Index i = 0; i < h.panels; ++i)
    if (tile_kind(run, h.at, s.panels[i], key0, n) != TileKind::empty) return false;
  return true;
}

}  // namespace

void attend_split(const OnlineRun& run, const Heads& h, Scratch& s, Index split) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const bool paged = p.keys == KeyForm::paged;
  KvHeadRows rows{paged ? Rows{} : key_rows(run, h.at, h.head0),
                  paged ? rows_of(run.args.v, p.heads.v, h.head0, 0, 0) : value_rows_of(run, h.at, h.head0)};
  const Index end = std::min(h.at.kv_tokens, (split + 1) * kSplit);
  const bool few = core.few.scores && h.rows <= core.few.rows && columns_fit(rows.values, p.heads.v.dim);
  for (Index key0 = split * kSplit; key0 < end; key0 += core.granule) {
    const Index n = std::min<Index>(core.granule, end - key0);
    bool packed = false, finite = true;
    if (paged) {
      if (all_closed(run, h, s, key0, n)) continue;
      rows = granule_rows(run, h.at, h.head0, {key0, n}, s);
    }
    const Index key1 = key0 + core.granule;
    const Ahead next =
        few ? keys_ahead(run, h, rows.keys, key1, std::min<Index>(core.granule, end - key1)) : Ahead{};
    for (Index i = 0; i < h.panels; ++i) {
      TileKeys tile{.key0 = key0, .from = 0, .to = n, .kind = tile_kind(run, h.at, s.panels[i], key0, n)};
      if (tile.kind == TileKind::empty) continue;
      if (few) {
        attend_few(run, h, s, s.panels[i], rows, tile, next);
        continue;
      }
      if (!packed) {
        s.tile_keys = keys_for_scores(run, rows.keys, key0, n, s.keys);
        finite = values_for_weigh(run, rows.values, key0, n, s.values);
        packed = true;
      }
      tile.finite = finite;
      attend_tile(run, h.at, s, s.panels[i], rows, tile);
    }
  }
  for (Index i = 0; few && i < h.panels; ++i)
    if (s.panels[i].started) turn(run, s.panels[i], s.rows, true);
}

namespace {

/// The whole KV in one task.
void attend_all(const OnlineRun& run, Scratch& s, Index sequence, Index head0, Index row0) {
  const Heads h = heads_of(run, sequence, head0, row0);
  if (h.panels == 0) return;
  run.core.begin();
  fill_panels(run, h, s);
  clear_scores(run, s);
  for (Index split = 0; split * kSplit < h.at.kv_tokens; ++split) {
    attend_split(run, h, s, split);
    for (Index i = 0; i < h.panels; ++i)
      if (s.panels[i].started) fold(run, s, s.panels[i]);
  }
  for (Index i = 0; i < h.panels; ++i) finish_panel(run, h.at, s, s.panels[i]);
  run.core.end();
}

/// The slots of a task of one split, from slot `first` on.
Slot* lay_slots(const OnlineRun& run, const Books& books, Index first, Index count) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const Index n = core.panel, rows = run.value_rows(), floats = slot_floats(p, core),
              keys = probe_keys(p, core);
  for (Index i = first; i < first + count; ++i) {
    float* at = books.states + i * floats;
    books.slots[i] = {at, at + rows * n, at + (rows + 1) * n,
                      lay_probes(p, core, at + (rows + 2) * n, books.keys + i * keys), false};
  }
  return books.slots + first;
}
/// A panel works on the state of a slot.
void use_slot(Panel& panel, const Slot& slot) {
  panel.o = slot.o, panel.top = slot.top, panel.sum = slot.sum;
}

/// One split in a task; its state stays in the slots.
void attend_one(const OnlineRun& run, Scratch& s, Index sequence, Index head0, Index split, Slot* slots) {
  const Heads h = heads_of(run, sequence, head0);
  if (h.panels == 0 || split * kSplit >= h.at.kv_tokens) return;
  run.core.begin();
  for (Index i = 0; i < h.panels; ++i) {
    Panel& panel = s.panels[i];
    use_slot(panel, slots[i]);
    panel.stats = slots[i].probes.stats, panel.class_mass = slots[i].probes.class_mass;
  }
  fill_panels(run, h, s);
  clear_scores(run, s);
  attend_split(run, h, s, split);
  for (Index i = 0; i < h.panels; ++i) slots[i].started = s.panels[i].started;
  run.core.end();
}

/// Folds the slots of all splits in ascending order, as cpu/online meets them.
void fold_slots(const OnlineRun& run, const Cut& cut, Scratch& s, Index sequence, Index head0,
                const Slot* slots) {
  const Heads h = heads_of(run, sequence, head0);
  if (h.panels == 0) return;
  run.core.begin();
  fill_panels(run, h, s);
  for (Index i = 0; i < h.panels; ++i) {
    Panel& panel = s.panels[i];
    for (Index split = 0; split < cut.splits; ++split) {
      const Slot& slot = slots[split * cut.panels + i];
      if (!slot.started) continue;
      use_slot(panel, slot), take_probes(run, panel, slot.probes);
      fold(run, s, panel);
    }
    finish_panel(run, h.at, s, panel);
  }
  run.core.end();
}

std::string refuse(const AttentionProblem& p) {
  if (p.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.heads.mixes()) return kHeadsAreMixed;
  if (p.heads.norm == Norm::entmax) return "weights are entmax: no running maximum makes them";
  if (p.probe.top_k > 0 || p.probe.columns || p.probe.picked > 0 || p.probe.scores != ScoreStage::none)
    return "of probes this kernel gathers those of rows and classes; cpu/online gathers the others";
  if (p.heads.terms.rows) return "heads list their rows: cpu/online gathers them";
  if (p.keys == KeyForm::paged) return {};  // any number of tokens
  if (p.q_tokens > kMostDecodeQueries)
    return text("q_tokens is ", p.q_tokens, ": decode takes up to ", kMostDecodeQueries);
  const Core& core = decode_core(p, *chosen_isa().kernels());
  const Index most = core.few.scores ? core.few.rows : 0;
  if (p.kv_tokens < kFewestDecodeKeys && rows_together(p) > most)
    return text("kv_tokens is ", p.kv_tokens, " and ", rows_together(p), " query rows meet each key: below ",
                kFewestDecodeKeys, " keys cpu/online, which packs keys, is sooner done",
                most > 0 ? text(" with more than ", most, " such rows") : "");
  return {};
}

std::size_t workspace_bytes(const AttentionProblem& p, int threads) {
  const Core& core = decode_core(p, *chosen_isa().kernels());
  const Cut cut = cut_of(p, core, threads);
  Arena count = Arena::measuring();
  book_shared(p, core, cut, threads, count);
  return aligned_used(count) + static_cast<std::size_t>(threads) * worker_bytes(p, core, cut);
}

/// Threads worth waking: each brings about 6 GB/s, and waking one costs some 10 us.
int useful_threads(const AttentionProblem& p, const Cut& cut, int threads) {
  const double bytes = static_cast<double>(p.batch) * static_cast<double>(cut.runs * cut.parts) *
                       static_cast<double>(p.kv_tokens) *
                       static_cast<double>((p.heads.k.dim + p.heads.v.dim) * size_of(p.kv_dtype()));
  return static_cast<int>(std::clamp(bytes / 131072, 1.0, static_cast<double>(threads)));
}

Status run_decode(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                  ThreadPool& pool) noexcept {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = decode_core(p, kernels);
  const Cut cut = cut_of(p, core, pool.threads());
  Arena arena(workspace);
  const Books books = book_shared(p, core, cut, pool.threads(), arena);
  const OnlineRun run = run_of(p, args, kernels, core, cut.rows);
  const std::size_t first = aligned_used(arena), each = worker_bytes(p, core, cut);
  const int threads = useful_threads(p, cut, pool.threads());
  const auto rebook = [&] {
    for (int worker = 0; worker < threads; ++worker) {
      Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
      books.workers[worker] = book(p, core, cut.rows, own);
    }
  };
  rebook();
  const auto head0 = [&](Index task) { return task % cut.runs * cut.run_heads; };
  if (!cut.apart) {
    const Index all = p.batch * cut.runs * cut.parts,
                together = std::max<Index>(1, all / (Index{8} * threads));
    const auto body = [&](Index task, int worker) {  // neighbours lie one after another in memory
      for (Index i = task * together; i < std::min(all, (task + 1) * together); ++i)
        attend_all(run, books.workers[worker], i / cut.parts / cut.runs, head0(i / cut.parts),
                   (cut.parts - 1 - i % cut.parts) * cut.rows);  // the last rows see most
    };
    pool.parallel_for(ceil_div(all, together), body, threads);
    return Status::ok;
  }
  const auto one = [&](Index task, int worker) {
    const Index heads = task / cut.splits;
    attend_one(run, books.workers[worker], heads / cut.runs, head0(heads), task % cut.splits,
               lay_slots(run, books, task * cut.panels, cut.panels));
  };
  pool.parallel_for(p.batch * cut.runs * cut.splits, one, threads);
  rebook();  // panels point into slots now
  const auto merge = [&](Index task, int worker) {
    fold_slots(run, cut, books.workers[worker], task / cut.runs, head0(task),
               books.slots + task * cut.splits * cut.panels);
  };
  pool.parallel_for(p.batch * cut.runs, merge, threads);
  return Status::ok;
}

}  // namespace

/// The class is cpu/online's: it names the bits, not the way to them.
const AttentionKernel kDecode{"cpu/decode", kWritten,
                              refuse,       workspace_bytes,
                              run_decode,   [](const AttentionProblem& p) { return kOnline.numerics(p); }};

}  // namespace headwise::cpu::forward
