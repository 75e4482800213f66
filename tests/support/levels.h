// Levels: the ISA levels tests run at; where a level multiplies f32 in parts from some head_dim on, once more
// with parts at every size.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // sixteen threads on two CPUs mostly wait there
inline constexpr int kManyThreads[] = {2, 7};
#else
inline constexpr bool kSanitized = false;
inline constexpr int kManyThreads[] = {2, 7, 16};
#endif

/// Of this CPU; one that multiplies f32 in parts comes again with parts at every size. Under a sanitizer
/// without `plain`, whose arrays are too slow there, and the latter alone.
inline const std::vector<cpu::IsaLevel>& run_levels() {
  static const std::vector<cpu::IsaLevel> levels = [] {
    std::vector<cpu::IsaLevel> found;
    static cpu::TileKernels in_parts;
    for (const cpu::IsaLevel& level : cpu::isa_levels()) {
      if (!level.supported() || (kSanitized && level.name == std::string("plain"))) continue;
      const bool parts = level.kernels()->f32_parts != nullptr;
      if (!parts || !kSanitized) found.push_back(level);
      if (!parts) continue;
      in_parts = *level.kernels();
      in_parts.parts_from = 1, in_parts.parts_gradients_from = 1;
      found.push_back(level);
      found.back().name = "amx, in parts at every size";
      found.back().kernels = [] { return &std::as_const(in_parts); };
    }
    return found;
  }();
  return levels;
}

}  // namespace headwise::test
