#include "headwise/kernels/cpu/lanes_neon.h"

#include "headwise/kernels/cpu/bf16_mmla_core.h"
#include "headwise/kernels/cpu/f32_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core kBf16 = MmlaCore<6, 256>::table();

}  // namespace

const TileKernels kNeonBf16{"neon_bf16", F32Core<Lanes, 2, 8, 256>::table(), nullptr, &kBf16, store_row,
                            spin_fma};

}  // namespace headwise::cpu
