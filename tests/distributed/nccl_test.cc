// The engine nccl with one rank: messages to itself and sums, byte for byte; without NCCL a sentence says
// why.
#include <gtest/gtest.h>

#include <vector>

#include "headwise/base/context.h"
#include "headwise/distributed/communicator.h"
#include "headwise/distributed/nccl_engine.h"

namespace headwise {
namespace {

TEST(Nccl, IsMissingInWords) {
  if (missing_nccl().empty()) GTEST_SKIP() << "NCCL and a device are here";
  EXPECT_TRUE(missing_nccl().ends_with("use the engine mpi") ||
              missing_nccl().find("libnccl.so.2") != std::string::npos)
      << missing_nccl();
  try {
    Communicator::start({.engine = "nccl"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "ranks: " + missing_nccl());
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
  }
}

TEST(Nccl, OneRankSendsToItselfAndSums) {
  if (!missing_nccl().empty()) GTEST_SKIP() << missing_nccl();
  const std::unique_ptr<Engine> engine = start_nccl();
  EXPECT_EQ(engine->name(), "nccl");
  ASSERT_EQ(engine->ranks(), 1);
  for (const std::size_t count : {1u, 1000u, 300000u}) {
    std::vector<float> from(count), to(count), sum(count);
    std::vector<char> word{'a', 'b', 'c'}, heard(3);
    for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<float>(i) * 0.37f - 3;
    const auto bytes = static_cast<Index>(count * sizeof(float));
    const Message messages[] = {{0, true, from.data(), bytes}, {0, false, to.data(), bytes},
                                {0, true, word.data(), 3},     {0, false, heard.data(), 3},
                                {0, true, nullptr, 0},         {0, false, nullptr, 0}};
    const Outcome sent = engine->exchange(messages, 3, 20);
    ASSERT_TRUE(sent.ok()) << sent.fault;
    EXPECT_EQ(from, to);
    EXPECT_EQ(word, heard);
    const Outcome summed =
        engine->all_reduce(from.data(), sum.data(), static_cast<Index>(count), DType::f32, 20);
    ASSERT_TRUE(summed.ok()) << summed.fault;
    EXPECT_EQ(from, sum);
  }
}

TEST(Nccl, OneRankIsACommunicator) {
  if (!missing_nccl().empty()) GTEST_SKIP() << missing_nccl();
  const Communicator team = Communicator::start({.engine = "nccl"});
  EXPECT_EQ(team.engine(), "nccl");
  EXPECT_EQ(team.ranks(), 1);
  Context ctx({.threads = 1});
  std::vector<double> x{1, -0.0, 3e300}, y(3);
  const AnyView from = AnyView::packed(x.data(), DType::f64, {3}),
                to = AnyView::packed(y.data(), DType::f64, {3});
  team.sum(from, to, Order::engine, ctx);
  EXPECT_EQ(x, y);
}

}  // namespace
}  // namespace headwise
