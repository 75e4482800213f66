// One step of cpu/backward: a group of panels against a block of keys.
#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/backward/panel.h"

namespace headwise::cpu::backward {

using forward::TileKeys;
namespace {

/// Calls f(column, value) for the elements of a row that the core packed as 0.
template <class F>
void each_unusual(const BackwardRun& run, const Rows& rows, Index row, Index dim, float* line, F&& f) {
  run.forward.kernels.load_row(rows, row, dim, line);
  for (Index c = 0; c < dim; ++c) {
    const float size = std::fabs(line[c]);
    if (size == 0 || (size >= run.core.value_low && size < run.core.value_high)) continue;
    f(c, line[c]);
  }
}

/// Elements that are not finite were packed as 0, since 0 * NaN would reach pairs that may not see them. So
/// were those of a size the core does not multiply. Open pairs get their products here, one by one.
void add_unusual_keys(const BackwardRun& run, BackwardScratch& s, const GradientPanel& panel, Index i,
                      const Rows& keys, const TileKeys& t) {
  const Index size = run.core.panel;
  const float* ds = s.ds + i * run.tile();
  for (Index k = t.from; k < t.to; ++k)
    each_unusual(run, keys, t.key0 + k, run.problem.forward.heads.q.dim, s.rows, [&](Index c, float x) {
      for (int lane = 0; lane < panel.lanes.count; ++lane)
        if (s.open[i * run.step_keys + k] >> lane & 1u)
          panel.dq[c * size + lane] = std::fma(x, ds[k * size + lane], panel.dq[c * size + lane]);
    });
}
void add_unusual_rows(const BackwardRun& run, const SequenceLocation& at, BackwardScratch& s,
                      const GradientPanel& panel, Index i, const TileKeys& t, const GradientStep& into) {
  const AttentionProblem& p = run.problem.forward;
  const Index size = run.core.panel, wide = run.core.gradients.columns(p.heads.q.dim),
              value_wide = run.core.gradients.columns(p.heads.v.dim);
  const HeadLayout out_layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  for (int lane = 0; lane < panel.lanes.count; ++lane) {
    const auto add = [&](const Rows& rows, Index dim, const std::uint64_t* open, const float* tile,
                         float factor, float* to_rows, Index step) {
      each_unusual(run, rows, panel.lanes.token[lane], dim, s.rows, [&](Index c, float x) {
        for (Index k = t.from; k < t.to; ++k)
          if (open[i * run.step_keys + k] >> lane & 1u) {
            float& sum = to_rows[k * step + c];
            sum = std::fma(tile[i * run.tile() + k * size + lane], x * factor, sum);
          }
      });
    };
    const Index head = panel.lanes.head[lane];
    if (into.dk)
      add(forward::rows_of(run.args.forward.q, p.heads.q, head, at.tensor_batch, at.q_row), p.heads.q.dim,
          s.open, s.ds, panel.q_factor[lane], into.dk, wide);
    if (into.dv)
      add(forward::rows_of(run.args.dout, out_layout, head, at.tensor_batch, at.q_row), p.heads.v.dim, s.kept,
          s.s, 1.0f, into.dv, value_wide);
  }
}

/// Packs the block of keys for its first panel that is not closed.
void pack_block(const BackwardRun& run, const Piece& piece, BackwardScratch& s, const GradientStep& step) {
  if (step.packed) return;
  const HeadSpec& heads = run.problem.forward.heads;
  const TileProducts& products = run.core.products;
  const Rows& keys = step.rows.keys;
  products.pack_keys(keys, step.key0, step.count, heads.q.dim, s.keys);
  products.pack_keys(step.rows.values, step.key0, step.count, heads.v.dim, s.values);
  if (piece.row_side)
    step.finite = products.pack_values(keys, step.key0, step.count, heads.q.dim, s.key_values) ? 1 : 0;
  step.packed = 1;
}

/// Nothing but the mask stands between scores and weights, and nobody asks for more than dq, dk and dv.
bool is_plain(const BackwardRun& run) {
  const Terms& terms = run.problem.forward.heads.terms;
  return run.core.gradients.stripes && !run.forward.scaled_first && !terms.gate && !terms.dropout &&
         !run.problem.wants.gate;
}
/// Panels of a step that add_rows takes, from the first key that is open to the last.
struct Taken {
  Index panels, first, last;
};
/// A step of plain panels. panels -1, and nothing done: some key is not finite.
Taken plain_step(const BackwardRun& run, const SequenceLocation& at, const Piece& piece, BackwardScratch& s,
                 const GradientStep& step) {
  const Core& core = run.core;
  const HeadSpec& heads = run.problem.forward.heads;
  const Index key0 = step.key0, count = step.count;
  GradientStripe list[kMostPanels];
  Taken taken{0, run.step_keys, 0};
  Index& panels = taken.panels;
  for (Index i = 0; i < step.panels; ++i) {
    GradientPanel& panel = s.panels[step.panel0 + i];
    TileKeys t{.key0 = key0,
               .from = 0,
               .to = count,
               .kind = forward::tile_kind(run.forward, at, panel.lanes, key0, count)};
    if (t.kind == TileKind::empty) continue;
    std::uint64_t* open = nullptr;
    if (t.kind == TileKind::mixed) {
      forward::open_bits(run.forward, at, panel.lanes, s.forward, t);
      if (t.from == t.to) continue;
      open = s.open + panels * run.step_keys;
      std::copy_n(s.forward.open, count, open);
    }
    pack_block(run, piece, s, step);
    if (!step.finite) return {-1, run.step_keys, 0};
    std::byte* operands = s.operands + panels * 3 * core.gradients.operand_bytes();
    list[panels] = {.queries = panel.lanes.queries,
                    .douts = panel.douts,
                    .open = open,
                    .from = t.from,
                    .to = t.to,
                    .keys = count,
                    .count = panel.lanes.count,
                    .factor = panel.lanes.factor,
                    .top = panel.top,
                    .delta = panel.delta,
                    .row_factor = panel.q_factor,
                    .s = s.s + panels % 2 * run.tile(),
                    .ds = s.ds + panels % 2 * run.tile(),
                    .operands = operands,
                    .dq = piece.row_side && run.needs_dq() ? panel.dq : nullptr};
    s.dv_panels[panels] = {operands, panel.dout_rows, panel.lanes.count};
    s.dk_panels[panels] = {operands + core.gradients.operand_bytes(), panel.q_rows, panel.lanes.count};
    ++panels, taken.first = std::min(taken.first, t.from), taken.last = std::max(taken.last, t.to);
  }
  if (panels > 0)
    core.gradients.stripes(list, panels, s.keys, s.values, s.key_values, heads.q.dim, heads.v.dim);
  return taken;
}

}  // namespace

void gradient_step(const BackwardRun& run, const SequenceLocation& at, const Piece& piece, BackwardScratch& s,
                   const GradientStep& step) {
  const Core& core = run.core;
  const AttentionProblem& p = run.problem.forward;
  const bool rounds = core.gradients.operands != nullptr;
  Taken taken{0, run.step_keys, 0};
  Index& panels = taken.panels;
  struct Range {
    Index from, to;
  };
  Range ranges[kMostPanels];
  bool plain = is_plain(run);
  for (Index i = 0; i < step.panels; ++i) plain = plain && s.panels[step.panel0 + i].finite;
  if (plain) {
    taken = plain_step(run, at, piece, s, step);
    if (panels < 0) plain = false, panels = 0;
  }
  for (Index i = 0; i < step.panels && !plain; ++i) {
    GradientPanel& panel = s.panels[step.panel0 + i];
    if (forward::tile_kind(run.forward, at, panel.lanes, step.key0, step.count) == TileKind::empty) continue;
    pack_block(run, piece, s, step);
    const Index slot = rounds ? 0 : panels;  // tiles that are rounded to operands make room for the next
    TileKeys t{.key0 = step.key0, .from = 0, .to = step.count, .finite = step.finite != 0};
    if (!gradient_tile(run, at, s, panel, slot, t)) continue;
    float *weights = s.s + slot * run.tile(), *ds = s.ds + slot * run.tile();
    if (piece.row_side && run.problem.wants.slopes)
      core.gradients.alibi_sum(ds, t.from, t.to, panel.lanes.q_distance, panel.slope_sum);
    if (p.heads.terms.softcap) core.gradients.multiply(ds, t.from, t.to, s.cap_slope);
    std::byte* operands = s.operands + (rounds ? panels * 3 * core.gradients.operand_bytes() : 0);
    if (rounds)
      core.gradients.operands({.s = weights,
                               .ds = ds,
                               .from = t.from,
                               .to = t.to,
                               .keys = step.count,
                               .count = panel.lanes.count,
                               .row_factor = panel.q_factor,
                               .out = operands});
    if (piece.row_side && run.needs_dq()) {
      void* pairs = rounds ? operands + 2 * core.gradients.operand_bytes() : nullptr;
      const Tile tile{ds, pairs, t.from, t.to, nullptr, nullptr, nullptr};
      core.gradients.weigh_on(tile, s.key_values, p.heads.q.dim, panel.dq);
      if (!step.finite) add_unusual_keys(run, s, panel, slot, step.rows.keys, t);
    }
    if (piece.key_side && !panel.finite) add_unusual_rows(run, at, s, panel, slot, t, step);
    s.dv_panels[panels] = {rounds ? static_cast<void*>(operands) : weights, panel.dout_rows,
                           panel.lanes.count};
    s.dk_panels[panels] = {rounds ? static_cast<void*>(operands + core.gradients.operand_bytes()) : ds,
                           panel.q_rows, panel.lanes.count};
    ranges[panels++] = {t.from, t.to};
    taken.first = std::min(taken.first, t.from), taken.last = std::max(taken.last, t.to);
  }
  if (!piece.key_side || panels == 0) return;
  const Index first = taken.first, last = taken.last;
  // Rows a panel left out, and those up to a whole tile of rows, weigh nothing.
  const Index end = round_up(last, 8), size = core.panel;
  for (Index i = 0; i < panels && !rounds; ++i)
    for (float* tile : {s.s + i * run.tile(), s.ds + i * run.tile()}) {
      std::fill(tile + first * size, tile + ranges[i].from * size, 0.0f);
      std::fill(tile + ranges[i].to * size, tile + end * size, 0.0f);
    }
  if (step.dv) core.gradients.add_rows(s.dv_panels, panels, first, last, p.heads.v.dim, step.dv);
  if (step.dk) core.gradients.add_rows(s.dk_panels, panels, first, last, p.heads.q.dim, step.dk);
}

}  // namespace headwise::cpu::backward
