// F64Core: the functions one ISA level brings for rows in double; plain types only, since every level
// includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace headwise::cpu {

using Index = std::int64_t;

/// Keys of a tile, and the columns that rows are filled up to.
inline constexpr int kF64Lanes = 16;

/// sums[r][j] = x[r] . column j of a tile [dim][16]: one chain of products and sums over dim from 0 on,
/// whatever the rows.
struct F64Dots {
  const double* x;
  Index x_step, rows, dim;
  const double* tile;
  double* sums;
  Index sums_step;
};
/// to[c] += factor[i] * from[row[i]][c] for i = 0 .. count - 1 in this order; columns are a multiple of 16.
struct F64Sum {
  const double* factor;
  const Index* row;
  Index count;
  const double* from;
  Index from_step, columns;
  double* to;
};

struct F64Core {
  void (*dots)(const F64Dots&);
  void (*sum)(const F64Sum&);
};

extern const F64Core kF64Plain, kF64Avx2, kF64Avx512;

}  // namespace headwise::cpu
