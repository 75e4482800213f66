#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {
namespace {

struct Dpbusd {
  using X = const std::int8_t*;
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
    return (I)_mm512_dpbusd_epi32((__m512i)sum, w, y);
  }
};

}  // namespace

const StoredCore kStoredVnni{"avx512+vnni", StoredTiles<Lanes, 12>::multiply, StoredDots<Dpbusd>::dots};

}  // namespace headwise::cpu
