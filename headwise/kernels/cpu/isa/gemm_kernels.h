// GemmKernels: the table of product and activation functions one ISA level brings; plain types only, since
// every level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/row_kernels.h"
#include "headwise/kernels/cpu/isa/tile_tasks.h"

namespace headwise::cpu {

/// One axis of a matrix: index i stands at i / inner * outer_step + i % inner * step.
struct Axis {
  Index inner = 1, step = 0, outer_step = 0;
};

/// One side of a product as it lies: element (line, k), a line being a row of a or a column of b.
struct Side {
  const void* data = nullptr;
  RowType type = RowType::f32;
  Axis line, k;
};

/// c [rows columns] = or += a b over one block of k. Packed lines are padded with zeros to whole tiles, and
/// so is c.
struct GemmBlock {
  const void* a;  // as pack_a made it for these rows and this block of k, or f32 rows as they lie
  const void* b;  // the first panel of columns, at this block of k
  Index b_step;   // bytes from panel to panel
  Index rows, columns, k;
  float* c;
  Index c_step;
  bool add;          // the sums start at c, else at 0
  Index a_step = 0;  // elements from row to row of rows as they lie; 0: packed
  Index live = 0;    // of the rows, those that exist
  /// The f32 core alone, 0: none of it. k is 1, 2, 4 or 8 leaves of so many, each a chain, and chains are
  /// added as a tree. To the sum are added those of `merges` planes before c, each `plane` elements before
  /// the last; it goes to `out`.
  Index leaf = 0, merges = 0, plane = 0;
  float* out = nullptr;
  Index out_step = 0;
};

/// How one ISA level multiplies. Every element is one chain over k in ascending order, whatever tile it lies
/// in; layouts of packed operands are private to the core.
struct GemmCore {
  const char* name;
  int rows, columns;  // a and c are padded to these
  Index depth;        // k of one block; a multiple of what one instruction sums
  void (*begin)();    // around the blocks of one task
  void (*end)();
  Index (*a_bytes)(Index rows, Index k);
  Index (*panel_bytes)(Index k);  // one panel of `columns` columns over k
  void (*pack_a)(const Side&, Index first, Index count, Index k0, Index k, void* out);
  void (*pack_b)(const Side&, Index first, Index count, Index k0, Index k, void* out);  // one panel
  void (*multiply)(const GemmBlock&);
  bool reads_rows;  // multiply takes rows of f32 as they lie, where there are whole tiles of them
};

/// What follows the sums of one row: out = activation(c + bias) * factor + residual, slope =
/// activation'(c + bias). Null: 0, 1, or not wanted. out may be c.
struct GemmRow {
  const float* c;
  const float *bias, *factor, *residual;
  float *slope, *out;
  Index columns;
};

/// By number as spec/gemm.h has them: none, relu, gelu, gelu_tanh, silu, sigmoid.
struct GemmKernels {
  GemmCore f32;          // computes f32, and f16 and bf16 converted while packing
  const GemmCore* bf16;  // matrix core for bf16 with f32 sums; null: the f32 core takes bf16
  /// NaN stays NaN.
  void (*finish)(int kind, const GemmRow&);
  /// value[i] = activation(x[i]), slope[i] its derivative.
  void (*slopes)(int kind, const float* x, Index count, float* value, float* slope);
  /// out[i] = element start + i of an axis, as f32.
  void (*load_stretch)(const void* data, RowType type, const Axis& axis, Index start, Index count,
                       float* out);
  /// The other way, rounded to nearest even.
  void (*store_stretch)(const float* from, Index count, RowType type, void* data, const Axis& axis,
                        Index start);
  RowKernels rows;
  const GemmCore* f32_parts = nullptr;  // matrix core for f32 in three parts of bf16; null: none
};

extern const GemmKernels kGemmPlain;
extern const GemmKernels kGemmNeon, kGemmNeonBf16;
extern const GemmKernels kGemmAvx2, kGemmAvx512, kGemmAmx;

}  // namespace headwise::cpu
