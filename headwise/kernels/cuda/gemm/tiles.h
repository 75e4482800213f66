// How products are cut into tiles: numbers alone, tested without a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cuda::gemm {

/// Rows up to which mma_product reads weights as fast as memory gives them.
inline constexpr Index kFewRows = 64;

/// Columns of a wgmma tile: the width whose last wave of blocks is fullest.
constexpr int tile_columns(Index m, Index n, int processors) {
  const int widths[] = {256, 128, 64};
  const Index cost[] = {100, 56, 34};  // of a tile, one of 128 x 256 being 100
  int best = 256;
  Index least = 0;
  for (int i = 0; i < 3; ++i) {
    const Index rows = ceil_div(m, 128), tiles = round_up(rows, rows > 1 ? 2 : 1) * ceil_div(n, widths[i]);
    const Index all = ceil_div(tiles, processors) * cost[i];
    if (i == 0 || all < least) best = widths[i], least = all;
  }
  return best;
}

}  // namespace headwise::cuda::gemm
