// e4m3 against its definition: all 256 codes, every bf16, every rounding edge between neighbours, other
// floats.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "headwise/base/buffer.h"
#include "headwise/base/half.h"

namespace headwise {
namespace {

e4m3 of(std::uint32_t bits) {
  e4m3 x;
  x.bits = static_cast<std::uint8_t>(bits);
  return x;
}
/// The value of a code, straight from the definition; codes 0x7f and 0xff are NaN.
double meaning(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3) & 15;
  const double mantissa = bits & 7u, sign = bits & 0x80u ? -1.0 : 1.0;
  if ((bits & 0x7fu) == 0x7fu) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(mantissa + 8, exponent - 10));
}
/// The code of the nearest value, looked for among all; of two equally near ones the even code.
std::uint32_t nearest(double x) {
  const std::uint32_t sign = std::signbit(x) ? 0x80u : 0u;
  if (std::isnan(x)) return sign | 0x7fu;
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < 0x7fu; ++code) {
    const double now = std::fabs(meaning(code) - std::fabs(x)),
                 before = std::fabs(meaning(best) - std::fabs(x));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return sign | (std::isinf(x) ? 0x7eu : best);
}

TEST(E4m3, EveryCodeWidensExactlyAndComesBack) {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const auto wide = static_cast<float>(of(bits));
    ASSERT_EQ(std::signbit(wide), bits >= 128) << bits;
    if ((bits & 0x7fu) == 0x7fu)
      ASSERT_TRUE(std::isnan(wide)) << bits;
    else
      ASSERT_EQ(static_cast<double>(wide), meaning(bits)) << bits;
    ASSERT_EQ(e4m3(wide).bits, bits);
  }
}

TEST(E4m3, EveryBf16GoesToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(x);
    ASSERT_EQ(e4m3(wide).bits, nearest(static_cast<double>(wide))) << wide;
  }
}

TEST(E4m3, HalfwayGoesToTheEvenNeighbourAndTheRestToTheNearest) {
  for (std::uint32_t bits = 0; bits + 1 < 0x7fu; ++bits) {
    const auto half = static_cast<float>((meaning(bits) + meaning(bits + 1)) / 2);
    const std::uint32_t even = bits & 1u ? bits + 1 : bits;
    ASSERT_EQ(e4m3(half).bits, even);
    ASSERT_EQ(e4m3(-half).bits, even | 0x80u);
    ASSERT_EQ(e4m3(std::nextafter(half, 0.0f)).bits, bits);
    ASSERT_EQ(e4m3(std::nextafter(half, std::numeric_limits<float>::infinity())).bits, bits + 1);
  }
}

TEST(E4m3, LargeFloatsBecomeTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float big : {448.0f, 464.0f, 480.0f, 1e9f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(e4m3(big).bits, 0x7eu) << big;
    EXPECT_EQ(e4m3(-big).bits, 0xfeu) << big;
  }
}

TEST(E4m3, OtherFloatsGoToTheNearest) {
  for (Index n = 0; n < 20000; ++n) {
    const auto x = static_cast<float>(normal_at(3, n) * std::ldexp(1.0, static_cast<int>(n % 24) - 12));
    ASSERT_EQ(e4m3(x).bits, nearest(static_cast<double>(x))) << x;
  }
}

}  // namespace
}  // namespace headwise
