#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/gemm/amx.h"
#include "headwise/kernels/cpu/gemm/bf16x3.h"
#include "headwise/kernels/cpu/gemm/core.h"
#include "headwise/kernels/cpu/row/activations.h"
#include "headwise/kernels/cpu/row/passes.h"

namespace headwise::cpu {
namespace {

constexpr GemmCore kBf16 = gemm::Amx::table(), kF32Parts = gemm::InParts::table();

}  // namespace

const GemmKernels kGemmAmx{gemm::F32<Lanes, 3, 2, 512>::table(),
                           &kBf16,
                           finish,
                           slopes,
                           gemm::load_stretch,
                           gemm::store_stretch,
                           kRowPasses,
                           &kF32Parts};

}  // namespace headwise::cpu
