#include "headwise/kernels/cpu/lanes_neon.h"

#include "headwise/kernels/cpu/f32_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {

const TileKernels kNeon{"neon", F32Core<Lanes, 2, 8, 256>::table(), nullptr, nullptr, store_row, spin_fma};

}  // namespace headwise::cpu
