#include "headwise/kernels/cpu/forward/online.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "headwise/kernels/cpu/forward/panel.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu {
namespace {

/// Pairs that weigh nothing by a logit of -inf or by dropout are closed for values that are not finite, too.
void close_lost_pairs(const Run& run, const Panel& panel, Scratch& s, TileKind kind, Index id, Index key0,
                      Index from, Index to) {
  const bool drops = run.problem.heads.terms.dropout;
  for (Index k = from; k < to; ++k) {
    if (kind == TileKind::full) s.open[k] = ~std::uint64_t{0};
    for (int lane = 0; lane < panel.count; ++lane)
      if (s.s[k * run.core.panel + lane] == -INFINITY ||
          (drops && !run.dropout.keep(id, panel.head[lane], panel.position[lane], key0 + k)))
        s.open[k] &= ~(std::uint64_t{1} << lane);
  }
}

/// Values that are not finite were packed as 0, since 0 * NaN would reach rows that may not see them, and so
/// were those the core cannot multiply; the rows that may see them get their products here, one by one.
void add_unusual_values(const Run& run, const Panel& panel, const Scratch& s, const Rows& values, Index key0,
                        Index from, Index to) {
  const Index panel_size = run.core.panel;
  for (Index k = from; k < to; ++k)
    for (Index d = values.begin; d < values.end; ++d) {
      const Index at = (key0 + k) * values.row_step + d * values.column_step;
      auto v = static_cast<float>(load_double(values.data, run.args.v.dtype, at));
      const float size = std::fabs(v);
      if (size == 0 || (size >= run.core.value_low && size < run.core.value_high)) continue;
      for (int lane = 0; lane < panel.count; ++lane) {
        float& o = panel.o[d * panel_size + lane];
        if (s.open[k] >> lane & 1u) o = std::fma(v, s.s[k * panel_size + lane], o);
      }
    }
}

/// The state of the split and the total change places.
void exchange(const Run& run, Panel& panel) {
  std::swap(panel.o, panel.total_o);
  if (run.problem.probe.rows) {
    std::swap(panel.stats.weighted_score, panel.total_stats.weighted_score);
    std::swap(panel.stats.square, panel.total_stats.square);
    std::swap(panel.stats.distance, panel.total_stats.distance);
  }
  std::swap(panel.class_mass, panel.total_class_mass);
}

}  // namespace

void fold(const Run& run, Scratch& s, Panel& panel) {
  const Core& core = run.core;
  const Index n = core.panel;
  panel.started = false;
  if (!panel.folded) {  // merging into an empty total multiplies by exactly 1 and adds exactly 0
    std::copy_n(panel.top, n, panel.total_top);
    std::copy_n(panel.sum, n, panel.total_sum);
    exchange(run, panel);
    panel.folded = true;
    return;
  }
  float *old_top = s.lane_f[0], *joined_top = s.lane_f[1], *used = s.lane_f[2];
  std::copy_n(panel.total_top, n, old_top);
  std::copy_n(panel.top, n, joined_top);
  core.passes.advance(panel.total_top, panel.top, panel.factor, used, s.a);  // a: what the total shrinks by
  core.passes.advance(joined_top, old_top, panel.factor, used, s.b);         // b: what the split shrinks by
  if (run.problem.probe.rows || run.problem.probe.classes) {
    float *delta_a = s.lane_f[3], *delta_b = s.lane_f[4];
    for (Index i = 0; i < n; ++i) {
      delta_a[i] = panel.total_sum[i] > 0 ? (old_top[i] - used[i]) * panel.factor[i] : 0;
      delta_b[i] = panel.sum[i] > 0 ? (panel.top[i] - used[i]) * panel.factor[i] : 0;
    }
    rebase_stats(run, panel.total_stats, panel.total_sum, delta_a, s.a, panel.total_class_mass);
    rebase_stats(run, panel.stats, panel.sum, delta_b, s.b, panel.class_mass);
    if (run.problem.probe.rows)
      for (Index i = 0; i < n; ++i) {
        panel.total_stats.weighted_score[i] += panel.stats.weighted_score[i];
        panel.total_stats.square[i] += panel.stats.square[i];
        panel.total_stats.distance[i] += panel.stats.distance[i];
      }
    for (Index i = 0; i < n * run.problem.probe.classes; ++i)
      panel.total_class_mass[i] += panel.class_mass[i];
  }
  core.passes.join(panel.total_o, panel.o, run.problem.heads.v.dim, s.a, s.b);
  core.passes.join(panel.total_sum, panel.sum, 1, s.a, s.b);
}

namespace {

void start_split(const Run& run, Panel& panel) {
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

void set_distances(const Run& run, const Panel& panel, Index key0) {
  for (int i = 0; i < run.core.panel; ++i) panel.q_distance[i] = static_cast<float>(panel.position[i] - key0);
}

}  // namespace

bool open_tile(const Run& run, const SequencePlace& at, Index sequence, Scratch& s, Panel& panel,
               TileKind kind, Index key0, Index& from, Index& to) {
  if (kind == TileKind::mixed) {
    open_bits(run, at, sequence, panel, s, key0, from, to);
    if (from == to) return false;
  }
  if (!panel.started) start_split(run, panel);
  if (run.problem.heads.terms.alibi || run.problem.probe.rows) set_distances(run, panel, key0);
  return true;
}

Tile make_weights(const Run& run, const SequencePlace& at, Index sequence, Scratch& s, Panel& panel,
                  TileKind kind, bool finite, Index key0, Index from, Index to) {
  const Core& core = run.core;
  const ProbeSpec& probe = run.problem.probe;
  if (run.scaled_first) apply_terms(run, sequence, panel, s, key0, from, to);
  if (kind == TileKind::mixed) core.passes.select(s.s, from, to, s.open);
  const Index id = sequence_id(run.args, sequence);
  if (!finite) close_lost_pairs(run, panel, s, kind, id, key0, from, to);
  if (probe.top_k > 0) push_best(run, panel, s.s, key0, from, to);

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
  const bool looked_at = run.problem.heads.terms.dropout || probe.classes > 0 || !finite;
  if (probe.rows)
    core.passes.weights_stats(tile, panel.stats, panel.q_distance, key0);
  else if (looked_at)
    core.passes.weights_plain(tile);
  else
    core.passes.weights(tile);
  core.passes.add_sum(panel.sum, s.shrink, s.tile_sum);
  if (probe.classes > 0) push_classes(run, at, panel, s.s, key0, from, to);
  if (run.problem.heads.terms.dropout) {
    core.passes.dropout(s.s, from, to, panel.head32, panel.position32, key0, static_cast<std::uint32_t>(id),
                        run.dropout.seed, run.dropout.threshold,
                        static_cast<float>(1.0 / (1.0 - run.args.inputs.dropout)));
    core.products.operand(tile);
  }
  return tile;
}

void attend_tile(const Run& run, const SequencePlace& at, Index sequence, Scratch& s, Panel& panel,
                 TileKind kind, const Rows& keys, const Rows& values, bool finite, Index key0, Index n) {
  Index from = 0, to = n;
  if (!open_tile(run, at, sequence, s, panel, kind, key0, from, to)) return;
  tile_scores(run, panel, s.tile_keys, keys, key0, from, to, s.s);
  const Tile tile = make_weights(run, at, sequence, s, panel, kind, finite, key0, from, to);
  if (values.scale)
    run.core.passes.scale_rows(s.s, from, to, scales_from(values, key0), finite ? nullptr : s.open);
  run.core.products.weigh(tile, s.values, run.problem.heads.v.dim, s.shrink, panel.o);
  if (!finite) add_unusual_values(run, panel, s, values, key0, from, to);
}

namespace {

/// The same as a stripe for the core to do beside others; 0 when no key is open.
Index lay_stripe(const Run& run, const SequencePlace& at, Index sequence, Scratch& s, Panel& panel,
                 TileKind kind, const Rows& keys, const Rows& values, Index key0, Index n, Stripe& stripe) {
  Index from = 0, to = n;
  if (kind == TileKind::mixed) {
    open_bits(run, at, sequence, panel, s, key0, from, to);
    if (from == to) return 0;
  }
  if (!panel.started) start_split(run, panel);
  const bool rows = run.problem.probe.rows;
  if (rows) set_distances(run, panel, key0);
  stripe = {panel.queries,
            from,
            to,
            kind == TileKind::mixed ? s.open : nullptr,
            panel.factor,
            panel.top,
            panel.sum,
            panel.o,
            rows ? &panel.stats : nullptr,
            panel.q_distance,
            key0,
            scales_from(keys, key0),
            scales_from(values, key0)};
  return 1;
}

/// What is touched after the granule at hand: the next keys and values, or at last where the rows of the task
/// go (of its first head; a single granule leaves too little time).
Next after_granule(const Run& run, const SequencePlace& at, const Rows& keys, const Rows& values, Index first,
                   Index head0, Index row0, Index row1) {
  const Index value_dim = run.problem.heads.v.dim;
  if (first < at.kv_tokens) {
    const Index count = std::min<Index>(run.core.granule, at.kv_tokens - first);
    return {ahead_of(keys, first, count, run.problem.heads.k.dim), ahead_of(values, first, count, value_dim)};
  }
  if (first <= run.core.granule || run.problem.heads.terms.rows) return {};
  const Index token = row0 % at.q_tokens, head = head0 + row0 / at.q_tokens;
  const Rows out = rows_of(run.args.out, HeadLayout::split(run.problem.heads.q.heads, value_dim), head,
                           at.tensor_batch, at.q_row);
  return {ahead_of(out, token, std::min(row1 - row0, at.q_tokens - token), value_dim), {}};
}

/// Divides and gates the panel's outputs and writes them where the caller wants them.
void write_rows(const Run& run, const SequencePlace& at, const Scratch& s, const Panel& panel,
                const float* total, const float* gate) {
  const Core& core = run.core;
  const Index value_dim = run.problem.heads.v.dim, step = run.value_rows();
  const AnyView& out = run.args.out;
  const auto row_at = [&](int lane) {
    const Index row = at.q_row + panel.token[lane];
    return static_cast<std::byte*>(out.data) +
           (at.tensor_batch * out.step[0] + row * out.step[1] + panel.head[lane] * out.step[2]) *
               size_of(out.dtype);
  };
  const bool one_head = panel.count == core.panel && panel.head[0] == panel.head[panel.count - 1] &&
                        panel.token[panel.count - 1] - panel.token[0] == panel.count - 1;
  if (panel.folded && one_head && out.dtype == DType::f32 && out.step[3] == 1)
    return core.passes.finish(panel.total_o, value_dim, total, gate, reinterpret_cast<float*>(row_at(0)),
                              out.step[1]);
  if (panel.folded)
    core.passes.finish(panel.total_o, value_dim, total, gate, s.rows, step);
  else
    std::fill_n(s.rows, core.panel * step, 0.0f);
  for (int i = 0; i < panel.count; ++i)
    run.kernels.store_row(s.rows + i * step, value_dim, row_type(out.dtype), row_at(i), out.step[3]);
}

}  // namespace

void finish_panel(const Run& run, const SequencePlace& at, Scratch& s, Panel& panel) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const HeadInputs& in = run.args.inputs;
  if (panel.started) fold(run, s, panel);
  const bool empty = !panel.folded;
  float *total = s.a, *gate = s.b, *sink_mass = s.lane_f[0], *lse = s.lane_f[1], *shrink = s.lane_f[2],
        *weight = s.lane_f[3];
  const bool wants_lse = run.args.lse.given() || p.heads.terms.sinks;
  const bool looked_at = run.tops != nullptr || p.probe.any();
  for (int i = 0; i < core.panel; ++i) {
    // A row whose open logits are all NaN has no top, but its sum is NaN: it is not empty.
    const bool open = panel.total_top[i] != -INFINITY || std::isnan(panel.total_sum[i]);
    total[i] = open ? panel.total_sum[i] : 1.0f;
    weight[i] = looked_at && open ? 1.0f / total[i] : 0.0f;
    sink_mass[i] = 0;
    gate[i] = 1;
    if (!wants_lse) continue;
    const double top = run.scaled_first
                           ? static_cast<double>(panel.total_top[i])
                           : static_cast<double>(panel.total_top[i]) * static_cast<double>(panel.scale[i]);
    lse[i] = open ? static_cast<float>(top + std::log(static_cast<double>(total[i]))) : -INFINITY;
    if (p.heads.terms.sinks) {
      const double sink = load_double(in.sinks.data, in.sinks.dtype, panel.head[i] * in.sinks.step[0]);
      shrink[i] = 1.0f;
      if (!open && sink == -INFINITY) continue;
      const double most = open ? (top > sink ? top : sink) : sink;
      const double down = open ? std::exp(top - most) : 0.0, own = std::exp(sink - most);
      const double sum = (open ? static_cast<double>(panel.total_sum[i]) * down : 0.0) + own;
      shrink[i] = static_cast<float>(down);
      total[i] = static_cast<float>(sum);
      sink_mass[i] = static_cast<float>(own / sum);
      lse[i] = static_cast<float>(most + std::log(sum));
      weight[i] = open ? static_cast<float>(down / sum) : 0.0f;
    }
  }
  if (p.heads.terms.gate)
    for (int i = 0; i < panel.count; ++i)
      if (panel.total_top[i] != -INFINITY ||
          std::isnan(panel.total_sum[i]))  // an empty row is +0 whatever its gate
        gate[i] = static_cast<float>(load_double(in.gate.data, in.gate.dtype,
                                                 at.tensor_batch * in.gate.step[0] +
                                                     (at.q_row + panel.token[i]) * in.gate.step[1] +
                                                     panel.head[i] * in.gate.step[2]));
  if (!empty && p.heads.terms.sinks) core.passes.shrink(panel.total_o, p.heads.v.dim, shrink);
  write_rows(run, at, s, panel, total, gate);
  if (run.args.lse.given() || run.tops)
    for (int i = 0; i < panel.count; ++i) {
      const Index b = at.tensor_batch, head = panel.head[i], row = at.q_row + panel.token[i];
      const AnyView& l = run.args.lse;
      if (l.given()) static_cast<float*>(l.data)[b * l.step[0] + head * l.step[1] + row * l.step[2]] = lse[i];
      if (!run.tops) continue;
      const Index rows = p.ragged ? p.q_total : p.q_tokens;
      float* to = run.tops + 2 * ((b * p.heads.q.heads + head) * rows + row);
      to[0] = panel.total_top[i] == -INFINITY ? 0.0f : panel.total_top[i], to[1] = weight[i];
    }
  if (p.probe.rows || p.probe.top_k > 0 || p.probe.classes > 0)
    write_probes(run, at, panel, sink_mass, weight);
  if (panel.folded) exchange(run, panel);  // the next task finds the panel as it was booked
}

void write_unlisted(const Run& run, Index sequence, Index head) {
  const SequencePlace at = place_of(run.problem, run.args, sequence);
  const AnyView &out = run.args.out, &lse = run.args.lse;
  const Index dim = run.problem.heads.v.dim, unit = size_of(out.dtype);
  each_unlisted(run, at, head, [&](Index first, Index end) {
    for (Index row = at.q_row + first; row < at.q_row + end; ++row) {
      auto* to = static_cast<std::byte*>(out.data) +
                 (at.tensor_batch * out.step[0] + row * out.step[1] + head * out.step[2]) * unit;
      if (out.step[3] == 1)
        std::memset(to, 0, static_cast<std::size_t>(dim * unit));
      else
        for (Index c = 0; c < dim; ++c) store_double(to, out.dtype, c * out.step[3], 0);
      if (lse.given())
        static_cast<float*>(
            lse.data)[at.tensor_batch * lse.step[0] + head * lse.step[1] + row * lse.step[2]] = -INFINITY;
    }
  });
}

void attend_rows(const Run& run, Scratch& s, Index sequence, Index head0, Index block) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const SequencePlace at = place_of(p, run.args, sequence);
  const Index rows = rows_of_run(run, at, head0);
  const Index row0 = block * run.task_rows, row1 = std::min(rows, row0 + run.task_rows);
  if (row0 >= row1) return;
  const Index panels = ceil_div(row1 - row0, core.panel);
  core.begin();
  for (Index i = 0; i < panels; ++i) fill_panel(run, at, head0, row0 + i * core.panel, row1, s, s.panels[i]);
  const Rows keys = key_rows(run, at, head0), values = value_rows_of(run, at, head0);
  const bool only_mask = core.products.stripes != nullptr && !run.scaled_first && !p.heads.terms.dropout &&
                         p.probe.top_k == 0 && p.probe.classes == 0;
  for (Index key0 = 0; key0 < at.kv_tokens; key0 += core.granule) {
    if (key0 > 0 && key0 % kSplit == 0)
      for (Index i = 0; i < panels; ++i)
        if (s.panels[i].started) fold(run, s, s.panels[i]);
    const Index n = std::min<Index>(core.granule, at.kv_tokens - key0);
    bool packed = false, finite = true;
    Index stripes = 0;
    for (Index i = 0; i < panels; ++i) {
      s.open = s.opens + i * core.granule;
      const TileKind kind = tile_kind(run, at, sequence, s.panels[i], key0, n);
      if (kind == TileKind::empty) continue;
      if (run.visits) run.visits->fetch_add(1, std::memory_order_relaxed);
      if (!packed) {
        s.tile_keys = keys_for_scores(run, keys, key0, n, s.keys);
        finite = values_for_weigh(run, values, key0, n, s.values);
        packed = true;
      }
      if (only_mask && finite)
        stripes +=
            lay_stripe(run, at, sequence, s, s.panels[i], kind, keys, values, key0, n, s.stripes[stripes]);
      else
        attend_tile(run, at, sequence, s, s.panels[i], kind, keys, values, finite, key0, n);
    }
    if (stripes > 0)
      core.products.stripes(s.stripes, stripes, s.tile_keys, s.values, p.heads.q.dim, p.heads.v.dim,
                            after_granule(run, at, keys, values, key0 + n, head0, row0, row1), s.s,
                            s.weights);
  }
  for (Index i = 0; i < panels; ++i) finish_panel(run, at, s, s.panels[i]);
  core.end();
}

namespace {

std::string refuse(const AttentionProblem& p) {
  if (p.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.heads.mixes()) return kHeadsAreMixed;
  if (p.keys == KeyForm::paged) return kKeysInPages;
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

Run run_of(const AttentionProblem& p, const AttentionArgs& args, const TileKernels& kernels, const Core& core,
           Index task_rows) {
  const Terms& terms = p.heads.terms;
  Run run{p,
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
  Run run = run_of(p, args, kernels, core, task_rows_for(p, core, pool.threads()));
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

const AttentionKernel kOnline{"cpu/online", refuse, workspace_bytes, run_online, numerics};

Status run_counting(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                    ThreadPool& pool, std::atomic<Index>& visits) noexcept {
  return run_with(p, args, workspace, pool, &visits);
}
Index panel_of(const AttentionProblem& p) { return core_for(p, *chosen_isa().kernels()).panel; }
Index granule_of(const AttentionProblem& p) { return core_for(p, *chosen_isa().kernels()).granule; }

}  // namespace headwise::cpu
