// Times a block over ranks against the same block in one process with as many threads, and a tree of leaves
// on one rank against the plain product, in turns. Under mpirun the ranks are its processes; else they are
// threads. Usage: [mpirun -n 2] ranks_block [repeats] [ranks]; HEADWISE_THREADS is not read: a rank has one
// thread.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "headwise/base/random.h"
#include "headwise/distributed/slices.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/transformer/block.h"

namespace {

using namespace headwise;

constexpr Index kBatch = 8, kTokens = 512, kModel = 512, kFeed = 2048;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  std::vector<double> ms;
  double median() {
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
  }
};

/// Two things in turns; all ranks begin and end each together, and rank 0 prints.
void compare(const char* name, const Communicator& world, int repeats, const std::function<void()>& a,
             const std::function<void()>& b) {
  Times of[2];
  for (int i = -2; i < 2 * repeats; ++i) {
    char mine = 0;
    std::vector<char> all(64);
    const int which = (i & 1);
    world.gather_bytes(&mine, all.data(), 1, "begin");
    const double begin = now();
    (which ? b : a)();
    world.gather_bytes(&mine, all.data(), 1, "end");
    if (i >= 0) of[which].ms.push_back(1e3 * (now() - begin));
  }
  if (world.rank() > 0) return;
  const double first = of[0].median(), second = of[1].median();
  std::printf("%-44s %9.2f ms (%.2f to %.2f) %9.2f ms (%.2f to %.2f)  ratio %.3f\n", name, first,
              of[0].ms.front(), of[0].ms.back(), second, of[1].ms.front(), of[1].ms.back(), second / first);
  std::fflush(stdout);
}

/// A block with its weights, on some threads.
struct Side {
  Side(const Teams* teams, int threads, bool keeps)
      : params(DType::f32, 1),
        block(params, "block",
              {.heads = "mha:heads=8,dim=64",
               .model_dim = kModel,
               .feed_dim = kFeed,
               .feed = FeedKind::gelu,
               .teams = teams}),
        ctx({.threads = threads}),
        learns(keeps) {
    if (keeps) params.make_grads();
  }
  void step(const AnyView& x, const AnyView& dy) {
    memory.reset();
    Call call{.ctx = ctx, .memory = memory, .sequences = {.batch = kBatch, .tokens = kTokens}};
    Block::Saved saved;
    block.forward(x, call, learns ? &saved : nullptr);
    if (learns) block.backward(dy, call, saved);
  }
  ParamSet params;
  Block block;
  Context ctx;
  StepMemory memory;
  bool learns;
};

void blocks(const Communicator& world, int repeats) {
  const Tensor memory[2] = {Tensor(DType::f32, {kBatch * kTokens, kModel}),
                            Tensor(DType::f32, {kBatch * kTokens, kModel})};
  for (int t = 0; t < 2; ++t)
    for (Index i = 0; i < memory[t].view().count(); ++i)
      static_cast<float*>(const_cast<void*>(memory[t].view().data))[i] =
          static_cast<float>(normal_at(static_cast<std::uint64_t>(t) + 1, i));
  const AnyView x = AnyView::packed(const_cast<void*>(memory[0].view().data), DType::f32,
                                    {kBatch * kTokens, kModel}),
                dy = AnyView::packed(const_cast<void*>(memory[1].view().data), DType::f32,
                                     {kBatch * kTokens, kModel});
  const Communicator alone = world.part(world.rank(), 1);
  const bool leads = world.rank() == 0;
  for (const Order order : {Order::one_rank, Order::tree})
    for (const bool learns : {false, true}) {
      if (learns && order == Order::one_rank) continue;
      const Teams cut{.tensor = &world, .order = order}, one{.tensor = &alone, .order = order};
      Side ranks(&cut, 1, learns), plain(nullptr, world.ranks(), learns), same(&one, world.ranks(), learns);
      char name[80];
      const auto titled = [&](const char* what) {
        std::snprintf(name, sizeof name, "%s, %s: %s", learns ? "step" : "forward", name_of(order).data(),
                      what);
        return name;
      };
      compare(
          titled("1 process -> ranks"), world, repeats,
          [&] {
            if (leads) plain.step(x, dy);
          },
          [&] { ranks.step(x, dy); });
      if (order == Order::tree)
        compare(
            titled("plain -> tree on 1 rank"), world, repeats,
            [&] {
              if (leads) plain.step(x, dy);
            },
            [&] {
              if (leads) same.step(x, dy);
            });
      if (order == Order::tree)
        compare(
            titled("tree on 1 rank -> ranks"), world, repeats,
            [&] {
              if (leads) same.step(x, dy);
            },
            [&] { ranks.step(x, dy); });
    }
}

/// W_O and W_2 alone.
void products(const Communicator& world, int repeats) {
  const Communicator alone = world.part(world.rank(), 1);
  const bool leads = world.rank() == 0;
  const Teams tree{.tensor = &alone, .order = Order::tree};
  for (const auto& [rows, in, out] :
       {std::array<Index, 3>{4096, 2048, 512}, {4096, 512, 512}, {32, 512, 512}})
    for (const int threads : {1, 2}) {
      ParamSet a(DType::f32, 1), b(DType::f32, 1);
      const Linear plain(a, "plain", in, out),
          cut(b, "cut", in, out, {.cut = Cut::in, .teams = &tree, .leaves = 8});
      Context ctx({.threads = threads});
      StepMemory memory;
      const AnyView x = memory.take(DType::f32, {rows, in});
      for (Index i = 0; i < x.count(); ++i)
        static_cast<float*>(x.data)[i] = static_cast<float>(normal_at(3, i));
      Call call{.ctx = ctx, .memory = memory, .sequences = {.batch = 1, .tokens = rows}};
      const auto mark = memory.mark();
      const auto run = [&](const Linear& l) {
        if (!leads) return;
        memory.release(mark);
        for (int i = 0; i < (rows < 100 ? 50 : 1); ++i) memory.release(mark), l.forward(x, call, nullptr);
      };
      char name[80];
      std::snprintf(name, sizeof name, "product %ld x %ld x %ld, %d threads: plain -> tree", rows, in, out,
                    threads);
      compare(
          name, world, repeats, [&] { run(plain); }, [&] { run(cut); });
    }
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 9, count = argc > 2 ? std::atoi(argv[2]) : 2;
  try {
    const Communicator started = Communicator::start();
    const auto all = [&](const Communicator& world) {
      if (world.rank() == 0)
        std::printf("%d ranks by %s, medians of %d\n", world.ranks(), world.engine().c_str(), repeats);
      products(world, repeats);
      blocks(world, repeats);
    };
    if (started.ranks() > 1)
      all(started);
    else
      run_ranks(count, [&](Communicator& world) { all(world); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ranks_block: %s\n", e.what());
    return 1;
  }
  return 0;
}
