#include "headwise/kernels/cpu/lanes_plain.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_core.h"

namespace headwise::cpu {

const GemmKernels kGemmPlain{
    GemmF32<Lanes, 2, 2, 256>::table(), nullptr, activate, slopes, load_run, store_run};

}  // namespace headwise::cpu
