#include "headwise/kernels/cpu/lanes_avx2.h"

#include "headwise/kernels/cpu/f32_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {

// Sixteen registers: 4 rows x 3 vectors of sums, 3 of queries, 1 broadcast.
const TileKernels kAvx2{"avx2", F32Core<Lanes, 3, 4, 128>::table(), nullptr, nullptr, store_row, spin_fma};

}  // namespace headwise::cpu
