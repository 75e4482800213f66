#include "headwise/kernels/cpu/gemm/leaves.h"

#include <bit>

#include "headwise/kernels/cpu/gemm/blocks.h"

namespace headwise::cpu::gemm {
namespace {

constexpr Index kMostLeaves = 8;

/// How leaves go through the tiles. Leaves of one term that fit into one block of k are one unit, added in
/// the tile; units wait for their neighbours in planes of c.
struct Units {
  Index leaf_count, count, planes;

  Units(const LeafGemm& g, const GemmCore& core) : leaf_count(1) {
    const Index leaf = g.terms[0].k / g.leaves;
    if (g.terms.size() == 1 && g.terms[0].repeats == 1)
      while (2 * leaf_count <= g.leaves && 2 * leaf_count * leaf <= core.depth) leaf_count *= 2;
    count = g.leaves / leaf_count;
    planes = static_cast<Index>(std::bit_width(static_cast<std::size_t>(count)));
    if (g.terms.size() > 1) ++planes;
  }
};

GemmProblem whole(const LeafGemm& g) {
  GemmProblem p{.m = g.m, .n = g.n};
  for (const LeafTerm& t : g.terms) p.k += t.k;
  p.bias = g.bias.given(), p.residual = g.residual.given();
  return p;
}
/// Planes of c and rows of a share L2.
Cut leaf_cut(const LeafGemm& g, const GemmCore& core, const Units& units, int threads) {
  return cut_of(whole(g), core, threads, units.planes > 1 ? kMostRows / 2 : kMostRows);
}
Index panel_bytes(const LeafGemm& g, const GemmCore& core) {
  Index bytes = 0;
  for (const LeafTerm& t : g.terms) bytes += core.panel_bytes(t.k / t.repeats);
  return bytes;
}

/// Measures or hands out.
struct Layout {
  std::byte *b = nullptr, *each = nullptr;
  float* bias = nullptr;
  Index each_bytes = 0, plane = 0, row_floats = 0;
};
Layout lay_out(Arena& arena, const LeafGemm& g, const GemmCore& core, const Cut& cut, const Units& units,
               int threads) {
  Layout l;
  l.b = arena.take<std::byte>(
      "leaves.b",
      saturated(Checked(panel_bytes(g, core)) *
                Checked(min_of(cut.together * cut.columns, g.n + core.columns - 1) / core.columns)));
  if (g.bias.given()) l.bias = arena.take<float>("leaves.bias", g.n);
  l.plane = round_up(cut.rows * c_step(cut), 32), l.row_floats = round_up(cut.columns, 32);
  l.each_bytes = (units.planes * l.plane + l.row_floats) * 4 +
                 round_up(core.a_bytes(cut.rows, core.depth), Index{Arena::kAlign});
  l.each = arena.take<std::byte>("leaves.each", l.each_bytes * threads);
  return l;
}

/// What all blocks of a run share.
struct Run {
  const LeafGemm& g;
  const GemmCore& core;
  Units units;
  Cut cut;
  Layout layout;
  GemmProblem ends;             // what follows the sums
  Index first = 0, panels = 0;  // columns whose panels are packed: the terms' one after the other

  Run(const LeafGemm& product, const GemmCore& by, int threads)
      : g(product), core(by), units(g, core), cut(leaf_cut(g, core, units, threads)), ends(whole(g)) {
    ends.out = g.out.dtype;
  }
};

/// One block of c through all units.
class LeafBlock {
 public:
  LeafBlock(const Run& run, Index task, int worker) : run_(run), step_(c_step(run.cut)) {
    const Layout& l = run.layout;
    const Cut& cut = run.cut;
    c_ = reinterpret_cast<float*>(l.each + l.each_bytes * worker);
    row_ = c_ + run.units.planes * l.plane;
    a_ = reinterpret_cast<std::byte*>(row_ + l.row_floats);
    row0_ = task % cut.row_blocks * cut.rows, rows_ = min_of(cut.rows, run.g.m - row0_);
    column0_ = run.first + task / cut.row_blocks * cut.columns;
    columns_ = min_of(cut.columns, run.g.n - column0_);
    out_ = place_in_out(run.ends, run.core, run.g.out, row0_, rows_, column0_, columns_);
  }

  void multiply() {
    run_.core.begin();
    for (Index u = 0; u < run_.units.count; ++u) unit(u);
    run_.core.end();
    const MatrixAxis& axis = run_.g.out.columns;
    for (Index j = 0, n; !out_ && j < columns_; j += n) {
      n = min_of(columns_ - j, axis.inner - (column0_ + j) % axis.inner);
      finish(level(), run_.ends, {.out = run_.g.out, .residual = run_.g.residual}, {row_, nullptr, nullptr},
             {c_ + j, step_, run_.layout.bias, row0_, rows_, column0_ + j, n});
    }
  }

 private:
  /// Its sum goes behind the open nodes before it, once those it ends are added.
  void unit(Index u) {
    const LeafGemm& g = run_.g;
    const GemmCore& core = run_.core;
    const Index open = std::popcount(static_cast<std::size_t>(u)),
                ends = std::countr_one(static_cast<std::size_t>(u)), plane = run_.layout.plane;
    const std::byte* b = run_.layout.b;
    for (std::size_t t = 0; t < g.terms.size(); ++t) {
      const LeafTerm& term = g.terms[t];
      const Index before = t > 0 ? 1 : 0, panel = core.panel_bytes(term.k / term.repeats);
      const Index leaf = term.k / g.leaves, k = leaf * run_.units.leaf_count;
      const bool last = t + 1 == g.terms.size(), all = last && u + 1 == run_.units.count;
      GemmBlock block{};
      block.rows = round_up(rows_, core.rows), block.columns = round_up(columns_, core.columns);
      block.live = rows_, block.b_step = panel;
      block.c = c_ + (open + before) * plane, block.c_step = step_;
      for (Index done = 0; done < k; done += core.depth) {
        take_rows(block, term.a, u * k + done, min_of(core.depth, k - done));
        block.b = b + (column0_ - run_.first) / core.columns * panel +
                  core.panel_bytes(u / term.repeats * k + done);
        block.add = done > 0;
        if (done + block.k == k) {
          block.leaf = run_.units.leaf_count > 1 ? leaf : block.k;
          block.merges = before + (last ? ends : 0), block.plane = plane;
          block.out = all && out_ ? out_ : block.c - block.merges * plane;
          block.out_step = all && out_ ? g.out.rows.step : step_;
        }
        core.multiply(block);
      }
      b += panel * run_.panels;
    }
  }
  /// Columns [k0, k0 + k) of a, as they lie or packed.
  void take_rows(GemmBlock& block, const MatrixView& a, Index k0, Index k) {
    const GemmCore& core = run_.core;
    const float* in_place = core.reads_rows ? rows_in_place(core, a, row0_, rows_, k0, k) : nullptr;
    if (!in_place) core.pack_a(left_side(a), row0_, rows_, k0, k, a_);
    block.a = in_place ? static_cast<const void*>(in_place) : a_;
    block.a_step = in_place ? a.rows.step : 0;
    block.k = k;
  }

  const Run& run_;
  Index step_;
  float *c_, *row_, *out_;
  std::byte* a_;
  Index row0_, rows_, column0_, columns_;
};

}  // namespace

bool takes_leaves(const LeafGemm& g, bool parts) {
  if (g.leaves > kMostLeaves || !std::has_single_bit(static_cast<std::size_t>(g.leaves)) || g.terms.empty())
    return false;
  for (const LeafTerm& t : g.terms) {
    const GemmProblem p = g.part(t, parts);
    if (p.k == 0 || p.a == DType::f64 || p.b == DType::f64 || p.out == DType::f64) return false;
    if (&core_of(p) != &level().f32 || t.k % g.leaves != 0) return false;
  }
  return true;
}

std::size_t leaf_workspace_bytes(const LeafGemm& g, int threads) {
  const GemmCore& core = level().f32;
  const Units units(g, core);
  Arena arena = Arena::measuring();
  lay_out(arena, g, core, leaf_cut(g, core, units, threads), units, threads);
  return arena.used();
}

void run_leaves(const LeafGemm& g, std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  if (g.m == 0 || g.n == 0) return;
  const GemmCore& core = level().f32;
  Run run(g, core, pool.threads());
  Arena arena(workspace);
  run.layout = lay_out(arena, g, core, run.cut, run.units, pool.threads());
  for (Index j = 0; g.bias.given() && j < g.n; ++j)
    run.layout.bias[j] = static_cast<float>(load_double(g.bias.data, g.bias.dtype, j * g.bias.step[0]));
  for (; run.first < g.n; run.first += run.cut.together * run.cut.columns) {
    const Index columns = min_of(run.cut.together * run.cut.columns, g.n - run.first);
    run.panels = ceil_div(columns, core.columns);
    std::byte* b = run.layout.b;
    for (const LeafTerm& t : g.terms) {
      const GemmProblem p{.n = g.n, .k = t.k / t.repeats};
      pack_with(core, p, t.b, run.first, columns, b, pool);
      b += core.panel_bytes(p.k) * run.panels;
    }
    pool.parallel_for(run.cut.row_blocks * ceil_div(columns, run.cut.columns),
                      [&](Index task, int worker) noexcept { LeafBlock(run, task, worker).multiply(); });
  }
}

}  // namespace headwise::cpu::gemm
