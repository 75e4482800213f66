// How products are cut into tiles: numbers alone, tested without a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cuda::gemm {

/// Rows up to which products are a matter of memory: weights are read as fast as it gives them.
inline constexpr Index kFewRows = 64;

/// Which widths a number format has.
struct TileWidths {
  bool has_192 = true, has_64 = true;
};
/// Columns of a wgmma tile: the width whose last wave of blocks is fullest.
constexpr int tile_columns(Index m, Index n, int processors, TileWidths has = {}) {
  const int widths[] = {256, 192, 128, 64};
  // Cycles of shared memory a step of 64 takes, one of 128 x 256 being 100: narrow tiles wait for it.
  const Index cost[] = {100, 81, 63, 44};
  int best = 256;
  Index least = 0;
  for (int i = 0; i < 4; ++i) {
    if ((widths[i] == 192 && !has.has_192) || (widths[i] == 64 && !has.has_64)) continue;
    const Index rows = ceil_div(m, 128), tiles = round_up(rows, rows > 1 ? 2 : 1) * ceil_div(n, widths[i]);
    const Index all = ceil_div(tiles, processors) * cost[i];
    if (i == 0 || all < least) best = widths[i], least = all;
  }
  return best;
}

/// A tile of the kernel for few rows: narrow until every processor has blocks.
struct StreamTile {
  int rows, columns;
};
constexpr StreamTile stream_tile(Index m, Index n, int processors) {
  if (m <= 16) return {16, ceil_div(n, 16) <= 3 * processors ? 16 : 64};
  return {64, ceil_div(m, 64) * ceil_div(n, 64) < processors ? 32 : 64};
}
/// Is the whole product so small that the chain over k decides? That of mma.sync is the shorter one.
constexpr bool streams(Index m, Index n, int processors) {
  return m <= kFewRows || ceil_div(m, 64) * ceil_div(n, 64) <= processors;
}

}  // namespace headwise::cuda::gemm
