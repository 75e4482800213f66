// Tiles in shared memory: where an element lies under the 128-byte swizzle, and how wgmma is told.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise::cuda {

/// A tile of `rows` x columns of 16-bit numbers lies in panels of 64 columns, one after another; a row of a
/// panel is 128 bytes and its 16-byte chunks are exchanged by the row's last three bits. This is what a bulk
/// tensor copy with 128-byte swizzle writes and what wgmma reads; the base is a multiple of 1,024 bytes.
inline constexpr int kPanelColumns = 64, kPanelRowBytes = 128, kTileAlign = 1024;

HW_FN constexpr std::uint32_t panel_bytes(int rows) {
  return static_cast<std::uint32_t>(rows * kPanelRowBytes);
}
/// Byte offset of the chunk of 8 columns that begins at column 8 * chunk, in row `row` of a tile of `rows`
/// rows.
HW_FN constexpr std::uint32_t chunk_offset(int rows, int row, int chunk) {
  return static_cast<std::uint32_t>(chunk / 8) * panel_bytes(rows) +
         static_cast<std::uint32_t>(row * kPanelRowBytes + (((chunk & 7) ^ (row & 7)) << 4));
}
/// The same where a row's panels lie one after another before the next row: eight rows of a matrix then share
/// 8 / panels of the banks' eight places.
HW_FN constexpr std::uint32_t row_chunk_offset(int panels, int row, int chunk) {
  return chunk_offset(0, row * panels + chunk / 8, chunk % 8);
}

/// The matrix descriptor of wgmma: address, distance between 64-column panels (columns consecutive only),
/// distance between groups of 8 rows, 128-byte swizzle.
HW_FN constexpr std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t panel_distance) {
  constexpr std::uint64_t eight_rows = 8 * kPanelRowBytes;
  return (address & 0x3FFFFu) >> 4 | std::uint64_t{panel_distance >> 4} << 16 | (eight_rows >> 4) << 32 |
         std::uint64_t{1} << 62;
}
/// k runs along the rows' columns (q and k in q k^T). Step i of 16 columns is advanced(d, k_step(rows, i)).
HW_FN constexpr std::uint64_t rows_descriptor(std::uint32_t address) {
  return matrix_descriptor(address, 16);
}
HW_FN constexpr std::uint32_t k_step(int rows, int i) {
  return static_cast<std::uint32_t>(i / 4) * panel_bytes(rows) + static_cast<std::uint32_t>(i % 4) * 32;
}
/// k runs down the rows (v in p v). Step i of 16 rows is advanced(d, kRowStep * i).
HW_FN constexpr std::uint64_t columns_descriptor(std::uint32_t address, int rows) {
  return matrix_descriptor(address, panel_bytes(rows));
}
inline constexpr std::uint32_t kRowStep = 16 * kPanelRowBytes;
HW_FN constexpr std::uint64_t advanced(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

}  // namespace headwise::cuda
