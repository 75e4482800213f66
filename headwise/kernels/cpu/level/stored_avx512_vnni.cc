#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/round.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {
namespace {

/// Codes take the place without a sign; those with one are moved up, which 32 bits bear.
struct Dpbusd {
  using X = const std::int8_t*;
  static constexpr int kMoved = 128;
  static X load(const std::int8_t* p) { return p; }
  template <int Lane, bool Signed, class I, class U>
  static inline __attribute__((always_inline)) I add(I sum, U codes, X x) {
    std::int32_t four;
    __builtin_memcpy(&four, x + 4 * Lane, 4);
    const auto w = (__m512i)(Signed ? codes ^ 0x80808080u : codes);
    return (I)_mm512_dpbusd_epi32((__m512i)sum, w, _mm512_set1_epi32(four));
  }
};

}  // namespace

const StoredCore kStoredVnni{"avx512+vnni", stored::Tiles<Lanes, 8, 24, 16>::multiply,
                             stored::Dots<Dpbusd, 8>::dots, stored::round_group};

}  // namespace headwise::cpu
