#include "headwise/kernels/cpu/mixed_gradients.h"

#include <algorithm>
#include <cmath>

namespace headwise::cpu {
namespace {

const MixStage& stage_of(const GradientRun& run, int which) {
  return which == 0 ? run.mixed.before : run.mixed.after;
}
Index coefficient_floats(const GradientRun& run, int which) {
  const MixStage& m = stage_of(run, which);
  return m.kind == Mix::dynamic ? run.mixed.coefficient_rows() * m.from : 0;
}
Index matrix_count(const GradientRun& run, int which) {
  const MixStage& m = stage_of(run, which);
  const bool asked = which == 0 ? run.problem.wants.mix_before : run.problem.wants.mix_after;
  return asked ? m.from * m.to : 0;
}
Index line_of(const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; }
float* later(float* base, Index n) { return base ? base + n : nullptr; }

}  // namespace

std::size_t whole_pieces(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}

Index GradientRun::panel_count() const {
  const AttentionProblem& p = problem.forward;
  const Index n = mixed.core().panel;
  return p.ragged ? p.q_total / n + p.batch + 1 : p.batch * ceil_div(p.q_tokens, n);
}
Index GradientRun::panel_at(const SequencePlace& at, Index sequence, Index q) const {
  const AttentionProblem& p = problem.forward;
  const Index n = mixed.core().panel;
  return (p.ragged ? at.q_row / n + sequence : sequence * ceil_div(p.q_tokens, n)) + q;
}

GradientRun gradient_run_of(const BackwardProblem& p, const BackwardArgs& args, const TileKernels& kernels) {
  return {p,       args,    mixed_run_of(p.forward, args.forward, kernels, *kernels.gradients, 1),
          false,   nullptr, nullptr,
          nullptr, nullptr, {},
          nullptr, nullptr, nullptr,
          nullptr, {},      nullptr};
}

void book_shared(GradientRun& run, Arena& arena) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index all = run.panel_count(), n = core.panel, heads = p.heads.normal_heads();
  book_matrices(run.mixed, true, arena);
  run.queries =
      arena.take<std::byte>("mixed.queries", all * p.heads.q.heads * core.query_bytes(p.heads.q.dim));
  run.douts = arena.take<std::byte>("mixed.douts", all * p.heads.v.heads * core.query_bytes(p.heads.v.dim));
  run.q_rows = arena.take<std::byte>(
      "mixed.queries", run.problem.wants.k ? all * p.heads.q.heads * core.row_bytes(p.heads.q.dim) : 0);
  run.dout_rows = arena.take<std::byte>(
      "mixed.douts", run.problem.wants.v ? all * p.heads.v.heads * core.row_bytes(p.heads.v.dim) : 0);
  for (int i = 0; i < 2; ++i) {
    run.coefficients[i] = arena.take<float>("mixed.coefficients", all * coefficient_floats(run, i) * n);
    run.dmatrix[i] = arena.take<double>("mixed.matrix", all * matrix_count(run, i));
  }
  for (float** to : {&run.top, &run.live, &run.delta}) *to = arena.take<float>("mixed.rows", all * heads * n);
  run.gate = arena.take<float>("mixed.rows", all * p.heads.v.heads * n);
  run.finite = arena.take<std::uint8_t>("mixed.rows", all);
}

GradientScratch book_gradients(const GradientRun& run, Index panels, Arena& arena) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index n = core.panel, tiles = most_heads(p) * m.tile_step();
  const Index wide = core.columns(p.heads.q.dim), value_wide = core.columns(p.heads.v.dim);
  GradientScratch s{};
  s.in = book_mixed(m, arena);
  s.mixes_after = m.after.kind != Mix::none;
  s.lanes = arena.take<MixedPanel>("mixed.panels", panels);
  s.sums = arena.take<RowSums>("mixed.panels", panels);
  for (Index i = 0; i < panels; ++i) {
    const MixedPanel room = book_lanes(m, arena);
    RowSums sums{};
    sums.dq = arena.take<float>("mixed.dq", wants.q ? p.heads.q.heads * wide * n : 0);
    sums.gate = arena.take<float>("mixed.rows", p.heads.v.heads * n);
    for (int w = 0; w < 2; ++w)
      if (wants.mix_q && coefficient_floats(run, w) > 0)
        sums.query[w] = arena.take<float>("mixed.coefficients", coefficient_floats(run, w) * n);
    if (s.lanes) s.lanes[i] = room, s.sums[i] = sums;
  }
  s.values = arena.take<std::byte>("mixed.values", m.value_slots() * key_block_bytes(core, p.heads.v.dim));
  s.key_value_bytes = round_up(core.value_bytes(p.heads.q.dim), Index{Arena::kAlign});
  s.key_values = arena.take<std::byte>("mixed.keys", wants.q ? m.key_slots() * s.key_value_bytes : 0);
  for (float** to : {&s.p, &s.du, &s.dp_own, &s.u}) *to = arena.take<float>("mixed.tiles", tiles);
  s.dk = arena.take<float>("mixed.dk", wants.k ? p.heads.q.heads * kMixKeys * wide : 0);
  s.dv = arena.take<float>("mixed.dv", wants.v ? p.heads.v.heads * kMixKeys * value_wide : 0);
  for (int w = 0; w < 2; ++w)
    if (wants.mix_k && coefficient_floats(run, w) > 0)
      s.key_sums[w] = arena.take<float>("mixed.coefficients", kMixKeys * coefficient_floats(run, w));
  s.some_open = arena.take<std::uint64_t>("mixed.open", kMixKeys);
  s.seen = arena.take<std::uint64_t>("mixed.open", kMixKeys);
  s.slope = arena.take<float>("mixed.tiles", kMixKeys * n);
  s.rows = arena.take<float>("mixed.rows", max_of(n, kMixKeys) * max_of(wide, value_wide));
  s.lines = arena.take<double>(
      "mixed.lines",
      max_of(n * line_of(p.heads.q), kMixKeys * max_of(line_of(p.heads.k), line_of(p.heads.v))));
  return s;
}

std::size_t worker_bytes(const GradientRun& run, Index panels) {
  Arena count = Arena::measuring();
  book_gradients(run, panels, count);
  return whole_pieces(count);
}

GradientPanelView view_panel(const GradientRun& run, const RowTask& task, Index q, const MixedPanel& room) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index n = core.panel, at = run.panel_at(task.at, task.sequence, q), heads = p.heads.normal_heads();
  GradientPanelView v{};
  v.in = room;
  v.in.queries = run.queries + at * p.heads.q.heads * core.query_bytes(p.heads.q.dim);
  v.douts = run.douts + at * p.heads.v.heads * core.query_bytes(p.heads.v.dim);
  v.q_rows = run.q_rows + at * p.heads.q.heads * core.row_bytes(p.heads.q.dim);
  v.dout_rows = run.dout_rows + at * p.heads.v.heads * core.row_bytes(p.heads.v.dim);
  for (int i = 0; i < 2; ++i) {
    const Index floats = coefficient_floats(run, i);
    v.in.coefficients[i] = floats > 0 ? later(run.coefficients[i], at * floats * n) : nullptr;
    v.dmatrix[i] = matrix_count(run, i) > 0 ? run.dmatrix[i] + at * matrix_count(run, i) : nullptr;
  }
  v.top = later(run.top, at * heads * n), v.live = later(run.live, at * heads * n);
  v.delta = later(run.delta, at * heads * n), v.gate = later(run.gate, at * p.heads.v.heads * n);
  v.finite = run.finite + at;
  place_lanes(run.mixed, task.at, q * n, v.in.lanes);
  return v;
}

void pack_panel(const GradientRun& run, GradientScratch& s, Index sequence, Index q) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const RowTask task{place_of(p, run.args.forward, sequence), sequence};
  const SequencePlace& at = task.at;
  const Index n = core.panel;
  if (q * n >= at.q_tokens) return;
  GradientPanelView panel = view_panel(run, task, q, s.lanes[0]);
  const Panel& lanes = panel.in.lanes;
  fill_mixed(run.mixed, at, q * n, s.in, panel.in);
  Rows rows[64];
  const HeadLayout out_layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  bool finite = true;
  for (Index v = 0; v < p.heads.v.heads; ++v) {
    std::fill_n(rows, n, rows_of(run.args.dout, out_layout, v, at.tensor_batch, at.q_row));
    core.pack_queries(rows, lanes.token, lanes.count, p.heads.v.dim,
                      panel.douts + v * core.query_bytes(p.heads.v.dim), s.in.terms.gather);
    if (run.problem.wants.v)
      finite &= core.pack_rows(rows, lanes.token, lanes.count, p.heads.v.dim, s.in.ones,
                               panel.dout_rows + v * core.row_bytes(p.heads.v.dim));
  }
  *panel.finite = finite;
  for (Index m = 0; run.problem.wants.k && m < p.heads.q.heads; ++m) {
    std::fill_n(rows, n, rows_of(run.args.forward.q, p.heads.q, m, at.tensor_batch, at.q_row));
    core.pack_rows(rows, lanes.token, lanes.count, p.heads.q.dim, s.in.ones,
                   panel.q_rows + m * core.row_bytes(p.heads.q.dim));
  }
  const AnyView &lse = run.args.forward.lse, &gate = run.args.forward.inputs.gate;
  for (Index h = 0; h < p.heads.normal_heads(); ++h)
    for (int i = 0; i < n; ++i) {
      const float l =
          i < lanes.count
              ? static_cast<const float*>(lse.data)[at.tensor_batch * lse.step[0] + h * lse.step[1] +
                                                    (at.q_row + lanes.token[i]) * lse.step[2]]
              : -INFINITY;
      panel.top[h * n + i] = l == -INFINITY ? 0.0f : l;
      panel.live[h * n + i] = l == -INFINITY ? 0.0f : 1.0f;
    }
  for (Index v = 0; v < p.heads.v.heads; ++v)
    for (int i = 0; i < n; ++i)
      panel.gate[v * n + i] = p.heads.terms.gate
                                  ? static_cast<float>(load_double(
                                        gate.data, gate.dtype,
                                        at.tensor_batch * gate.step[0] +
                                            (at.q_row + lanes.token[i]) * gate.step[1] + v * gate.step[2]))
                                  : 1.0f;
  for (int i = 0; i < 2; ++i)
    if (panel.dmatrix[i]) std::fill_n(panel.dmatrix[i], matrix_count(run, i), 0.0);
}

void pack_block(const GradientRun& run, const SequencePlace& at, Index key0, Index keys, bool keys_as_values,
                GradientScratch& s) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  pack_mixed_keys(run.mixed, at, key0, keys, s.in);
  for (Index slot = 0; slot < run.mixed.value_slots(); ++slot)
    core.pack_keys(value_rows_of(run.mixed.forward, at, slot * p.heads.v.group), key0, keys, p.heads.v.dim,
                   s.values + slot * key_block_bytes(core, p.heads.v.dim));
  for (Index slot = 0; keys_as_values && slot < run.mixed.key_slots(); ++slot)
    core.pack_values(key_rows(run.mixed.forward, at, slot * p.heads.k.group), key0, keys, p.heads.q.dim,
                     s.key_values + slot * s.key_value_bytes);
  if (run.mixed.after.kind == Mix::dynamic)
    pack_key_coefficients(run.mixed, at, key0, keys, run.mixed.after, s.in.key_coefficients[1]);
}

namespace {

/// 0 in every tile where no head may see the pair, whatever stood there.
void close_tiles(const GradientRun& run, const GradientScratch& s, const Opening& opening, Index heads,
                 float* tiles) {
  for (Index h = 0; opening.mixed && h < heads; ++h)
    run.mixed.core().close(tiles + h * run.mixed.tile_step(), 0, opening.to, s.some_open);
}

void drop(const GradientRun& run, const GradientPanelView& panel, const RowTask& task, Index v, Index key0,
          Index to, float* tile) {
  const Run& forward = run.mixed.forward;
  Panel lanes = panel.in.lanes;
  look_at_head(run.mixed, lanes, v);
  run.mixed.core().dropout(tile, 0, to, lanes.head32, lanes.position32, key0,
                           static_cast<std::uint32_t>(sequence_id(forward.args, task.sequence)),
                           forward.dropout.seed, forward.dropout.threshold,
                           static_cast<float>(1.0 / (1.0 - forward.args.inputs.dropout)));
}

MixTile transposed(const GradientRun& run, const MixStage& stage, const float* query, const float* key,
                   const float* dy, float* dx, Index to) {
  MixTile t = mix_tile(run.mixed, stage, query, key, dy, dx, to);
  std::swap(t.ins, t.outs);
  std::swap(t.first, t.second);
  t.matrix = stage.transposed;
  return t;
}

}  // namespace

void weights_of_block(const GradientRun& run, GradientScratch& s, GradientPanelView& panel,
                      const RowTask& task, const Opening& opening, Index key0) {
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index n = core.panel, step = m.tile_step();
  if (opening.mixed) {
    std::copy_n(panel.in.open, kMixKeys, s.some_open);
    for (Index h = 1; !m.shared_mask && h < m.before.to; ++h)
      for (Index k = 0; k < kMixKeys; ++k) s.some_open[k] |= panel.in.open[h * kMixKeys + k];
  }
  mixed_logits(m, task.sequence, s.in, panel.in, opening, key0, s.p);
  const bool capped = run.problem.forward.heads.terms.softcap;
  if (m.before.kind == Mix::none && capped)  // its slope begins with what terms have not joined yet
    mixed_scores(m, s.in, panel.in, opening.to, s.in.s);
  if (m.before.kind != Mix::none || capped) close_tiles(run, s, opening, m.before.from, s.in.s);
  for (Index h = 0; h < m.before.to; ++h)
    core.place_weights(s.p + h * step, 0, opening.to, s.in.factor, panel.top + h * n, panel.live + h * n,
                       s.p + h * step);
}

void outputs_of_block(const GradientRun& run, GradientScratch& s, GradientPanelView& panel,
                      const RowTask& task, const Opening& opening, Index key0, bool as_values_meet_them) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index step = m.tile_step(), n = core.panel;
  if (m.after.kind == Mix::none)
    for (Index h = 0; h < m.after.to; ++h) std::copy_n(s.p + h * step, opening.to * n, s.u + h * step);
  else
    core.mix(mix_tile(m, m.after, panel.in.coefficients[1], s.in.key_coefficients[1], s.p, s.u, opening.to));
  close_tiles(run, s, opening, m.after.to, s.u);
  if (!as_values_meet_them) return;
  for (Index v = 0; v < m.after.to; ++v) {
    float* u = s.u + v * step;
    if (p.heads.terms.dropout) drop(run, panel, task, v, key0, opening.to, u);
    if (p.heads.terms.gate) core.scale(u, 0, opening.to, panel.gate + v * n);
    clear_rest(run, u, opening.to);
  }
}

void weight_slopes(const GradientRun& run, GradientScratch& s, GradientPanelView& panel, const RowTask& task,
                   const Opening& opening, Index key0, float* gate_sum) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index step = m.tile_step(), n = core.panel;
  for (Index v = 0; v < m.after.to; ++v) {
    float* du = s.du + v * step;
    core.scores(panel.douts + v * core.query_bytes(p.heads.v.dim),
                s.values + p.heads.v.slot(v) * key_block_bytes(core, p.heads.v.dim), 0, opening.to,
                p.heads.v.dim, du);
    if (p.heads.terms.dropout) drop(run, panel, task, v, key0, opening.to, du);
    if (opening.mixed) core.close(du, 0, opening.to, s.some_open);
    if (gate_sum) core.add_dots(s.u + v * step, du, 0, opening.to, gate_sum + v * n);
    if (p.heads.terms.gate) core.scale(du, 0, opening.to, panel.gate + v * n);
  }
  if (m.after.kind == Mix::none) return;
  core.mix(transposed(run, m.after, panel.in.coefficients[1], s.in.key_coefficients[1], s.du, s.dp_own,
                      opening.to));
  close_tiles(run, s, opening, m.after.from, s.dp_own);
}

void logit_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel, Index to) {
  const Index step = run.mixed.tile_step(), n = run.mixed.core().panel;
  for (Index h = 0; h < run.mixed.before.to; ++h)
    run.mixed.core().logit_slopes(s.p + h * step, 0, to, panel.delta + h * n, s.dp() + h * step);
}

float* score_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel,
                    const Opening& opening) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  float* ds = s.dp();
  if (m.before.kind != Mix::none) {
    ds = s.u;
    core.mix(transposed(run, m.before, panel.in.coefficients[0], s.in.key_coefficients[0], s.dp(), ds,
                        opening.to));
    close_tiles(run, s, opening, m.before.from, ds);
  }
  const auto cap = static_cast<float>(run.args.forward.inputs.softcap);
  for (Index h = 0; p.heads.terms.softcap && h < m.before.from; ++h) {
    core.cap_slope(s.in.s + h * m.tile_step(), 0, opening.to, cap, s.slope);
    core.multiply(ds + h * m.tile_step(), 0, opening.to, s.slope);
  }
  return ds;
}

void mix_slopes(const GradientRun& run, GradientScratch& s, const GradientPanelView& panel, int which,
                Index to, float* dquery, float* dkey, double* dmatrix) {
  const MixStage& stage = stage_of(run, which);
  if (stage.kind == Mix::none || (!dquery && !dkey && !dmatrix)) return;
  const Index step = run.mixed.tile_step();
  run.mixed.core().mix_slopes({which == 0 ? s.in.s : s.p, step, which == 0 ? s.dp() : s.du, step, 0, to,
                               stage.from, stage.to, panel.in.coefficients[which],
                               s.in.key_coefficients[which], run.mixed.coefficient_rows() * stage.from,
                               run.mixed.rank, dquery, dkey, dmatrix});
}

void clear_rest(const GradientRun& run, float* tile, Index to) {
  const Index n = run.mixed.core().panel;
  std::fill(tile + to * n, tile + std::min(kMixKeys, round_up(to, 8)) * n, 0.0f);
}

}  // namespace headwise::cpu
