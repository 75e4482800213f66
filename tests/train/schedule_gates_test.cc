// Schedules at their corners, and hard-concrete gates: the published probabilities, gradients, prices and
// draws.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "headwise/base/random.h"
#include "headwise/train/gates.h"
#include "headwise/train/steps/schedule.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

TEST(Schedule, CornersAreWhatTheySay) {
  const Schedule c = Schedule::cosine(1, 4, 14, 0.1);
  EXPECT_EQ(c.at(0), 0.25);
  EXPECT_EQ(c.at(3), 1);
  EXPECT_EQ(c.at(4), 1);
  EXPECT_NEAR(c.at(9), 0.55, 1e-15);
  EXPECT_NEAR(c.at(14), 0.1, 1e-15);
  EXPECT_NEAR(c.at(1000), 0.1, 1e-15);
  const Schedule l = Schedule::linear(2, 0, 10);
  EXPECT_EQ(l.at(0), 2);
  EXPECT_EQ(l.at(5), 1);
  EXPECT_EQ(l.at(10), 0);
  EXPECT_EQ(l.at(11), 0);
  const Schedule i = Schedule::inverse_sqrt(3, 16);
  EXPECT_EQ(i.at(15), 3);
  EXPECT_EQ(i.at(63), 1.5);
  EXPECT_EQ(Schedule::inverse_sqrt(3, 0).at(8), 1);
  EXPECT_EQ(Schedule::constant(5, 2).at(0), 2.5);
  EXPECT_EQ(Schedule::constant(5).at(99), 5);
  for (Index t = 1; t < 14; ++t) EXPECT_TRUE(t < 4 ? c.at(t) > c.at(t - 1) : c.at(t) <= c.at(t - 1)) << t;
  EXPECT_EQ(c.describe(), "cosine peak=1 warm_up=4 total=14 low=0.1");
}

TEST(Schedule, RefusesInWords) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Schedule::cosine(1, 10, 10); }),
            "schedule: total is 10 steps; it must be more than the warm-up (10)");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Schedule::linear(1, 0, 10, 2); }),
            "schedule: low is 2; give a number from 0 to the peak (1)");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Schedule::constant(-1); }),
            "schedule: the peak is -1; give a finite number from 0 up");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { (void)Schedule::constant(1).at(-1); }),
            "schedule: step is -1; steps count from 0");
}

TEST(HardConcrete, PublishedProbabilities) {
  const HardConcrete half{.beta = 0.5}, third{};
  const double log_a[] = {0, 2, -3};
  const double half_shut[] = {.2317, .0392, .8583}, half_full[] = {.2317, .6902, .0148};
  const double shut[] = {.3119, .0578, .9010}, full[] = {.3119, .7701, .0221};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(half.p_shut(log_a[i]), half_shut[i], 5e-5);
    EXPECT_NEAR(half.p_full(log_a[i]), half_full[i], 5e-5);
    EXPECT_NEAR(third.p_shut(log_a[i]), shut[i], 5e-5);
    EXPECT_NEAR(third.p_full(log_a[i]), full[i], 5e-5);
  }
  EXPECT_NEAR(third.gate(0.3, 0.4), .404930, 5e-7);
  EXPECT_NEAR(third.slope(0.3, 0.4), .886267, 5e-7);
  EXPECT_NEAR(third.at_rest(0), 0.5, 1e-15);
  EXPECT_NEAR(third.at_rest(2), .9570, 5e-5);
  EXPECT_EQ(third.at_rest(-3), 0);
}

TEST(HardConcrete, SlopesAreDerivatives) {
  const HardConcrete c;
  for (const double log_a : {-2.0, -0.3, 0.0, 0.7, 2.0})
    for (const double u : {0.01, 0.2, 0.5, 0.77, 0.99}) {
      constexpr double kEps = 1e-5;
      const double g = c.gate(log_a, u);
      if (g == 0 || g == 1) {
        EXPECT_EQ(c.slope(log_a, u), 0);
        continue;
      }
      const double numeric = (c.gate(log_a + kEps, u) - c.gate(log_a - kEps, u)) / (2 * kEps);
      EXPECT_NEAR(c.slope(log_a, u), numeric, 1e-8 * std::fmax(1, std::fabs(numeric)));
    }
}

TEST(HeadGates, DrawsFollowTheirProbabilities) {
  ParamSet params(DType::f64);
  HeadGates gates(params, "gates", 4, 0.0);
  store_double(gates.log_a().value().data, DType::f64, 1, 2);
  store_double(gates.log_a().value().data, DType::f64, 2, -3);
  store_double(gates.log_a().value().data, DType::f64, 3, 30);
  const double shut[] = {.3119, .0578, .9010, 0}, full[] = {.3119, .7701, .0221, 1};
  constexpr int kDraws = 20000;
  int zeros[4] = {}, ones[4] = {};
  for (Index step = 0; step < kDraws; ++step) {
    gates.draw(42, step);
    for (std::size_t h = 0; h < 4; ++h) zeros[h] += gates.values()[h] == 0, ones[h] += gates.values()[h] == 1;
  }
  for (int h = 0; h < 4; ++h) {
    EXPECT_NEAR(zeros[h] / double{kDraws}, shut[h], 5 * 0.5 / std::sqrt(double{kDraws}));
    EXPECT_NEAR(ones[h] / double{kDraws}, full[h], 5 * 0.5 / std::sqrt(double{kDraws}));
  }
  gates.draw(42, 7);
  const std::vector<float> once(gates.values().begin(), gates.values().end());
  gates.draw(42, 8);
  gates.draw(42, 7);
  EXPECT_EQ(std::vector<float>(gates.values().begin(), gates.values().end()), once);
  store_double(gates.log_a().value().data, DType::f64, 0, -1e-6);
  gates.decide();
  EXPECT_EQ(std::vector<float>(gates.values().begin(), gates.values().end()),
            (std::vector<float>{0, 1, 0, 1}));
}

TEST(HeadGates, GradientOfLossAndPrice) {
  ParamSet params(DType::f64);
  params.make_grads();
  HeadGates gates(params, "gates", 3, 0.1);
  const AnyView value = gates.log_a().value(), grad = gates.log_a().grad();
  Tensor dgate(DType::f64, {2, 5, 3});
  for (Index i = 0; i < 30; ++i) dgate.values<double>()[static_cast<std::size_t>(i)] = normal_at(9, i);
  // loss = sum over tokens of dgate . gate + 0.3 (expected open heads), for the draw of step 3
  const auto loss = [&] {
    double sum = 0;
    const HardConcrete c;
    for (Index h = 0; h < 3; ++h) {
      const auto block = Philox::block(1, {0, 3, 0, 0});
      const double u = (block[static_cast<std::size_t>(h)] + 0.5) * 0x1p-32;
      const double a = load_double(value.data, DType::f64, h);
      for (Index i = h; i < 30; i += 3)
        sum += dgate.values<double>()[static_cast<std::size_t>(i)] * c.gate(a, u);
      sum += 0.3 * c.p_open(a);
    }
    return sum;
  };
  gates.draw(1, 3);
  gates.backward(dgate.view());
  EXPECT_NEAR(gates.price(0.3), 0.3 * gates.open(), 1e-15);
  for (Index h = 0; h < 3; ++h) {
    constexpr double kEps = 1e-5;
    const double a = load_double(value.data, DType::f64, h);
    store_double(value.data, DType::f64, h, a + kEps);
    const double up = loss();
    store_double(value.data, DType::f64, h, a - kEps);
    const double numeric = (up - loss()) / (2 * kEps);
    store_double(value.data, DType::f64, h, a);
    EXPECT_NEAR(load_double(grad.data, DType::f64, h), numeric, 1e-8 * std::fmax(1, std::fabs(numeric)));
  }
  const ConstView wide = gates.gate(2, 5);
  EXPECT_EQ(text(wide), "f32 [2 5 3]");
  EXPECT_EQ(wide.step[0] + wide.step[1], 0);
}

TEST(HeadGates, RefuseInWords) {
  ParamSet params;
  HeadGates gates(params, "gates", 3);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { gates.price(1); }),
            "head gates: \"gates\" has no gradient; call make_grads() on its set first");
  params.make_grads();
  Tensor d(DType::f32, {2, 4});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { gates.backward(d.view()); }),
            "head gates: backward needs gates that were drawn; call draw() first");
  gates.draw(0, 0);
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { gates.backward(d.view()); }),
            "head gates: dgate is f32 [2 4]; its last size must be the 3 heads");
}

}  // namespace
}  // namespace headwise
