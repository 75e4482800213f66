// Every head kind learns: a toy task by a loss threshold, resumed runs and threads by their bits; Shakespeare
// when asked.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/train/next_token.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "headwise/base/context.h"
#include "headwise/heads/config.h"
#include "headwise/train/data.h"
#include "tests/base/sentence.h"
#include "tests/heads/samples.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

bool slow() { return std::getenv("HEADWISE_SLOW") != nullptr; }

/// A two-layer decoder on a toy task.
struct ToyModel {
  Context ctx;
  ToyExamples toy;
  ParamSet params{DType::f32, 1};
  Transformer model;
  Optimizer optimizer{params, AdamWOptions{.beta2 = 0.98, .weight_decay = 0.01, .decay = Decay::matrices}};
  NextToken next;

  ToyModel(const ToyExamples& t, const std::string& heads, int threads = 2, double dropout = 0)
      : ctx({.threads = threads}),
        toy(t),
        model(params, {.kind = ModelKind::decoder,
                       .vocabulary = t.classes(),
                       .model_dim = 32,
                       .feed_dim = 64,
                       .depth = 2,
                       .heads = heads,
                       .positions = Positions::learned,
                       .max_tokens = t.width(),
                       .dropout = dropout}),
        next(
            model, t.width(), [this](Index e, auto x, auto y) { toy.read(e, x, y); }, ctx) {}

  TrainResult train(TrainerOptions o) {
    o.micro_rows = 16, o.clip = 1, o.rate = Schedule::cosine(3e-3, 20, 1000), o.config = "toy";
    return Trainer(optimizer, 1 << 20, o, ctx).run([&](const MicroBatch& m) { return next.learn(m); });
  }
  std::string bytes() const {
    std::string out;
    for (const Param& p : params.all()) out.append(static_cast<const char*>(p.value.data), p.bytes());
    return out;
  }
};

/// Every head of the list, four heads of eight; windows reach as far back as a copy looks.
std::vector<std::string> head_settings() {
  std::vector<std::string> all;
  AllHeads::each([&]<class H>(Type<H>) {
    auto config = test::small_config<H>(4, 8);
    if constexpr (requires { config.window; }) config.window = 16;
    all.push_back(config_text<H>(config));
  });
  return all;
}

TEST(NextToken, StepsAreBitsForAnyThreadsAndResume) {
  const ToyExamples toy{.task = ToyTask::reverse, .length = 4, .symbols = 6, .seed = 5};
  ToyModel whole(toy, "mha:heads=4", 1, 0.1);
  whole.train({.steps = 12, .micro_batches = 2});
  const ScratchFolder folder;
  for (const int threads : {1, 3}) {
    const std::string at = folder / text(threads);
    ToyModel first(toy, "mha:heads=4", threads, 0.1), second(toy, "mha:heads=4", 4 - threads, 0.1);
    first.train({.steps = 5, .micro_batches = 2, .folder = at});
    const TrainResult r = second.train({.steps = 12, .micro_batches = 2, .folder = at});
    EXPECT_EQ(second.bytes(), whole.bytes()) << threads;
    EXPECT_EQ(r.step, 12);
  }
}

TEST(NextToken, EveryHeadLearnsAToyTask) {
  // make slow: until a copy of 6 of 8 symbols is nearly right; else a few steps, by which the loss must have
  // fallen.
  const ToyExamples toy{.task = ToyTask::copy, .length = 6, .symbols = 8, .seed = 3};
  for (const std::string& name : head_settings()) {
    ToyModel m(toy, name);
    const double before = m.next.judge(1 << 20, 32);
    m.train({.steps = slow() ? 1000 : 40});
    const double after = m.next.judge(1 << 20, 32);
    EXPECT_LT(after, slow() ? 0.1 : before - 0.15) << name << ": from " << before;
    EXPECT_TRUE(!slow() || m.next.accuracy(1 << 20, 32) > 0.97) << name;
  }
}

TEST(NextToken, TheBalanceLossCountsWithItsWeightOnce) {
  // Two layers, 3 routed heads, 2 chosen: near balance the loss of each is 2, and their mean is.
  const ToyExamples toy{.task = ToyTask::copy, .length = 6, .symbols = 8, .seed = 3};
  const auto learnt = [&](const std::string& weight) {
    ToyModel m(toy, "moh:heads=4,dim=8,shared=1,k=2,weight=" + weight);
    const Index examples[] = {0, 1, 2, 3, 4, 5, 6, 7};
    m.params.make_grads();
    return m.next.learn({.examples = examples, .weight = 1});
  };
  const double task = learnt("0"), once = learnt("0.01") - task, whole = learnt("1") - task;
  EXPECT_NEAR(whole, 2, 0.4);
  EXPECT_NEAR(once, 0.01 * whole, 1e-6);
}

TEST(NextToken, MhaLearnsToReverseAndSort) {
  if (!slow()) GTEST_SKIP() << "make slow";
  for (const ToyTask task : {ToyTask::reverse, ToyTask::sort}) {
    ToyModel m({.task = task, .length = 6, .symbols = 8, .seed = 3}, "mha:heads=4");
    m.train({.steps = 1000});
    EXPECT_LT(m.next.judge(1 << 20, 64), 0.1);
    EXPECT_GT(m.next.accuracy(1 << 20, 64), 0.97);
  }
}

TEST(NextToken, CharactersOfShakespeare) {
  if (!slow()) GTEST_SKIP() << "make slow";
  const char* data = std::getenv("HEADWISE_DATA");
  if (!data) GTEST_SKIP() << "HEADWISE_DATA is not set";
  std::string all;
  std::FILE* pipe = ::popen(text("gzip -dc '", data, "/tinyshakespeare/input.txt.gz'").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char buffer[65536];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) all.append(buffer, n);
  ASSERT_EQ(::pclose(pipe), 0);
  ASSERT_EQ(all.size(), 1115394u);
  std::vector<std::int32_t> tokens;
  for (const char c : all) tokens.push_back(c);
  const std::size_t cut = tokens.size() * 9 / 10;
  const TokenWindows learn({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cut)}, 64),
      judge({tokens.begin() + static_cast<std::ptrdiff_t>(cut), tokens.end()}, 64);
  Context ctx;
  ParamSet params(DType::f32, 1);
  const Transformer model(params, {.vocabulary = 128,
                                   .model_dim = 128,
                                   .feed_dim = 512,
                                   .depth = 4,
                                   .heads = "mha:heads=4",
                                   .max_tokens = 64});
  Optimizer optimizer(params, AdamWOptions{.beta2 = 0.99, .weight_decay = 0.1, .decay = Decay::matrices});
  NextToken next(
      model, 64, [&](Index e, auto x, auto y) { learn.read(e, x, y); }, ctx),
      judged(
          model, 64, [&](Index e, auto x, auto y) { judge.read(e, x, y); }, ctx);
  Trainer trainer(
      optimizer, learn.count(),
      {.steps = 2000, .micro_rows = 12, .rate = Schedule::cosine(1e-3, 100, 2000, 1e-4), .clip = 1}, ctx);
  trainer.run([&](const MicroBatch& m) { return next.learn(m); });
  const double loss = judged.judge(0, judge.count());
  std::printf("tinyshakespeare, 4 layers of 128, 2,000 steps of 12 x 64 characters: judged loss %.4f\n",
              loss);
  EXPECT_LT(loss, 2.0);
}

TEST(NextToken, ABudgetOfHeadsIsKept) {
  const ToyExamples toy{.task = ToyTask::copy, .length = 4, .symbols = 6, .seed = 5};
  ToyModel m(toy, "moh:heads=4,dim=8,shared=1,k=3");
  const auto judged = [&](Index budget) {
    NextToken next(m.model, toy.width(), [&](Index e, auto x, auto y) { toy.read(e, x, y); }, m.ctx,
                   {.head_budget = budget});
    return next.judge(0, 8);
  };
  EXPECT_EQ(judged(3), m.next.judge(0, 8));
  EXPECT_NE(judged(1), judged(3));
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { judged(4); }),
      "moh: head_budget is 4 but the head was made with k = 3; a call may use fewer routed heads, not more");
}

TEST(NextToken, RefusesInWords) {
  Context ctx({.threads = 1});
  ParamSet params;
  const Transformer encoder(params, {.kind = ModelKind::encoder,
                                     .vocabulary = 5,
                                     .model_dim = 8,
                                     .feed_dim = 8,
                                     .depth = 1,
                                     .heads = "mha:heads=1",
                                     .max_tokens = 8});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { NextToken(encoder, 8, {}, ctx); }),
            "next token: the model is an encoder; only a decoder has a next token");
}

}  // namespace
}  // namespace headwise
