#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/gemm/core.h"
#include "headwise/kernels/cpu/row/activations.h"
#include "headwise/kernels/cpu/row/passes.h"

namespace headwise::cpu {

const GemmKernels kGemmAvx512{gemm::F32<Lanes, 3, 2, 512>::table(),
                              nullptr,
                              finish,
                              slopes,
                              gemm::load_stretch,
                              gemm::store_stretch,
                              kRowPasses};

}  // namespace headwise::cpu
