#include "headwise/kernels/cpu/mixed/gradients.h"

#include <algorithm>
#include <cmath>

namespace headwise::cpu::mixed {

using forward::Panel;
namespace {

Index coefficient_floats(const MixedBackwardRun& run, int which) {
  const MixStage& m = run.mixed.stage(which);
  return m.kind == Mix::dynamic ? run.mixed.coefficient_rows() * m.from : 0;
}
Index matrix_count(const MixedBackwardRun& run, int which) {
  const MixStage& m = run.mixed.stage(which);
  const bool asked = which == 0 ? run.problem.wants.mix_before : run.problem.wants.mix_after;
  return asked ? m.from * m.to : 0;
}
Index line_of(const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; }
Index tile_floats(const MixedBackwardRun& run) {
  return most_heads(run.problem.forward) * run.mixed.tile_step();
}
Index dk_floats(const MixedBackwardRun& run) {
  const HeadLayout& q = run.problem.forward.heads.q;
  return run.problem.wants.k ? q.heads * kMixKeys * run.mixed.core().gradients.columns(q.dim) : 0;
}
Index dv_floats(const MixedBackwardRun& run) {
  const HeadLayout& v = run.problem.forward.heads.v;
  return run.problem.wants.v ? v.heads * kMixKeys * run.mixed.core().gradients.columns(v.dim) : 0;
}
Index key_sum_floats(const MixedBackwardRun& run, int which) {
  return run.problem.wants.mix_k ? run.mixed.key_coefficients(which) : 0;
}
}  // namespace

Index MixedBackwardRun::panel_count() const {
  const AttentionProblem& p = problem.forward;
  const Index n = mixed.core().panel;
  return p.ragged ? p.q_total / n + p.batch + 1 : p.batch * ceil_div(p.q_tokens, n);
}
Index MixedBackwardRun::first_panel(const SequenceLocation& at) const {
  const AttentionProblem& p = problem.forward;
  const Index n = mixed.core().panel;
  return p.ragged ? at.q_row / n + at.sequence : at.sequence * ceil_div(p.q_tokens, n);
}
Index MixedBackwardRun::key_value_bytes() const {
  return round_up(mixed.core().products.value_bytes(problem.forward.heads.q.dim), Index{Arena::kAlign});
}

Index kept_gradient_bytes(const BackwardProblem& p, const Core& core) {
  const Index blocks = ceil_div(p.forward.kv_tokens, kMixKeys);
  return saturated(Checked(blocks) * Checked(3 * most_heads(p.forward)) *
                   Checked((kMixKeys + 1) * core.panel) * Checked(4));
}

MixedBackwardRun gradient_run_of(const BackwardProblem& p, const BackwardArgs& args,
                                 const TileKernels& kernels, Form form) {
  return {.problem = p,
          .args = args,
          .mixed = mixed_run_of(p.forward, args.forward, kernels, *kernels.gradients, 1),
          .form = form};
}

void book_shared(MixedBackwardRun& run, Arena& arena) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index blocks = run.mixed.block_count(), panels = run.panel_count();
  book_matrices(run.mixed, true, arena);
  run.keys = arena.take<std::byte>("mixed.keys",
                                   blocks * run.mixed.key_slots() * key_block_bytes(core, p.heads.k.dim));
  run.values = arena.take<std::byte>("mixed.values",
                                     blocks * run.mixed.value_slots() * key_block_bytes(core, p.heads.v.dim));
  run.key_values = arena.take<std::byte>(
      "mixed.keys", run.gathers_dq()
                        ? blocks / run.mixed.granule_blocks() * run.mixed.key_slots() * run.key_value_bytes()
                        : 0);
  run.dk = arena.take<float>("mixed.dk", blocks * dk_floats(run));
  run.dv = arena.take<float>("mixed.dv", blocks * dv_floats(run));
  run.seen = arena.take<std::uint64_t>("mixed.open", blocks * kMixKeys);
  run.passed = arena.take<Index>("mixed.passed", panels);
  const Index rows = panels * p.heads.normal_heads() * core.panel;
  for (float** to : {&run.top, &run.live, &run.delta}) *to = arena.take<float>("mixed.rows", rows);
  for (int i = 0; i < 2; ++i) {
    run.key_coefficients[i] = arena.take<float>("mixed.coefficients", blocks * run.mixed.key_coefficients(i));
    run.key_sums[i] = arena.take<float>("mixed.coefficients", blocks * key_sum_floats(run, i));
    run.dmatrix[i] = arena.take<double>("mixed.matrix", panels * matrix_count(run, i));
  }
  run.dslopes = arena.take<float>("mixed.rows", run.problem.wants.slopes ? rows : 0);
  run.dscale = arena.take<double>("mixed.rows", run.problem.wants.scale ? panels * p.heads.q.heads : 0);
  run.drelative = arena.take<double>(
      "mixed.buckets",
      run.problem.wants.relative ? kRelativeTasks * p.heads.normal_heads() * kMixedBuckets : 0);
}

GradientScratch book_gradients(const MixedBackwardRun& run, Arena& arena) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index n = core.panel, tiles = tile_floats(run);
  const Index wide = core.gradients.columns(p.heads.q.dim),
              value_wide = core.gradients.columns(p.heads.v.dim);
  GradientScratch s{};
  arena.take<float>("mixed.tiles", core.granule * n);  // tiles may be named from their granule's first key on
  s.in = book_mixed(m, arena);
  MixedGradientPanel& panel = s.panel;
  panel.in = book_mixed_panel(m, arena);
  panel.douts =
      arena.take<std::byte>("mixed.douts", p.heads.v.heads * core.products.query_bytes(p.heads.v.dim));
  panel.q_rows = arena.take<std::byte>(
      "mixed.queries", wants.k ? p.heads.q.heads * core.gradients.row_bytes(p.heads.q.dim) : 0);
  panel.dout_rows = arena.take<std::byte>(
      "mixed.douts", wants.v ? p.heads.v.heads * core.gradients.row_bytes(p.heads.v.dim) : 0);
  panel.dq = arena.take<float>("mixed.dq", run.gathers_dq() ? p.heads.q.heads * wide * n : 0);
  panel.gate = arena.take<float>("mixed.rows", p.heads.v.heads * n);
  panel.dgate = arena.take<float>("mixed.rows", p.heads.v.heads * n);
  for (int w = 0; w < 2; ++w)
    if (wants.mix_q && coefficient_floats(run, w) > 0)
      panel.dquery[w] = arena.take<float>("mixed.coefficients", coefficient_floats(run, w) * n);
  for (float** to : {&s.dl, &s.u}) *to = arena.take<float>("mixed.tiles", tiles);
  const Index blocks = run.form == Form::kept ? ceil_div(p.kv_tokens, kMixKeys) : 1;
  s.tiles = arena.take<float>("mixed.tiles", blocks * 3 * tiles);
  s.some_open = arena.take<std::uint64_t>("mixed.open", kMixKeys);
  s.slope = arena.take<float>("mixed.tiles", kMixKeys * n);
  s.bias = arena.take<float>("mixed.bias", wants.bias ? p.heads.normal_heads() * run.bias_keys() * n : 0);
  s.rows = arena.take<float>("mixed.rows", max_of(n, kMixKeys) * max_of(wide, value_wide));
  s.lines = arena.take<double>(
      "mixed.lines",
      max_of(n * line_of(p.heads.q), kMixKeys * max_of(line_of(p.heads.k), line_of(p.heads.v))));
  return s;
}

std::size_t worker_bytes(const MixedBackwardRun& run) {
  Arena count = Arena::measuring();
  book_gradients(run, count);
  return whole_pieces(count);
}

void look_at_block(const MixedBackwardRun& run, const SequenceLocation& location, Index block,
                   GradientScratch& s) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index at = run.mixed.first_block(location) + block;
  s.in.keys = run.keys + at * run.mixed.key_slots() * key_block_bytes(core, p.heads.k.dim);
  s.values = run.values + at * run.mixed.value_slots() * key_block_bytes(core, p.heads.v.dim);
  s.key_values =
      run.key_values + at / run.mixed.granule_blocks() * run.mixed.key_slots() * run.key_value_bytes();
  s.key0 = at % run.mixed.granule_blocks() * kMixKeys;
  s.dk = run.dk + at * dk_floats(run), s.dv = run.dv + at * dv_floats(run);
  s.seen = run.seen + at * kMixKeys;
  for (int w = 0; w < 2; ++w) {
    s.in.key_coefficients[w] = run.key_coefficients[w] + at * run.mixed.key_coefficients(w);
    s.key_sums[w] = key_sum_floats(run, w) > 0 ? run.key_sums[w] + at * key_sum_floats(run, w) : nullptr;
  }
  const Index tiles = tile_floats(run);
  s.in.s = s.tiles + (run.form == Form::kept ? block : 0) * 3 * tiles;
  s.p = s.in.s + tiles;
  float* kept = s.p + tiles;
  s.du = run.keeps_du() ? kept : s.dl;
  s.dp = run.mixes_after() && run.keeps_du() ? s.dl : kept;
}

void pack_granule(const MixedBackwardRun& run, const SequenceLocation& location, Index granule,
                  GradientScratch& s) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index first = granule * core.granule, end = std::min(location.kv_tokens, first + core.granule);
  for (Index key0 = first; key0 < end; key0 += kMixKeys) {
    const Index keys = std::min(kMixKeys, end - key0);
    look_at_block(run, location, key0 / kMixKeys, s);
    pack_keys(run.mixed, location, key0, keys, s.in);
    for (Index slot = 0; slot < run.mixed.value_slots(); ++slot)
      core.products.pack_keys(forward::value_rows_of(run.mixed.forward, location, slot * p.heads.v.group),
                              key0, keys, p.heads.v.dim,
                              s.values + slot * key_block_bytes(core, p.heads.v.dim));
    if (run.mixed.after.kind == Mix::dynamic)
      pack_key_coefficients(run.mixed, location, key0, keys, run.mixed.after, s.in.key_coefficients[1]);
    std::fill_n(s.dk, dk_floats(run), 0.0f);
    std::fill_n(s.dv, dv_floats(run), 0.0f);
    for (int w = 0; w < 2; ++w)
      if (s.key_sums[w]) std::fill_n(s.key_sums[w], key_sum_floats(run, w), 0.0f);
    std::fill_n(s.seen, kMixKeys, std::uint64_t{0});
  }
  for (Index slot = 0; run.gathers_dq() && first < end && slot < run.mixed.key_slots(); ++slot)
    core.products.pack_values(forward::key_rows(run.mixed.forward, location, slot * p.heads.k.group), first,
                              end - first, p.heads.q.dim, s.key_values + slot * run.key_value_bytes());
}

void pack_panel(const MixedBackwardRun& run, const SequenceLocation& at, Index q, GradientScratch& s) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index n = core.panel, heads = p.heads.normal_heads(), place = run.first_panel(at) + q;
  MixedGradientPanel& panel = s.panel;
  panel.top = run.top + place * heads * n, panel.live = run.live + place * heads * n;
  panel.delta = run.delta + place * heads * n;
  panel.dslopes = run.problem.wants.slopes ? run.dslopes + place * heads * n : nullptr;
  panel.dscale = run.problem.wants.scale ? run.dscale + place * p.heads.q.heads : nullptr;
  for (int i = 0; i < 2; ++i)
    panel.dmatrix[i] = matrix_count(run, i) > 0 ? run.dmatrix[i] + place * matrix_count(run, i) : nullptr;
  fill_mixed(run.mixed, at, q * n, s.in, panel.in);
  const Panel& lanes = panel.in.lanes;
  Rows rows[64];
  const HeadLayout out_layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  panel.finite = true;
  for (Index v = 0; v < p.heads.v.heads; ++v) {
    std::fill_n(rows, n, forward::rows_of(run.args.dout, out_layout, v, at.tensor_batch, at.q_row));
    core.products.pack_queries(rows, lanes.token, lanes.count, p.heads.v.dim,
                               panel.douts + v * core.products.query_bytes(p.heads.v.dim), s.in.terms.gather);
    if (run.problem.wants.v)
      panel.finite &= core.gradients.pack_rows(rows, lanes.token, lanes.count, p.heads.v.dim, s.in.ones,
                                               panel.dout_rows + v * core.gradients.row_bytes(p.heads.v.dim));
  }
  for (Index m = 0; run.problem.wants.k && m < p.heads.q.heads; ++m) {
    std::fill_n(rows, n, forward::rows_of(run.args.forward.q, p.heads.q, m, at.tensor_batch, at.q_row));
    core.gradients.pack_rows(rows, lanes.token, lanes.count, p.heads.q.dim, s.in.ones,
                             panel.q_rows + m * core.gradients.row_bytes(p.heads.q.dim));
  }
  const AnyView &lse = run.args.forward.lse, &gate = run.args.forward.inputs.gate;
  for (Index h = 0; h < heads; ++h)
    for (int i = 0; i < n; ++i) {
      const float l =
          i < lanes.count
              ? static_cast<const float*>(lse.data)[at.tensor_batch * lse.step[0] + h * lse.step[1] +
                                                    (at.q_row + lanes.token[i]) * lse.step[2]]
              : -INFINITY;
      // exp of anything finite below infinity is 0: what a lane without a row holds is never multiplied.
      panel.top[h * n + i] = l == -INFINITY ? INFINITY : l;
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
}

void clear_sums(const MixedBackwardRun& run, MixedGradientPanel& panel) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index n = core.panel, heads = p.heads.normal_heads();
  std::fill_n(panel.delta, heads * n, 0.0f);
  std::fill_n(panel.dgate, p.heads.v.heads * n, 0.0f);
  if (panel.dslopes) std::fill_n(panel.dslopes, heads * n, 0.0f);
  if (run.gathers_dq())
    std::fill_n(panel.dq, p.heads.q.heads * core.gradients.columns(p.heads.q.dim) * n, 0.0f);
  for (int i = 0; i < 2; ++i) {
    if (panel.dmatrix[i]) std::fill_n(panel.dmatrix[i], matrix_count(run, i), 0.0);
    if (panel.dquery[i]) std::fill_n(panel.dquery[i], coefficient_floats(run, i) * n, 0.0f);
  }
}

namespace {

/// 0 in every tile where no head may see the pair, whatever stood there.
void close_tiles(const MixedBackwardRun& run, const GradientScratch& s, const Opening& opening, Index heads,
                 float* tiles) {
  for (Index h = 0; opening.mixed && h < heads; ++h)
    run.mixed.core().gradients.close(tiles + h * run.mixed.tile_step(), 0, opening.to, s.some_open);
}

void drop(const MixedBackwardRun& run, const MixedGradientPanel& panel, const SequenceLocation& location,
          Index v, Index key0, Index to, float* tile) {
  const forward::OnlineRun& forward = run.mixed.forward;
  Panel lanes = panel.in.lanes;
  look_at_head(run.mixed, lanes, v);
  run.mixed.core().passes.dropout(tile, 0, to, forward::dropout_of(forward, location, lanes, key0));
}

MixTile transposed(const MixedBackwardRun& run, const MixStage& stage, const float* query, const float* key,
                   const float* dy, float* dx, Index to) {
  MixTile t = mix_tile(run.mixed, stage, query, key, dy, dx, to);
  std::swap(t.ins, t.outs);
  std::swap(t.first, t.second);
  t.matrix = stage.transposed;
  return t;
}

}  // namespace

void note_open_pairs(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening) {
  if (!opening.mixed) return;
  const std::uint64_t* open = s.panel.in.open;
  std::copy_n(open, kMixKeys, s.some_open);
  for (Index h = 1; !run.mixed.shared_mask && h < run.mixed.before.to; ++h)
    for (Index k = 0; k < kMixKeys; ++k) s.some_open[k] |= open[h * kMixKeys + k];
}

void weights_of_block(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                      const Opening& opening, Index key0) {
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index n = core.panel, step = m.tile_step();
  logits_of(m, location, s.in, s.panel.in, opening, key0, s.p);
  const bool capped = run.problem.forward.heads.terms.softcap;
  if (m.before.kind == Mix::none && capped)  // its slope begins with what terms have not joined yet
    scores_of(m, s.in, s.panel.in, opening.to, s.in.s);
  if (m.before.kind != Mix::none || capped) close_tiles(run, s, opening, m.before.from, s.in.s);
  for (Index h = 0; h < m.before.to; ++h)
    core.passes.place_weights(s.p + h * step, 0, opening.to, s.in.factor, s.panel.top + h * n,
                              s.panel.live + h * n, s.p + h * step);
}

void outputs_of_block(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                      const Opening& opening, Index key0, bool as_values_meet_them) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index step = m.tile_step(), n = core.panel;
  if (m.after.kind == Mix::none)
    for (Index h = 0; h < m.after.to; ++h) std::copy_n(s.p + h * step, opening.to * n, s.u + h * step);
  else
    core.passes.mix(
        mix_tile(m, m.after, s.panel.in.coefficients[1], s.in.key_coefficients[1], s.p, s.u, opening.to));
  close_tiles(run, s, opening, m.after.to, s.u);
  if (!as_values_meet_them) return;
  for (Index v = 0; v < m.after.to; ++v) {
    float* u = s.u + v * step;
    if (p.heads.terms.dropout) drop(run, s.panel, location, v, key0, opening.to, u);
    if (p.heads.terms.gate) core.passes.scale(u, 0, opening.to, s.panel.gate + v * n);
    clear_rest(run, u, opening.to);
  }
}

void output_slopes(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                   const Opening& opening, Index key0, float* dgate) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  const Index step = m.tile_step(), n = core.panel;
  for (Index v = 0; v < m.after.to; ++v) {
    float* du = s.du + v * step;
    core.products.scores(s.panel.douts + v * core.products.query_bytes(p.heads.v.dim),
                         s.values + p.heads.v.slot(v) * key_block_bytes(core, p.heads.v.dim), 0, opening.to,
                         p.heads.v.dim, du);
    if (p.heads.terms.dropout) drop(run, s.panel, location, v, key0, opening.to, du);
    if (opening.mixed) core.gradients.close(du, 0, opening.to, s.some_open);
    if (dgate) core.gradients.add_dots(s.u + v * step, du, 0, opening.to, dgate + v * n);
    if (p.heads.terms.gate) core.passes.scale(du, 0, opening.to, s.panel.gate + v * n);
  }
}

void weight_slopes(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening) {
  if (!run.mixes_after()) return;
  const MixStage& after = run.mixed.after;
  run.mixed.core().passes.mix(
      transposed(run, after, s.panel.in.coefficients[1], s.in.key_coefficients[1], s.du, s.dp, opening.to));
  close_tiles(run, s, opening, after.from, s.dp);
}

void logit_slopes(const MixedBackwardRun& run, GradientScratch& s, Index to) {
  const Index step = run.mixed.tile_step(), n = run.mixed.core().panel;
  for (Index h = 0; h < run.mixed.before.to; ++h)
    run.mixed.core().gradients.logit_slopes(s.p + h * step, s.dp + h * step, 0, to, s.panel.delta + h * n,
                                            s.dl + h * step);
}

void add_alibi_slopes(const MixedBackwardRun& run, GradientScratch& s, Index key0, Index to) {
  if (!s.panel.dslopes) return;
  const Core& core = run.mixed.core();
  const Panel& lanes = s.panel.in.lanes;
  for (int i = 0; i < core.panel; ++i) lanes.q_distance[i] = static_cast<float>(lanes.position[i] - key0);
  for (Index h = 0; h < run.mixed.before.to; ++h)
    core.gradients.alibi_sum(s.dl + h * run.mixed.tile_step(), 0, to, lanes.q_distance,
                             s.panel.dslopes + h * core.panel);
}

float* score_slopes(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening) {
  const AttentionProblem& p = run.problem.forward;
  const MixedRun& m = run.mixed;
  const Core& core = m.core();
  float* ds = s.dl;
  if (m.before.kind != Mix::none) {
    ds = s.in.l;
    core.passes.mix(transposed(run, m.before, s.panel.in.coefficients[0], s.in.key_coefficients[0], s.dl, ds,
                               opening.to));
    close_tiles(run, s, opening, m.before.from, ds);
  }
  const auto cap = static_cast<float>(run.args.forward.inputs.softcap);
  for (Index h = 0; p.heads.terms.softcap && h < m.before.from; ++h) {
    core.passes.cap_slope(s.in.s + h * m.tile_step(), 0, opening.to, cap, s.slope);
    core.gradients.multiply(ds + h * m.tile_step(), 0, opening.to, s.slope);
  }
  return ds;
}

void mix_slopes(const MixedBackwardRun& run, GradientScratch& s, int which, Index to, float* dquery,
                float* dkey, double* dmatrix) {
  const MixStage& stage = run.mixed.stage(which);
  if (stage.kind == Mix::none || (!dquery && !dkey && !dmatrix)) return;
  const Index step = run.mixed.tile_step();
  run.mixed.core().gradients.mix_slopes(
      {which == 0 ? s.in.s : s.p, step, which == 0 ? s.dl : s.du, step, 0, to, stage.from, stage.to,
       s.panel.in.coefficients[which], s.in.key_coefficients[which],
       run.mixed.coefficient_rows() * stage.from, run.mixed.rank, dquery, dkey, dmatrix});
}

void clear_rest(const MixedBackwardRun& run, float* tile, Index to) {
  const Index n = run.mixed.core().panel;
  std::fill(tile + to * n, tile + std::min(kMixKeys, round_up(to, 8)) * n, 0.0f);
}

}  // namespace headwise::cpu::mixed
