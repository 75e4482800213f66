// f16 and bf16 against bit logic, for all 65,536 values of each and for every rounding edge between
// neighbours.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "headwise/base/random.h"

namespace headwise {
namespace {

/// The value a 16-bit float with `exponent_bits` stands for, straight from the definition; exact in double.
double meaning(std::uint32_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1u << mantissa_bits) - 1u), sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class Half>
class HalfTest : public ::testing::Test {
 public:
  static constexpr int kExponentBits = std::is_same_v<Half, f16> ? 5 : 8;
  static constexpr std::uint32_t kInfinity = std::is_same_v<Half, f16> ? 0x7c00u : 0x7f80u;
  static Half of(std::uint32_t bits) {
    Half h;
    h.bits = static_cast<std::uint16_t>(bits);
    return h;
  }
};
using Halves = ::testing::Types<f16, bf16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryValueWidensExactlyAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const TypeParam h = this->of(bits);
    const auto wide = static_cast<float>(h);
    const double expected = meaning(bits, this->kExponentBits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      const std::uint32_t quiet = bits | (this->kExponentBits == 5 ? 0x200u : 0x40u);
      ASSERT_EQ(TypeParam(wide).bits, quiet) << "a NaN keeps sign and payload and is quiet, bits " << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000u) != 0) << bits;
    ASSERT_EQ(TypeParam(wide).bits, bits);
  }
}

TYPED_TEST(HalfTest, HalfwayGoesToTheEvenNeighbourAndTheRestToTheNearest) {
  for (std::uint32_t bits = 0; bits < this->kInfinity; ++bits) {
    const double below = meaning(bits, this->kExponentBits);
    // The neighbour of the largest finite value is where the next exponent would begin.
    const double above = bits + 1 == this->kInfinity ? 2 * below - meaning(bits - 1, this->kExponentBits)
                                                     : meaning(bits + 1, this->kExponentBits);
    const auto half = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(half), (below + above) / 2)
        << "the middle must be exact in float, bits " << bits;
    const std::uint32_t even = bits & 1u ? bits + 1 : bits;
    ASSERT_EQ(TypeParam(half).bits, even);
    ASSERT_EQ(TypeParam(-half).bits, even | 0x8000u);
    ASSERT_EQ(TypeParam(std::nextafter(half, 0.0f)).bits, bits);
    ASSERT_EQ(TypeParam(std::nextafter(half, std::numeric_limits<float>::infinity())).bits, bits + 1);
  }
}

TYPED_TEST(HalfTest, LargeFloatsBecomeInfinity) {
  for (const float big : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    EXPECT_EQ(TypeParam(big).bits, this->kInfinity);
    EXPECT_EQ(TypeParam(-big).bits, this->kInfinity | 0x8000u);
  }
}

TEST(Half, F16MatchesTheCompilersOnRandomFloats) {
#if defined(__aarch64__)
  using Half = __fp16;  // GCC 12 knows _Float16 in C++ on x86-64 alone
#elif defined(__FLT16_MAX__)
  using Half = _Float16;
#endif
#if defined(__aarch64__) || defined(__FLT16_MAX__)
  for (std::uint32_t i = 0; i < 1000000; ++i) {
    const std::uint32_t bits = Philox::block(7, {i, 0, 0, 0})[0];
    const auto x = std::bit_cast<float>(bits);
    if (std::isnan(x)) continue;
    ASSERT_EQ(f16(x).bits, std::bit_cast<std::uint16_t>(static_cast<Half>(x))) << x;
  }
#else
  GTEST_SKIP() << "this compiler has no type of 16 bits";
#endif
}

}  // namespace
}  // namespace headwise
