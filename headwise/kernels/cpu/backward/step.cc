// One step of cpu/backward: a group of panels against a block of keys.
#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/backward/panel.h"

namespace headwise::cpu {
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

/// Elements that are not finite were packed as 0, since 0 * NaN would reach pairs that may not see them, and
/// so were those of a size the core does not multiply; open pairs get their products here, one by one.
void add_unusual_keys(const BackwardRun& run, BackwardScratch& s, const GradientPanel& panel, Index i,
                      const Rows& keys, Index key0, Index from, Index to) {
  const Index size = run.core.panel;
  const float* ds = s.ds + i * run.tile();
  for (Index k = from; k < to; ++k)
    each_unusual(run, keys, key0 + k, run.problem.forward.heads.q.dim, s.rows, [&](Index c, float x) {
      for (int lane = 0; lane < panel.lanes.count; ++lane)
        if (s.open[i * run.step_keys + k] >> lane & 1u)
          panel.dq[c * size + lane] = std::fma(x, ds[k * size + lane], panel.dq[c * size + lane]);
    });
}
void add_unusual_rows(const BackwardRun& run, const SequencePlace& at, BackwardScratch& s,
                      const GradientPanel& panel, Index i, Index from, Index to, float* dk, float* dv) {
  const AttentionProblem& p = run.problem.forward;
  const Index size = run.core.panel, wide = run.core.gradients.columns(p.heads.q.dim),
              value_wide = run.core.gradients.columns(p.heads.v.dim);
  const HeadLayout out_layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  for (int lane = 0; lane < panel.lanes.count; ++lane) {
    const auto add = [&](const Rows& rows, Index dim, const std::uint64_t* open, const float* tile,
                         float factor, float* to_rows, Index step) {
      each_unusual(run, rows, panel.lanes.token[lane], dim, s.rows, [&](Index c, float x) {
        for (Index k = from; k < to; ++k)
          if (open[i * run.step_keys + k] >> lane & 1u) {
            float& sum = to_rows[k * step + c];
            sum = std::fma(tile[i * run.tile() + k * size + lane], x * factor, sum);
          }
      });
    };
    const Index head = panel.lanes.head[lane];
    if (dk)
      add(rows_of(run.args.forward.q, p.heads.q, head, at.tensor_batch, at.q_row), p.heads.q.dim, s.open,
          s.ds, panel.q_factor[lane], dk, wide);
    if (dv)
      add(rows_of(run.args.dout, out_layout, head, at.tensor_batch, at.q_row), p.heads.v.dim, s.kept, s.s,
          1.0f, dv, value_wide);
  }
}

/// Packs the block of keys for its first panel that is not closed.
void pack_block(const BackwardRun& run, const Piece& piece, BackwardScratch& s, const Rows& keys,
                const Rows& values, Index key0, Index count, std::uint8_t& packed, std::uint8_t& finite) {
  if (packed) return;
  const HeadSpec& heads = run.problem.forward.heads;
  run.core.products.pack_keys(keys, key0, count, heads.q.dim, s.keys);
  run.core.products.pack_keys(values, key0, count, heads.v.dim, s.values);
  if (piece.row_side)
    finite = run.core.products.pack_values(keys, key0, count, heads.q.dim, s.key_values) ? 1 : 0;
  packed = 1;
}

/// Nothing but the mask stands between scores and weights, and nobody asks for more than dq, dk and dv.
bool is_plain(const BackwardRun& run) {
  const Terms& terms = run.problem.forward.heads.terms;
  return run.core.gradients.stripes && !run.forward.scaled_first && !terms.gate && !terms.dropout &&
         !run.problem.wants.gate;
}
/// A step of plain panels: they become parts of add_rows, from the first key that is open to the last. -1,
/// and nothing done: some key is not finite.
Index plain_step(const BackwardRun& run, const SequencePlace& at, const Piece& piece, BackwardScratch& s,
                 Index panel0, Index panels, const Rows& keys, const Rows& values, Index key0, Index count,
                 std::uint8_t& packed, std::uint8_t& finite, Index& first, Index& last) {
  const Core& core = run.core;
  const HeadSpec& heads = run.problem.forward.heads;
  GradientStripe list[kMostParts];
  Index parts = 0;
  for (Index i = 0; i < panels; ++i) {
    GradientPanel& panel = s.panels[panel0 + i];
    const TileKind kind = tile_kind(run.forward, at, piece.sequence, panel.lanes, key0, count);
    Index from = 0, to = count;
    if (kind == TileKind::empty) continue;
    std::uint64_t* open = nullptr;
    if (kind == TileKind::mixed) {
      open_bits(run.forward, at, piece.sequence, panel.lanes, s.forward, key0, from, to);
      if (from == to) continue;
      open = s.open + parts * run.step_keys;
      std::copy_n(s.forward.open, count, open);
    }
    pack_block(run, piece, s, keys, values, key0, count, packed, finite);
    if (!finite) return -1;
    std::byte* operands = s.operands + parts * 3 * core.gradients.operand_bytes();
    list[parts] = {panel.lanes.queries,
                   panel.douts,
                   open,
                   from,
                   to,
                   count,
                   panel.lanes.count,
                   panel.lanes.factor,
                   panel.top,
                   panel.delta,
                   panel.q_factor,
                   s.s + parts % 2 * run.tile(),
                   s.ds + parts % 2 * run.tile(),
                   operands,
                   piece.row_side && run.needs_dq() ? panel.dq : nullptr};
    s.dv_parts[parts] = {operands, panel.dout_rows, panel.lanes.count};
    s.dk_parts[parts] = {operands + core.gradients.operand_bytes(), panel.q_rows, panel.lanes.count};
    ++parts, first = std::min(first, from), last = std::max(last, to);
  }
  if (parts > 0)
    core.gradients.stripes(list, parts, s.keys, s.values, s.key_values, heads.q.dim, heads.v.dim);
  return parts;
}

}  // namespace

void gradient_step(const BackwardRun& run, const SequencePlace& at, const Piece& piece, BackwardScratch& s,
                   Index panel0, Index panels, const Rows& keys, const Rows& values, Index key0, Index count,
                   std::uint8_t& packed, std::uint8_t& finite, float* dk, float* dv) {
  const Core& core = run.core;
  const AttentionProblem& p = run.problem.forward;
  const bool rounds = core.gradients.operands != nullptr;
  Index parts = 0, first = run.step_keys, last = 0;
  struct Range {
    Index from, to;
  };
  Range ranges[kMostParts];
  bool plain = is_plain(run);
  for (Index i = 0; i < panels; ++i) plain = plain && s.panels[panel0 + i].finite;
  if (plain) {
    parts =
        plain_step(run, at, piece, s, panel0, panels, keys, values, key0, count, packed, finite, first, last);
    if (parts < 0) plain = false, parts = 0, first = run.step_keys, last = 0;
  }
  for (Index i = 0; i < panels && !plain; ++i) {
    GradientPanel& panel = s.panels[panel0 + i];
    if (tile_kind(run.forward, at, piece.sequence, panel.lanes, key0, count) == TileKind::empty) continue;
    pack_block(run, piece, s, keys, values, key0, count, packed, finite);
    Index from, to;
    const Index slot = rounds ? 0 : parts;  // tiles that are rounded to operands make room for the next
    if (!gradient_tile(run, at, piece.sequence, s, panel, slot, finite, key0, count, from, to)) continue;
    float *weights = s.s + slot * run.tile(), *ds = s.ds + slot * run.tile();
    if (piece.row_side && run.problem.wants.slopes)
      core.gradients.alibi_sum(ds, from, to, panel.lanes.q_distance, panel.slope_sum);
    if (p.heads.terms.softcap) core.gradients.multiply(ds, from, to, s.cap_slope);
    std::byte* operands = s.operands + (rounds ? parts * 3 * core.gradients.operand_bytes() : 0);
    if (rounds)
      core.gradients.operands(weights, ds, from, to, count, panel.lanes.count, panel.q_factor, operands);
    if (piece.row_side && run.needs_dq()) {
      const Tile tile{ds,      rounds ? operands + 2 * core.gradients.operand_bytes() : nullptr,
                      from,    to,
                      nullptr, nullptr,
                      nullptr};
      core.gradients.weigh_on(tile, s.key_values, p.heads.q.dim, panel.dq);
      if (!finite) add_unusual_keys(run, s, panel, slot, keys, key0, from, to);
    }
    if (piece.key_side && !panel.finite) add_unusual_rows(run, at, s, panel, slot, from, to, dk, dv);
    s.dv_parts[parts] = {rounds ? static_cast<void*>(operands) : weights, panel.dout_rows, panel.lanes.count};
    s.dk_parts[parts] = {rounds ? static_cast<void*>(operands + core.gradients.operand_bytes()) : ds,
                         panel.q_rows, panel.lanes.count};
    ranges[parts++] = {from, to};
    first = std::min(first, from), last = std::max(last, to);
  }
  if (!piece.key_side || parts == 0) return;
  // Rows a panel left out, and those up to a whole tile of rows, weigh nothing.
  const Index end = round_up(last, 8), size = core.panel;
  for (Index i = 0; i < parts && !rounds; ++i)
    for (float* tile : {s.s + i * run.tile(), s.ds + i * run.tile()}) {
      std::fill(tile + first * size, tile + ranges[i].from * size, 0.0f);
      std::fill(tile + ranges[i].to * size, tile + end * size, 0.0f);
    }
  if (dv) core.gradients.add_rows(s.dv_parts, parts, first, last, p.heads.v.dim, dv);
  if (dk) core.gradients.add_rows(s.dk_parts, parts, first, last, p.heads.q.dim, dk);
}

}  // namespace headwise::cpu
