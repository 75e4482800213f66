#include "headwise/kernels/cpu/lanes_plain.h"

#include "headwise/kernels/cpu/f32_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {

const TileKernels kPlain{"plain", F32Core<Lanes, 2, 4, 128>::table(), nullptr, nullptr, store_row, spin_fma};

}  // namespace headwise::cpu
