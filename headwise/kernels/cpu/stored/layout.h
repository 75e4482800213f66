// The units of quantized weights: where scales, minima and codes of 16 columns by 32 of k lie. Included by
// every ISA level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/stored_kernels.h"
#include "headwise/spec/stored.h"

namespace headwise::cpu::stored {
namespace {

/// A unit has f16 scales [16], then what the format has more, then codes: number k = 4 t + b of column c is
/// byte [t][c][b]. Codes of 4 bits share bytes: t below 4 low, t + 4 high. Two more bits of t lie in bytes [t
/// % 2][c][b] at 2 (t / 2).
struct UnitLayout {
  int minima = 0;  // f16 [16]; 0: none
  int steps =
      0;  // u8 [16] factors of scales and u8 [16] of minima (q4_k), or i8 [2][16] for each half of k (q6_k)
  int low = 0;   // codes of 4 bits, 256 bytes, or of 8, 512 bytes
  int high = 0;  // two more bits, 128 bytes; 0: none
  int bytes = 0;
  int offset = 0;  // a code counts code - offset
};
constexpr UnitLayout kUnits[] = {
    {0, 0, 0, 0, 64, 0},        // f32: bytes of one k
    {0, 0, 0, 0, 32, 0},        // f16
    {0, 0, 0, 0, 32, 0},        // bf16
    {0, 0, 32, 0, 288, 8},      // q4_0
    {32, 0, 64, 0, 320, 0},     // q4_1
    {0, 0, 32, 288, 416, 16},   // q5_0
    {0, 0, 32, 0, 544, 0},      // q8_0
    {32, 64, 96, 0, 352, 0},    // q4_k
    {0, 32, 64, 320, 448, 32},  // q6_k
};
static_assert(sizeof kUnits / sizeof kUnits[0] == sizeof kStoredFacts / sizeof kStoredFacts[0]);

}  // namespace
}  // namespace headwise::cpu::stored
