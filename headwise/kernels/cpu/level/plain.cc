#include "headwise/kernels/cpu/lanes/plain.h"

#include "headwise/kernels/cpu/isa/levels.h"
#include "headwise/kernels/cpu/tile/f32_stripes.h"
#include "headwise/kernels/cpu/tile/few_query_rows.h"
#include "headwise/kernels/cpu/tile/gradient_core.h"
#include "headwise/kernels/cpu/tile/sparse_core.h"

namespace headwise::cpu {
namespace {

constexpr Core kF32 = F32Stripes<F32Core<Lanes, 2, 4, 128>>::table();
constexpr Core kFew = FewQueryRows<F32Core<Lanes, 1, 4, 128>>::table();
constexpr Core kGradients = GradientCore<Lanes, 2, 2, 4>::joined(kF32);
constexpr SparseKernels kSparse = SparseCore<Lanes>::table();

}  // namespace

const TileKernels kPlain{.isa = "plain",
                         .f32 = kF32,
                         .few = &kFew,
                         .gradients = &kGradients,
                         .sparse = &kSparse,
                         .load_row = load_row,
                         .store_row = store_row,
                         .spin_fma = spin_fma};

}  // namespace headwise::cpu
