#include "headwise/kernels/cpu/lanes_avx512.h"

#include "headwise/kernels/cpu/gradient_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core kNarrow = F32Core<Lanes, 2, 8, 128>::table();
constexpr Core kF32 = F32Core<Lanes, 4, 4, 128>::table();
constexpr Core kGradients = GradientCore<Lanes, 4, 4, 4>::joined(kF32);

}  // namespace

const TileKernels kAvx512{"avx512", kF32,     &kNarrow,  nullptr, &kGradients,
                          nullptr,  load_row, store_row, spin_fma};

}  // namespace headwise::cpu
