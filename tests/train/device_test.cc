// Training on a device, by the double of the CUDA library (support/fake/fake_cuda.cc): steps, figures that
// come late, checkpoints, 16-bit weights.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "headwise/train/data.h"
#include "headwise/train/next_token.h"
#include "tests/base/refusal.h"
#include "tests/model/scratch_folder.h"
#include "tests/support/fake/fake_room.h"

namespace headwise {
namespace {

constexpr Device kThere = Device::cuda(0);

TransformerConfig tiny(const ToyExamples& t) {
  return {.kind = ModelKind::decoder,
          .vocabulary = t.classes(),
          .model_dim = 16,
          .feed_dim = 24,
          .depth = 1,
          .heads = "mha:heads=2",
          .max_tokens = t.width(),
          .dropout = 0.1};
}

/// A decoder that learns to copy, on the CPU or on a device, in f32 or in bf16 with f32 masters.
struct Toy {
  explicit Toy(Device device, DType dtype = DType::f32, double average = 0)
      : params(dtype, 1), model(params, tiny(toy)) {
    params.set_rate("stack.", 0.5);
    if (dtype != DType::f32) masters.emplace(params);
    optimizer.emplace(masters ? masters->params() : params,
                      AdamWOptions{.weight_decay = 0.1, .decay = Decay::matrices, .average = average});
    optimizer->to(device, ctx, masters ? &params : nullptr);
    next.emplace(
        model, toy.width(), [this](Index e, auto x, auto y) { toy.read(e, x, y); }, ctx);
  }
  TrainResult train(TrainerOptions o, Learn learn = {}) {
    o.micro_rows = 4, o.rate = Schedule::cosine(3e-3, 2, 30), o.config = "toy";
    if (learn == nullptr) learn = [&](const MicroBatch& m) { return next->learn(m); };
    return Trainer(*optimizer, 1 << 20, o, ctx, masters ? &*masters : nullptr).run(learn, [&] {
      return next->judge(0, 8);
    });
  }
  /// A number of the gradients that the optimizer reads becomes NaN.
  void poison() {
    float bad = NAN;
    AnyView first = optimizer->params().all()[2].grad;
    first.rank = 1, first.size[0] = 1, first.step[0] = 1;
    to(AnyView::packed(&bad, DType::f32, {1}), first, ctx);
  }
  /// Of all weights that learn, at home.
  std::vector<double> weights() {
    optimizer->fetch();
    std::vector<double> all;
    for (const Param& p : optimizer->params().all()) {
      const AnyView v = optimizer->home_value(p);
      for (Index i = 0; i < v.count(); ++i) all.push_back(load_double(v.data, v.dtype, i));
    }
    return all;
  }

  Context ctx{{.threads = 2}};
  ToyExamples toy{.task = ToyTask::copy, .length = 3, .symbols = 5, .seed = 5};
  ParamSet params;
  Transformer model;
  std::optional<MasterWeights> masters;
  std::optional<Optimizer> optimizer;
  std::optional<NextToken> next;
};

/// The root of the mean square: AdamW makes steps of noise where a gradient is nothing else.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}
std::string file_of(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

TEST(DeviceTraining, LearnsThereWhatItLearnsHere) {
  for (const Index micro_batches : {1, 3}) {
    Toy here(Device::cpu()), there(kThere);
    const TrainerOptions o{.steps = 20, .micro_batches = micro_batches, .clip = 0.5};
    const double start = there.next->judge(0, 16);
    EXPECT_NEAR(start, here.next->judge(0, 16), 1e-5);
    const TrainResult a = here.train(o), b = there.train(o);
    EXPECT_NEAR(a.loss, b.loss, 1e-4);
    EXPECT_LT(apart(here.weights(), there.weights()), 1e-4);
    EXPECT_NEAR(here.next->judge(0, 16), there.next->judge(0, 16), 1e-4);
    EXPECT_LT(there.next->judge(0, 16), start);
    EXPECT_NEAR(here.next->accuracy(0, 16), there.next->accuracy(0, 16), 1e-9);
    there.optimizer->to(Device::cpu(), there.ctx);  // and it goes on here
    EXPECT_TRUE(there.model.device().is_cpu());
    const TrainerOptions more{.steps = 5};
    EXPECT_NEAR(here.train(more).loss, there.train(more).loss, 1e-4);
  }
}

TEST(DeviceTraining, StoppedAndResumedItEndsInTheSameFile) {
  const ScratchFolder folder;
  const auto run = [&](const char* name, std::initializer_list<Index> stops) {
    TrainResult r;
    for (const Index steps : stops)
      r = Toy(kThere, DType::f32, 0.9)
              .train({.steps = steps,
                      .micro_batches = 2,
                      .clip = 1,
                      .folder = folder / name,
                      .log = folder / text(name, ".csv")});
    return r;
  };
  const TrainResult whole = run("whole", {9}), parts = run("parts", {2, 5, 9});
  EXPECT_EQ(whole.step, 9);
  EXPECT_EQ(whole.loss, parts.loss);
  EXPECT_EQ(file_of(whole.checkpoint), file_of(parts.checkpoint));
  // The CPU's checkpoint has the same tensors; bits of another device are taken when they are accepted.
  Toy here(Device::cpu(), DType::f32, 0.9);
  const TrainerOptions other{.steps = 12, .micro_batches = 2, .clip = 1, .folder = folder / "whole"};
  EXPECT_SAYS(here.train(other), "this run has");
  TrainerOptions accepted = other;
  accepted.checkpoints.other_numerics = OtherNumerics::accept;
  EXPECT_EQ(here.train(accepted).step, 12);
  std::ifstream log(folder / "parts.csv");
  std::string line;
  Index rows = 0;
  while (std::getline(log, line)) ++rows;
  EXPECT_EQ(rows, 10);  // its head, then a row a step
}

TEST(DeviceTraining, RunningMeansChangePlacesThere) {
  Toy here(Device::cpu(), DType::f32, 0.9), there(kThere, DType::f32, 0.9);
  const TrainerOptions o{.steps = 6, .judge_every = 2};
  EXPECT_NEAR(here.train(o).best, there.train(o).best, 1e-4);
  const std::vector<double> before = there.weights();
  here.optimizer->swap_averages(), there.optimizer->swap_averages();
  EXPECT_LT(apart(here.weights(), there.weights()), 1e-4);
  EXPECT_GT(apart(before, there.weights()), 1e-4);
  there.optimizer->swap_averages();
  EXPECT_EQ(before, there.weights());
}

TEST(DeviceTraining, MastersLearnWhatBf16Computes) {
  Toy here(Device::cpu(), DType::bf16), there(kThere, DType::bf16);
  const TrainerOptions o{.steps = 20, .micro_batches = 2, .clip = 0.5};
  const TrainResult a = here.train(o), b = there.train(o);
  EXPECT_NEAR(a.loss, b.loss, 0.05);
  EXPECT_LT(apart(here.weights(), there.weights()), 0.02);
  there.optimizer->to(Device::cpu(), there.ctx);
  for (std::size_t i = 0; i < there.params.all().size(); ++i) {
    const AnyView master = there.masters->params().all()[i].value, weight = there.params.all()[i].value;
    for (Index k = 0; k < weight.count(); ++k)
      ASSERT_EQ(load_double(weight.data, weight.dtype, k),
                static_cast<double>(static_cast<float>(bf16(static_cast<const float*>(master.data)[k]))));
  }
}

TEST(DeviceTraining, ANanTouchesNothingAndIsNamed) {
  const ScratchFolder folder;
  Toy there(kThere);
  const TrainResult good = there.train({.steps = 3, .folder = folder.path()});
  std::vector<double> before;
  const auto poisoned = [&](const MicroBatch& m) {
    if (m.step == 5) before = there.weights();
    const double loss = there.next->learn(m);
    if (m.step == 5) there.poison();
    return loss;
  };
  const TrainerOptions o{.steps = 9, .folder = folder.path()};
  EXPECT_SAYS(there.train(o, poisoned),
              text("trainer: the gradient's norm of step 5 is nan; the first bad tensor is ",
                   there.params.all()[2].name, " (gradient); the last good checkpoint is ", good.checkpoint));
  EXPECT_EQ(before, there.weights());
}

TEST(DeviceTraining, ARunThatBrokeLeavesNothingToTheNext) {
  const ScratchFolder folder;
  for (const Device device : {Device::cpu(), kThere}) {
    const DType dtype = device.is_cpu() ? DType::bf16 : DType::f32;
    const auto options = [&](const std::string& name) {
      return TrainerOptions{
          .steps = 4, .micro_batches = 2, .clip = 1, .folder = folder / text(dtype, name), .save_every = 2};
    };
    const std::string whole = file_of(Toy(device, dtype).train(options("whole")).checkpoint);
    for (const Index step : {0, 2})  // without a checkpoint, and behind one
      for (const bool throws : {false, true}) {
        Toy toy(device, dtype);
        const TrainerOptions o = options(text(step, throws));
        // Behind the backward of the step's second micro-batch.
        const auto broken = [&](const MicroBatch& m) {
          const double loss = toy.next->learn(m);
          if (m.step != step || m.number != 1) return loss;
          require(!throws, ErrorKind::bad_argument, "labels", "a bad one");
          toy.poison();
          return loss;
        };
        EXPECT_NE(test::refusal_of([&] {
                    toy.train(o, broken);
                  }).find(throws ? "a bad one" : text("the gradient's norm of step ", step, " is nan")),
                  std::string::npos);
        std::string again;
        EXPECT_EQ(test::refusal_of([&] { again = file_of(toy.train(o).checkpoint); }), "");
        EXPECT_TRUE(again == whole) << device << ' ' << step << throws;
      }
  }
}

TEST(DeviceTraining, WhereTheDeviceIsFullAllStaysOnTheCpu) {
  Context ctx({.threads = 1});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ParamSet params(dtype, 1);
    params.add("w", {3, 4}, Init::normal(1)), params.add("b", {5}, Init::normal(1));
    std::optional<MasterWeights> masters;
    if (dtype != DType::f32) masters.emplace(params);
    Optimizer adamw(masters ? masters->params() : params, AdamWOptions{});
    const auto bits = [&] {
      std::string all;
      for (const ParamSet* set : {&params, &adamw.params()})
        for (const Param& p : set->all()) {
          EXPECT_TRUE(p.value.on_cpu() && p.grad.given() && p.grad.on_cpu()) << p.name;
          if (p.value.on_cpu()) all.append(static_cast<const char*>(p.value.data), p.bytes());
          for (Index i = 0; p.grad.on_cpu() && i < p.grad.count(); ++i)
            EXPECT_EQ(load_double(p.grad.data, p.grad.dtype, i), 0);
        }
      return all;
    };
    const std::string before = bits();
    int buffers = 0;
    while (!adamw.there()) {
      const fake::Room room(buffers++);
      const std::string words = test::refusal_of([&] { adamw.to(kThere, ctx, masters ? &params : nullptr); });
      if (adamw.there()) continue;
      ASSERT_NE(words.find("bytes were asked on CUDA device 0"), std::string::npos) << words;
      ASSERT_EQ(bits(), before) << buffers;
    }
    EXPECT_GE(buffers, 7);  // each of its six, or more, was refused once
    adamw.to(Device::cpu(), ctx);
    EXPECT_EQ(bits(), before);
  }
}

TEST(DeviceTraining, WhatDoesNotLearnThereIsRefused) {
  Context ctx({.threads = 1});
  ParamSet params(DType::f32, 1);
  params.add("w", {3}, Init::normal(1));
  Optimizer sgd(params, SgdOptions{.momentum = 0.9});
  EXPECT_SAYS(sgd.to(kThere, ctx), "optimizer: it is SGD; on CUDA device 0 AdamW of one rank takes steps");
  Optimizer adamw(params, AdamWOptions{});
  adamw.to(kThere, ctx);
  Optimizer other_steps(params, AdamWOptions{});
  EXPECT_SAYS(other_steps.to(kThere, ctx), "optimizer: w lies on CUDA device 0 already; bring it home first");
  EXPECT_SAYS(grad_norm(params, ctx), "has its gradient on CUDA device 0");
  EXPECT_SAYS(Trainer(adamw, 1, {.steps = 1, .tree = true}, ctx), "the parameters lie on a device");
  Toy toy(Device::cpu(), DType::bf16);
  toy.optimizer->to(kThere, toy.ctx);
  EXPECT_SAYS(toy.train({.steps = 1}),
              "trainer: the masters lie on a device without the set that they learn for; give Optimizer::to "
              "that set as image");
  ParamSet other(DType::bf16, 1);
  const Transformer like(other, tiny(toy.toy));
  toy.optimizer->to(kThere, toy.ctx, &other);
  EXPECT_SAYS(toy.train({.steps = 1}), "without the set that they learn for");
  toy.optimizer->to(kThere, toy.ctx, &toy.params);
  EXPECT_SAYS(toy.train({.steps = 1}), "");
}

}  // namespace
}  // namespace headwise
