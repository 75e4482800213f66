#include "headwise/kernels/cpu/lanes_plain.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_core.h"
#include "headwise/kernels/cpu/row_passes.h"

namespace headwise::cpu {

const GemmKernels kGemmPlain{
    GemmF32<Lanes, 2, 2, 256>::table(), nullptr, finish, slopes, load_run, store_run, kRowPasses};

}  // namespace headwise::cpu
