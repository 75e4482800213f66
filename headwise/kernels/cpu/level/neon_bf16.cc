#include "headwise/kernels/cpu/lanes/neon.h"

#include "headwise/kernels/cpu/isa/levels.h"
#include "headwise/kernels/cpu/tile/bf16_mmla_core.h"
#include "headwise/kernels/cpu/tile/f32_stripes.h"
#include "headwise/kernels/cpu/tile/few_query_rows.h"
#include "headwise/kernels/cpu/tile/gradient_core.h"
#include "headwise/kernels/cpu/tile/sparse_core.h"

namespace headwise::cpu {
namespace {

constexpr Core kBf16 = MmlaCore<6, 256>::table();
constexpr Core kF32 = F32Stripes<F32Core<Lanes, 2, 8, 256>>::table();
constexpr Core kFew = FewQueryRows<F32Core<Lanes, 1, 8, 256>, 6>::table();
constexpr Core kGradients = GradientCore<Lanes, 2, 2, 8>::joined(kF32);
constexpr SparseKernels kSparse = SparseCore<Lanes>::table();

}  // namespace

const TileKernels kNeonBf16{.isa = "neon_bf16",
                            .f32 = kF32,
                            .few = &kFew,
                            .bf16 = &kBf16,
                            .gradients = &kGradients,
                            .sparse = &kSparse,
                            .load_row = load_row,
                            .store_row = store_row,
                            .spin_fma = spin_fma};

}  // namespace headwise::cpu
