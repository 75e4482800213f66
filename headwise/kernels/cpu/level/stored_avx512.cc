#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/round.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {
namespace {

/// As with AVX2; the sign of a code goes to x by a mask.
struct Maddubs {
  using X = const std::int8_t*;
  static constexpr int kMoved = 0;
  static X load(const std::int8_t* p) { return p; }
  template <int Lane, bool Signed, class I, class U>
  static inline __attribute__((always_inline)) I add(I sum, U codes, X x) {
    std::int32_t four;
    __builtin_memcpy(&four, x + 4 * Lane, 4);
    __m512i w = (__m512i)codes, y = _mm512_set1_epi32(four);
    if constexpr (Signed) {
      y = _mm512_mask_sub_epi8(y, _mm512_movepi8_mask(w), _mm512_setzero_si512(), y);
      w = _mm512_abs_epi8(w);
    }
    return sum + (I)_mm512_madd_epi16(_mm512_maddubs_epi16(w, y), _mm512_set1_epi16(1));
  }
};

}  // namespace

const StoredCore kStoredAvx512{"avx512", stored::Tiles<Lanes, 8, 24, 16>::multiply,
                               stored::Dots<Maddubs, 8>::dots, stored::round_group};

}  // namespace headwise::cpu
