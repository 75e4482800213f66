#include "headwise/kernels/cpu/gemm/gemm.h"

#include "headwise/base/arena.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::gemm {
namespace {

constexpr Index kMostRows = 192, kMostColumns = 512, kGoodRows = 48, kGoodColumns = 128, kLeastRows = 24,
                kLeastColumns = 64;

const GemmKernels& level() { return *chosen_isa().gemm(); }
/// Below, taking operands apart costs what tiles save (512 rows, k and n 64: 0.91 times as fast as the chain;
/// 64 and 256: 1.25; 128 and 128: 1.48). A sum that continues asks n alone: a batch may be cut along k.
bool worth_parts(const GemmProblem& p) {
  constexpr Index kLeast = 64;
  return p.n >= kLeast && (p.accumulate || (p.k >= kLeast && max_of(p.k, p.n) >= 2 * kLeast));
}
const GemmCore& core_of(const GemmProblem& p) {
  const GemmKernels& kernels = level();
  if (kernels.f32_parts && p.parts && p.a == DType::f32 && p.b == DType::f32 && worth_parts(p))
    return *kernels.f32_parts;
  return kernels.bf16 && p.a == DType::bf16 && p.b == DType::bf16 ? *kernels.bf16 : kernels.f32;
}
RowType row_type(DType t) {
  return t == DType::bf16 ? RowType::bf16 : t == DType::f16 ? RowType::f16 : RowType::f32;
}
Axis axis_of(const MatrixAxis& a) { return {a.inner, a.step, a.outer_step}; }
Side left_side(const MatrixView& a) {
  return {a.data, row_type(a.dtype), axis_of(a.rows), axis_of(a.columns)};
}
Side right_side(const MatrixView& b) {
  return {b.data, row_type(b.dtype), axis_of(b.columns), axis_of(b.rows)};
}

/// How c is cut into tasks. Cuts never change bits, so they may depend on the thread count: enough tasks for
/// all, then blocks as large as L2 likes. Rows are packed once for every block of columns, so rows are cut
/// first; below kGoodRows x kGoodColumns packing costs more than an even share is worth: there two tasks a
/// thread will do.
struct Cut {
  Index rows, columns, row_blocks, column_blocks;
  /// Blocks of columns that are packed, then multiplied, before the next. As few as give every thread work,
  /// so what was packed is still near (512 rows, k 384, n 1536: 4.6 to 4.2 ms; in parts 4.5 to 3.1).
  Index together;
};
Cut cut_of(const GemmProblem& p, const GemmCore& core, int threads) {
  Index rows = kMostRows, columns = kMostColumns;
  const auto tasks = [&] { return ceil_div(p.m, rows) * ceil_div(p.n, columns); };
  const Index wanted = threads == 1 ? 1 : 4 * Index{threads};
  while (tasks() < wanted && (rows > kLeastRows || columns > kLeastColumns)) {
    if (rows <= kGoodRows && columns <= kGoodColumns && tasks() >= 2 * Index{threads}) break;
    if (rows > kGoodRows || (columns <= kLeastColumns && rows > kLeastRows))
      rows /= 2;
    else
      columns /= 2;
  }
  rows = round_up(min_of(rows, max_of(p.m, 1)), core.rows);
  columns = round_up(min_of(columns, max_of(p.n, 1)), core.columns);
  const Index row_blocks = max_of(ceil_div(p.m, rows), 1), column_blocks = ceil_div(p.n, columns);
  return {rows, columns, row_blocks, column_blocks,
          p.packed ? column_blocks : min_of(ceil_div(wanted, row_blocks), column_blocks)};
}

/// Pads rows of c out of one cache set: tiles are 2 KB apart otherwise.
Index c_step(const Cut& cut) { return cut.columns + 16; }

struct Scratch {
  float* c;
  float *residual, *factor, *slope;  // one row of each, where it does not lie as f32 side by side
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
  return {at, rows, rows + l.row_floats, rows + 2 * l.row_floats,
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

/// Panels of columns first .. first + columns - 1.
void pack_with(const GemmCore& core, const GemmProblem& p, const MatrixView& b, Index first, Index columns,
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
  pack_with(core_of(p), p, b, 0, p.n, static_cast<std::byte*>(out), pool);
}

/// Do `count` of an axis from `first` on stand at one step?
bool one_run(const MatrixAxis& axis, Index first, Index count) {
  return first / axis.inner == (first + count - 1) / axis.inner;
}

/// Where the sums of a block may lie in out itself: whole tiles of plain f32 rows. Rows whole pages apart
/// share a cache set: coming back to them for every block of k costs more than the copy saved. Null: they may
/// not.
float* place_in_out(const GemmProblem& p, const GemmCore& core, const MatrixView& out, Index row0, Index rows,
                    Index column0, Index columns) {
  constexpr Index kPage = 4096 / sizeof(float);
  if (p.out != DType::f32 || p.bias || p.residual || p.factor || p.slope ||
      p.activation != Activation::none || p.k == 0 || rows % core.rows != 0 || columns % core.columns != 0 ||
      out.columns.step != 1 || !one_run(out.rows, row0, rows) || !one_run(out.columns, column0, columns))
    return nullptr;
  if (p.k > core.depth && out.rows.step % kPage == 0) return nullptr;
  if (core.rows >= 32 && out.rows.step % (kPage / 4) == 0) return nullptr;  // 32 rows in four sets of L1
  return static_cast<float*>(out.data) + out.at(row0, column0);
}

/// Rows of a that a core may read as they lie: whole tiles of f32 side by side, close enough together that
/// the rows of a tile do not share cache sets. Null: they are packed.
const float* rows_in_place(const GemmCore& core, const MatrixView& a, Index row0, Index rows, Index k0,
                           Index k) {
  constexpr Index kFarthest = 2048 / sizeof(float);
  if (a.dtype != DType::f32 || a.columns.step != 1 || rows % core.rows != 0 || a.rows.step <= 0 ||
      a.rows.step > kFarthest || !one_run(a.rows, row0, rows) || !one_run(a.columns, k0, k))
    return nullptr;
  return static_cast<const float*>(a.data) + a.at(row0, k0);
}

/// Columns of one row that lie as f32 side by side; null: they do not.
float* place_of(const MatrixView& m, Index row, Index column0, Index columns) {
  if (m.dtype != DType::f32 || m.columns.step != 1 || !one_run(m.columns, column0, columns)) return nullptr;
  return static_cast<float*>(m.data) + m.at(row, column0);
}

/// Sums of one block, columns that lie side by side in out.
struct Sums {
  float* c;
  Index step;
  const float* bias;  // of column 0; null: none
  Index row0, rows, column0, columns;
};
/// Rows of one finished block: bias, activation, factor, residual, then out.
void finish(const GemmKernels& kernels, const GemmProblem& p, const GemmArgs& args, const Scratch& s,
            const Sums& sums) noexcept {
  const Index row0 = sums.row0, column0 = sums.column0, columns = sums.columns;
  const auto address = [](const MatrixView& m, Index row) {
    return static_cast<std::byte*>(m.data) + m.rows.at(row) * size_of(m.dtype);
  };
  const auto read = [&](const MatrixView& m, Index row, float* scratch) -> const float* {
    if (const float* there = place_of(m, row, column0, columns)) return there;
    kernels.load_stretch(address(m, row), row_type(m.dtype), axis_of(m.columns), column0, columns, scratch);
    return scratch;
  };
  const auto write = [&](const MatrixView& m, Index row, const float* from) {
    if (from != place_of(m, row, column0, columns))
      kernels.store_stretch(from, columns, row_type(m.dtype), address(m, row), axis_of(m.columns), column0);
  };
  for (Index i = 0; i < sums.rows; ++i) {
    float* c = sums.c + i * sums.step;
    GemmRow r{c, sums.bias ? sums.bias + column0 : nullptr, nullptr, nullptr, nullptr, nullptr, columns};
    if (p.factor) r.factor = read(args.factor, row0 + i, s.factor);
    if (p.residual) r.residual = read(args.residual, row0 + i, s.residual);
    if (p.slope) {
      r.slope = place_of(args.slope, row0 + i, column0, columns);
      if (!r.slope) r.slope = s.slope;
    }
    r.out = place_of(args.out, row0 + i, column0, columns);
    if (!r.out) r.out = c;
    kernels.finish(static_cast<int>(p.activation), r);
    if (p.slope) write(args.slope, row0 + i, r.slope);
    write(args.out, row0 + i, r.out);
  }
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
      finish(kernels, p, args, s,
             {s.c + j, step, p.bias ? layout.bias : nullptr, row0, rows, column0 + j, n});
    }
  };
  for (; first < p.n; first += cut.together * cut.columns) {
    const Index columns = min_of(cut.together * cut.columns, p.n - first);
    if (!p.packed) pack_with(core, p, args.b, first, columns, layout.b, pool), b = layout.b;
    pool.parallel_for(cut.row_blocks * ceil_div(columns, cut.columns), multiply);
  }
}

}  // namespace

const GemmKernel kPacked{"cpu/packed",
                         refuse,
                         workspace_bytes,
                         run,
                         numerics,
                         packed_bytes,
                         [](const GemmProblem& p) -> const void* { return &core_of(p); },
                         pack};

}  // namespace headwise::cpu::gemm
