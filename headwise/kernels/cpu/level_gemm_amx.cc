#include "headwise/kernels/cpu/lanes_avx512.h"

#include "headwise/kernels/cpu/activations.h"
#include "headwise/kernels/cpu/gemm_amx.h"
#include "headwise/kernels/cpu/gemm_core.h"
#include "headwise/kernels/cpu/gemm_parts.h"
#include "headwise/kernels/cpu/row_passes.h"

namespace headwise::cpu {
namespace {

constexpr GemmCore kBf16 = GemmAmx::table(), kF32Parts = GemmParts::table();

}  // namespace

const GemmKernels kGemmAmx{
    GemmF32<Lanes, 3, 2, 512>::table(), &kBf16, finish, slopes, load_run, store_run, kRowPasses, &kF32Parts};

}  // namespace headwise::cpu
