// The tables of all ISA levels by name; which of them exist depends on the architecture compiled for.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::cpu {

extern const TileKernels kPlain;
extern const TileKernels kNeon, kNeonBf16;
extern const TileKernels kAvx2, kAvx512, kAmx;

}  // namespace headwise::cpu
