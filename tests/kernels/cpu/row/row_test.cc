#include "headwise/kernels/cpu/row/row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "headwise/base/random.h"

namespace headwise::cpu {
namespace {

TEST(Row, WidensEveryF16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    f16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const double a = widen(x), b = static_cast<double>(static_cast<float>(x));
    ASSERT_EQ(std::bit_cast<std::uint64_t>(a), std::bit_cast<std::uint64_t>(b)) << bits;
  }
}

template <class T>
T above(T x) {
  x.bits = static_cast<std::uint16_t>(x.bits + 1);
  return x;
}
template <class T>
void narrows_once() {
  // Between each value and the next: the middle, and the middle moved by less than a float can tell.
  for (std::uint32_t bits = 0; bits < (std::is_same_v<T, f16> ? 0x7bffu : 0x7f7fu); ++bits) {
    T low;
    low.bits = static_cast<std::uint16_t>(bits);
    const double a = widen(low), b = widen(above(low)), middle = a / 2 + b / 2;
    const double more = std::nextafter(middle, b), less = std::nextafter(middle, a);
    for (double sign : {1.0, -1.0}) {
      const std::uint32_t mark = sign < 0 ? 0x8000u : 0u;
      ASSERT_EQ(narrow<T>(sign * a).bits, bits | mark);
      ASSERT_EQ(narrow<T>(sign * less).bits, bits | mark) << bits;
      ASSERT_EQ(narrow<T>(sign * more).bits, (bits + 1) | mark) << bits;
      ASSERT_EQ(narrow<T>(sign * middle).bits, (bits % 2 ? bits + 1 : bits) | mark) << bits;
    }
  }
  ASSERT_TRUE(std::isinf(widen(narrow<T>(1e300))) && std::isinf(widen(narrow<T>(INFINITY))));
  ASSERT_TRUE(std::isnan(widen(narrow<T>(NAN))));
  ASSERT_EQ(narrow<T>(-1e-300).bits, 0x8000u);
}
TEST(Row, NarrowsF16WithOneRounding) { narrows_once<f16>(); }
TEST(Row, NarrowsBf16WithOneRounding) { narrows_once<bf16>(); }

TEST(Row, LoadsAndStoresEveryStep) {
  float source[3 * kRowBlock], target[3 * kRowBlock];
  for (int i = 0; i < 3 * kRowBlock; ++i) source[i] = static_cast<float>(i) + 0.5f;
  for (Index step : {0, 1, 2, 3}) {
    double block[kRowBlock];
    load_row(source, step, kRowBlock, block);
    for (Index i = 0; i < kRowBlock; ++i) ASSERT_EQ(block[i], static_cast<double>(source[i * step]));
    if (step == 0) continue;
    std::memset(target, 0xff, sizeof(target));
    store_row(block, kRowBlock, target, step);
    for (Index i = 0; i < 3 * kRowBlock; ++i) {
      if (i % step == 0 && i / step < kRowBlock)
        ASSERT_EQ(target[i], source[i]);
      else
        ASSERT_TRUE(std::isnan(target[i])) << "place " << i << " is between elements";
    }
  }
}

}  // namespace
}  // namespace headwise::cpu
