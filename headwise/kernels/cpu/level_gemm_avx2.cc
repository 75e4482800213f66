#include "headwise/kernels/cpu/lanes_avx2.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_core.h"
#include "headwise/kernels/cpu/row_passes.h"

namespace headwise::cpu {

const GemmKernels kGemmAvx2{
    GemmF32<Lanes, 1, 3, 256>::table(), nullptr, finish, slopes, load_run, store_run, kRowPasses};

}  // namespace headwise::cpu
