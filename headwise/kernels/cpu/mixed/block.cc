#include "headwise/kernels/cpu/mixed/block.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace headwise::cpu::mixed {

using forward::Panel;
namespace {

/// [from to] in any float as tiles of mix_rows columns; missing columns are 0.
const float* pack_matrix(const Core& core, const AnyView& m, Index from, Index to, bool turned,
                         Arena& arena) {
  const Index rows = core.passes.mix_rows;
  float* out = arena.take<float>("mixed.matrix", round_up(to, rows) * from);
  if (!out || !m.given()) return nullptr;  // of a dynamic mix it may not come
  for (Index g = 0; g < to; g += rows)
    for (Index i = 0; i < from; ++i)
      for (Index c = 0; c < rows; ++c) {
        const Index row = turned ? g + c : i, column = turned ? i : g + c;
        out[g * from + i * rows + c] =
            g + c < to
                ? static_cast<float>(load_double(m.data, m.dtype, row * m.step[0] + column * m.step[1]))
                : 0.0f;
      }
  return out;
}

bool heads_share(const MaskSet& mask) {
  if (mask.count > 1) return false;
  for (int i = 0; mask.given() && i < mask.views[0].count; ++i)
    if (mask.views[0].steps[i].op == MaskOp::dense && mask.views[0].steps[i].size[1] > 1) return false;
  return true;
}

std::byte* at_slot(std::byte* base, Index slot, Index bytes) { return base + slot * bytes; }

}  // namespace

const Core& core_of(const AttentionProblem& p, const TileKernels& kernels) {
  if (p.dtype == DType::bf16 && !p.eight_bit_kv() && kernels.bf16) return *kernels.bf16;
  if (kernels.few && p.q_tokens <= kernels.few->panel) return *kernels.few;  // the same bits in fewer lanes
  if (kernels.narrow && p.q_tokens <= kernels.narrow->panel) return *kernels.narrow;
  return kernels.f32;
}

Index key_block_bytes(const Core& core, Index dim) {  // a block of keys is the beginning of a granule
  return round_up(core.products.key_bytes(dim) / core.granule * kMixKeys, Index{Arena::kAlign});
}

std::size_t whole_pieces(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}

Index MixedRun::block_count() const {
  const AttentionProblem& p = forward.problem;
  const Index n = core().granule;
  return (p.ragged ? p.kv_total / n + p.batch + 1 : p.batch * ceil_div(p.kv_tokens, n)) * granule_blocks();
}
Index MixedRun::first_block(const SequenceLocation& at) const {
  const AttentionProblem& p = forward.problem;
  const Index n = core().granule;
  return (p.ragged ? at.kv_row / n + at.sequence : at.sequence * ceil_div(p.kv_tokens, n)) * granule_blocks();
}

MixedRun mixed_run_of(const AttentionProblem& p, const AttentionArgs& args, const TileKernels& kernels,
                      const Core& core, Index task_panels) {
  const HeadSpec& h = p.heads;
  MixedRun run{forward::run_of(p, args, kernels, core, task_panels * core.panel),
               {h.before, h.q.heads, h.normal_heads(), 0},
               {h.after, h.normal_heads(), h.v.heads, h.before == Mix::dynamic ? 2 * h.mix_rank + 1 : 0},
               round_up(h.mix_rank, 2),
               heads_share(args.mask),
               task_panels,
               true,
               nullptr};
  run.forward.scaled_first = true;
  // Only f32 queries can carry a scale, and only an ordinary one keeps them ordinary.
  run.scaled_queries = std::string_view(core.name) == "f32";
  for (Index m = 0; m < h.q.heads; ++m) {
    const float scale = std::fabs(forward::scale_of(run.forward, m));
    run.scaled_queries = run.scaled_queries && scale >= 1e-3f && scale <= 1e3f;
    if (args.inputs.scale.size[0] <= 1) break;
  }
  return run;
}

void book_matrices(MixedRun& run, bool transposed, Arena& arena) {
  const AttentionProblem& p = run.forward.problem;
  const HeadInputs& in = run.forward.args.inputs;
  const Core& core = run.core();
  const auto stage = [&](MixStage& m, const AnyView& given) {
    if (m.kind == Mix::none) return;
    m.matrix = pack_matrix(core, given, m.from, m.to, false, arena);
    m.transposed = transposed ? pack_matrix(core, given, m.to, m.from, true, arena) : nullptr;
  };
  stage(run.before, in.mix_before);
  stage(run.after, in.mix_after);
  float* scales = arena.take<float>("mixed.scales", p.heads.q.heads * core.panel);
  run.scales = scales;
  for (Index m = 0; scales && m < p.heads.q.heads; ++m)
    std::fill_n(scales + m * core.panel, core.panel, forward::scale_of(run.forward, m));
}

MixedScratch book_mixed(const MixedRun& run, Arena& arena) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  const Index panel = core.panel;
  MixedScratch s{};
  const bool reads_terms = p.heads.terms.bias || p.heads.terms.relative;
  s.terms.gather =
      arena.take<float>("mixed.gather", panel * round_up(max_of(p.heads.q.dim, p.heads.v.dim), 16));
  s.terms.term = arena.take<float>("mixed.term", reads_terms ? panel * core.granule : 0);
  s.terms.by_distance = arena.take<float>("mixed.term", p.heads.terms.relative ? panel + core.granule : 0);
  s.terms.words = arena.take<std::uint64_t>("mixed.open", 64 * ceil_div(kMixKeys, 64));
  s.l = arena.take<float>("mixed.tiles", most_heads(p) * run.tile_step());
  s.factor = arena.take<float>("mixed.lanes", panel);
  s.ones = arena.take<float>("mixed.lanes", panel);
  if (s.factor) std::fill_n(s.factor, panel, 1.44269504f), std::fill_n(s.ones, panel, 1.0f);
  return s;
}

void book_block(const MixedRun& run, MixedScratch& s, Arena& arena) {
  const AttentionProblem& p = run.forward.problem;
  s.keys = arena.take<std::byte>("mixed.keys", run.key_slots() * key_block_bytes(run.core(), p.heads.k.dim));
  for (int i = 0; i < 2; ++i)
    s.key_coefficients[i] = arena.take<float>("mixed.coefficients", run.key_coefficients(i));
  s.s = arena.take<float>("mixed.tiles", most_heads(p) * run.tile_step());
}

MixedPanel book_lanes(const MixedRun& run, Arena& arena) {
  const Index panel = run.core().panel;
  MixedPanel m{};
  m.open = arena.take<std::uint64_t>("mixed.open", kMixKeys * run.before.to);
  auto* places = arena.take<Index>("mixed.lanes", 3 * panel);
  auto* words = arena.take<std::uint32_t>("mixed.lanes", 2 * panel);
  auto* lanes = arena.take<float>("mixed.lanes", 2 * panel);
  if (places) {
    m.lanes.head = places, m.lanes.token = places + panel, m.lanes.position = places + 2 * panel;
    m.lanes.head32 = words, m.lanes.position32 = words + panel;
    m.lanes.slope = lanes, m.lanes.q_distance = lanes + panel;
  }
  return m;
}

MixedPanel book_mixed_panel(const MixedRun& run, Arena& arena) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  const Index panel = core.panel;
  MixedPanel m{};
  m.queries =
      arena.take<std::byte>("mixed.queries", p.heads.q.heads * core.products.query_bytes(p.heads.q.dim));
  for (int i = 0; i < 2; ++i) {
    const MixStage& stage = i == 0 ? run.before : run.after;
    if (stage.kind == Mix::dynamic)
      m.coefficients[i] =
          arena.take<float>("mixed.coefficients", run.coefficient_rows() * stage.from * panel);
  }
  const MixedPanel lanes = book_lanes(run, arena);
  m.open = lanes.open, m.lanes = lanes.lanes;
  return m;
}

namespace {

/// Coefficients of the panel's queries, [2 rank + 1][heads][panel]; gates with 1 added.
void pack_query_coefficients(const MixedRun& run, const SequenceLocation& at, const Panel& lanes,
                             const MixStage& stage, float* out) {
  const AnyView& c = run.forward.args.inputs.mix_q;
  const Index panel = run.core().panel, heads = stage.from, rank = run.forward.problem.heads.mix_rank;
  std::fill_n(out, run.coefficient_rows() * heads * panel, 0.0f);
  const auto row = [&](Index from, Index to, float more) {
    for (Index h = 0; h < heads; ++h)
      for (int i = 0; i < lanes.count; ++i)
        out[(to * heads + h) * panel + i] =
            more + (c.given() ? static_cast<float>(load_double(
                                    c.data, c.dtype,
                                    at.tensor_batch * c.step[0] + (at.q_row + lanes.token[i]) * c.step[1] +
                                        (stage.row0 + from) * c.step[2] + h * c.step[3]))
                              : 0.0f);
  };
  for (Index r = 0; r < rank; ++r) row(r, r, 0.0f), row(rank + r, run.rank + r, 0.0f);
  row(2 * rank, 2 * run.rank, 1.0f);
}

}  // namespace

void place_lanes(const MixedRun& run, const SequenceLocation& at, Index first, Panel& lanes) {
  const Core& core = run.core();
  lanes.count = static_cast<int>(std::min<Index>(core.panel, at.q_tokens - first));
  for (int i = 0; i < core.panel; ++i) {  // idle lanes repeat the last row's place
    lanes.token[i] = first + std::min(i, lanes.count - 1);
    lanes.position[i] = at.q_start + lanes.token[i];
    lanes.position32[i] = static_cast<std::uint32_t>(lanes.position[i]);
  }
  look_at_head(run, lanes, 0);
}

void fill_mixed(const MixedRun& run, const SequenceLocation& at, Index first, MixedScratch& s,
                MixedPanel& panel) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  Panel& lanes = panel.lanes;
  place_lanes(run, at, first, lanes);
  Rows rows[64];
  for (Index m = 0; m < p.heads.q.heads; ++m) {
    std::fill_n(rows, core.panel,
                forward::rows_of(run.forward.args.q, p.heads.q, m, at.tensor_batch, at.q_row));
    core.products.pack_queries(rows, lanes.token, lanes.count, p.heads.q.dim,
                               panel.queries + m * core.products.query_bytes(p.heads.q.dim), s.terms.gather);
    if (run.scaled_queries)
      core.passes.scale(
          reinterpret_cast<float*>(panel.queries + m * core.products.query_bytes(p.heads.q.dim)), 0,
          p.heads.q.dim, run.scales + m * core.panel);
  }
  if (panel.coefficients[0]) pack_query_coefficients(run, at, lanes, run.before, panel.coefficients[0]);
  if (panel.coefficients[1]) pack_query_coefficients(run, at, lanes, run.after, panel.coefficients[1]);
}

void look_at_head(const MixedRun& run, Panel& lanes, Index head) {
  const Index panel = run.core().panel;
  std::fill_n(lanes.head, panel, head);
  std::fill_n(lanes.head32, panel, static_cast<std::uint32_t>(head));
  const AnyView& slopes = run.forward.args.inputs.slopes;
  if (run.forward.problem.heads.terms.alibi && head < slopes.size[0])
    std::fill_n(lanes.slope, panel,
                static_cast<float>(load_double(slopes.data, slopes.dtype, head * slopes.step[0])));
}

void pack_keys(const MixedRun& run, const SequenceLocation& at, Index key0, Index count, MixedScratch& s) {
  const HeadLayout& layout = run.forward.problem.heads.k;
  for (Index slot = 0; slot < run.key_slots(); ++slot)
    run.core().products.pack_keys(forward::key_rows(run.forward, at, slot * layout.group), key0, count,
                                  layout.dim, at_slot(s.keys, slot, key_block_bytes(run.core(), layout.dim)));
  if (run.before.kind == Mix::dynamic)
    pack_key_coefficients(run, at, key0, count, run.before, s.key_coefficients[0]);
}

bool pack_key_coefficients(const MixedRun& run, const SequenceLocation& at, Index key0, Index count,
                           const MixStage& stage, float* out) {
  const AnyView& c = run.forward.args.inputs.mix_k;
  const Index heads = stage.from, rank = run.forward.problem.heads.mix_rank,
              step = run.coefficient_rows() * heads;
  std::fill_n(out, kMixKeys * step, 0.0f);
  if (!c.given()) return true;
  const auto row = [&](Index k, Index from, Index to) {
    const Index base =
        at.tensor_batch * c.step[0] + (at.kv_row + key0 + k) * c.step[1] + (stage.row0 + from) * c.step[2];
    float* line = out + k * step + to * heads;
    if (c.dtype == DType::f32 && c.step[3] == 1) {
      std::copy_n(static_cast<const float*>(c.data) + base, heads, line);
      return;
    }
    for (Index h = 0; h < heads; ++h)
      line[h] = static_cast<float>(load_double(c.data, c.dtype, base + h * c.step[3]));
  };
  for (Index k = 0; k < count; ++k) {
    for (Index r = 0; r < rank; ++r) row(k, r, r), row(k, rank + r, run.rank + r);
    row(k, 2 * rank, 2 * run.rank);
  }
  float unusual = 0;  // x * 0 is NaN for what is not finite
  for (Index n = 0; n < count * step; ++n) unusual += out[n] * 0.0f;
  return unusual == 0;
}

Opening open_block(const MixedRun& run, const SequenceLocation& at, MixedScratch& s, MixedPanel& panel,
                   Index key0, Index keys) {
  Opening all;
  const Index heads = run.shared_mask ? 1 : run.before.to;
  for (Index h = 0; h < heads; ++h) {
    if (!run.shared_mask) look_at_head(run, panel.lanes, h);
    forward::TileKeys t{.key0 = key0,
                        .from = 0,
                        .to = keys,
                        .kind = forward::tile_kind(run.forward, at, panel.lanes, key0, keys)};
    std::uint64_t* open = panel.open + h * kMixKeys;
    if (t.kind == TileKind::empty) {
      t.to = 0;
      if (heads > 1) std::fill_n(open, kMixKeys, std::uint64_t{0}), all.mixed = true;
    } else if (t.kind == TileKind::full) {
      if (heads > 1) std::fill_n(open, kMixKeys, ~std::uint64_t{0});
    } else {
      std::fill_n(open, kMixKeys, std::uint64_t{0});
      s.terms.open = open;
      forward::open_bits(run.forward, at, panel.lanes, s.terms, t);
      if (t.from == t.to) t.to = 0;
      all.mixed = true;
    }
    all.to = std::max(all.to, t.to);
  }
  all.some = all.to > 0;
  return all;
}

void scores_of(const MixedRun& run, MixedScratch& s, const MixedPanel& panel, Index to, float* out) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  for (Index m = 0; m < p.heads.q.heads; ++m) {
    float* tile = out + m * run.tile_step();
    core.products.scores(panel.queries + m * core.products.query_bytes(p.heads.q.dim),
                         at_slot(s.keys, p.heads.k.slot(m), key_block_bytes(core, p.heads.k.dim)), 0, to,
                         p.heads.q.dim, tile);
    if (!run.scaled_queries) core.passes.scale(tile, 0, to, run.scales + m * core.panel);
    if (p.heads.terms.softcap)
      core.passes.softcap(tile, 0, to, static_cast<float>(run.forward.args.inputs.softcap));
  }
}

MixTile mix_tile(const MixedRun& run, const MixStage& stage, const float* query, const float* key,
                 const float* x, float* y, Index to) {
  const bool dynamic = stage.kind == Mix::dynamic;
  return {x,
          run.tile_step(),
          y,
          run.tile_step(),
          0,
          to,
          stage.from,
          stage.to,
          stage.matrix,
          dynamic ? query : nullptr,
          key,
          run.coefficient_rows() * stage.from,
          run.rank,
          0,
          run.rank};
}

void logits_of(const MixedRun& run, const SequenceLocation& at, MixedScratch& s, MixedPanel& panel,
               const Opening& opening, Index key0, float* l) {
  const Terms& terms = run.forward.problem.heads.terms;
  const Core& core = run.core();
  if (run.before.kind == Mix::none) {
    scores_of(run, s, panel, opening.to, l);
  } else {
    scores_of(run, s, panel, opening.to, s.s);
    core.passes.mix(
        mix_tile(run, run.before, panel.coefficients[0], s.key_coefficients[0], s.s, l, opening.to));
  }
  const bool looks = terms.bias || terms.alibi || terms.relative;
  if (terms.alibi)
    for (int i = 0; i < core.panel; ++i)
      panel.lanes.q_distance[i] = static_cast<float>(panel.lanes.position[i] - key0);
  for (Index h = 0; (looks || opening.mixed) && h < run.before.to; ++h) {
    s.terms.s = l + h * run.tile_step();
    if (looks) {
      look_at_head(run, panel.lanes, h);
      forward::add_terms(run.forward, at, panel.lanes, s.terms, {.key0 = key0, .from = 0, .to = opening.to});
    }
    if (opening.mixed)
      core.passes.select(s.terms.s, 0, opening.to, panel.open + (run.shared_mask ? 0 : h) * kMixKeys);
  }
}

}  // namespace headwise::cpu::mixed
