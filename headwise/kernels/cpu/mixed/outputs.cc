#include "headwise/kernels/cpu/mixed/outputs.h"

#include <cmath>

namespace headwise::cpu::mixed {
namespace {

/// A closed pair weighs nothing, whatever its key's coefficients are.
void close_pairs(const MixedRun& run, const OutScratch& s, Index v, Index to, float* u) {
  const int n = run.core().panel;
  for (Index k = 0; k < to; ++k)
    for (int lane = 0; lane < n; ++lane)
      if (!(s.kept_pairs[v * kMixKeys + k] >> lane & 1u)) u[k * n + lane] = 0.0f;
}

/// Pairs of head v whose value counts: some head that reaches v may see them and dropout leaves them.
void find_kept_pairs(const MixedRun& run, const OutScratch& s, const Look& look, Index v) {
  const forward::Panel& lanes = look.panel.in.lanes;
  const Index n = run.core().panel;
  const Index h0 = run.after.kind == Mix::none ? v : 0,
              h1 = run.after.kind == Mix::none ? v + 1 : run.before.to;
  const Index id = forward::sequence_id(run.forward.args, look.at.sequence);
  for (Index k = 0; k < look.to; ++k) {
    std::uint64_t bits = 0;
    for (int lane = 0; lane < lanes.count; ++lane) {
      bool open = false;
      for (Index h = h0; h < h1; ++h) open = open || look.l[h * run.tile_step() + k * n + lane] != -INFINITY;
      if (open && run.forward.problem.heads.terms.dropout)
        open = run.forward.dropout.keep(id, v, lanes.position[lane], look.key0 + k);
      bits |= std::uint64_t{open} << lane;
    }
    s.kept_pairs[v * kMixKeys + k] = bits;
  }
}

/// Values that are not finite were packed as 0, and so were those the core cannot multiply: their products,
/// one by one.
void add_unusual(const MixedRun& run, const OutScratch& s, const Look& look, const float* u, Index v,
                 float* o) {
  const Core& core = run.core();
  const Rows values = forward::value_rows_of(run.forward, look.at, v);
  for (Index k = 0; k < look.to; ++k)
    for (Index d = values.begin; d < values.end; ++d) {
      const Index from = (look.key0 + k) * values.row_step + d * values.column_step;
      auto x = static_cast<float>(load_double(values.data, run.forward.args.v.dtype, from));
      if (values.scale) x *= values.scale[(look.key0 + k) * values.scale_step];
      const float size = std::fabs(x);
      if (size == 0 || (size >= core.value_low && size < core.value_high)) continue;
      for (int lane = 0; lane < look.panel.in.lanes.count; ++lane) {
        float& sum = o[d * core.panel + lane];
        if (s.kept_pairs[v * kMixKeys + k] >> lane & 1u) sum = std::fma(x, u[k * core.panel + lane], sum);
      }
    }
}

}  // namespace

void weigh_block(const MixedRun& run, OutScratch& s, const Look& look) {
  OutPanel& panel = look.panel;
  const float* l = look.l;
  const Index key0 = look.key0, to = look.to;
  const bool finite = look.finite;
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  const Index n = core.panel, step = run.tile_step(), v_heads = p.heads.v.heads;
  if (!finite)
    for (Index v = 0; v < v_heads; ++v) find_kept_pairs(run, s, look, v);
  for (Index h = 0; h < run.before.to; ++h)
    core.passes.place_weights(l + h * step, 0, to, s.in.factor, panel.top + h * n, panel.weight + h * n,
                              s.in.l + h * step);
  float* u = s.in.l;
  if (run.after.kind != Mix::none) {
    u = s.in.s;
    core.passes.mix(
        mix_tile(run, run.after, panel.in.coefficients[1], s.in.key_coefficients[1], s.in.l, u, to));
  }
  for (Index v = 0; v < v_heads; ++v) {
    float* weights = u + v * step;
    const Tile tile{weights - s.key0 * n, s.operand, s.key0, s.key0 + to, nullptr, nullptr, nullptr};
    float* o = panel.o + v * run.forward.value_rows() * n;
    if (p.heads.terms.dropout) {
      look_at_head(run, panel.in.lanes, v);
      core.passes.dropout(weights, 0, to, forward::dropout_of(run.forward, look.at, panel.in.lanes, key0));
    }
    if (!finite) close_pairs(run, s, v, to, weights);
    core.products.operand(tile);
    core.products.weigh(tile, s.values + p.heads.v.slot(v) * value_slot_bytes(run), p.heads.v.dim, s.in.ones,
                        o);
    if (!finite) add_unusual(run, s, look, weights, v, o);
  }
}

}  // namespace headwise::cpu::mixed
