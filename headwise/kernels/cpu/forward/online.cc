#include "headwise/kernels/cpu/forward/online.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/base/caller_watch.h"
#include "headwise/kernels/cpu/forward/panel.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::forward {
namespace {

/// Pairs that weigh nothing by a logit of -inf or by dropout are closed for values that are not finite, too.
void close_lost_pairs(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& s,
                      const TileKeys& t) {
  const bool drops = run.problem.heads.terms.dropout;
  const Index id = sequence_id(run.args, at.sequence);
  for (Index k = t.from; k < t.to; ++k) {
    if (t.kind == TileKind::full) s.open[k] = ~std::uint64_t{0};
    for (int lane = 0; lane < panel.count; ++lane)
      if (s.s[k * run.core.panel + lane] == -INFINITY ||
          (drops && !run.dropout.keep(id, panel.head[lane], panel.position[lane], t.key0 + k)))
        s.open[k] &= ~(std::uint64_t{1} << lane);
  }
}

/// Values that are not finite were packed as 0, since 0 * NaN would reach rows that may not see them. So were
/// those the core cannot multiply. The rows that may see them get their products here, one by one.
void add_unusual_values(const OnlineRun& run, const Panel& panel, const Scratch& s, const Rows& values,
                        const TileKeys& t) {
  const Index panel_size = run.core.panel;
  for (Index k = t.from; k < t.to; ++k)
    for (Index d = values.begin; d < values.end; ++d) {
      const Index at = (t.key0 + k) * values.row_step + d * values.column_step;
      auto v = static_cast<float>(load_double(values.data, run.args.v.dtype, at));
      const float size = std::fabs(v);
      if (size == 0 || (size >= run.core.value_low && size < run.core.value_high)) continue;
      for (int lane = 0; lane < panel.count; ++lane) {
        float& o = panel.o[d * panel_size + lane];
        if (s.open[k] >> lane & 1u) o = std::fma(v, s.s[k * panel_size + lane], o);
      }
    }
}

void start_split(const OnlineRun& run, Panel& panel) {
  const Index n = run.core.panel;
  std::fill_n(panel.top, n, -INFINITY);
  std::fill_n(panel.sum, n, 0.0f);
  std::fill_n(panel.o, run.value_rows() * n, 0.0f);
  if (run.problem.probe.rows)
    for (float* f : {panel.stats.weighted_score, panel.stats.square, panel.stats.distance})
      std::fill_n(f, n, 0.0f);
  std::fill_n(panel.class_mass, n * run.problem.probe.classes, 0.0f);
  panel.started = true;
}

void set_distances(const OnlineRun& run, const Panel& panel, Index key0) {
  for (int i = 0; i < run.core.panel; ++i) panel.q_distance[i] = static_cast<float>(panel.position[i] - key0);
}

}  // namespace

bool open_tile(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel, TileKeys& t) {
  if (t.kind == TileKind::mixed) {
    open_bits(run, at, panel, s, t);
    if (t.from == t.to) return false;
  }
  if (!panel.started) start_split(run, panel);
  if (run.problem.heads.terms.alibi || run.problem.probe.rows) set_distances(run, panel, t.key0);
  return true;
}

Tile make_weights(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                  const TileKeys& t) {
  const Core& core = run.core;
  const ProbeSpec& probe = run.problem.probe;
  const Index from = t.from, to = t.to;
  if (run.scaled_first) apply_terms(run, at, panel, s, t);
  if (t.kind == TileKind::mixed) core.passes.select(s.s, from, to, s.open);
  if (!t.finite) close_lost_pairs(run, at, panel, s, t);
  if (probe.top_k > 0) push_best(run, panel, s.s, t);

  std::fill_n(s.tile_top, core.panel, -INFINITY);
  core.passes.row_max(s.s, from, to, s.tile_top);
  if (probe.rows || probe.classes > 0) std::copy_n(panel.top, core.panel, s.lane_f[0]);
  core.passes.advance(panel.top, s.tile_top, panel.factor, s.used, s.shrink);
  if (probe.rows || probe.classes > 0) {
    float* delta = s.lane_f[1];
    for (int i = 0; i < core.panel; ++i)
      delta[i] = panel.sum[i] > 0 ? (s.lane_f[0][i] - s.used[i]) * panel.factor[i] : 0;
    rebase_stats(run, panel.stats, panel.sum, delta, s.shrink, panel.class_mass);
  }
  const Tile tile{s.s, s.weights, from, to, s.used, panel.factor, s.tile_sum, panel.count};
  const bool looked_at = run.problem.heads.terms.dropout || probe.classes > 0 || !t.finite;
  if (probe.rows)
    core.passes.weights_stats(tile, panel.stats, panel.q_distance, t.key0);
  else if (looked_at)
    core.passes.weights_plain(tile);
  else
    core.passes.weights(tile);
  core.passes.add_sum(panel.sum, s.shrink, s.tile_sum);
  if (probe.classes > 0) push_classes(run, at, panel, s.s, t);
  if (run.problem.heads.terms.dropout) {
    core.passes.dropout(s.s, from, to, dropout_of(run, at, panel, t.key0));
    core.products.operand(tile);
  }
  return tile;
}

void attend_tile(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                 const KvHeadRows& rows, TileKeys t) {
  if (!open_tile(run, at, s, panel, t)) return;
  tile_scores(run, panel, s.tile_keys, rows.keys, t, s.s);
  const Tile tile = make_weights(run, at, s, panel, t);
  if (rows.values.scale)
    run.core.passes.scale_rows(s.s, t.from, t.to, scales_from(rows.values, t.key0),
                               t.finite ? nullptr : s.open);
  run.core.products.weigh(tile, s.values, run.problem.heads.v.dim, s.shrink, panel.o);
  if (!t.finite) add_unusual_values(run, panel, s, rows.values, t);
}

namespace {

/// The same as a stripe for the core to do beside others; false: no key is open.
bool lay_stripe(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                const KvHeadRows& rows, TileKeys t, Stripe& stripe) {
  if (t.kind == TileKind::mixed) {
    open_bits(run, at, panel, s, t);
    if (t.from == t.to) return false;
  }
  if (!panel.started) start_split(run, panel);
  const bool looked_at = run.problem.probe.rows;
  if (looked_at) set_distances(run, panel, t.key0);
  stripe = {.queries = panel.queries,
            .from = t.from,
            .to = t.to,
            .open = t.kind == TileKind::mixed ? s.open : nullptr,
            .factor = panel.factor,
            .top = panel.top,
            .sum = panel.sum,
            .o = panel.o,
            .stats = looked_at ? &panel.stats : nullptr,
            .q_distance = panel.q_distance,
            .key0 = t.key0,
            .key_scales = scales_from(rows.keys, t.key0),
            .value_scales = scales_from(rows.values, t.key0)};
  return true;
}

/// What is touched after the granule that ends at key `first`: the next keys and values. At last it is where
/// the rows of the task go (of its first head; a single granule leaves too little time).
Next after_granule(const OnlineRun& run, const SequenceLocation& at, const KvHeadRows& rows, Index first,
                   const RowBlock& task) {
  const Index value_dim = run.problem.heads.v.dim;
  if (first < at.kv_tokens) {
    if (run.problem.keys == KeyForm::paged) return {};
    const Index count = std::min<Index>(run.core.granule, at.kv_tokens - first);
    return {ahead_of(rows.keys, first, count, run.problem.heads.k.dim),
            ahead_of(rows.values, first, count, value_dim)};
  }
  if (first <= run.core.granule || run.problem.heads.terms.rows) return {};
  const Index token = task.first % at.q_tokens, head = task.head0 + task.first / at.q_tokens;
  const Rows out = rows_of(run.args.out, HeadLayout::split(run.problem.heads.q.heads, value_dim), head,
                           at.tensor_batch, at.q_row);
  return {ahead_of(out, token, std::min(task.end - task.first, at.q_tokens - token), value_dim), {}};
}

}  // namespace

void attend_rows(const OnlineRun& run, Scratch& s, Index sequence, Index head0, Index block) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const Index rows = rows_of_run(run, at, head0);
  const Index row0 = block * run.task_rows, row1 = std::min(rows, row0 + run.task_rows);
  if (row0 >= row1) return;
  const Index panels = ceil_div(row1 - row0, core.panel);
  core.begin();
  for (Index i = 0; i < panels; ++i)
    fill_panel(run, at, {head0, row0 + i * core.panel, row1}, s, s.panels[i]);
  const bool paged = p.keys == KeyForm::paged;
  KvHeadRows kv{key_rows(run, at, head0), paged ? Rows{} : value_rows_of(run, at, head0)};
  const bool only_mask = core.products.stripes != nullptr && !run.scaled_first && !p.heads.terms.dropout &&
                         p.probe.top_k == 0 && p.probe.classes == 0;
  for (Index key0 = 0; key0 < at.kv_tokens && still_wanted(); key0 += core.granule) {
    if (key0 > 0 && key0 % kSplit == 0)
      for (Index i = 0; i < panels; ++i)
        if (s.panels[i].started) fold(run, s, s.panels[i]);
    const Index n = std::min<Index>(core.granule, at.kv_tokens - key0);
    bool packed = false, finite = true;
    Index stripes = 0;
    for (Index i = 0; i < panels; ++i) {
      s.open = s.opens + i * core.granule;
      const TileKind kind = tile_kind(run, at, s.panels[i], key0, n);
      if (kind == TileKind::empty) continue;
      if (run.visits) run.visits->fetch_add(1, std::memory_order_relaxed);
      if (!packed) {
        if (paged) kv = granule_rows(run, at, head0, {key0, n}, s);
        s.tile_keys = keys_for_scores(run, kv.keys, key0, n, s.keys);
        finite = values_for_weigh(run, kv.values, key0, n, s.values);
        packed = true;
      }
      const TileKeys tile{.key0 = key0, .from = 0, .to = n, .kind = kind, .finite = finite};
      if (!only_mask || !finite)
        attend_tile(run, at, s, s.panels[i], kv, tile);
      else if (lay_stripe(run, at, s, s.panels[i], kv, tile, s.stripes[stripes]))
        ++stripes;
    }
    if (stripes > 0)
      core.products.stripes({.list = s.stripes,
                             .count = stripes,
                             .keys = s.tile_keys,
                             .values = s.values,
                             .dim = p.heads.q.dim,
                             .value_dim = p.heads.v.dim,
                             .next = after_granule(run, at, kv, key0 + n, {head0, row0, row1}),
                             .s = s.s,
                             .p = s.weights});
  }
  for (Index i = 0; i < panels; ++i) finish_panel(run, at, s, s.panels[i]);
  core.end();
}

namespace {

std::string refuse(const AttentionProblem& p) {
  if (p.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.heads.mixes()) return kHeadsAreMixed;
  if (p.heads.norm == Norm::entmax) return "weights are entmax: no running maximum makes them";
  if (p.probe.scores != ScoreStage::none)
    return "the scores probe needs the whole matrix, which is never formed here";
  if (p.heads.terms.rows && p.probe.any()) return "probes look at all rows, and heads list theirs";
  return {};
}

bool second_pass(const AttentionProblem& p) { return p.probe.columns || p.probe.picked > 0; }

/// The workspace: tops and weights of rows when a second look needs them, the workers' books, then a scratch
/// each.
float* book_tops(const AttentionProblem& p, Arena& arena) {
  const Index q = p.ragged ? p.q_total : p.batch * p.q_tokens;
  return arena.take<float>("attention.tops", second_pass(p) ? 2 * q * p.heads.q.heads : 0);
}
std::size_t worker_bytes(const AttentionProblem& p, const TileKernels& kernels, int threads) {
  const Core &core = core_for(p, kernels), &again = columns_core(p, kernels);
  const Index rows = task_rows_for(p, core, threads);
  Arena count = Arena::measuring(), second = Arena::measuring();
  book(p, core, rows, count), book(p, again, rows, second);
  return static_cast<std::size_t>(
      round_up(static_cast<Index>(std::max(count.used(), second.used())), Index{Arena::kAlign}));
}

std::size_t workspace_bytes(const AttentionProblem& p, int threads) {
  Arena count = Arena::measuring();
  book_tops(p, count);
  count.take<Scratch>("attention.workers", threads);
  const auto shared =
      static_cast<std::size_t>(round_up(static_cast<Index>(count.used()), Index{Arena::kAlign}));
  return shared + static_cast<std::size_t>(threads) * worker_bytes(p, *chosen_isa().kernels(), threads);
}

}  // namespace

OnlineRun run_of(const AttentionProblem& p, const AttentionArgs& args, const TileKernels& kernels,
                 const Core& core, Index task_rows) {
  const Terms& terms = p.heads.terms;
  OnlineRun run{p,
                args,
                kernels,
                core,
                std::gcd(p.heads.k.group, p.heads.v.group),
                task_rows,
                terms.softcap || terms.bias || terms.alibi || terms.relative,
                DropoutRule::of(args.inputs.dropout, args.inputs.seed),
                nullptr,
                nullptr,
                p.keys == KeyForm::packed && core.key_group > 0};
  run.scaled_first = run.scaled_first || !scale_is_ordinary(run);
  return run;
}

namespace {

Status run_with(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                ThreadPool& pool, std::atomic<Index>* visits) noexcept {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = core_for(p, kernels);
  Arena arena(workspace);
  float* tops = book_tops(p, arena);
  auto* scratch = arena.take<Scratch>("attention.workers", pool.threads());
  OnlineRun run = run_of(p, args, kernels, core, task_rows_for(p, core, pool.threads()));
  run.tops = second_pass(p) ? tops : nullptr;
  run.visits = visits;
  const auto first =
      static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
  const std::size_t each = worker_bytes(p, kernels, pool.threads());

  const Index runs = ceil_div(p.heads.q.heads, run.run_heads), sequences = p.batch;
  const Index blocks = ceil_div(run.run_heads * p.q_tokens, run.task_rows);
  // Under about 2 MFLOP waking a second thread costs more than it brings.
  const double flop = 2.0 * static_cast<double>(p.heads.q.dim + p.heads.v.dim) *
                      static_cast<double>(p.heads.q.heads) * static_cast<double>(p.batch) *
                      static_cast<double>(p.q_tokens) * static_cast<double>(p.kv_tokens);
  const int threads = static_cast<int>(std::clamp(flop / 1e6, 1.0, static_cast<double>(pool.threads())));
  for (int worker = 0; worker < threads;
       ++worker) {  // once a run: for short sequences a tenth of a task's time
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    scratch[worker] = book(p, core, run.task_rows, own);
  }
  const auto body = [&](Index task, int worker) {
    const Index at = task % (sequences * runs);
    attend_rows(run, scratch[worker], at / runs, at % runs * run.run_heads,
                blocks - 1 - task / (sequences * runs));
  };
  pool.parallel_for(sequences * runs * blocks, body, threads);
  const Index heads = p.heads.q.heads;
  const auto rest = [&](Index task, int) { write_unlisted(run, task / heads, task % heads); };
  if (p.heads.terms.rows) pool.parallel_for(sequences * heads, rest, threads);
  if (second_pass(p)) second_look(run, workspace.subspan(first), static_cast<Index>(each), pool);
  return Status::ok;
}

Status run_online(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                  ThreadPool& pool) noexcept {
  return run_with(p, args, workspace, pool, nullptr);
}

std::string numerics(const AttentionProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = core_for(p, kernels);
  return text("cpu/online ", kernels.isa, ' ', core.name, " head_dim ", p.heads.q.dim, " value_dim ",
              p.heads.v.dim, " granule ", core.granule, " split ", kSplit, kv_words(p));
}

}  // namespace

const AttentionKernel kOnline{"cpu/online", kWritten, refuse, workspace_bytes, run_online, numerics};

Status run_counting(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                    ThreadPool& pool, std::atomic<Index>& visits) noexcept {
  return run_with(p, args, workspace, pool, &visits);
}
Index panel_of(const AttentionProblem& p) { return core_for(p, *chosen_isa().kernels()).panel; }
Index granule_of(const AttentionProblem& p) { return core_for(p, *chosen_isa().kernels()).granule; }

}  // namespace headwise::cpu::forward
