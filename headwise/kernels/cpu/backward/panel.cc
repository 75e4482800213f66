#include "headwise/kernels/cpu/backward/panel.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headwise::cpu::backward {
namespace {

Index run_heads_of(const AttentionProblem& p) { return std::gcd(p.heads.k.group, p.heads.v.group); }

bool is_shared(const HeadLayout& layout, Index unit) { return layout.row > 0 || layout.group != unit; }

/// What a task may keep of its packed keys.
constexpr Index kPackedBytes = Index{8} << 20;
/// A block of keys is the beginning of a granule.
Index key_block_bytes(const Core& core, Index dim) {
  return round_up(core.products.key_bytes(dim) / core.granule * core.gradients.step_keys,
                  Index{Arena::kAlign});
}

float* next_row(float*& block, Index panel) {
  float* row = block;
  if (block) block += panel;
  return row;
}

}  // namespace

bool q_is_shared(const BackwardProblem& p) { return is_shared(p.forward.heads.q, 1); }
bool k_is_shared(const BackwardProblem& p) { return is_shared(p.forward.heads.k, run_heads_of(p.forward)); }
bool v_is_shared(const BackwardProblem& p) { return is_shared(p.forward.heads.v, run_heads_of(p.forward)); }

const Core& backward_core(const BackwardProblem& p, const TileKernels& kernels) {
  const AttentionProblem& f = p.forward;
  if (f.dtype == DType::bf16 && kernels.bf16_gradients) return *kernels.bf16_gradients;
  // Nothing has to agree with gradients bit for bit, as decode has with prefill: parts may take them all.
  if (f.dtype == DType::f32 && kernels.f32_parts_gradients &&
      std::min(f.heads.q.dim, f.heads.v.dim) >= kernels.parts_gradients_from)
    return *kernels.f32_parts_gradients;
  return *kernels.gradients;
}

Index block_rows_for(const BackwardProblem& p, const Core& core) {
  // What a block of rows brings to every step fits into an L2 of 2 MB beside the keys.
  constexpr Index kBytes = Index{1280} << 10;
  const Index step = round_up(core.gradients.step_rows, core.panel), dim = p.forward.heads.q.dim,
              value_dim = p.forward.heads.v.dim;
  const Index fit = kBytes / (4 * saturated(Checked(3) * Checked(dim + 1) + Checked(2) * Checked(value_dim)));
  const Index all = saturated(Checked(run_heads_of(p.forward)) * Checked(p.forward.q_tokens));
  return std::max(step, std::min(std::clamp(fit / step * step, step, Index{1024} / step * step),
                                 round_up(std::max<Index>(all, 1), step)));
}

BackwardScratch book_backward(const BackwardProblem& p, const Core& core, Index block_rows, Index acc_keys,
                              Arena& arena) {
  const AttentionProblem& f = p.forward;
  const Index panel = core.panel, panels = ceil_div(block_rows, panel),
              group = ceil_div(core.gradients.step_rows, panel);
  const Index dim = f.heads.q.dim, value_dim = f.heads.v.dim, keys = core.gradients.step_keys;
  const Index wide = core.gradients.columns(dim), value_wide = core.gradients.columns(value_dim),
              widest = std::max(wide, value_wide);
  BackwardScratch s{};
  forward::Scratch& own = s.forward;
  own.gather = arena.take<float>("backward.gather", panel * widest);
  own.term = arena.take<float>("backward.term",
                               f.heads.terms.bias || f.heads.terms.relative ? panel * core.granule : 0);
  own.by_distance = arena.take<float>("backward.term", f.heads.terms.relative ? panel + core.granule : 0);
  own.words = arena.take<std::uint64_t>("backward.open", panel * ceil_div(keys, 64));
  own.open = arena.take<std::uint64_t>("backward.open", keys);
  s.panels = arena.take<GradientPanel>("backward.panels", panels);
  // All blocks of a task stay packed where they take a few MB: packing once a block of rows is a tenth of the
  // time at 2048 tokens, dim 128, 8 heads side by side.
  const Checked each = Checked(key_block_bytes(core, dim)) + Checked(key_block_bytes(core, value_dim)) +
                       Checked(core.products.value_bytes(dim));
  const Index blocks = acc_keys / keys;
  s.slots = saturated(each * Checked(blocks)) <= kPackedBytes ? std::max<Index>(1, blocks) : 1;
  s.all_keys = arena.take<std::byte>("backward.keys", s.slots * key_block_bytes(core, dim));
  s.all_values = arena.take<std::byte>("backward.values", s.slots * key_block_bytes(core, value_dim));
  s.all_key_values = arena.take<std::byte>("backward.keys", s.slots * core.products.value_bytes(dim));
  s.packed = arena.take<std::uint8_t>("backward.slots", s.slots);
  s.finite = arena.take<std::uint8_t>("backward.slots", s.slots);
  s.keys = s.all_keys, s.values = s.all_values, s.key_values = s.all_key_values;
  s.outs = arena.take<std::byte>("backward.outs", core.products.query_bytes(value_dim));
  s.s = arena.take<float>("backward.scores", group * keys * panel);
  s.ds = arena.take<float>("backward.scores", group * keys * panel);
  s.operands = arena.take<std::byte>(
      "backward.operands", core.gradients.operands ? group * 3 * core.gradients.operand_bytes() : 0);
  s.drop = arena.take<float>("backward.drop", f.heads.terms.dropout ? keys * panel : 0);
  s.cap_slope = arena.take<float>("backward.cap", f.heads.terms.softcap ? keys * panel : 0);
  s.open = arena.take<std::uint64_t>("backward.open", group * keys);
  s.kept = arena.take<std::uint64_t>("backward.open", group * keys);
  s.dv_panels = arena.take<PanelRows>("backward.parts", group);
  s.dk_panels = arena.take<PanelRows>("backward.parts", group);
  s.dk = arena.take<float>("backward.dk", p.wants.k ? acc_keys * wide : 0);
  s.dv = arena.take<float>("backward.dv", p.wants.v ? acc_keys * value_wide : 0);
  s.rows = arena.take<float>("backward.rows", (panel + 1) * widest);
  s.ones = arena.take<float>("backward.lanes", panel);
  s.lane_sum = arena.take<float>("backward.lanes", panel);
  s.bias = arena.take<float>("backward.bias",
                             p.wants.bias ? round_up(std::max<Index>(f.kv_tokens, 1), keys) * panel : 0);
  s.buckets = arena.take<double>("backward.buckets", p.wants.relative ? kBuckets : 0);
  s.by_distance = arena.take<float>("backward.buckets", p.wants.relative ? panel + keys : 0);
  const auto line_of = [](const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; };
  const Index line =
      std::max({q_is_shared(p) ? line_of(f.heads.q) : 0, k_is_shared(p) ? line_of(f.heads.k) : 0,
                v_is_shared(p) ? line_of(f.heads.v) : 0});
  s.line = arena.take<double>("backward.line", line);
  for (Index i = 0; i < panels; ++i) {
    GradientPanel pan{};
    pan.lanes.queries = arena.take<std::byte>("backward.queries", core.products.query_bytes(dim));
    pan.douts = arena.take<std::byte>("backward.douts", core.products.query_bytes(value_dim));
    pan.q_rows = arena.take<std::byte>("backward.queries", core.gradients.row_bytes(dim));
    pan.dout_rows = arena.take<std::byte>("backward.douts", core.gradients.row_bytes(value_dim));
    pan.dq = arena.take<float>("backward.dq", wide * panel);
    auto* places = arena.take<Index>("backward.lanes", 3 * panel);
    for (Index** to : {&pan.lanes.head, &pan.lanes.token, &pan.lanes.position}) {
      *to = places;
      if (places) places += panel;
    }
    auto* words = arena.take<std::uint32_t>("backward.lanes", 2 * panel);
    pan.lanes.head32 = words, pan.lanes.position32 = words ? words + panel : nullptr;
    float* lanes = arena.take<float>("backward.lanes", 12 * panel);
    for (float** to : {&pan.lanes.scale, &pan.lanes.factor, &pan.lanes.slope, &pan.lanes.q_distance,
                       &pan.lanes.total_top, &pan.lanes.total_sum, &pan.top, &pan.delta, &pan.gate,
                       &pan.gate_sum, &pan.slope_sum, &pan.q_factor})
      *to = next_row(lanes, panel);
    if (s.panels) s.panels[i] = pan;
  }
  if (s.ones) std::fill_n(s.ones, panel, 1.0f);
  return s;
}

void enter_slot(const BackwardRun& run, BackwardScratch& s, Index slot) {
  const HeadSpec& heads = run.problem.forward.heads;
  s.keys = s.all_keys + slot * key_block_bytes(run.core, heads.q.dim);
  s.values = s.all_values + slot * key_block_bytes(run.core, heads.v.dim);
  s.key_values = s.all_key_values + slot * run.core.products.value_bytes(heads.q.dim);
}

void fill_gradients(const BackwardRun& run, const SequenceLocation& at, const forward::RowBlock& rows,
                    BackwardScratch& scratch, GradientPanel& panel, bool needs_rows) {
  const AttentionProblem& p = run.problem.forward;
  const HeadInputs& in = run.args.forward.inputs;
  const Core& core = run.core;
  forward::Panel& lanes = panel.lanes;
  forward::fill_panel(run.forward, at, rows, scratch.forward, lanes);
  const Index head0 = rows.head0;
  const AnyView& lse = run.args.forward.lse;
  const HeadLayout out_layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  bool one_scale = true;  // of the whole run of heads, not of this panel: dk is scaled once for all
  for (Index h = 1; h < run.forward.run_heads && head0 + h < p.heads.q.heads; ++h)
    one_scale =
        one_scale && forward::scale_of(run.forward, head0 + h) == forward::scale_of(run.forward, head0);
  Rows q[64], dout[64];
  for (int i = 0; i < core.panel; ++i) {
    panel.gate[i] = 1.0f, panel.delta[i] = 0.0f, panel.q_factor[i] = 1.0f;
    panel.top[i] = 3.4028235e38f;  // an idle lane weighs nothing
    if (i >= lanes.count) {
      q[i] = q[i - 1], dout[i] = dout[i - 1];
      continue;
    }
    const Index head = lanes.head[i], token = lanes.token[i];
    const bool same = i > 0 && head == lanes.head[i - 1];
    dout[i] =
        same ? dout[i - 1] : forward::rows_of(run.args.dout, out_layout, head, at.tensor_batch, at.q_row);
    q[i] = same ? q[i - 1] : forward::rows_of(run.args.forward.q, p.heads.q, head, at.tensor_batch, at.q_row);
    const float l = static_cast<const float*>(
        lse.data)[at.tensor_batch * lse.step[0] + head * lse.step[1] + (at.q_row + token) * lse.step[2]];
    const double scale = run.forward.scaled_first ? 1.0 : static_cast<double>(lanes.scale[i]);
    // -inf: an empty row, whose pairs are all closed
    panel.top[i] = l == -INFINITY ? 0.0f : static_cast<float>(static_cast<double>(l) / scale);
    panel.delta[i] = run.delta[run.row(at, head, token)];
    if (!one_scale) panel.q_factor[i] = lanes.scale[i];
    if (p.heads.terms.gate)
      panel.gate[i] = static_cast<float>(load_double(
          in.gate.data, in.gate.dtype,
          at.tensor_batch * in.gate.step[0] + (at.q_row + token) * in.gate.step[1] + head * in.gate.step[2]));
  }
  core.products.pack_queries(dout, lanes.token, lanes.count, p.heads.v.dim, panel.douts,
                             scratch.forward.gather);
  panel.finite = true;
  if (!needs_rows) return;
  const bool q_finite =
      core.gradients.pack_rows(q, lanes.token, lanes.count, p.heads.q.dim, panel.q_factor, panel.q_rows);
  panel.finite = core.gradients.pack_rows(dout, lanes.token, lanes.count, p.heads.v.dim, scratch.ones,
                                          panel.dout_rows) &&
                 q_finite;
}

bool gradient_tile(const BackwardRun& run, const SequenceLocation& at, BackwardScratch& s,
                   GradientPanel& panel, Index i, forward::TileKeys& t) {
  const Core& core = run.core;
  const AttentionProblem& p = run.problem.forward;
  const forward::OnlineRun& forward = run.forward;
  forward::Panel& lanes = panel.lanes;
  t.kind = forward::tile_kind(forward, at, lanes, t.key0, t.to);
  if (t.kind == TileKind::empty) return false;
  if (t.kind == TileKind::mixed) {
    forward::open_bits(forward, at, lanes, s.forward, t);
    if (t.from == t.to) return false;
  }
  const Index key0 = t.key0, from = t.from, to = t.to;
  const GradientTile tile{s.s + i * run.tile(),
                          s.ds + i * run.tile(),
                          from,
                          to,
                          lanes.factor,
                          panel.top,
                          panel.delta,
                          p.heads.terms.gate ? panel.gate : nullptr,
                          p.heads.terms.dropout ? s.drop : nullptr,
                          run.problem.wants.gate ? panel.gate_sum : nullptr};
  if (p.heads.terms.alibi)
    for (int lane = 0; lane < core.panel; ++lane)
      lanes.q_distance[lane] = static_cast<float>(lanes.position[lane] - key0);
  core.products.scores(lanes.queries, s.keys, from, to, p.heads.q.dim, tile.s);
  s.forward.s = tile.s;
  s.forward.cap_slope = s.cap_slope;
  if (forward.scaled_first) forward::apply_terms(forward, at, lanes, s.forward, t);
  if (t.kind == TileKind::mixed) core.passes.select(tile.s, from, to, s.forward.open);
  core.products.scores(panel.douts, s.values, from, to, p.heads.v.dim, tile.dp);
  if (tile.drop) {
    std::fill(s.drop + from * core.panel, s.drop + to * core.panel, 1.0f);
    core.passes.dropout(s.drop, from, to, forward::dropout_of(forward, at, lanes, key0));
  }
  if (!t.finite || !panel.finite)
    for (Index k = from; k < to; ++k) {
      std::uint64_t open = 0, kept = 0;
      for (int lane = 0; lane < lanes.count; ++lane) {
        open |= std::uint64_t{tile.s[k * core.panel + lane] != -INFINITY} << lane;
        kept |= std::uint64_t{!tile.drop || tile.drop[k * core.panel + lane] > 0} << lane;
      }
      s.open[i * run.step_keys + k] = open, s.kept[i * run.step_keys + k] = open & kept;
    }
  core.gradients.sweep(tile);
  return true;
}

}  // namespace headwise::cpu::backward
