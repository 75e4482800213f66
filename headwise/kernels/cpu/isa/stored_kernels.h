// StoredCore: the functions one ISA level brings for products with weights as they are stored; plain types
// only, since every level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace headwise::cpu {

using Index = std::int64_t;

/// 16 outputs side by side are one column of units. Numbers of floats lie as [k][16]; those of quantized
/// formats as one unit for each 32 of k: stored/layout.h.
inline constexpr int kUnitColumns = 16;
inline constexpr Index kGroup = 32;
/// k of one block of a product with many rows.
inline constexpr Index kStoredDepth = 256;
/// Numbers that a level may widen at once: what it widens stays in L1.
inline constexpr Index kStoredWide = 6144;

/// c [rows 16 columns] = or += x [rows k] times columns of units: one chain of fused products over k in
/// ascending order for each element, whatever the rows and columns.
struct StoredBlock {
  int format;             // a StoredFormat
  const std::byte* unit;  // the first of this block
  Index k;
  const float* x;
  Index x_step, rows;
  float* c;
  Index c_step;
  bool add;
  float* scratch;             // kStoredWide
  Index columns, unit_bytes;  // columns of units, and bytes from one to the next
};

/// Rows rounded to 8 bits: x is about scale[g] * q for the 32 numbers of group g of its row.
struct RoundedRows {
  const std::int8_t* q;     // [rows k]
  const float* scale;       // [rows groups]
  const std::int32_t* sum;  // [rows groups 2]: of q, over each half of a group
  const float* whole;       // [rows groups]: scale times both sums
  Index groups;             // k / 32
};
/// c [rows 16] = the product of rounded rows with a column of units over all of k. Sums inside a group are
/// exact; groups are added in ascending order, one chain of fused products for each element.
struct DotBlock {
  int format;
  const std::byte* unit;
  RoundedRows x;
  Index first, rows;
  float* c;
  Index c_step;
};

struct StoredCore {
  const char* isa;
  void (*multiply)(const StoredBlock&);
  void (*dots)(const DotBlock&);
  /// 32 numbers as 8 bits, their scale, and the sums of both halves; the same bits on every level.
  void (*round)(const float* x, std::int8_t* q, float* scale, std::int32_t* half);
};

/// Matrix tiles multiply bf16 by bf16. A row of f32 goes in as three bf16 parts whose sum it is: for every 32
/// of k a line of each part, the largest first. 16 rows are a group, and lines of a group lie side by side:
/// [k / 32][part][rows][32].
inline constexpr Index kPartsDepth = 32, kPartsLine = 64, kPartsGroup = 16;
static constexpr Index bytes_in_parts(Index k) {
  return (k + kPartsDepth - 1) / kPartsDepth * 3 * kPartsLine;
}
inline constexpr Index kPartsScratch = 32768;
/// Tiles flush what is below 2^-126, and parts overflow early. So they take rows of x, and columns of
/// weights, whose largest number is in [2^-40, 2^50) or 0; `most`: the bits of its size.
static constexpr bool is_ordinary(std::uint32_t most) {
  constexpr std::uint32_t kLow = 0x2b800000u, kHigh = 0x58800000u;
  return most == 0 || (most >= kLow && most < kHigh);
}
/// c [rows 16 columns] = x times columns of bf16 units. For every 32 of k the products with the last parts
/// come first, then those with the middle ones, then those with the largest; so whatever the rows and
/// columns.
struct PartsBlock {
  const std::byte* unit;
  Index columns, unit_bytes, k;
  const std::byte* x;  // groups of rows in parts
  Index rows;
  float* c;
  Index c_step;
  std::byte* scratch;    // kPartsScratch, at a multiple of 64
  std::uint16_t* apart;  // [columns]: a bit for every output whose weights are not ordinary
};
struct StoredParts {
  /// One row of a group of `rows`, from its first line on; false: it is not ordinary, its lines are 0.
  bool (*split)(const float* x, Index k, Index rows, std::byte* to);
  void (*multiply)(const PartsBlock&);
};

extern const StoredParts kStoredAmx;
extern const StoredCore kStoredPlain, kStoredNeon, kStoredNeonDot;
extern const StoredCore kStoredAvx2, kStoredAvx512, kStoredVnni;

}  // namespace headwise::cpu
