// Blocks of a product on the CPU: which core multiplies, how c is cut, where sums may lie, what follows them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/arena.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/gemm_candidate.h"

namespace headwise::cpu::gemm {

constexpr Index kMostRows = 192, kMostColumns = 512, kGoodRows = 48, kGoodColumns = 128, kLeastRows = 24,
                kLeastColumns = 64;

inline const GemmKernels& level() { return *chosen_isa().gemm(); }
/// Below, taking operands apart costs what tiles save (512 rows, k and n 64: 0.91 times as fast as the chain;
/// 64 and 256: 1.25; 128 and 128: 1.48). A sum that continues asks n alone: a batch may be cut along k.
inline bool worth_parts(const GemmProblem& p) {
  constexpr Index kLeast = 64;
  return p.n >= kLeast && (p.accumulate || (p.k >= kLeast && max_of(p.k, p.n) >= 2 * kLeast));
}
inline const GemmCore& core_of(const GemmProblem& p) {
  const GemmKernels& kernels = level();
  if (kernels.f32_parts && p.parts && p.a == DType::f32 && p.b == DType::f32 && worth_parts(p))
    return *kernels.f32_parts;
  return kernels.bf16 && p.a == DType::bf16 && p.b == DType::bf16 ? *kernels.bf16 : kernels.f32;
}
inline RowType row_type(DType t) {
  return t == DType::bf16 ? RowType::bf16 : t == DType::f16 ? RowType::f16 : RowType::f32;
}
inline Axis axis_of(const MatrixAxis& a) { return {a.inner, a.step, a.outer_step}; }
inline Side left_side(const MatrixView& a) {
  return {a.data, row_type(a.dtype), axis_of(a.rows), axis_of(a.columns)};
}
inline Side right_side(const MatrixView& b) {
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
inline Cut cut_of(const GemmProblem& p, const GemmCore& core, int threads, Index most_rows = kMostRows) {
  Index rows = most_rows, columns = kMostColumns;
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
inline Index c_step(const Cut& cut) { return cut.columns + 16; }

/// Panels of columns first .. first + columns - 1.
void pack_with(const GemmCore& core, const GemmProblem& p, const MatrixView& b, Index first, Index columns,
               std::byte* out, ThreadPool& pool) noexcept;

/// One row of each, where it does not lie as f32 side by side.
struct RowScratch {
  float *residual, *factor, *slope;
};

/// Do `count` of an axis from `first` on stand at one step?
inline bool one_run(const MatrixAxis& axis, Index first, Index count) {
  return first / axis.inner == (first + count - 1) / axis.inner;
}

/// Where the sums of a block may lie in out itself: whole tiles of plain f32 rows. Rows whole pages apart
/// share a cache set: coming back to them for every block of k costs more than the copy saved. Null: they may
/// not.
inline float* place_in_out(const GemmProblem& p, const GemmCore& core, const MatrixView& out, Index row0,
                           Index rows, Index column0, Index columns) {
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
inline const float* rows_in_place(const GemmCore& core, const MatrixView& a, Index row0, Index rows, Index k0,
                                  Index k) {
  constexpr Index kFarthest = 2048 / sizeof(float);
  if (a.dtype != DType::f32 || a.columns.step != 1 || rows % core.rows != 0 || a.rows.step <= 0 ||
      a.rows.step > kFarthest || !one_run(a.rows, row0, rows) || !one_run(a.columns, k0, k))
    return nullptr;
  return static_cast<const float*>(a.data) + a.at(row0, k0);
}

/// Columns of one row that lie as f32 side by side; null: they do not.
inline float* place_of(const MatrixView& m, Index row, Index column0, Index columns) {
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
inline void finish(const GemmKernels& kernels, const GemmProblem& p, const GemmArgs& args,
                   const RowScratch& s, const Sums& sums) noexcept {
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

}  // namespace headwise::cpu::gemm
