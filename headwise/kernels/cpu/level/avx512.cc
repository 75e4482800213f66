#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/isa/levels.h"
#include "headwise/kernels/cpu/tile/f32_stripes.h"
#include "headwise/kernels/cpu/tile/few_query_rows.h"
#include "headwise/kernels/cpu/tile/gradient_core.h"
#include "headwise/kernels/cpu/tile/sparse_core.h"

namespace headwise::cpu {
namespace {

constexpr Core kNarrow = F32Stripes<F32Core<Lanes, 2, 8, 128>>::table();
constexpr Core kF32 = F32Stripes<F32Core<Lanes, 4, 4, 128>>::table();
constexpr Core kFew = FewQueryRows<F32Core<Lanes, 1, 8, 128>>::table();
constexpr Core kGradients = GradientCore<Lanes, 4, 4, 4>::joined(kF32);
constexpr SparseKernels kSparse = SparseCore<Lanes>::table();

}  // namespace

const TileKernels kAvx512{.isa = "avx512",
                          .f32 = kF32,
                          .narrow = &kNarrow,
                          .few = &kFew,
                          .gradients = &kGradients,
                          .sparse = &kSparse,
                          .load_row = load_row,
                          .store_row = store_row,
                          .spin_fma = spin_fma};

}  // namespace headwise::cpu
