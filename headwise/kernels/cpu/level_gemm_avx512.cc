#include "headwise/kernels/cpu/lanes_avx512.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_core.h"
#include "headwise/kernels/cpu/row_passes.h"

namespace headwise::cpu {

const GemmKernels kGemmAvx512{
    GemmF32<Lanes, 3, 2, 512>::table(), nullptr, finish, slopes, load_run, store_run, kRowPasses};

}  // namespace headwise::cpu
