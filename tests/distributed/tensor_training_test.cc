// A training over a tensor team: 1, 2, 4 and 8 ranks, with and without a data team, leave the same weights
// and norms; a checkpoint of one layout goes on in any other.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/transformer/block.h"
#include "headwise/train/checkpoints/sliced_checkpoint.h"
#include "headwise/train/trainer.h"
#include "tests/distributed/sines.h"

namespace headwise {
namespace {

constexpr Index kExamples = 24, kTokens = 3, kModel = 16, kSteps = 4;

struct Layout {
  int tensor = 1, data = 1;
};
struct Run {
  Layout layout = {};
  std::string heads = "gqa:heads=8,kv_heads=2,dim=4";
  std::string folder = {};
  Index steps = kSteps;
  bool slices = false;
  Index save_every = 0;
};
struct Trained {
  std::string weights, card;
  double loss = 0;
};

BlockOptions options_of(const Run& run, const Teams* teams) {
  return {.heads = run.heads,
          .model_dim = kModel,
          .feed_dim = 32,
          .feed = FeedKind::swiglu,
          .dropout = 0.2,
          .teams = teams};
}

/// One rank's part: rows of an example are drawn from its number, and the block learns their sines.
Trained train_rank(const Run& run, const Communicator& world) {
  const Communicator tensor =
                         world.part(world.rank() / run.layout.tensor * run.layout.tensor, run.layout.tensor),
                     data = world.part(world.rank() % run.layout.tensor, run.layout.data, run.layout.tensor);
  const Teams teams{.tensor = &tensor, .data = &data, .order = Order::tree};
  ParamSet whole(DType::f32, 5), mine(DType::f32, 5);
  const Block as_whole(whole, "block", options_of(run, nullptr));
  const Block block(mine, "block", options_of(run, &teams));
  const CutParams cut(whole, mine, tensor);
  mine.make_grads();
  Context ctx({.threads = 1});
  Optimizer optimizer(mine, AdamWOptions{.decay = Decay::matrices, .average = 0.5});
  StepMemory memory;
  TrainerOptions asked = options_of_sines(run.steps, run.folder, run.slices);
  asked.micro_rows = 2, asked.micro_batches = 4;
  asked.save_every = run.save_every;
  asked.data = &data, asked.cut = &cut;
  Trainer trainer(optimizer, kExamples, asked, ctx);
  const TrainResult done = trainer.run([&](const MicroBatch& m) {
    memory.reset();
    const auto texts = static_cast<Index>(m.examples.size());
    Call call{.ctx = ctx,
              .memory = memory,
              .sequences = {.batch = texts, .tokens = kTokens},
              .training = true,
              .seed = m.seed,
              .step = static_cast<std::uint64_t>(m.step)};
    const AnyView x = memory.take(DType::f32, {texts * kTokens, kModel}),
                  dy = memory.take(DType::f32, {texts * kTokens, kModel});
    draw_examples(x, m.examples);
    Block::Saved saved;
    const AnyView y = block.forward(x, call, &saved);
    const double loss = distance_from_sines(x, y, dy, m.weight);
    block.backward(dy, call, saved);
    return loss;
  });
  cut.join();
  Trained t{.weights = {}, .card = done.checkpoint, .loss = done.loss};
  for (const Param& p : whole.all()) t.weights.append(static_cast<const char*>(p.value.data), p.bytes());
  // What was kept stands in the moments too.
  const Optimizer joined = cut.joined(optimizer);
  for (const Optimizer::Moment& m : joined.moments())
    t.weights.append(static_cast<const char*>(m.value.data),
                     static_cast<std::size_t>(m.value.count() * size_of(m.value.dtype)));
  return t;
}

Trained train(const Run& run) {
  Trained first;
  std::mutex lock;
  run_ranks(run.layout.tensor * run.layout.data,
            [&](Communicator& world) {
              Trained own = train_rank(run, world);
              const std::lock_guard<std::mutex> held(lock);
              if (first.weights.empty()) first = own;
              EXPECT_TRUE(own.weights == first.weights) << "rank " << world.rank();
              if (world.rank() == 0) first.card = own.card;
            },
            {.check = true});
  return first;
}

TEST(TensorTraining, EveryLayoutLeavesTheSameWeights) {
  for (const char* heads : {"gqa:heads=8,kv_heads=2,dim=4", "mha:heads=8,dim=4"}) {
    const Trained one = train({.heads = heads});
    EXPECT_TRUE(std::isfinite(one.loss));
    for (const Layout l :
         {Layout{2, 1}, Layout{4, 1}, Layout{8, 1}, Layout{1, 4}, Layout{2, 2}, Layout{4, 2}}) {
      const Trained t = train({.layout = l, .heads = heads});
      EXPECT_TRUE(t.weights == one.weights) << heads << " tensor " << l.tensor << " data " << l.data;
      EXPECT_EQ(t.loss, one.loss);
    }
  }
}

TEST(TensorTraining, ACheckpointGoesOnInAnyLayout) {
  const std::filesystem::path base =
      std::filesystem::temp_directory_path() / text("headwise_tensor_training_", ::getpid());
  const Trained never_stopped = train({});
  const Layout layouts[] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}};
  int number = 0;
  for (const Layout from : layouts)
    for (const Layout to : layouts) {
      const std::string folder = (base / text(number++)).string();
      train({.layout = from, .folder = folder, .steps = 2});
      const Trained t = train({.layout = to, .folder = folder});
      EXPECT_TRUE(t.weights == never_stopped.weights)
          << from.tensor << "x" << from.data << " to " << to.tensor << "x" << to.data;
    }
  std::filesystem::remove_all(base);
}

std::string bytes_in(const std::string& path) {
  std::ifstream from(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

std::string refusal_of(const std::string& json, const std::string& out) {
  try {
    join_checkpoint(json, out);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(TensorTraining, SlicesJoinToTheFileOfOneRank) {
  const std::filesystem::path base =
      std::filesystem::temp_directory_path() / text("headwise_slices_", ::getpid());
  const std::string plain = (base / "plain").string(), out = (base / "joined.safetensors").string();
  const Trained one = train({.folder = plain, .steps = 2}), never_stopped = train({});
  for (const Layout l : {Layout{2, 1}, Layout{4, 1}, Layout{8, 1}, Layout{2, 2}}) {
    const std::string folder = (base / text(l.tensor, 'x', l.data)).string();
    const Trained cut = train({.layout = l, .folder = folder, .steps = 2, .slices = true});
    EXPECT_TRUE(cut.card.ends_with("step-000000000002.json")) << cut.card;
    join_checkpoint(cut.card, out);
    EXPECT_TRUE(bytes_in(out) == bytes_in(one.card)) << l.tensor << "x" << l.data;
    // Any other layout goes on from the slices.
    EXPECT_TRUE(train({.layout = {l.tensor == 2 ? 4 : 2, 1}, .folder = folder}).weights ==
                never_stopped.weights);
  }
  std::filesystem::remove_all(base);
}

/// Learns over two ranks and saves their slices after every step, until it is killed.
[[noreturn]] void live(const std::string& folder) {
  try {
    train({.layout = {2, 1}, .folder = folder, .steps = Index{1} << 40, .slices = true, .save_every = 1});
  } catch (...) {
  }
  ::_exit(7);
}

TEST(TensorTraining, KillsAtRandomPointsOfASaveLoseNothing) {
  const std::filesystem::path base =
      std::filesystem::temp_directory_path() / text("headwise_killed_slices_", ::getpid());
  const std::string folder = (base / "cut").string(), out = (base / "joined.safetensors").string();
  const int kills = std::getenv("HEADWISE_SLOW") ? 1000 : 50;
  Index reached = 0;
  useconds_t scale = 1;  // of the time a life has: doubled until the disk and the cores let one save
  for (int k = 0; k < kills; ++k) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) live(folder);
    ::usleep(scale * (5000 + Philox::block(2026, {static_cast<std::uint32_t>(k), 0, 0, 0})[0] % 30000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a life ended by itself: code " << WEXITSTATUS(status);
    if (reached == 0) scale = std::min<useconds_t>(2 * scale, 256);
    if (!std::filesystem::exists(folder)) continue;
    // The json file is the checkpoint: where there is one, its slices are there and whole.
    const std::vector<std::string> kept = sliced_checkpoints(folder);
    if (kept.empty()) continue;
    EXPECT_EQ(refusal_of(kept[0], out), "") << "after kill " << k;
    const Index step = std::stoll(kept[0].substr(kept[0].size() - 17, 12));
    ASSERT_GE(step, reached);
    reached = step;
  }
  EXPECT_GT(reached, 0);
  const Index end = reached + 2;
  EXPECT_TRUE(train({.layout = {4, 1}, .folder = folder, .steps = end}).weights ==
              train({.steps = end}).weights);
  std::filesystem::remove_all(base);
}

TEST(TensorTraining, ABadSliceIsNamed) {
  const std::filesystem::path base =
      std::filesystem::temp_directory_path() / text("headwise_bad_slices_", ::getpid());
  const std::string folder = (base / "cut").string(), out = (base / "joined.safetensors").string();
  const std::string json = train({.layout = {2, 1}, .folder = folder, .steps = 2, .slices = true}).card;
  const std::string slice = folder + "/step-000000000002.rank-1.safetensors", whole = bytes_in(slice);
  const auto rewrite = [&](const std::string& bytes) {
    std::ofstream(slice, std::ios::binary | std::ios::trunc) << bytes;
  };
  std::string damaged = whole;
  damaged[damaged.size() - 9] = static_cast<char>(damaged[damaged.size() - 9] ^ 1);
  rewrite(damaged);
  EXPECT_NE(refusal_of(json, out).find("does not match its CRC; it is damaged"), std::string::npos);
  // A training passes it over and says so; there is nothing older here.
  EXPECT_THROW(train({.folder = folder}), Error);
  rewrite(whole);
  const std::string list = bytes_in(json);
  std::ofstream(json, std::ios::trunc)
      << list.substr(0, list.find(",\n    {")) << "\n  ]\n}\n";  // rank 1 is not named
  EXPECT_NE(refusal_of(json, out).find("is in no file; bring the files of all ranks"), std::string::npos);
  std::ofstream(json, std::ios::trunc) << list;
  std::filesystem::remove(slice);
  EXPECT_NE(refusal_of(json, out).find("rank-1"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(out));
  std::filesystem::remove_all(base);
}

TEST(TensorTraining, TheNormOfSlicesIsTheNorm) {
  // Against the norm of the whole set: another order of the same sum.
  run_ranks(4, [](Communicator& team) {
    const Teams teams{.tensor = &team, .order = Order::tree};
    ParamSet whole(DType::f32, 1), mine(DType::f32, 1);
    const Block a(whole, "block", options_of({}, nullptr)), b(mine, "block", options_of({}, &teams));
    const CutParams cut(whole, mine, team);
    whole.make_grads(), mine.make_grads();
    std::uint64_t key = 0;
    for (Param& p : whole.all()) {
      ++key;
      for (Index i = 0; i < p.grad.count(); ++i)
        static_cast<float*>(p.grad.data)[i] = static_cast<float>(normal_at(key, i));
    }
    for (std::size_t i = 0; i < mine.all().size(); ++i)
      take_slice(mine.all()[i].name, whole.all()[i].grad, mine.all()[i].grad, team);
    Context ctx({.threads = 1});
    EXPECT_NEAR(cut.grad_norm(ctx), grad_norm(whole, ctx), 1e-12 * grad_norm(whole, ctx));
  });
}

}  // namespace
}  // namespace headwise
