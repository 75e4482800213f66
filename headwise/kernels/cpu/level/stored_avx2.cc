#include "headwise/kernels/cpu/lanes/avx2.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/round.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {
namespace {

/// Codes without a sign take the first place of VPMADDUBSW as they are; others give theirs to x. No pair of
/// products leaves 16 bits: 2 * 128 * 127 is 32512.
struct Maddubs {
  using X = const std::int8_t*;
  static constexpr int kMoved = 0;
  static X load(const std::int8_t* p) { return p; }
  template <int Lane, bool Signed, class I, class U>
  static inline __attribute__((always_inline)) I add(I sum, U codes, X x) {
    std::int32_t four;
    __builtin_memcpy(&four, x + 4 * Lane, 4);
    __m256i w = (__m256i)codes, y = _mm256_set1_epi32(four);
    if constexpr (Signed) y = _mm256_sign_epi8(y, w), w = _mm256_abs_epi8(w);
    return sum + (I)_mm256_madd_epi16(_mm256_maddubs_epi16(w, y), _mm256_set1_epi16(1));
  }
};

}  // namespace

const StoredCore kStoredAvx2{"avx2", stored::Tiles<Lanes, 6, 12, 8>::multiply, stored::Dots<Maddubs, 4>::dots,
                             stored::round_group};

}  // namespace headwise::cpu
