// Ranks as threads: the bits of sums, what travels, and what is said when ranks do not meet.
#include "headwise/distributed/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/base/random.h"
#include "headwise/distributed/small_sum.h"
#include "headwise/distributed/threads_engine.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

constexpr Index kLeaves = 8;

/// Leaf `leaf` of a sum, drawn: the same whoever asks.
std::vector<float> leaf_values(Index leaf, Index count) {
  std::vector<float> v;
  for (Index i = 0; i < count; ++i)
    v.push_back(static_cast<float>(normal_at(7, leaf * count + i) * (leaf % 3 == 0 ? 1e4 : 1e-3)));
  return v;
}

/// node(begin, end), by the definition.
std::vector<float> node(Index begin, Index end, Index count) {
  if (end == begin + 1) return leaf_values(begin, count);
  std::vector<float> a = node(begin, (begin + end) / 2, count);
  const std::vector<float> b = node((begin + end) / 2, end, count);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

AnyView flat(std::vector<float>& v) {
  return AnyView::packed(v.data(), DType::f32, {static_cast<Index>(v.size())});
}

std::string sentence_of(int ranks, const std::function<void(Communicator&)>& work,
                        const EngineOptions& options = {}) {
  try {
    run_ranks(ranks, work, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Communicator, TreeHasOneSetOfBits) {
  for (const Index count : {Index{1}, Index{7}, Index{5000}}) {
    const std::vector<float> want = node(0, kLeaves, count);
    for (const int ranks : {1, 2, 4, 8})
      run_ranks(ranks, [&](Communicator& team) {
        Context ctx({.threads = 1});
        const Index own = kLeaves / ranks;
        std::vector<float> sum = node(team.rank() * own, (team.rank() + 1) * own, count);
        team.sum(flat(sum), flat(sum), Order::tree, ctx);
        EXPECT_EQ(0, std::memcmp(sum.data(), want.data(), want.size() * sizeof(float))) << ranks << " ranks";
      });
  }
}

TEST(Communicator, SumSendsWhatTheTableSays) {
  const Index count = 64 * 100;
  for (const int ranks : {1, 2, 4, 8})
    run_ranks(ranks, [&](Communicator& team) {
      Context ctx({.threads = 1});
      std::vector<float> sum = leaf_values(team.rank(), count);
      team.sum(flat(sum), flat(sum), Order::tree, ctx);
      EXPECT_EQ(team.counted().bytes, 2 * 4 * count * (ranks - 1) / ranks);
      EXPECT_EQ(team.counted().bytes, sum_bytes(count, 4, ranks));
      EXPECT_EQ(team.counted().card_bytes > 0, ranks > 1);
    });
}

TEST(Communicator, GathersAlongAnyAxisAndUnevenly) {
  for (const int ranks : {1, 2, 3, 5})
    for (const int axis : {0, 1, 2})
      run_ranks(ranks, [&](Communicator& team) {
        const Index size[3] = {7, 5, 6};
        std::vector<float> all;
        for (Index i = 0; i < 7 * 5 * 6; ++i) all.push_back(static_cast<float>(i));
        const Slice mine = slice_of(size[axis], team.rank(), ranks);
        std::vector<float> own;
        for (Index a = 0; a < 7; ++a)
          for (Index b = 0; b < 5; ++b)
            for (Index c = 0; c < 6; ++c) {
              const Index at = axis == 0 ? a : axis == 1 ? b : c;
              if (at >= mine.begin && at < mine.begin + mine.size)
                own.push_back(all[static_cast<std::size_t>((a * 5 + b) * 6 + c)]);
            }
        const auto sized = [&](int x) { return x == axis ? mine.size : size[x]; };
        std::vector<float> got(all.size(), -1.0f);
        team.gather(AnyView::packed(own.data(), DType::f32, {sized(0), sized(1), sized(2)}),
                    AnyView::packed(got.data(), DType::f32, {7, 5, 6}), axis);
        EXPECT_EQ(got, all);
      });
}

TEST(Communicator, ExchangesHeadsForTokensAndBack) {
  for (const int ranks : {1, 2, 3, 5})
    for (const Index rows : {Index{2}, Index{7}})
      run_ranks(ranks, [&](Communicator& team) {
        constexpr Index kColumns = 12;
        const auto value = [](Index row, Index column) { return static_cast<float>(row * 100 + column); };
        const Slice own = slice_of(rows, team.rank(), ranks), cut = slice_of(kColumns, team.rank(), ranks);
        std::vector<float> by_rows, by_columns;
        for (Index r = own.begin; r < own.begin + own.size; ++r)
          for (Index c = 0; c < kColumns; ++c) by_rows.push_back(value(r, c));
        for (Index r = 0; r < rows; ++r)
          for (Index c = cut.begin; c < cut.begin + cut.size; ++c) by_columns.push_back(value(r, c));
        std::vector<float> got(by_columns.size(), -1.0f), back(by_rows.size(), -1.0f);
        const auto view = [](std::vector<float>& v, Index r, Index c) {
          return AnyView::packed(v.data(), DType::f32, {r, c});
        };
        team.exchange(view(by_rows, own.size, kColumns), 1, view(got, rows, cut.size));
        EXPECT_EQ(got, by_columns) << ranks << " ranks, " << rows << " rows";
        EXPECT_EQ(team.counted().bytes, 4 * own.size * (kColumns - cut.size));
        team.exchange(view(by_columns, rows, cut.size), 0, view(back, own.size, kColumns));
        EXPECT_EQ(back, by_rows) << ranks << " ranks, " << rows << " rows";
        EXPECT_EQ(team.counted().bytes,
                  4 * (own.size * (kColumns - cut.size) + (rows - own.size) * cut.size));
      });
  EXPECT_NE(sentence_of(2,
                        [](Communicator& team) {
                          std::vector<float> a(8), b(8);
                          team.exchange(AnyView::packed(a.data(), DType::f32, {2, 4}), 1,
                                        AnyView::packed(b.data(), DType::f32, {2, 4}));
                        })
                .find("it holds 1 of axis 0 and gets 2 of axis 1"),
            std::string::npos);
}

TEST(Communicator, SumsAndGathersPiecesOfAnySize) {
  constexpr Index kCount = 3000;
  const std::vector<float> want = node(0, 4, kCount);
  run_ranks(4, [&](Communicator& team) {
    Context ctx({.threads = 1});
    const std::vector<Index> ends = {0, 17, 2900, kCount};  // rank 0 has nothing
    const Index begin = team.rank() == 0 ? 0 : ends[static_cast<std::size_t>(team.rank() - 1)],
                size = ends[static_cast<std::size_t>(team.rank())] - begin;
    std::vector<float> all = leaf_values(team.rank(), kCount), sum(kCount, -1.0f);
    const AnyView piece = AnyView::packed(sum.data() + begin, DType::f32, {size});
    team.sum_pieces(flat(all), ends, piece, ctx);
    team.gather_pieces(flat(sum), ends);
    EXPECT_EQ(0, std::memcmp(sum.data(), want.data(), want.size() * sizeof(float)));
    EXPECT_EQ(team.counted().bytes, 4 * (kCount - size + 3 * size));
  });
  EXPECT_NE(sentence_of(2,
                        [](Communicator& team) {
                          std::vector<float> x(8);
                          team.gather_pieces(flat(x), std::vector<Index>{4});
                        })
                .find("give an end for each, the last one the count"),
            std::string::npos);
}

TEST(Communicator, SharesWhatRankZeroHas) {
  run_ranks(3, [](Communicator& team) {
    std::string words = team.rank() == 0 ? "of rank 0" : "---------";
    team.share(words.data(), static_cast<Index>(words.size()));
    EXPECT_EQ(words, "of rank 0");
    EXPECT_EQ(team.counted().bytes, team.rank() == 0 ? 18 : 0);
  });
}

TEST(Communicator, KeepsMinusZeroNanAndDenormals) {
  run_ranks(2, [](Communicator& team) {
    Context ctx({.threads = 1});
    const float tiny = 1e-40f;
    std::vector<float> sum = team.rank() == 0
                                 ? std::vector<float>{-0.0f, std::nanf(""), tiny, 1}
                                 : std::vector<float>{-0.0f, 1, tiny, std::numeric_limits<float>::infinity()};
    team.sum(flat(sum), flat(sum), Order::tree, ctx);
    EXPECT_TRUE(std::signbit(sum[0]) && sum[0] == 0);
    EXPECT_TRUE(std::isnan(sum[1]));
    EXPECT_EQ(sum[2], tiny + tiny);
    EXPECT_TRUE(std::isinf(sum[3]));
    std::vector<float> none;
    team.sum(flat(none), flat(none), Order::tree, ctx);
  });
}

TEST(Communicator, EngineOrderSumsAndRepeats) {
  run_ranks(3, [](Communicator& team) {
    Context ctx({.threads = 1});
    std::vector<float> a(10, static_cast<float>(team.rank() + 1)), b = a;
    team.sum(flat(a), flat(a), Order::engine, ctx);
    team.sum(flat(b), flat(b), Order::engine, ctx);
    EXPECT_EQ(a, std::vector<float>(10, 6.0f));
    EXPECT_EQ(a, b);
  });
}

TEST(Communicator, TeamsInsideATeam) {
  run_ranks(4, [](Communicator& world) {
    Context ctx({.threads = 1});
    const Communicator pair = world.part(world.rank() / 2 * 2, 2),
                       across = world.part(world.rank() % 2, 2, 2);
    std::vector<float> a(3000, static_cast<float>(1 << world.rank())), b = a;
    pair.sum(flat(a), flat(a), Order::tree, ctx);
    across.sum(flat(b), flat(b), Order::tree, ctx);
    EXPECT_EQ(a[0], world.rank() < 2 ? 3.0f : 12.0f);
    EXPECT_EQ(b[2999], world.rank() % 2 == 0 ? 5.0f : 10.0f);
  });
}

TEST(Communicator, SaysWhoDiffersInWhat) {
  EXPECT_EQ(sentence_of(4,
                        [](Communicator& team) {
                          team.agree("train", {{"seed", "1"}, {"dtype", team.rank() == 3 ? "bf16" : "f32"}});
                        }),
            "ranks: train: rank 3 has dtype bf16, rank 0 has f32; start all ranks with the same words");
  EXPECT_EQ(sentence_of(2, [](Communicator& team) { team.agree("train", {{"seed", "1"}}); }), "");
}

TEST(Communicator, SaysWhichRankHasNotCome) {
  std::atomic<bool> over = false;
  const std::string said = sentence_of(2,
                                       [&](Communicator& team) {
                                         Context ctx({.threads = 1});
                                         std::vector<float> x(100, 1.0f);
                                         if (team.rank() == 1)
                                           return over.wait(false);  // it lives, and does not come
                                         try {
                                           team.sum(flat(x), flat(x), Order::tree, ctx, "layer.3.W_O");
                                         } catch (const RankError&) {
                                           over = true;
                                           over.notify_all();
                                           throw;
                                         }
                                       },
                                       {.seconds = 0.2});
  EXPECT_EQ(said,
            "ranks: call 0 (layer.3.W_O, 32 bytes): rank 1 of 2 has not come to rank 0 for 0.2 s; look why "
            "it stands, "
            "then start all ranks again");
}

TEST(Communicator, SaysWhenARankHasEndedAndRefusesAfterwards) {
  std::string again;
  const std::string said = sentence_of(3, [&](Communicator& team) {
    Context ctx({.threads = 1});
    std::vector<float> x(100, 1.0f);
    if (team.rank() == 2) return;
    try {
      team.sum(flat(x), flat(x), Order::engine, ctx);
    } catch (const RankError&) {
      if (team.rank() == 0) try {
          team.sum(flat(x), flat(x), Order::engine, ctx);
        } catch (const Error& e) {
          again = e.what();
        }
      throw;
    }
  });
  EXPECT_NE(said.find("rank 2 has ended; start all ranks again"), said.npos) << said;
  EXPECT_NE(again.find("an earlier call failed"), again.npos) << again;
}

TEST(Communicator, ComparesCards) {
  const std::string said = sentence_of(2, [](Communicator& team) {
    std::vector<float> x(8), all(16);
    const DType dtype = team.rank() == 0 ? DType::f32 : DType::i32;
    team.gather(AnyView::packed(x.data(), dtype, {8}), AnyView::packed(all.data(), dtype, {16}), 0, "W_O");
  });
  EXPECT_EQ(said,
            "ranks: (W_O) rank 1 comes with gather of 64 bytes of i32 as call 0, rank 0 with gather of 64 "
            "bytes of f32 "
            "as call 0; give all ranks the same work");
}

/// The others send back what they are sent.
class Echo : public Engine {
 public:
  explicit Echo(int ranks) : ranks_(ranks) {}
  std::string_view name() const override { return "echo"; }
  int rank() const override { return 0; }
  int ranks() const override { return ranks_; }
  Outcome exchange(std::span<const Message> messages, int, double) override {
    for (std::size_t i = 0; i + 1 < messages.size(); i += 2) {
      const Message &sent = messages[i], &taken = messages[i + 1];
      EXPECT_TRUE(sent.sends && !taken.sends && sent.rank == taken.rank);
      const Index bytes = min_of(sent.bytes, taken.bytes);
      if (bytes > 0) std::memcpy(taken.data, sent.data, static_cast<std::size_t>(bytes));
    }
    return {};
  }
  Outcome all_reduce(const void*, void*, Index, DType, double) override { return {}; }

 private:
  int ranks_;
};

/// Texts of other lengths need other calls inside a tensor team; the data team across them is none the wiser.
TEST(Communicator, TeamsCountTheirOwnCalls) {
  run_ranks(4, [](Communicator& world) {
    Context ctx({.threads = 1});
    const Communicator pair = world.part(world.rank() / 2 * 2, 2),
                       across = world.part(world.rank() % 2, 2, 2);
    std::vector<float> one = {1};
    const Index more = world.rank() / 2 * 40;
    for (Index call = 0; call < more; ++call) pair.sum(flat(one), flat(one), Order::tree, ctx, "rows");
    for (Index call = 0; call < 80; ++call) {  // past those whose cards are compared
      one = {1};
      across.sum(flat(one), flat(one), Order::tree, ctx, "gradients");
      EXPECT_EQ(one[0], 2);
    }
  });
}

TEST(Communicator, CallsAllocateNothingAndCardsEnd) {
  for (const int ranks : {1, 4}) {
    Context ctx({.threads = 1});
    const Communicator team = Communicator::over(std::make_unique<Echo>(ranks));
    constexpr Index kRows = 64, kColumns = 128;  // above what is sent to all at once
    std::vector<float> all(kRows * kColumns, 1.0f), part(static_cast<std::size_t>(kRows * kColumns / ranks)),
        few(4, 1.0f);
    const auto rows = [&](std::vector<float>& v, Index r, Index c) {
      return AnyView::packed(v.data(), DType::f32, {r, c});
    };
    std::vector<Index> ends;
    for (int r = 0; r < ranks; ++r) ends.push_back((r + 1) * kRows * kColumns / ranks);
    const auto calls = [&] {
      team.sum(flat(all), flat(all), Order::tree, ctx);
      team.sum(flat(few), flat(few), Order::tree, ctx);
      team.sum_slice(flat(all), flat(part), ctx);
      team.sum_pieces(flat(all), ends, flat(part), ctx);
      team.gather(rows(part, kRows / ranks, kColumns), rows(all, kRows, kColumns), 0);
      team.gather(rows(part, kRows, kColumns / ranks), rows(all, kRows, kColumns), 1);
      team.gather_pieces(flat(all), ends);
      team.exchange(rows(part, kRows / ranks, kColumns), 1, rows(all, kRows, kColumns / ranks));
      team.share(few.data(), 4);
    };
    for (int i = 0; i < 8; ++i) calls();  // the first 64 compare cards, and lists grow
    const Counted before = team.counted();
    const std::uint64_t allocated = test::allocations();
    for (int i = 0; i < 10; ++i) calls();
    EXPECT_EQ(test::allocations(), allocated) << ranks << " ranks";
    EXPECT_EQ(team.counted().card_bytes, before.card_bytes);
    EXPECT_EQ(team.counted().bytes > before.bytes, ranks > 1);
  }
}

/// Rank 1 sends numbers that are all 2; they come in steps, and what is made of them goes in steps.
class Trickle final : public Echo {
 public:
  Trickle() : Echo(2) {}
  Outcome relay(std::span<const Message> first, std::span<const Message> second, Relay& relay, int,
                double) override {
    const Message &taken = first[1], &next = second[0];
    auto* twos = static_cast<float*>(taken.data);
    for (const Index came : {Index{4096}, Index{61440}, taken.bytes}) {
      std::fill(twos, twos + came / 4, 2.0f);
      EXPECT_EQ(relay.make(came), came / 4 * (next.bytes / (taken.bytes / 4)));
    }
    return {};
  }
};

TEST(Communicator, SumsAreMadeAsNumbersCome) {
  constexpr Index kCount = 1 << 16;
  class Steps final : public SumEnd {
   public:
    void end(const AnyView& sums, Index begin, Context&) override {
      EXPECT_EQ(begin, next);
      next += sums.count();
      for (Index i = 0; i < sums.count(); ++i) EXPECT_EQ(static_cast<const float*>(sums.data)[i], 3.0f);
    }
    Index next = 0;
  };
  Context ctx({.threads = 1});
  const Communicator team = Communicator::over(std::make_unique<Trickle>());
  std::vector<float> ones(kCount, 1.0f), out(kCount);
  Steps steps;
  team.sum_tree(flat(ones), flat(out), steps, ctx);
  EXPECT_EQ(steps.next, kCount / 2);  // each number on one rank alone
  team.sum(flat(ones), AnyView::packed(out.data(), DType::bf16, {kCount}), Order::tree, ctx);
  EXPECT_EQ(static_cast<float>(reinterpret_cast<const bf16*>(out.data())[kCount / 2 - 1]), 3.0f);
  team.sum(flat(ones), flat(ones), Order::tree, ctx);
  EXPECT_EQ(ones[kCount / 2 - 1], 3.0f);
  EXPECT_EQ(team.counted().bytes, 2 * sum_bytes(kCount, 4, 2) + rounded_sum_bytes(kCount, 4, 2, 2));
}

TEST(Communicator, RefusesWhatHasNoTree) {
  const auto adds = [](Order order) {
    return [order](Communicator& team) {
      Context ctx({.threads = 1});
      std::vector<float> y(8);
      team.sum(flat(y), flat(y), order, ctx);
    };
  };
  EXPECT_NE(sentence_of(3, adds(Order::tree)).find("take 1, 2, 4 or 8 ranks"), std::string::npos);
  EXPECT_NE(sentence_of(2, adds(Order::one_rank)).find("lost the order of one rank"), std::string::npos);
  const auto narrows = [](Communicator& team) {  // 16 bits into what is on its way
    Context ctx({.threads = 1});
    std::vector<float> x(100, 1.0f);
    team.sum(flat(x), AnyView::packed(x.data(), DType::bf16, {100}), Order::tree, ctx);
  };
  EXPECT_NE(sentence_of(2, narrows).find("give them a place of their own"), std::string::npos);
  EXPECT_THROW(order_of("quick"), Error);
  EXPECT_EQ(leaves_of(12), 4);
  EXPECT_EQ(leaves_of(25), 1);
  EXPECT_EQ(leaves_of(512), 8);
}

}  // namespace
}  // namespace headwise
