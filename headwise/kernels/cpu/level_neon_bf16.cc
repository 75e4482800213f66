#include "headwise/kernels/cpu/lanes_neon.h"

#include "headwise/kernels/cpu/bf16_mmla_core.h"
#include "headwise/kernels/cpu/gradient_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core kBf16 = MmlaCore<6, 256>::table();
constexpr Core kF32 = F32Core<Lanes, 2, 8, 256>::table();
constexpr Core kGradients = GradientCore<Lanes, 2, 2, 8>::joined(kF32);

}  // namespace

const TileKernels kNeonBf16{"neon_bf16", kF32,     nullptr,   &kBf16,  &kGradients,
                            nullptr,     load_row, store_row, spin_fma};

}  // namespace headwise::cpu
