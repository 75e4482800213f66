#include "headwise/kernels/cpu/lanes_plain.h"

#include "headwise/kernels/cpu/gradient_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core kF32 = F32Core<Lanes, 2, 4, 128>::table();
constexpr Core kGradients = GradientCore<Lanes, 2, 2, 4>::joined(kF32);

}  // namespace

const TileKernels kPlain{"plain", kF32,     nullptr,   nullptr, &kGradients,
                         nullptr, load_row, store_row, spin_fma};

}  // namespace headwise::cpu
