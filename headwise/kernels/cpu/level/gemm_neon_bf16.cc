#include "headwise/kernels/cpu/lanes/neon.h"

#include "headwise/kernels/cpu/gemm/core.h"
#include "headwise/kernels/cpu/gemm/mmla.h"
#include "headwise/kernels/cpu/row/activations.h"
#include "headwise/kernels/cpu/row/passes.h"

namespace headwise::cpu {
namespace {

constexpr GemmCore kBf16 = gemm::Mmla::table();

}  // namespace

const GemmKernels kGemmNeonBf16{gemm::F32<Lanes, 2, 2, 256>::table(),
                                &kBf16,
                                finish,
                                slopes,
                                gemm::load_stretch,
                                gemm::store_stretch,
                                kRowPasses};

}  // namespace headwise::cpu
