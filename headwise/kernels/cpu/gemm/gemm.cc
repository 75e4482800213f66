#include "headwise/kernels/cpu/gemm/gemm.h"

#include "headwise/kernels/cpu/gemm/blocks.h"

namespace headwise::cpu::gemm {
namespace {

struct Scratch {
  float* c;
  RowScratch rows;
  std::byte* a;
};
struct Memory {
  std::byte* b;
  float* bias;
  Scratch* worker;
};
/// Measures or hands out.
struct Layout {
  std::byte *b = nullptr, *each = nullptr;
  float* bias = nullptr;
  Index each_bytes = 0, c_floats = 0, row_floats = 0;  // of one worker; rows: three
};
Layout lay_out(Arena& arena, const GemmProblem& p, const GemmCore& core, const Cut& cut, int threads) {
  Layout l;
  if (!p.packed)
    l.b = arena.take<std::byte>(
        "gemm.b",
        saturated(Checked(core.panel_bytes(p.k)) *
                  Checked(min_of(cut.together * cut.columns, p.n + core.columns - 1) / core.columns)));
  if (p.bias) l.bias = arena.take<float>("gemm.bias", p.n);
  l.c_floats = round_up(cut.rows * c_step(cut), 32), l.row_floats = round_up(cut.columns, 32);
  l.each_bytes = (l.c_floats + 3 * l.row_floats) * 4 +
                 round_up(core.a_bytes(cut.rows, min_of(p.k, core.depth)), Index{Arena::kAlign});
  l.each = arena.take<std::byte>("gemm.each", l.each_bytes * threads);
  return l;
}
Scratch scratch_of(const Layout& l, int worker) {
  auto* at = reinterpret_cast<float*>(l.each + l.each_bytes * worker);
  float* rows = at + l.c_floats;
  return {at,
          {rows, rows + l.row_floats, rows + 2 * l.row_floats},
          reinterpret_cast<std::byte*>(rows + 3 * l.row_floats)};
}

std::string refuse(const GemmProblem& p) {
  for (const DType t : {p.a, p.b, p.out})
    if (t == DType::f64) return "multiplies f32, bf16 and f16, but f64 was given";
  return "";
}
std::size_t workspace_bytes(const GemmProblem& p, int threads) {
  const GemmCore& core = core_of(p);
  Arena arena = Arena::measuring();
  lay_out(arena, p, core, cut_of(p, core, threads), threads);
  return arena.used();
}
std::string numerics(const GemmProblem& p) {
  return std::string("cpu/packed ") + chosen_isa().name + " " + core_of(p).name;
}
std::size_t packed_bytes(const GemmProblem& p) {
  const GemmCore& core = core_of(p);
  return static_cast<std::size_t>(
      saturated(Checked(core.panel_bytes(p.k)) * Checked(ceil_div(p.n, core.columns))));
}

void pack_panels(const GemmCore& core, const GemmProblem& p, const MatrixView& b, Index first, Index columns,
                 std::byte* out, ThreadPool& pool) noexcept {
  const Side side = right_side(b);
  const Index panels = ceil_div(columns, core.columns), cuts = ceil_div(p.k, core.depth),
              bytes = core.panel_bytes(p.k);
  pool.parallel_for(panels * cuts, [&](Index task, int) noexcept {
    const Index panel = task / cuts, k0 = task % cuts * core.depth, at = first + panel * core.columns;
    core.pack_b(side, at, min_of(core.columns, p.n - at), k0, min_of(core.depth, p.k - k0),
                out + panel * bytes + core.panel_bytes(k0));
  });
}

void pack(const GemmProblem& p, const MatrixView& b, void* out, ThreadPool& pool) noexcept {
  pack_panels(core_of(p), p, b, 0, p.n, static_cast<std::byte*>(out), pool);
}

void run(const GemmProblem& p, const GemmArgs& args, std::span<std::byte> workspace,
         ThreadPool& pool) noexcept {
  if (p.m == 0 || p.n == 0) return;
  const GemmKernels& kernels = level();
  const GemmCore& core = core_of(p);
  const Cut cut = cut_of(p, core, pool.threads());
  Arena arena(workspace);
  const Layout layout = lay_out(arena, p, core, cut, pool.threads());
  const Index panel = core.panel_bytes(p.k), step = c_step(cut);
  if (p.bias)
    for (Index j = 0; j < p.n; ++j)
      layout.bias[j] =
          static_cast<float>(load_double(args.bias.data, args.bias.dtype, j * args.bias.step[0]));
  const Side side = left_side(args.a);
  const Axis out_columns = axis_of(args.out.columns);
  const auto* b = static_cast<const std::byte*>(args.packed);  // the panel of column `first`
  Index first = 0;
  const auto multiply = [&](Index task, int worker) noexcept {
    const Scratch s = scratch_of(layout, worker);
    const Index row0 = task % cut.row_blocks * cut.rows, rows = min_of(cut.rows, p.m - row0);
    const Index column0 = first + task / cut.row_blocks * cut.columns,
                columns = min_of(cut.columns, p.n - column0);
    const Index padded_rows = round_up(rows, core.rows), padded_columns = round_up(columns, core.columns);
    float* out = place_in_out(p, core, args.out, row0, rows, column0, columns);
    if (!out && (p.accumulate || p.k == 0))
      for (Index i = 0; i < padded_rows; ++i) {
        float* c = s.c + i * step;
        const bool read = p.accumulate && i < rows;
        if (read)
          kernels.load_stretch(
              static_cast<const std::byte*>(args.out.data) + args.out.rows.at(row0 + i) * size_of(p.out),
              row_type(p.out), out_columns, column0, columns, c);
        for (Index j = read ? columns : 0; j < padded_columns; ++j) c[j] = 0.0f;
      }
    core.begin();
    for (Index k0 = 0; k0 < p.k; k0 += core.depth) {
      const Index k = min_of(core.depth, p.k - k0);
      const float* in_place = core.reads_rows ? rows_in_place(core, args.a, row0, rows, k0, k) : nullptr;
      if (!in_place) core.pack_a(side, row0, rows, k0, k, s.a);
      core.multiply({in_place ? static_cast<const void*>(in_place) : s.a,
                     b + (column0 - first) / core.columns * panel + core.panel_bytes(k0), panel, padded_rows,
                     padded_columns, k, out ? out : s.c, out ? args.out.rows.step : step,
                     k0 > 0 || p.accumulate, in_place ? args.a.rows.step : 0, rows});
    }
    core.end();
    for (Index j = 0, n; !out && j < columns; j += n) {
      n = min_of(columns - j, args.out.columns.inner - (column0 + j) % args.out.columns.inner);
      finish(kernels, p, args, s.rows,
             {s.c + j, step, p.bias ? layout.bias : nullptr, row0, rows, column0 + j, n});
    }
  };
  for (; first < p.n; first += cut.together * cut.columns) {
    const Index columns = min_of(cut.together * cut.columns, p.n - first);
    if (!p.packed) pack_panels(core, p, args.b, first, columns, layout.b, pool), b = layout.b;
    pool.parallel_for(cut.row_blocks * ceil_div(columns, cut.columns), multiply);
  }
}

}  // namespace

void pack_with(const GemmCore& core, const GemmProblem& p, const MatrixView& b, Index first, Index columns,
               std::byte* out, ThreadPool& pool) noexcept {
  pack_panels(core, p, b, first, columns, out, pool);
}

const GemmKernel kPacked{"cpu/packed",
                         refuse,
                         workspace_bytes,
                         run,
                         numerics,
                         packed_bytes,
                         [](const GemmProblem& p) -> const void* { return &core_of(p); },
                         pack};

}  // namespace headwise::cpu::gemm
