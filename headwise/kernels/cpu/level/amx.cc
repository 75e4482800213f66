#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/amx/bf16.h"
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/amx/f32_gradients.h"
#include "headwise/kernels/cpu/amx/few_bf16.h"
#include "headwise/kernels/cpu/amx/few_f32.h"
#include "headwise/kernels/cpu/amx/gradient_stripes.h"
#include "headwise/kernels/cpu/amx/gradients.h"
#include "headwise/kernels/cpu/amx/outputs.h"
#include "headwise/kernels/cpu/amx/stripes.h"
#include "headwise/kernels/cpu/isa/levels.h"
#include "headwise/kernels/cpu/tile/f32_stripes.h"
#include "headwise/kernels/cpu/tile/few_query_rows.h"
#include "headwise/kernels/cpu/tile/gradient_core.h"
#include "headwise/kernels/cpu/tile/sparse_core.h"

namespace headwise::cpu {
namespace {

constexpr Core bf16_core() {
  Core c = AmxCore<Bf16Operands>::table();
  c.products.stripes = AmxStripes<Bf16Operands>::run;
  return FewQueryRowsOnAmx<Bf16Operands>::joined(c);
}
constexpr Core kBf16 = bf16_core(), kF32Parts = FewQueryRowsOnAmx<F32Operands>::joined(AmxOutputs::table()),
               kF32Columns = AmxCore<F32Operands>::table();
/// Below, packing in parts eats what tiles save where sequences are short (against torch, N 32 and 64,
/// head_dim 64: 0.75 to 1.0 times as fast, FMA chains 1.1 to 1.3).
constexpr Index kPartsFrom = 96;
constexpr Core kNarrow = F32Stripes<F32Core<Lanes, 2, 8, 128>>::table();
constexpr Core kF32 = F32Stripes<F32Core<Lanes, 4, 4, 128>>::table();
constexpr Core kFew = FewQueryRows<F32Core<Lanes, 1, 8, 128>>::table();
constexpr Core kGradients = GradientCore<Lanes, 4, 4, 4>::joined(kF32);
constexpr Core kBf16Gradients = AmxGradients::joined(kBf16);
constexpr Core f32_parts_gradients() {
  Core c = AmxF32Gradients::joined(AmxCore<F32GradientOperands>::table());
  c.gradients.stripes = AmxGradientStripes::run;
  return c;
}
constexpr Core kF32PartsGradients = f32_parts_gradients();
/// Below, taking dS apart eats what tiles save (N 2048, head_dim 32: 39 ms against 42; N 64: 1.25
/// against 1.02).
constexpr Index kPartsGradientsFrom = 64;
constexpr SparseKernels kSparse = SparseCore<Lanes>::table();

}  // namespace

const TileKernels kAmx = {.isa = "amx",
                          .f32 = kF32,
                          .narrow = &kNarrow,
                          .few = &kFew,
                          .bf16 = &kBf16,
                          .f32_parts = &kF32Parts,
                          .parts_from = kPartsFrom,
                          .f32_columns = &kF32Columns,
                          .gradients = &kGradients,
                          .bf16_gradients = &kBf16Gradients,
                          .f32_parts_gradients = &kF32PartsGradients,
                          .parts_gradients_from = kPartsGradientsFrom,
                          .sparse = &kSparse,
                          .load_row = load_row,
                          .store_row = store_row,
                          .spin_fma = spin_fma};

}  // namespace headwise::cpu
