// How products are cut into tiles: numbers alone, tested without a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cuda::gemm {

/// Rows up to which products are a matter of memory: weights are read as fast as it gives them.
inline constexpr Index kFewRows = 64;

/// A tile of wgmma, and what it takes on an H200. Of 128 rows: one persistent block a processor, pairs share
/// b. Of 64: one tile a block, `together` of them on a processor.
struct WgmmaTile {
  int rows, columns, together;
  int start, wait, work, end;  // ns: a launch; a step of 16 of k alone, and beside others; a tile's ends
};
constexpr Index wgmma_time(const WgmmaTile& t, Index m, Index n, Index k, int processors) {
  const Index rows = ceil_div(m, t.rows), down = t.rows == 128 && rows > 1 ? round_up(rows, 2) : rows,
              each = ceil_div(down * ceil_div(n, t.columns), processors), lots = ceil_div(each, t.together),
              sums = ceil_div(k, 16) * max_of(t.wait * lots, t.work * each),
              memory = (n * k + m * k + m * n) / 2100;  // 4.2 TB/s
  return t.start + max_of(sums, memory) + t.end * lots;
}
/// The best of `count` tiles, of equal ones the first.
constexpr const WgmmaTile& wgmma_tile(const WgmmaTile* tiles, int count, Index m, Index n, Index k,
                                      int processors) {
  const WgmmaTile* best = tiles;
  for (int i = 1; i < count; ++i)
    if (wgmma_time(tiles[i], m, n, k, processors) < wgmma_time(*best, m, n, k, processors)) best = tiles + i;
  return *best;
}
inline constexpr WgmmaTile kWide256 = {128, 256, 1, 2760, 166, 166, 1380},
                           kWide192 = {128, 192, 1, 2490, 123, 123, 1580},
                           kWide128 = {128, 128, 1, 2780, 91, 91, 790},
                           kWide64 = {128, 64, 1, 2830, 79, 79, 290},
                           kBlock128 = {64, 128, 1, 100, 53, 53, 2330},
                           kBlock64 = {64, 64, 2, 190, 73, 47, 920};
/// Tiles of which there are instances, by the number format and by lines across k.
inline constexpr WgmmaTile kTilesBf16[] = {kWide256, kWide192, kWide128, kWide64, kBlock128, kBlock64},
                           kTilesF16[] = {kWide256, kWide128, kWide64, kBlock128, kBlock64},
                           kTurnedBf16[] = {kWide256, kWide192, kWide128, kBlock128},
                           kTurnedF16[] = {kWide128};

/// A tile of the kernel for few rows: narrow until every processor has two blocks, or four of 16 rows.
struct StreamTile {
  int rows, columns;
};
constexpr StreamTile stream_tile(Index m, Index n, Index k, int processors) {
  const Index narrow = ceil_div(n, 16);
  if (m <= 16) return {16, narrow <= 4 * processors ? 16 : 64};
  if (narrow <= 2 * processors) return {m <= 32 && n * k <= (1 << 23) ? 32 : 64, 16};
  return {m <= 32 ? 32 : 64, 32};
}
/// Few rows are a matter of memory, and few tiles of a long k of the chain over it, which mma.sync has
/// shorter.
constexpr bool streams(Index m, Index n, Index k, int processors) {
  const Index narrow = ceil_div(n, 16);
  if (m <= 32) return true;
  if (m <= kFewRows) return narrow <= 2 * processors && k > 1024;
  return k > 2048 && ceil_div(m, 64) * narrow <= 3 * processors / 2;
}

}  // namespace headwise::cuda::gemm
