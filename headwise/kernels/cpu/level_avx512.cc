#include "headwise/kernels/cpu/lanes_avx512.h"

#include "headwise/kernels/cpu/f32_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core kNarrow = F32Core<Lanes, 2, 8, 128>::table();

}  // namespace

const TileKernels kAvx512{"avx512", F32Core<Lanes, 4, 4, 128>::table(), &kNarrow, nullptr, store_row,
                          spin_fma};

}  // namespace headwise::cpu
