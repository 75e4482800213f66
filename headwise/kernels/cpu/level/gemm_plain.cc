#include "headwise/kernels/cpu/lanes/plain.h"

#include "headwise/kernels/cpu/gemm/core.h"
#include "headwise/kernels/cpu/row/activations.h"
#include "headwise/kernels/cpu/row/passes.h"

namespace headwise::cpu {

const GemmKernels kGemmPlain{gemm::F32<Lanes, 2, 2, 256>::table(),
                             nullptr,
                             finish,
                             slopes,
                             gemm::load_stretch,
                             gemm::store_stretch,
                             kRowPasses};

}  // namespace headwise::cpu
