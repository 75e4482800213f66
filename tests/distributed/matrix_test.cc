// The matrix of teams: every layout of data, tensor and context ranks up to 8 learns with one set of bits,
// curve and checkpoint alike, and goes on from the checkpoint of any other.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/transformer/stack.h"
#include "headwise/train/checkpoints/crc32c.h"
#include "headwise/train/trainer.h"
#include "tests/distributed/sines.h"

namespace headwise {
namespace {

constexpr Index kExamples = 40, kTokens = 5, kModel = 16, kSteps = 20;

struct Layout {
  int data = 1, tensor = 1, context = 1;
  int ranks() const { return data * tensor * context; }
  std::string words() const { return text(data, 'x', tensor, 'x', context); }
};

struct Run {
  Layout layout = {};
  std::string folder = {};
  Index steps = kSteps;
  bool slices = false;
  int bad_rank = -1;  // whose loss of step 3 is not a number
};
struct Learnt {
  std::vector<double> losses;
  std::uint32_t weights = 0;  // CRC-32C of all of them
  std::string checkpoint;
};

/// One rank's way: a stack learns the sines of rows that are drawn from their numbers.
Learnt learn(const Run& run, const Communicator& world) {
  const Layout& l = run.layout;
  const int size = l.tensor * l.context, rank = world.rank();
  const Communicator tensor = world.part(rank / l.tensor * l.tensor, l.tensor),
                     context = world.part(rank / size * size + rank % l.tensor, l.context, l.tensor),
                     data = world.part(rank % size, l.data, size);
  const Teams teams{.tensor = &tensor, .context = &context, .data = &data, .order = Order::tree};
  const auto options = [&](const Teams* cut) {
    return StackOptions{.block = {.heads = "gqa:heads=8,kv_heads=4,dim=4",
                                  .model_dim = kModel,
                                  .feed_dim = 32,
                                  .feed = FeedKind::swiglu,
                                  .dropout = 0.2,
                                  .positions = Positions::rope,
                                  .teams = cut},
                        .depth = 2};
  };
  ParamSet whole(DType::f32, 5), mine(DType::f32, 5);
  const Stack as_whole(whole, "stack", options(nullptr)), stack(mine, "stack", options(&teams));
  const CutParams cut(whole, mine, tensor);
  mine.make_grads();
  Context ctx({.threads = 1});
  Optimizer optimizer(mine, AdamWOptions{.decay = Decay::matrices, .average = 0.5});
  StepMemory memory;
  Learnt learnt;
  TrainerOptions asked = options_of_sines(run.steps, run.folder, run.slices);
  asked.micro_rows = 1, asked.micro_batches = 8;
  asked.data = &data, asked.cut = &cut, asked.context = &context;
  Trainer trainer(optimizer, kExamples, asked, ctx);
  std::map<Index, double> micro;  // the losses of this rank's parts, by their number in the run
  const TrainResult done = trainer.run([&](const MicroBatch& m) {
    memory.reset();
    Call call{.ctx = ctx,
              .memory = memory,
              .sequences = {.batch = 1, .tokens = kTokens},
              .training = true,
              .seed = m.seed,
              .step = static_cast<std::uint64_t>(m.step)};
    const AnyView x = memory.take(DType::f32, {kTokens, kModel}),
                  dy = memory.take(DType::f32, {kTokens, kModel});
    draw_examples(x, m.examples);
    Stack::Saved saved;
    const AnyView y = stack.forward(x, call, &saved);
    const double loss = distance_from_sines(x, y, dy, m.weight);
    stack.backward(dy, call, saved);
    micro[m.step * 8 + m.number] = loss;
    return m.step == 3 && world.rank() == run.bad_rank ? std::nan("") : loss;
  });
  cut.join();
  std::vector<double> losses;
  for (const auto& [number, loss] : micro) losses.push_back(loss);
  learnt.losses = losses;
  learnt.losses.push_back(done.loss);
  Crc32c crc;
  for (const Param& p : whole.all())
    crc.add(std::span(static_cast<const std::byte*>(p.value.data), p.bytes()));
  learnt.weights = crc.value();
  learnt.checkpoint = done.checkpoint;
  return learnt;
}

/// The curve has the losses of all parts in their order, whoever computed them, and the last step's at its
/// end.
Learnt train(const Run& run) {
  Learnt all;
  std::mutex lock;
  const Layout& l = run.layout;
  std::vector<std::vector<double>> of(static_cast<std::size_t>(l.ranks()));
  run_ranks(l.ranks(), [&](Communicator& world) {
    Learnt own = learn(run, world);
    const std::lock_guard<std::mutex> held(lock);
    of[static_cast<std::size_t>(world.rank())] = own.losses;
    if (all.weights == 0) all.weights = own.weights;
    EXPECT_EQ(own.weights, all.weights) << "rank " << world.rank();
    if (world.rank() == 0) all.checkpoint = own.checkpoint;
  });
  // Ranks of one data team share a step's 8 parts, a run of them each.
  const int size = l.tensor * l.context, each = 8 / l.data;
  const std::size_t steps = (of[0].size() - 1) / static_cast<std::size_t>(each);
  for (std::size_t step = 0; step < steps; ++step)
    for (int d = 0; d < l.data; ++d)
      for (int i = 0; i < each; ++i) {
        const double loss = of[static_cast<std::size_t>(d * size)]
                              [step * static_cast<std::size_t>(each) + static_cast<std::size_t>(i)];
        all.losses.push_back(loss);
        for (int other = 0; other < size; ++other)
          EXPECT_EQ(of[static_cast<std::size_t>(d * size + other)]
                      [step * static_cast<std::size_t>(each) + static_cast<std::size_t>(i)],
                    loss);
      }
  all.losses.push_back(of[0].back());
  return all;
}

std::string bytes_in(const std::string& path) {
  std::ifstream from(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / text("headwise_matrix_", ::getpid(), '_', ++made);
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  static inline int made = 0;
};

TEST(Matrix, EveryLayoutLearnsWithOneSetOfBits) {
  const Folder folder;
  const Learnt one = train({.folder = folder / "1x1x1"});
  const std::string checkpoint = bytes_in(one.checkpoint);
  ASSERT_FALSE(checkpoint.empty());
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(kSteps * 8 + 1));
  EXPECT_LT(one.losses.back(), one.losses.front());
  int layouts = 0;
  for (const int data : {1, 2, 4, 8})
    for (const int tensor : {1, 2, 4, 8})
      for (const int context : {1, 2, 3, 4, 8}) {
        const Layout l{data, tensor, context};
        if (l.ranks() > 8 || l.ranks() == 1) continue;
        const Learnt t = train({.layout = l, .folder = folder / l.words()});
        EXPECT_EQ(t.weights, one.weights) << l.words();
        EXPECT_EQ(t.losses, one.losses) << l.words();
        EXPECT_TRUE(bytes_in(t.checkpoint) == checkpoint) << l.words();
        ++layouts;
      }
  EXPECT_EQ(layouts, 22);
}

TEST(Matrix, AnyLayoutGoesOnFromAnyOther) {
  constexpr Index kStop = 3, kEnd = 8;
  const std::uint32_t straight = train({.steps = kEnd}).weights;
  // 1, 2, 3, 4 and 8 ranks.
  const Layout layouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 1, 2}, {2, 2, 2}};
  for (const bool slices : {false, true})
    for (const Layout& from : layouts)
      for (const Layout& to : layouts) {
        const Folder folder;
        train({.layout = from, .folder = folder / "run", .steps = kStop, .slices = slices});
        EXPECT_EQ(train({.layout = to, .folder = folder / "run", .steps = kEnd, .slices = slices}).weights,
                  straight)
            << from.words() << " to " << to.words() << (slices ? " by slices" : "");
      }
}

TEST(Matrix, ANumberThatIsNotFiniteEndsAllRanksAtOneStep) {
  for (const Layout& l : {Layout{1, 2, 2}, Layout{2, 2, 1}, Layout{2, 1, 2}}) {
    int ended = 0;
    std::mutex lock;
    run_ranks(l.ranks(), [&](Communicator& world) {
      try {
        learn({.layout = l, .bad_rank = 3}, world);
      } catch (const RankError& e) {
        ADD_FAILURE() << "rank " << world.rank() << " heard nothing: " << e.what();
      } catch (const Error& e) {
        const std::lock_guard<std::mutex> held(lock);
        EXPECT_TRUE(std::string(e.what()).starts_with("trainer: the loss of step 3 is nan")) << e.what();
        ++ended;
      }
    });
    EXPECT_EQ(ended, l.ranks()) << l.words();
  }
}

}  // namespace
}  // namespace headwise
