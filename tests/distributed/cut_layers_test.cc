// Laws of cut layers: a block over 1, 2, 4 and 8 ranks gives the bits of one rank, forward and every
// gradient.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/distributed/slices.h"
#include "headwise/distributed/small_sum.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/transformer/block.h"
#include "headwise/masks/mask.h"

namespace headwise {
namespace {

constexpr Index kModel = 32, kFeed = 64, kBatch = 2, kTokens = 5;

struct Setting {
  std::string heads = "mha:heads=8,dim=4";
  Order order = Order::tree;
  FeedKind feed = FeedKind::swiglu;
  Positions positions = Positions::none;
  bool bias = true, backward = true;
  DType dtype = DType::f32;
  Index tokens = kTokens;
  bool team = true;  // false: the order alone is given
};

BlockOptions options_of(const Setting& s, const Teams* teams) {
  return {.heads = s.heads,
          .model_dim = kModel,
          .feed_dim = kFeed,
          .feed = s.feed,
          .norm = {.kind = NormKind::rms},
          .bias = s.bias,
          .positions = s.positions,
          .teams = teams};
}

/// Values no start has: biases too are numbers.
void draw(const AnyView& v, std::uint64_t key) {
  for (Index i = 0; i < v.count(); ++i) store_double(v.data, v.dtype, i, 0.3 * normal_at(key, i));
}

struct Result {
  std::string y, dx;
  std::map<std::string, std::string> grads;
  Counted forward, both;
};
std::string bytes_of(const AnyView& v) {
  return {static_cast<const char*>(v.data), static_cast<std::size_t>(v.count() * size_of(v.dtype))};
}

/// What rank 0 sees after all slices are joined.
Result run(const Setting& s, int ranks, bool teams_given = true) {
  Result result;
  run_ranks(
      ranks,
      [&](Communicator& world) {
        Context ctx({.threads = 1});
        const Teams teams{.tensor = s.team ? &world : nullptr, .order = s.order};
        ParamSet whole(s.dtype, 1), mine(s.dtype, 1);
        const Block reference(whole, "block", options_of(s, nullptr));
        std::uint64_t key = 1;
        for (Param& p : whole.all()) draw(p.value, ++key);
        const Block block(mine, "block", options_of(s, teams_given ? &teams : nullptr));
        take_slices(whole, mine, world);
        mine.make_grads(), whole.make_grads();
        StepMemory memory;
        const Mask causal = Mask::causal();
        Call call{.ctx = ctx,
                  .memory = memory,
                  .sequences = {.batch = kBatch, .tokens = s.tokens},
                  .mask = causal.set()};
        const AnyView x = memory.take(s.dtype, {kBatch * s.tokens, kModel}),
                      dy = memory.take(s.dtype, {kBatch * s.tokens, kModel});
        draw(x, 100), draw(dy, 101);
        Block::Saved saved;
        const AnyView y = block.forward(x, call, s.backward ? &saved : nullptr);
        Result own;
        own.forward = world.counted();
        own.y = bytes_of(y);
        if (s.backward) own.dx = bytes_of(block.backward(dy, call, saved));
        own.both = world.counted();
        if (s.backward)
          for (std::size_t i = 0; i < mine.all().size(); ++i) {
            join_slices(mine.all()[i].name, mine.all()[i].grad, whole.all()[i].grad, world);
            own.grads[mine.all()[i].name] = bytes_of(whole.all()[i].grad);
          }
        // Every rank must hold the same: rank 0's answer is compared, the others' with it.
        std::string all(own.y.size() * static_cast<std::size_t>(ranks), '\0');
        world.gather_bytes(own.y.data(), all.data(), static_cast<Index>(own.y.size()));
        for (int r = 0; r < ranks; ++r)
          EXPECT_TRUE(all.compare(static_cast<std::size_t>(r) * own.y.size(), own.y.size(), own.y) == 0);
        if (world.rank() == 0) result = own;
      },
      {.check = true});
  return result;
}

void expect_same(const Result& got, const Result& want, const std::string& what) {
  EXPECT_TRUE(got.y == want.y) << what << ": y";
  EXPECT_TRUE(got.dx == want.dx) << what << ": dx";
  ASSERT_EQ(got.grads.size(), want.grads.size());
  for (const auto& [name, bytes] : want.grads)
    EXPECT_TRUE(got.grads.at(name) == bytes) << what << ": " << name;
}

double worst(const std::string& a, const std::string& b) {
  double most = 0;
  const auto* x = reinterpret_cast<const double*>(a.data());
  const auto* y = reinterpret_cast<const double*>(b.data());
  for (std::size_t i = 0; i < a.size() / sizeof(double); ++i) most = std::max(most, std::abs(x[i] - y[i]));
  return most;
}

std::string refusal(const Setting& s, int ranks) {
  try {
    run(s, ranks);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CutLayers, TreeHasOneSetOfBitsForAnyRanks) {
  const Setting settings[] = {
      {},
      {.feed = FeedKind::gelu},
      {.heads = "mha:heads=8,dim=4", .positions = Positions::rope, .bias = false},
      {.heads = "mha:heads=8,dim=4", .positions = Positions::alibi},
      {.heads = "entmax:heads=8,dim=4,alpha=1.5,learned=true"},
      {.heads = "gqa:heads=8,kv_heads=8,dim=4"},
      {.heads = "gqa:heads=8,kv_heads=4,dim=4", .positions = Positions::rope},
      {.heads = "gqa:heads=8,kv_heads=2,dim=4"},
      {.heads = "gqa:heads=8,kv_heads=1,dim=4", .bias = false},
      {.heads = "mha:heads=8,dim=4+gated:source=input,act=silu", .positions = Positions::rope},
      {.heads = "gated:heads=8,kv_heads=2,dim=4,grain=head,bias=true"},
      {.heads = "knocking:heads=8,kv_heads=4,dim=4,values=mlp"},
      {.heads = "differential:heads=8,dim=2"},
      {.heads = "collaborative:heads=8,dim=4,shared=12"},
      {.heads = "talking:heads=8,dim=4"},
      {.heads = "dcmha:heads=8,dim=4"},
      {.heads = "overlapped:heads=8,dim=4,schedule=constant,rim=2"},
      {.heads = "moh:heads=8,dim=4,shared=2,k=3,weight=0"},
      {.heads = "gated:heads=8,dim=4,source=heads"},
      {.heads = "segment:heads=8,dim=4,stops=3"},
  };
  for (const Setting& s : settings) {
    const Result one = run(s, 1);
    for (const int ranks : {2, 4, 8}) expect_same(run(s, ranks), one, text(s.heads, " on ", ranks, " ranks"));
  }
}

/// Taps, one after another.
std::string weights_of(const Setting& s, int ranks, Taps asked = {}) {
  std::string weights;
  run_ranks(ranks, [&](Communicator& world) {
    Context ctx({.threads = 1});
    const Teams teams{.tensor = &world, .order = s.order};
    ParamSet whole(s.dtype, 1), mine(s.dtype, 1);
    const Block reference(whole, "block", options_of(s, nullptr)),
        block(mine, "block", options_of(s, &teams));
    std::uint64_t key = 1;
    for (Param& p : whole.all()) draw(p.value, ++key);
    take_slices(whole, mine, world);
    StepMemory memory;
    Index ends[] = {0, 2, 2, 7};  // one text is empty
    Taps taps = asked;
    Call call{.ctx = ctx,
              .memory = memory,
              .sequences = {.batch = 3, .tokens = 5, .offsets = AnyView::packed(ends, DType::i64, {4})}};
    call.taps = &taps;
    const AnyView x = memory.take(s.dtype, {7, kModel});
    draw(x, 100);
    block.forward(x, call, nullptr);
    std::string own;
    for (const Tap& t : taps.all) {
      EXPECT_EQ(t.heads, 8);
      EXPECT_EQ(static_cast<Index>(t.weights.size()), t.heads * t.q_tokens * t.kv_tokens);
      own.append(reinterpret_cast<const char*>(t.weights.data()), t.weights.size() * sizeof(float));
    }
    EXPECT_EQ(own.size(), 8 * (4 + 25) * sizeof(float));
    if (world.rank() == ranks - 1) weights = own;
  });
  return weights;
}

/// The same weights where a view is given for them, by the kernel that writes them.
std::string written_weights(int ranks) {
  std::string written;
  run_ranks(ranks, [&](Communicator& world) {
    Context ctx({.threads = 1});
    const Teams teams{.tensor = &world};
    ParamSet whole(DType::f32, 1), mine(DType::f32, 1);
    const char* const heads = "gqa:heads=8,kv_heads=2,dim=4";
    const MultiHead reference(whole, "a", heads, {.model_dim = kModel});
    const MultiHead cut(mine, "a", heads, {.model_dim = kModel, .teams = &teams});
    take_slices(whole, mine, world);
    StepMemory memory;
    const Mask causal = Mask::causal();
    Call call{.ctx = ctx, .memory = memory};
    MultiHeadArgs a{.x = memory.take(DType::f32, {kBatch * kTokens, kModel}),
                    .sequences = {.batch = kBatch, .tokens = kTokens},
                    .mask = causal.set(),
                    .weights = memory.take(DType::f32, {kBatch, 8, kTokens, kTokens})};
    draw(a.x, 100);
    cut.forward(a, call, nullptr);
    if (world.rank() == ranks - 1) written = bytes_of(a.weights);
  });
  return written;
}

TEST(CutLayers, WeightsOfHeadsAreThoseOfOneRank) {
  for (const int ranks : {2, 4, 8}) EXPECT_TRUE(written_weights(ranks) == written_weights(1)) << ranks;
  for (const char* heads : {"mha:heads=8,dim=4", "gqa:heads=8,kv_heads=2,dim=4", "entmax:heads=8,dim=4"})
    for (const Order order : {Order::one_rank, Order::tree}) {
      const Setting s{.heads = heads, .order = order, .positions = Positions::rope, .backward = false};
      const std::string one = weights_of(s, 1);
      for (const int ranks : {2, 4, 8}) EXPECT_TRUE(weights_of(s, ranks) == one) << heads << ranks;
    }
  const auto refused = [](const char* heads, const Taps& asked, Order order = Order::tree) {
    try {
      weights_of({.heads = heads, .order = order, .backward = false}, 2, asked);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const char* heads : {"differential:heads=8,dim=4", "mha:heads=8,dim=4+gated:source=input"})
    EXPECT_NE(refused(heads, {}, Order::one_rank).find("heads that are cut by heads alone"),
              std::string::npos)
        << heads;
  EXPECT_NE(refused("mha:heads=8,dim=4", {.rows = true}).find("without rows and slopes"), std::string::npos);
  EXPECT_NE(refused("differential:heads=8,dim=2", {}).find("taps"), std::string::npos);
  EXPECT_NE(refused("talking:heads=8,dim=4", {}).find("taps"), std::string::npos);
}

TEST(CutLayers, TreeIsTheSameBlock) {
  for (const char* heads :
       {"mha:heads=8,dim=4", "gqa:heads=8,kv_heads=2,dim=4", "gated:heads=8,kv_heads=2,dim=4,act=silu",
        "knocking:heads=8,kv_heads=4,dim=4", "differential:heads=8,dim=2",
        "collaborative:heads=8,dim=4,shared=12", "talking:heads=8,dim=4", "dcmha:heads=8,dim=4"}) {
    const Setting s{.heads = heads, .dtype = DType::f64};
    const Result cut = run(s, 4), plain = run(s, 1, false);
    EXPECT_LT(worst(cut.y, plain.y), 1e-13);
    EXPECT_LT(worst(cut.dx, plain.dx), 1e-12);
    for (const auto& [name, bytes] : plain.grads) EXPECT_LT(worst(cut.grads.at(name), bytes), 1e-12) << name;
  }
}

TEST(CutLayers, TreeNeedsNoTeam) {
  for (const char* heads : {"mha:heads=8,dim=4", "gqa:heads=8,kv_heads=2,dim=4", "talking:heads=8,dim=4",
                            "collaborative:heads=8,dim=4"}) {
    const Result one = run({.heads = heads}, 1), none = run({.heads = heads, .team = false}, 1);
    EXPECT_EQ(none.y, one.y) << heads;
    EXPECT_EQ(none.dx, one.dx) << heads;
    EXPECT_EQ(none.grads, one.grads) << heads;
  }
}

TEST(CutLayers, OneRankOrderHasTheBitsOfOneProcess) {
  for (const char* heads :
       {"mha:heads=12,dim=4", "gqa:heads=12,kv_heads=2,dim=4", "gqa:heads=12,kv_heads=4,dim=4",
        "entmax:heads=12,dim=4", "mha:heads=12,dim=4+gated:source=input,act=silu",
        "gated:heads=12,dim=4,grain=head,bias=true", "knocking:heads=12,dim=4", "differential:heads=12,dim=4",
        "collaborative:heads=12,dim=4,shared=12", "talking:heads=12,dim=4", "dcmha:heads=12,dim=4",
        "overlapped:heads=12,dim=4,schedule=constant,rim=2", "moh:heads=12,dim=4",
        "gated:heads=12,dim=4,source=heads", "segment:heads=12,dim=4",
        // Numbers of ranks that do not divide rows, features or texts either.
        "mha:heads=40,dim=4", "gqa:heads=40,kv_heads=8,dim=4", "gqa:heads=40,kv_heads=5,dim=4",
        "differential:heads=40,dim=2", "talking:heads=40,dim=2"}) {
    Setting s{.heads = heads, .order = Order::one_rank, .positions = Positions::none, .backward = false};
    const Result plain = run(s, 1, false);
    const bool many = std::string_view(heads).find("heads=40") != std::string_view::npos;
    for (const int ranks : many ? std::vector{5, 8} : std::vector{1, 2, 3, 4, 6}) {
      const std::string_view kv = std::string_view(heads).starts_with("gqa") ? heads : "";
      if (!kv.empty() && !many && ranks % 3 == 0) continue;  // 2 and 4 kv heads
      if (kv.find(ranks == 5 ? "kv_heads=8" : "kv_heads=5") != kv.npos) continue;
      expect_same(run(s, ranks), plain, text(heads, " on ", ranks, " ranks"));
    }
  }
}

TEST(CutLayers, EngineOrderIsTheSameBlockAndRepeats) {
  const Setting s{.heads = "gqa:heads=8,kv_heads=2,dim=4", .order = Order::engine, .dtype = DType::f64};
  const Result a = run(s, 4), b = run(s, 4), plain = run(s, 1, false);
  expect_same(a, b, "engine");
  EXPECT_LT(worst(a.y, plain.y), 1e-13);
  EXPECT_LT(worst(a.dx, plain.dx), 1e-12);
}

TEST(CutLayers, RefusesInWords) {
  EXPECT_EQ(refusal({.heads = "mha:heads=6,dim=4"}, 4),
            "ranks: 6 heads cannot be cut over 4 ranks; take a number of ranks that divides them");
  EXPECT_EQ(refusal({.heads = "mha:heads=12,dim=4"}, 6),
            "ranks: 12 heads make a tree of 4 leaves, and 6 ranks do not divide them; take order one_rank, "
            "or 4 ranks or "
            "fewer");
  EXPECT_EQ(
      refusal({.heads = "talking:heads=8,dim=4", .order = Order::engine}, 2),
      "talking: shares or mixes what its heads have, and order engine does not add that; take order tree");
  EXPECT_NE(refusal({.heads = "moh:heads=8,dim=4,shared=2,k=3"}, 2).find("make it with weight=0"),
            std::string::npos);
  EXPECT_NE(refusal({.heads = "talking:heads=8,dim=4"}, 3).find("3 ranks do not divide"), std::string::npos);
  EXPECT_NE(
      refusal({.heads = "gated:heads=8,dim=4", .positions = Positions::alibi}, 2).find("use other positions"),
      std::string::npos);
  EXPECT_NE(refusal({.order = Order::one_rank}, 2).find("has no backward over 2 ranks"), std::string::npos);
}

TEST(CutLayers, SendsTheBytesOfTheTable) {
  // V = (R - 1) / R T D bytes of f32. Small sums gather every partial, so the block is made large enough.
  const Index rows = kBatch * kTokens, all = rows * kModel * 4;
  for (const int ranks : {2, 4}) {
    const Index gathered = all / ranks * (ranks - 1), hidden = rows * kFeed * 4 / ranks * (ranks - 1);
    const Result one_rank = run({.order = Order::one_rank, .backward = false}, ranks);
    // W_O: heads and columns; W_2: hidden and columns. A rank sends its slice to each of the others.
    EXPECT_EQ(one_rank.forward.bytes, gathered + gathered + hidden + gathered);
    const Result tree = run({}, ranks);
    EXPECT_EQ(tree.forward.bytes, 2 * sum_bytes(rows * kModel, 4, ranks));
    EXPECT_EQ(tree.both.bytes, 4 * sum_bytes(rows * kModel, 4, ranks));
  }
}

TEST(CutLayers, SixteenBitsHaveOneSetOfBitsToo) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const char* heads :
         {"mha:heads=8,dim=4", "gqa:heads=8,kv_heads=4,dim=4", "gqa:heads=8,kv_heads=2,dim=4",
          "gqa:heads=8,kv_heads=1,dim=4", "entmax:heads=8,dim=4,alpha=1.5"})
      for (const FeedKind feed : {FeedKind::swiglu, FeedKind::gelu}) {
        // Sums of few numbers go to all at once, others to their owners.
        for (const Index tokens : {kTokens, Index{33}}) {
          const Setting s{.heads = heads, .feed = feed, .dtype = dtype, .tokens = tokens};
          const Result one = run(s, 1);
          for (const int ranks : {2, 4, 8})
            expect_same(run(s, ranks), one, text(heads, " in ", dtype, " on ", ranks, " ranks"));
        }
        const Setting whole{
            .heads = heads, .order = Order::one_rank, .feed = feed, .backward = false, .dtype = dtype};
        const Result plain = run(whole, 1, false);
        for (const int ranks : {1, 2, 4})
          expect_same(run(whole, ranks), plain, text(heads, " whole on ", ranks));
      }
}

TEST(CutLayers, SixteenBitsSendOneAndAHalfTimesAnAllReduce) {
  const Setting s{.dtype = DType::bf16, .tokens = 32};
  const Index numbers = kBatch * 32 * kModel;
  for (const int ranks : {2, 4, 8}) {
    const Result tree = run(s, ranks);
    const Index all_reduce = 2 * (numbers - numbers / ranks) * 2;  // to the owners and back, 2 bytes a number
    EXPECT_EQ(2 * tree.forward.bytes, 3 * 2 * all_reduce);         // W_O and W_2
    EXPECT_EQ(2 * tree.both.bytes, 3 * 4 * all_reduce);            // and dx of what is cut by outputs
    EXPECT_EQ(tree.forward.bytes, 2 * rounded_sum_bytes(numbers, 4, 2, ranks));
  }
}

}  // namespace
}  // namespace headwise
