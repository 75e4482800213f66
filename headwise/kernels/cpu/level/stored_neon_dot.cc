#include "headwise/kernels/cpu/lanes/neon.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/round.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {
namespace {

struct Sdot {
  using X = int8x16_t;
  static constexpr int kMoved = 0;
  static X load(const std::int8_t* p) { return vld1q_s8(p); }
  template <int Lane, bool Signed, class I, class U>
  static inline __attribute__((always_inline)) I add(I sum, U codes, X x) {
    return (I)vdotq_laneq_s32((int32x4_t)sum, (int8x16_t)codes, x, Lane);
  }
};

}  // namespace

const StoredCore kStoredNeonDot{"neon+dotprod", stored::Tiles<Lanes, 4, 16, 4>::multiply,
                                stored::Dots<Sdot, 4>::dots, stored::round_group};

}  // namespace headwise::cpu
