// ISA levels: what this CPU can run, which level was chosen, and the table of tile kernels each level brings.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>

namespace headwise::cpu {

struct TileKernels;  // tile.h
struct GemmKernels;  // gemm_tile.h

/// One compiled level of this architecture, weakest first.
struct IsaLevel {
  const char* name;     // "plain", "neon", "neon_bf16", "avx2", "avx512", "amx"
  bool (*supported)();  // by this CPU and its operating system
  const TileKernels* (*kernels)();
  const GemmKernels* (*gemm)();
};

std::span<const IsaLevel> isa_levels();
/// The strongest supported level, or the one HEADWISE_ISA names; throws Error for an
/// unknown or unsupported name.
const IsaLevel& chosen_isa();
/// For tests: forces a level for the rest of the process; null: back to the choice above.
void force_isa(const IsaLevel* level);

}  // namespace headwise::cpu
