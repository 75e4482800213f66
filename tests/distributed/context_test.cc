// Laws of the context team: a stack whose tokens are cut over ranks gives the bits of one rank, by heads and
// by keys, forward and backward, and sends what the table says.
#include <gtest/gtest.h>

#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/distributed/slices.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/transformer/stack.h"
#include "headwise/masks/mask.h"

namespace headwise {
namespace {

constexpr Index kModel = 32, kFeed = 64, kDepth = 2;

struct Setting {
  std::string heads = "mha:heads=8,dim=4";
  Positions positions = Positions::none;
  DType dtype = DType::f32;
  std::vector<Index> offsets = {};  // ragged; empty: 2 sequences of 13 tokens
  Mask mask = Mask::causal();
  Order order = Order::one_rank;
  int tensor = 1;
  bool source = false;  // a decoder that reads 5 source rows a sequence
  NormKind norm = NormKind::layer;
  FeedKind feed = FeedKind::relu;
  double dropout = 0;
};

void draw(const AnyView& v, std::uint64_t key) {
  for (Index i = 0; i < v.count(); ++i) store_double(v.data, v.dtype, i, 0.3 * normal_at(key, i));
}
std::string bytes_of(const AnyView& v) {
  return {static_cast<const char*>(v.data), static_cast<std::size_t>(v.count() * size_of(v.dtype))};
}

StackOptions options_of(const Setting& s, const Teams* teams) {
  StackOptions o{.depth = kDepth};
  o.block = {.heads = s.heads,
             .cross = s.source ? Cross::attention : Cross::none,
             .model_dim = kModel,
             .feed_dim = kFeed,
             .feed = s.feed,
             .norm = {.kind = s.norm},
             .dropout = s.dropout,
             .positions = s.positions,
             .teams = teams};
  return o;
}

struct Result {
  std::string y;  // where it learns: and dx, the source's, and every gradient
  Counted sent;
};

/// The backward behind a forward: dx and the gradient of the source.
std::string learn(const Stack& stack, Call& call, Stack::Saved& saved) {
  const DType dtype = DType(call.source.given() ? call.source.dtype : saved.blocks[0].norms[0].x.dtype);
  const AnyView dy = call.memory.take(dtype, {call.sequences.rows(), kModel});
  draw(dy, 101);
  if (call.source.given()) {
    call.dsource = call.memory.take(dtype, {call.source.size[0], kModel});
    fill_zeros(call.dsource);
  }
  call.loss_weight = 0.5;
  std::string all = bytes_of(stack.backward(dy, call, saved));
  if (call.source.given()) all += bytes_of(call.dsource);
  return all;
}

/// What every rank must see; ranks = context ranks x tensor ranks.
Result run(const Setting& s, int context, bool training = false) {
  Result result;
  run_ranks(
      context * s.tensor,
      [&](Communicator& world) {
        Context ctx({.threads = 1});
        const Communicator tensor = world.part(world.rank() / s.tensor * s.tensor, s.tensor),
                           team = world.part(world.rank() % s.tensor, context, s.tensor);
        Teams teams{.context = &team, .order = s.order};
        if (s.tensor > 1 || s.order == Order::tree) teams.tensor = &tensor;
        ParamSet whole(s.dtype, 1), mine(s.dtype, 1);
        const Stack reference(whole, "stack", options_of(s, nullptr));
        std::uint64_t key = 1;
        for (Param& p : whole.all()) draw(p.value, ++key);
        const Stack stack(mine, "stack", options_of(s, &teams));
        take_slices(whole, mine, tensor);
        StepMemory memory;
        Call call{
            .ctx = ctx, .memory = memory, .sequences = {.batch = 2, .tokens = 13}, .mask = s.mask.set()};
        call.training = training;
        call.seed = 7;
        if (training) mine.make_grads();
        if (!s.offsets.empty())
          call.sequences = {.offsets = ConstView::packed(s.offsets.data(), DType::i64,
                                                         {static_cast<Index>(s.offsets.size())})};
        if (s.source) {
          const AnyView source = memory.take(s.dtype, {2 * 5, kModel});
          draw(source, 102);
          call.source = source, call.source_sequences = {.batch = 2, .tokens = 5};
        }
        const AnyView x = memory.take(s.dtype, {call.sequences.rows(), kModel});
        draw(x, 100);
        Stack::Saved saved;
        std::string y = bytes_of(stack.forward(x, call, training ? &saved : nullptr));
        if (training) {
          y += learn(stack, call, saved);
          // Slices differ from rank to rank: what all see is joined first.
          ParamSet joined(s.dtype, 1);
          const Stack as_whole(joined, "stack", options_of(s, nullptr));
          joined.make_grads();
          for (std::size_t i = 0; i < mine.all().size(); ++i) {
            join_slices(mine.all()[i].name, mine.all()[i].grad, joined.all()[i].grad, tensor);
            y += bytes_of(joined.all()[i].grad);
          }
        }
        std::string all(y.size() * static_cast<std::size_t>(world.ranks()), '\0');
        const Counted sent = world.counted();
        world.gather_bytes(y.data(), all.data(), static_cast<Index>(y.size()));
        for (std::size_t r = 0; r < static_cast<std::size_t>(world.ranks()); ++r)
          EXPECT_TRUE(all.compare(r * y.size(), y.size(), y) == 0) << "rank " << r;
        if (world.rank() == 0) result = {y, sent};
      },
      {.check = true});
  return result;
}

std::string refusal(const Setting& s, int context, bool training = false) {
  try {
    run(s, context, training);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Context, EveryHeadHasTheBitsOfOneRank) {
  const Setting settings[] = {
      {},
      {.positions = Positions::rope, .offsets = {0, 1, 1, 20, 22, 31}},
      {.positions = Positions::alibi, .mask = Mask::window(3, 2)},
      {.heads = "gqa:heads=8,kv_heads=4,dim=4", .positions = Positions::rope},
      {.heads = "gqa:heads=8,kv_heads=1,dim=4", .positions = Positions::alibi, .offsets = {0, 9, 23}},
      {.heads = "entmax:heads=8,dim=4,alpha=1.5"},
      {.heads = "entmax:heads=8,dim=4,alpha=1.5,learned=true"},
      {.heads = "mha:heads=8,dim=4+gated:source=input,act=silu", .positions = Positions::rope},
      {.heads = "knocking:heads=8,kv_heads=4,dim=4,values=mlp"},
      {.heads = "differential:heads=8,dim=2"},
      {.heads = "collaborative:heads=8,dim=4,shared=12"},
      {.heads = "talking:heads=8,dim=4", .offsets = {0, 17, 30}},
      {.heads = "dcmha:heads=8,dim=4"},
      {.heads = "overlapped:heads=8,dim=4,schedule=constant,rim=2"},
      {.heads = "moh:heads=8,dim=4,shared=2,k=3"},
      {.heads = "gated:heads=8,dim=4,source=heads"},
      {.heads = "reach:heads=8,dim=4"},
      {.heads = "gqa:heads=8,kv_heads=2,dim=4", .dtype = DType::bf16},
      {.dtype = DType::f64},
      {.heads = "gqa:heads=8,kv_heads=4,dim=4", .source = true},
  };
  for (const Setting& s : settings) {
    const Result one = run(s, 1);
    for (const int ranks : {2, 3, 4, 5, 8})
      EXPECT_TRUE(run(s, ranks).y == one.y) << s.heads << " " << name_of(s.positions) << " on " << ranks;
  }
}

TEST(Context, GradientsHaveTheBitsOfOneRank) {
  const Setting settings[] = {
      {.offsets = {0, 1, 1, 20, 22, 31}, .dropout = 0.2},
      {.heads = "gqa:heads=8,kv_heads=4,dim=4",
       .positions = Positions::rope,
       .norm = NormKind::rms,
       .feed = FeedKind::swiglu},
      {.heads = "gqa:heads=8,kv_heads=1,dim=4", .positions = Positions::rope, .offsets = {0, 9, 23}},
      {.positions = Positions::alibi, .mask = Mask::window(3, 2)},
      {.heads = "entmax:heads=8,dim=4,alpha=1.5,learned=true"},
      {.heads = "mha:heads=8,dim=4+gated:source=input,act=silu", .positions = Positions::rope},
      {.heads = "talking:heads=8,dim=4", .offsets = {0, 17, 30}},
      {.heads = "moh:heads=8,dim=4,shared=2,k=3"},
      {.heads = "overlapped:heads=8,dim=4,schedule=constant,rim=2"},
      {.dtype = DType::bf16},
      {.dtype = DType::f64, .feed = FeedKind::gelu},
      {.heads = "gqa:heads=8,kv_heads=4,dim=4", .source = true},
  };
  for (const Setting& s : settings) {
    const Result one = run(s, 1, true);
    for (const int ranks : {2, 3, 4, 8})
      EXPECT_TRUE(run(s, ranks, true).y == one.y)
          << s.heads << " " << name_of(s.positions) << " on " << ranks;
  }
  const Setting few{.positions = Positions::rope, .offsets = {0, 2, 2, 3}};  // ranks without rows
  EXPECT_TRUE(run(few, 8, true).y == run(few, 1, true).y);
}

TEST(Context, LearnsBesideATensorTeam) {
  const Setting s{
      .heads = "gqa:heads=8,kv_heads=4,dim=4", .positions = Positions::rope, .order = Order::tree};
  Setting two = s;
  two.tensor = 2;
  const Result one = run(s, 1, true);
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(run(two, ranks, true).y == one.y) << ranks;
}

TEST(Context, JoinsATensorTeam) {
  for (const Order order : {Order::one_rank, Order::tree}) {
    const Setting s{.heads = "gqa:heads=8,kv_heads=4,dim=4", .positions = Positions::rope, .order = order};
    Setting two = s;
    two.tensor = 2;
    EXPECT_TRUE(run(two, 2).y == run(s, 1).y) << name_of(order);
    EXPECT_TRUE(run(two, 4).y == run(s, 1).y) << name_of(order);
  }
}

TEST(Context, MoreRanksThanRows) {
  const Setting s{.positions = Positions::rope, .offsets = {0, 2, 2, 3}};
  EXPECT_TRUE(run(s, 8).y == run(s, 1).y);
  const Setting keys{.heads = "talking:heads=8,dim=4", .offsets = {0, 2, 2, 3}};
  EXPECT_TRUE(run(keys, 8).y == run(keys, 1).y);
}

TEST(Context, SendsTheBytesOfTheTable) {
  // T D 4 bytes cut over R ranks; rows divide evenly here.
  Setting s{.offsets = {0, 16, 32}};
  for (const int ranks : {2, 4}) {
    const Index rows = 32 * kModel * 4 / ranks / ranks * (ranks - 1);  // V / R
    const Index end = 32 * kModel * 4 / ranks * (ranks - 1);
    s.heads = "mha:heads=8,dim=4";
    EXPECT_EQ(run(s, ranks).sent.bytes, kDepth * 4 * rows + end);
    s.heads = "gqa:heads=8,kv_heads=4,dim=4";  // (2 + 2 kv_heads / heads) V / R
    EXPECT_EQ(run(s, ranks).sent.bytes, kDepth * 3 * rows + end);
    s.heads = "gqa:heads=8,kv_heads=1,dim=4";  // by keys: 2 kv_heads / heads V
    EXPECT_EQ(run(s, ranks).sent.bytes, kDepth * 2 * end / 8 + end);
  }
}

TEST(Context, RefusesInWords) {
  const std::vector<std::uint8_t> open(13 * 13, 1);
  const Mask dense = Mask::dense(ConstView::packed(open.data(), DType::u8, {1, 1, 13, 13}));
  EXPECT_EQ(refusal({.heads = "talking:heads=8,dim=4", .mask = dense}, 2),
            "multi_head: tokens are cut over 2 ranks, where a dense mask does not know which queries a rank "
            "has; use a mask of terms");
  EXPECT_EQ(refusal({.heads = "talking:heads=8,dim=4", .tensor = 2}, 2),
            "multi_head: head talking runs in leaves over its tensor team, where tokens are not cut besides; "
            "use --context alone");
}

}  // namespace
}  // namespace headwise
