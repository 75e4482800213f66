// Optimizers: torch's numbers, one result for any thread count and any split into micro-batches, masters of
// bf16 sets.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/train/steps/optimizer.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/base/sentence.h"

namespace headwise {
namespace {

constexpr double kStart[] = {0.5, -1.25, 2.0, 0.0, 1e-3};

/// Seven steps on five numbers with gradients ((7 i + 3 t) mod 11 - 5) / 4.
template <class Options>
std::vector<double> seven_steps(DType dtype, const Options& options, double rate) {
  Context ctx({.threads = 2});
  ParamSet set(dtype);
  const Learned x = set.add("x", {5});
  for (Index i = 0; i < 5; ++i) store_double(x.value().data, dtype, i, kStart[i]);
  Optimizer optimizer(set, options);
  for (Index t = 0; t < 7; ++t) {
    for (Index i = 0; i < 5; ++i)
      store_double(x.grad().data, dtype, i, static_cast<double>((i * 7 + t * 3) % 11 - 5) / 4);
    optimizer.step(rate, ctx);
  }
  EXPECT_EQ(optimizer.steps(), 7);
  std::vector<double> out;
  for (Index i = 0; i < 5; ++i) out.push_back(load_double(x.value().data, dtype, i));
  return out;
}

template <class Options>
void expect_torchs(const Options& options, double rate, const double (&want)[5], const float (&want_f32)[5]) {
  const auto f64 = seven_steps(DType::f64, options, rate), f32 = seven_steps(DType::f32, options, rate);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(f64[i], want[i], 1e-15 * std::fabs(want[i]) + 2e-16) << i;
    EXPECT_NEAR(f32[i], static_cast<double>(want_f32[i]), 0x1p-23 * std::fmax(0.25, std::fabs(want[i]))) << i;
  }
}

// Printed by torch 2.13: torch.optim.AdamW and SGD in float64 and float32 with these options and gradients.
TEST(Optimizer, AdamWIsTorchs) {
  expect_torchs(AdamWOptions{.beta2 = 0.98, .weight_decay = 0.1}, 0.01,
                {0x1.0eedeb0556423p-1, -0x1.4505ba1cfd3e5p+0, 0x1.fe4f9126d8f0dp+0, -0x1.b47df3cbafa2fp-7,
                 -0x1.91704923a66ffp-6},
                {0x1.0eedecp-1f, -0x1.4505bcp+0f, 0x1.fe4f9ap+0f, -0x1.b47dfap-7f, -0x1.91704cp-6f});
}
TEST(Optimizer, SgdIsTorchs) {
  expect_torchs(SgdOptions{}, 0.05,
                {0x1.2p-1, -0x1.4p+0, 0x1.fp+0, 0x1.999999999999cp-7, -0x1.916872b020c48p-5},
                {0x1.2p-1f, -0x1.4p+0f, 0x1.fp+0f, 0x1.99999ep-7f, -0x1.916874p-5f});
  expect_torchs(SgdOptions{.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01}, 0.05,
                {0x1.b0916ca30a0ddp-1, -0x1.74207de3179a3p+0, 0x1.f550f5c654a7bp+0, -0x1.967601f09dfbbp-4,
                 -0x1.7c56f90f1fecap-3},
                {0x1.b0916ep-1f, -0x1.74207ep+0f, 0x1.f550f2p+0f, -0x1.9676p-4f, -0x1.7c56f8p-3f});
  expect_torchs(SgdOptions{.momentum = 0.9, .weight_decay = 0.01, .look = SgdOptions::Look::ahead}, 0.05,
                {0x1.be744a34f8323p-1, -0x1.6f81db692ffd6p+0, 0x1.e050036a83f5ep+0, -0x1.b735508593ad9p-5,
                 -0x1.d454e13e81e9bp-3},
                {0x1.be744ap-1f, -0x1.6f81dcp+0f, 0x1.e05004p+0f, -0x1.b7354ap-5f, -0x1.d454e2p-3f});
}

void fill_grads(ParamSet& set, std::uint64_t seed) {
  for (Param& p : set.all())
    for (Index i = 0; i < p.grad.count(); ++i)
      store_double(p.grad.data, p.grad.dtype, i, normal_at(seed++, i));
}

std::string bytes_of(const ParamSet& set) {
  std::string out;
  for (const Param& p : set.all()) {
    out.append(reinterpret_cast<const char*>(p.value.data), p.bytes());
    if (p.grad.given()) out.append(reinterpret_cast<const char*>(p.grad.data), p.bytes());
  }
  return out;
}

TEST(Optimizer, SameBitsForAnyThreadCount) {
  std::string first;
  std::vector<double> norms;
  for (const int threads : {1, 2, 3, 8}) {
    Context ctx({.threads = threads});
    ParamSet set(DType::f32, 5);
    set.add("a", {130, 97}, Init::normal(1));
    set.add("empty", {0});
    set.add("b", {5}, Init::normal(1));
    set.add("c", {4096}, Init::normal(1));
    Optimizer optimizer(set, AdamWOptions{});
    for (std::uint64_t t = 0; t < 3; ++t) {
      fill_grads(set, t);
      const double n = clip_grads(set, 1.0, ctx);
      if (threads == 1) norms.push_back(n);
      EXPECT_EQ(n, norms[t]) << threads;
      optimizer.step(0.01, ctx);
    }
    if (first.empty()) first = bytes_of(set);
    EXPECT_EQ(bytes_of(set), first) << threads;
  }
}

TEST(Optimizer, DecayOfMatricesLeavesVectors) {
  Context ctx({.threads = 1});
  ParamSet set(DType::f64);
  const Learned w = set.add("w", {1, 1}, Init::constant(1)), b = set.add("b", {1}, Init::constant(1));
  Optimizer optimizer(set, AdamWOptions{.weight_decay = 0.5, .decay = Decay::matrices});
  optimizer.step(0.1, ctx);
  EXPECT_EQ(load_double(w.value().data, DType::f64, 0), 0.95);
  EXPECT_EQ(load_double(b.value().data, DType::f64, 0), 1.0);
}

TEST(Optimizer, EachParameterHasItsRate) {
  Context ctx;
  ParamSet set(DType::f64);
  const Learned whole = set.add("top.w", {2, 1}, Init::constant(1)),
                half = set.add("layer.w", {2, 1}, Init::constant(1)),
                still = set.add("layer.0.w", {2, 1}, Init::constant(1));
  EXPECT_EQ(set.set_rate("layer.", 0.5), 2);
  EXPECT_EQ(set.set_rate("layer.0.", 0), 1);
  EXPECT_EQ(set.set_rate("none.", 0), 0);
  Optimizer optimizer(set, AdamWOptions{.weight_decay = 0.1});
  EXPECT_FALSE(still.grad().given());
  EXPECT_EQ(optimizer.moments().size(), 4u);
  EXPECT_NE(optimizer.describe().find(" rate=0:2 rate=0.5:2"), std::string::npos) << optimizer.describe();
  for (const Learned& w : {whole, half}) store_double(w.grad().data, DType::f64, 0, 3);
  EXPECT_EQ(grad_norm(set, ctx), std::sqrt(18.0));
  optimizer.step(0.01, ctx);
  const auto moved = [](const Learned& w) { return 1 - load_double(w.value().data, DType::f64, 0); };
  EXPECT_NEAR(moved(whole), 0.01 * 1.1, 1e-9);
  EXPECT_NEAR(moved(half), 0.005 * 1.1, 1e-9);
  EXPECT_EQ(moved(still), 0);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { set.set_rate("layer.", -1); }),
            "params: \"layer.\" gets a rate of -1; give a factor from 0 to 1e6");
  ParamSet image(DType::bf16);
  image.add("a", {2}, Init::constant(1)), image.add("b", {2}, Init::constant(1));
  image.set_rate("a", 0);
  MasterWeights masters(image);
  EXPECT_FALSE(masters.params().find("a").grad().given());
  masters.take_grads(ctx), masters.publish(ctx);
  EXPECT_EQ(load_double(image.find("a").value().data, DType::bf16, 0), 1);
}

TEST(Optimizer, AveragesFollowTheirFormula) {
  Context ctx({.threads = 2});
  ParamSet set(DType::f64);
  const Learned x = set.add("x", {3}, Init::normal(1)), still = set.add("still", {2}, Init::normal(1));
  set.set_rate("still", 0);
  const double stays = load_double(still.value().data, DType::f64, 0);
  Optimizer optimizer(set, AdamWOptions{.average = 0.3});
  double mean[3] = {};
  for (Index t = 1; t <= 6; ++t) {
    for (Index i = 0; i < 3; ++i) store_double(x.grad().data, DType::f64, i, static_cast<double>(i - t % 2));
    optimizer.step(0.1, ctx);
    const double keep =
        t == 1 ? 0.0 : std::min(0.3, static_cast<double>(t + 1) / static_cast<double>(t + 10));
    for (Index i = 0; i < 3; ++i)
      mean[i] += (1 - keep) * (load_double(x.value().data, DType::f64, i) - mean[i]);
  }
  const double last = load_double(x.value().data, DType::f64, 1);
  optimizer.swap_averages();
  for (Index i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(load_double(x.value().data, DType::f64, i), mean[i]);
  EXPECT_EQ(load_double(still.value().data, DType::f64, 0), stays);
  optimizer.swap_averages();
  EXPECT_EQ(load_double(x.value().data, DType::f64, 1), last);
  Optimizer plain(set, AdamWOptions{});
  EXPECT_THROW(plain.swap_averages(), Error);
}

TEST(Clipping, ScalesToTheNormAndNeverUp) {
  Context ctx({.threads = 2});
  ParamSet set(DType::f32);
  set.make_grads();
  const Learned a = set.add("a", {2}), b = set.add("b", {1});
  const auto put = [&](double x, double y, double z) {
    store_double(a.grad().data, DType::f32, 0, x), store_double(a.grad().data, DType::f32, 1, y);
    store_double(b.grad().data, DType::f32, 0, z);
  };
  put(2, 3, 6);
  EXPECT_EQ(clip_grads(set, 100, ctx), 7);
  EXPECT_EQ(load_double(b.grad().data, DType::f32, 0), 6);
  EXPECT_EQ(clip_grads(set, 0.7, ctx), 7);
  EXPECT_NEAR(load_double(b.grad().data, DType::f32, 0), 0.6, 1e-6);
  put(3e38, 3e38, 3e38);  // squares leave f32, not double
  EXPECT_NEAR(grad_norm(set, ctx), 3e38 * std::sqrt(3.0), 1e32);
  put(0, std::numeric_limits<double>::quiet_NaN(), 0);
  EXPECT_TRUE(std::isnan(clip_grads(set, 1, ctx)));
  EXPECT_EQ(first_not_finite(set), "a (gradient)");
  put(0, 0, 0);
  EXPECT_EQ(first_not_finite(set), "");
  store_double(b.value().data, DType::f32, 0, std::numeric_limits<double>::infinity());
  EXPECT_EQ(first_not_finite(set), "b");
}

TEST(MasterWeights, LearnWhatBf16WouldLose) {
  Context ctx({.threads = 2});
  ParamSet image(DType::bf16, 3);
  const Learned w = image.add("w", {300, 20}, Init::constant(1));
  MasterWeights masters(image);
  Optimizer optimizer(masters.params(), SgdOptions{});
  // 1 - 0.001: less than half a bf16 step below 1, lost ten times without masters.
  for (int t = 0; t < 10; ++t) {
    for (Index i = 0; i < w.grad().count(); ++i) store_double(w.grad().data, DType::bf16, i, 1);
    masters.params().zero_grads();
    masters.take_grads(ctx);
    EXPECT_EQ(load_double(w.grad().data, DType::bf16, 7), 0);
    optimizer.step(0.001, ctx);
    masters.publish(ctx);
  }
  EXPECT_EQ(load_double(w.value().data, DType::bf16, 4321),
            static_cast<double>(static_cast<float>(bf16(0.99f))));
  EXPECT_NEAR(load_double(masters.params().find("w").value().data, DType::f32, 4321), 0.99, 1e-6);
}

TEST(MasterWeights, MicroBatchesAddInTheirOrder) {
  // Four micro-batches, taken one by one: the sum is one chain in f32, wherever the calls are split.
  Context ctx({.threads = 2});
  ParamSet image(DType::bf16);
  const Learned w = image.add("w", {50});
  MasterWeights masters(image);
  float chain[50] = {};
  for (std::uint64_t micro = 0; micro < 4; ++micro) {
    fill_grads(image, micro);
    for (Index i = 0; i < 50; ++i) chain[i] += static_cast<float>(load_double(w.grad().data, DType::bf16, i));
    masters.take_grads(ctx);
  }
  EXPECT_EQ(std::memcmp(chain, masters.params().find("w").grad().data, sizeof chain), 0);
}

TEST(Optimizer, RefusesInWords) {
  Context ctx({.threads = 1});
  ParamSet half(DType::bf16), set;
  set.add("w", {2});
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { Optimizer(half, AdamWOptions{}); }),
            "optimizer: the parameters are bf16; steps are taken in f32 or f64: see MasterWeights");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { Optimizer(set, AdamWOptions{.beta1 = 1}); }),
            "optimizer: beta1 is 1 and beta2 0.999; both must be below 1");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { Optimizer(set, SgdOptions{.momentum = -1}); }),
            "optimizer: momentum is -1; give a number from 0 to 1");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] { Optimizer(set, SgdOptions{.look = SgdOptions::Look::ahead}); }),
            "optimizer: looking ahead with momentum 0 and dampening 0; it needs a momentum above 0 and no "
            "dampening");
  Optimizer optimizer(set, AdamWOptions{});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { optimizer.step(std::nan(""), ctx); }),
            "optimizer: the learning rate is nan; give a finite number from 0 up");
  set.add("late", {2});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { optimizer.step(0.1, ctx); }),
            "optimizer: parameters were declared after it was made (2 now); make the optimizer last");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { clip_grads(set, 0, ctx); }),
            "clip_grads: the largest norm is 0; give one above 0");
  ParamSet bare;
  bare.add("w", {1});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { grad_norm(bare, ctx); }),
            "grad_norm: \"w\" has no gradient; call make_grads() on its set first");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { MasterWeights{set}; }),
            "master weights: the set is f32; masters are for bf16 and f16, others learn as they are");
}

}  // namespace
}  // namespace headwise
