#include "headwise/kernels/cpu/lanes_neon.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_core.h"
#include "headwise/kernels/cpu/gemm_mmla.h"
#include "headwise/kernels/cpu/row_passes.h"

namespace headwise::cpu {
namespace {

constexpr GemmCore kBf16 = GemmMmla::table();

}  // namespace

const GemmKernels kGemmNeonBf16{
    GemmF32<Lanes, 2, 2, 256>::table(), &kBf16, finish, slopes, load_run, store_run, kRowPasses};

}  // namespace headwise::cpu
