// The data team: a training over 1, 2, 4 and 8 ranks leaves the same weights, and ranks that differ are
// named.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/basic/feed_forward.h"
#include "headwise/train/trainer.h"

namespace headwise {
namespace {

constexpr Index kExamples = 40, kDim = 12, kSteps = 6;

struct Trained {
  std::string weights = {}, averages = {};
  double loss = 0;
  Index state_bytes = 0, numbers = 0;
};

/// What one training is told besides the team.
struct Setting {
  Index micro_batches = 8;
  double bad = 0;  // added to the loss of step 3
  std::uint64_t seed = 3;
  std::string folder = {};  // of checkpoints
  Index steps = kSteps;
  Index feed_dim = 24;
  double average = 0;
};

/// A small regression with dropout; example e is drawn from its number.
Trained train(const Communicator* team, const Setting& s) {
  const Index micro_batches = s.micro_batches;
  ParamSet params(DType::f32, 5);
  const FeedForward model(
      params, "feed", {.kind = FeedKind::gelu, .model_dim = kDim, .feed_dim = s.feed_dim, .dropout = 0.1});
  params.make_grads();
  Context ctx({.threads = 1});
  Optimizer optimizer(params, AdamWOptions{.average = s.average});
  StepMemory memory;
  Trainer trainer(optimizer, kExamples,
                  {.steps = s.steps,
                   .micro_rows = 16 / micro_batches,
                   .micro_batches = micro_batches,
                   .rate = Schedule::constant(1e-2),
                   .tree = true,
                   .data = team,
                   .clip = 0.5,
                   .seed = s.seed,
                   .folder = s.folder},
                  ctx);
  const TrainResult r = trainer.run([&](const MicroBatch& m) {
    memory.reset();
    const auto rows = static_cast<Index>(m.examples.size());
    Call call{.ctx = ctx,
              .memory = memory,
              .sequences = {.batch = rows, .tokens = 1},
              .training = true,
              .seed = m.seed,
              .step = static_cast<std::uint64_t>(m.step)};
    const AnyView x = memory.take(DType::f32, {rows, kDim}), dy = memory.take(DType::f32, {rows, kDim});
    for (Index i = 0; i < x.count(); ++i)
      static_cast<float*>(x.data)[i] =
          static_cast<float>(normal_at(9, m.examples[static_cast<std::size_t>(i / kDim)] * kDim + i % kDim));
    FeedForward::Saved saved;
    const AnyView y = model.forward(x, call, &saved);
    double loss = 0;
    for (Index i = 0; i < x.count(); ++i) {
      const double error = static_cast<double>(static_cast<float*>(y.data)[i]) -
                           std::sin(static_cast<double>(static_cast<float*>(x.data)[i]));
      loss += error * error / static_cast<double>(x.count());
      static_cast<float*>(dy.data)[i] =
          static_cast<float>(m.weight * 2 * error / static_cast<double>(x.count()));
    }
    model.backward(dy, call, saved);
    return m.step == 3 && m.number == micro_batches - 1 ? loss + s.bad : loss;
  });
  Trained t{.loss = r.loss, .state_bytes = optimizer.state_bytes()};
  const auto read = [&](std::string& to) {
    for (const Param& p : params.all()) to.append(static_cast<const char*>(p.value.data), p.bytes());
  };
  read(t.weights);
  for (const Param& p : params.all()) t.numbers += p.value.count();
  if (s.average == 0) return t;
  optimizer.swap_averages();
  read(t.averages);
  optimizer.swap_averages();
  std::string again;
  read(again);
  EXPECT_TRUE(again == t.weights) << "means and weights changed places twice";
  return t;
}

std::string sentence_of(int ranks, const std::function<void(Communicator&)>& work) {
  try {
    run_ranks(ranks, work);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(DataTeam, AnyNumberOfRanksLeavesTheSameWeights) {
  const Trained alone = train(nullptr, {});
  EXPECT_TRUE(std::isfinite(alone.loss));
  for (const int ranks : {1, 2, 4, 8})
    run_ranks(ranks, [&](Communicator& team) {
      const Trained t = train(&team, {});
      EXPECT_TRUE(t.weights == alone.weights) << ranks << " ranks, rank " << team.rank();
      EXPECT_EQ(t.loss, alone.loss);
    });
}

/// Numbers of a wide layer: several blocks of 4,096, whose owners differ.
TEST(DataTeam, EachRankKeepsItsPartOfTheState) {
  const Setting wide{.feed_dim = 700, .average = 0.9};
  const Trained alone = train(nullptr, wide);
  EXPECT_EQ(alone.state_bytes, 3 * 4 * alone.numbers);
  for (const int ranks : {2, 4}) {
    std::vector<Index> state(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Communicator& team) {
      const Index before = team.counted().bytes;
      const Trained t = train(&team, wide);
      EXPECT_TRUE(t.weights == alone.weights && t.averages == alone.averages) << ranks << " ranks";
      state[static_cast<std::size_t>(team.rank())] = t.state_bytes;
      // ZeRO, stage 1: gradients to their owners, weights to all, and the two swaps of the means.
      const Index own = t.state_bytes / 12, others = t.numbers - own;
      const Index least = kSteps * 4 * others + (kSteps + 2) * 4 * own * (ranks - 1);
      const Index sent = team.counted().bytes - before;
      EXPECT_GE(sent, least);
      EXPECT_LE(sent, least + 2000) << "losses, norms and wishes are numbers alone";
    });
    Index all = 0;
    for (const Index bytes : state) {
      all += bytes;
      EXPECT_LT(bytes, alone.state_bytes / ranks + 3 * 4 * 4096);
    }
    EXPECT_EQ(all, alone.state_bytes);
  }
}

TEST(DataTeam, GoesOnOverOtherRanks) {
  const Setting whole{.feed_dim = 700, .average = 0.9};
  const Trained straight = train(nullptr, whole);
  const std::string root = testing::TempDir() + "data_team";
  for (const auto& [first, then] : {std::pair{4, 1}, {1, 4}, {2, 8}, {8, 2}}) {
    std::filesystem::remove_all(root);
    Setting part = whole;
    part.folder = root, part.steps = 3;
    run_ranks(first, [&](Communicator& team) { train(&team, part); });
    part.steps = kSteps;
    run_ranks(then, [&, to = then](Communicator& team) {
      const Trained t = train(&team, part);
      EXPECT_TRUE(t.weights == straight.weights && t.averages == straight.averages) << first << " to " << to;
    });
  }
  std::filesystem::remove_all(root);
}

TEST(DataTeam, OtherPartsAreOtherBitsOfTheSameStep) {
  // The same examples in 4 parts and in 8: rounding and dropout differ, the step does not.
  EXPECT_NE(train(nullptr, {.micro_batches = 4}).weights, train(nullptr, {}).weights);
}

TEST(DataTeam, EndsOnAllRanksTogether) {
  const std::string said = sentence_of(
      4, [](Communicator& team) { train(&team, {.bad = std::numeric_limits<double>::quiet_NaN()}); });
  EXPECT_NE(said.find("trainer: the loss of step 3 is nan"), said.npos) << said;
}

TEST(DataTeam, NamesTheRankThatDiffers) {
  EXPECT_EQ(sentence_of(2, [](Communicator& team) { train(&team, {.seed = team.rank() == 1 ? 4u : 3u}); }),
            "ranks: trainer: rank 1 has seed 4, rank 0 has 3; start all ranks with the same words");
  EXPECT_NE(sentence_of(3, [](Communicator& team) { train(&team, {}); })
                .find("give a power of two up to 64 that the ranks divide"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
