// Philox, the dropout rule and reproducible normal numbers: known answers and frequencies.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "headwise/base/buffer.h"

namespace headwise {
namespace {

TEST(Philox, KnownAnswerOfPi) {
  // The third vector of the authors' known-answer file: digits of pi as key and counter.
  const Philox::Block got =
      Philox::block(0x299f31d0a4093822ull, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u});
  EXPECT_EQ(got, (Philox::Block{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Dropout, ThresholdIsTheProbabilityIn32Bits) {
  static_assert(DropoutRule::of(0.0, 1).threshold == 0);
  static_assert(DropoutRule::of(0.5, 1).threshold == 0x80000000u);
  static_assert(DropoutRule::of(0.25, 1).threshold == 0x40000000u);
  static_assert(DropoutRule::of(1.0, 1).threshold == 0xffffffffu);
  for (Index k = 0; k < 1000; ++k) ASSERT_TRUE(DropoutRule::of(0.0, 3).keep(0, 0, 5, k));
}

TEST(Dropout, EveryCoordinateMatters) {
  const DropoutRule rule = DropoutRule::of(0.5, 99), other = DropoutRule::of(0.5, 100);
  int by_sequence = 0, by_head = 0, by_query = 0, by_seed = 0;
  for (Index k = 0; k < 1000; ++k) {
    const bool base = rule.keep(2, 3, 5, k);
    by_sequence += base != rule.keep(3, 3, 5, k);
    by_head += base != rule.keep(2, 4, 5, k);
    by_query += base != rule.keep(2, 3, 6, k);
    by_seed += base != other.keep(2, 3, 5, k);
  }
  // Independent coins differ in 500 of 1,000 places, standard deviation 16: 6 sigma.
  for (const int differ : {by_sequence, by_head, by_query, by_seed}) EXPECT_NEAR(differ, 500, 96);
}

TEST(Dropout, DropsTheShareItSays) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const DropoutRule rule = DropoutRule::of(p, 42);
    Index dropped = 0;
    constexpr Index side = 500;
    for (Index q = 0; q < side; ++q)
      for (Index k = 0; k < side; ++k) dropped += !rule.keep(0, 1, q, k);
    const double n = side * side, sigma = std::sqrt(n * p * (1 - p));
    EXPECT_NEAR(static_cast<double>(dropped), n * p, 5 * sigma) << p;
  }
}

TEST(RandomNormal, FollowsItsSeedAndItsMoments) {
  Tensor a = random_normal({100, 1000}, DType::f64, 5), b = random_normal({100, 1000}, DType::f64, 5);
  Tensor c = random_normal({100, 1000}, DType::f64, 6);
  double sum = 0, square = 0, fourth = 0;
  Index same = 0;
  const auto x = a.values<const double>(), y = b.values<const double>(), z = c.values<const double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i], y[i]);
    same += x[i] == z[i];
    sum += x[i], square += x[i] * x[i], fourth += x[i] * x[i] * x[i] * x[i];
  }
  const double n = static_cast<double>(x.size());
  EXPECT_EQ(same, 0);
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
}

TEST(RandomNormal, AShorterTensorIsAPrefixInEveryDtype) {
  Tensor whole = random_normal({64}, DType::f32, 11), part = random_normal({4, 8}, DType::f32, 11);
  Tensor narrow = random_normal({64}, DType::bf16, 11);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(whole.values<float>()[i], part.values<float>()[i]);
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(bf16(whole.values<float>()[i]).bits, narrow.values<bf16>()[i].bits);
}

TEST(RandomNormal, TheSameBitsOnEveryMachine) {
  Tensor t = random_normal({4}, DType::f64, 1);
  const double expected[] = {0x1.cee2d2ba5b01bp-1, 0x1.78f997ab4ce4ep-2, -0x1.956d579e24bfbp+0,
                             -0x1.0c7edd4fcdf57p-1};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(t.values<double>()[i], expected[i]);
}

}  // namespace
}  // namespace headwise
