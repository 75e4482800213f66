#include "headwise/kernels/cpu/lanes_avx512.h"

#include "headwise/kernels/cpu/amx_gradients.h"
#include "headwise/kernels/cpu/amx_stripes.h"
#include "headwise/kernels/cpu/gradient_core.h"
#include "headwise/kernels/cpu/levels.h"

namespace headwise::cpu {
namespace {

constexpr Core bf16_core() {
  Core c = AmxCore::table();
  c.stripes = AmxStripes::run;
  return c;
}
constexpr Core kBf16 = bf16_core();
constexpr Core kNarrow = F32Core<Lanes, 2, 8, 128>::table();
constexpr Core kF32 = F32Core<Lanes, 4, 4, 128>::table();
constexpr Core kGradients = GradientCore<Lanes, 4, 4, 4>::joined(kF32);
constexpr Core kBf16Gradients = AmxGradients::joined(kBf16);

}  // namespace

const TileKernels kAmx{"amx",           kF32,     &kNarrow,  &kBf16,  &kGradients,
                       &kBf16Gradients, load_row, store_row, spin_fma};

}  // namespace headwise::cpu
