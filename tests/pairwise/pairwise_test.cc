// Every pair of option values appears in some case; each case matches ref or is refused in words.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "tests/support/cover.h"
#include "tests/support/setting/setting.h"

namespace headwise::test {
namespace {

/// Multiplications of ref a case may cost: pairs that cannot stay below it are left out of the promise, and
/// counted.
constexpr double kWork = 4e6;

bool expect_right(Choice c, std::uint64_t seed) {
  Verdict v = judge(c, {.seed = seed});
  if (v.refused && v.fault.empty() && c[kKeysValues] != 0) {  // the other pairs are still to be shown
    c[kKeysValues] = 0;
    v = judge(c, {.seed = seed});
  }
  EXPECT_EQ(v.fault, "") << describe(c) << "\nreplay: HEADWISE_CASE=" << seed << ":" << to_text(c)
                         << " pairwise_test --gtest_filter=Pairwise.EveryPairOfOptions";
  return v.refused;
}

/// HEADWISE_CASE=seed:choice, as a failure prints it, runs that case alone.
TEST(Pairwise, EveryPairOfOptions) {
  if (const char* replay = std::getenv("HEADWISE_CASE")) {
    const std::string all = replay;
    const std::size_t colon = all.find(':');
    ASSERT_NE(colon, std::string::npos);
    expect_right(choice_of(all.substr(colon + 1)), static_cast<std::uint64_t>(std::atoll(all.c_str())));
    return;
  }
  Cover cover(1, Cover::all_values(), kWork);
  int cases = 0, refused = 0;
  std::set<Pair> shown;
  while (!cover.done() && !::testing::Test::HasFatalFailure()) {
    const Choice c = cover.next();
    const auto seed = static_cast<std::uint64_t>(++cases);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (cases % 6 != 0) continue;  // ten times slower there: a sixth of the cases
#endif
    refused += expect_right(c, seed);
    for (int i = 0; i < kOptions; ++i)
      for (int j = i + 1; j < kOptions; ++j)
        shown.insert({i, c[static_cast<std::size_t>(i)], j, c[static_cast<std::size_t>(j)]});
  }
  std::size_t all = 0;
  for (int i = 0; i < kOptions; ++i)
    for (int j = i + 1; j < kOptions; ++j) all += static_cast<std::size_t>(values_of(i) * values_of(j));
  RecordProperty("cases", cases);
  RecordProperty("refused", refused);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(shown.size(), all) << "pairs that no case shows";
#endif
  std::printf("pairwise: %d cases show %zu of %zu pairs, %d refused in words\n", cases, shown.size(), all,
              refused);
}

/// Sizes in which a swapped axis still fits, each against every value of every other option.
TEST(Pairwise, SizesThatHideASwappedAxis) {
  const Sizes squares[] = {
      {DType::f32, 2, 6, 6, 6, 3, 8, 8},      // tokens == heads
      {DType::f32, 4, 7, 9, 4, 4, 8, 8},      // heads == batch
      {DType::f32, 1, 16, 16, 2, 1, 16, 16},  // tokens == head_dim
      {DType::f32, 4, 4, 4, 4, 4, 4, 4},      // all equal
      {DType::f32, 1, 1, 1, 1, 1, 1, 1},
  };
  for (const Sizes& square : squares)
    for (int option = 0; option < kOptions; ++option) {
      if (option == kHeads || option == kHeadDim || option == kValueDim || option == kQTokens ||
          option == kKvTokens || option == kBatch)
        continue;
      for (int value = 0; value < values_of(option); ++value) {
        Choice c{};
        c[kLse] = 1, c[kRowProbe] = 1, c[kTopK] = 1, c[kColumns] = 1;
        c[static_cast<std::size_t>(option)] = value;
        Sizes s = square;
        s.dtype = sizes_of(c).dtype;
        const Verdict v = judge(c, {.seed = 5, .sizes = &s});
        EXPECT_EQ(v.fault, "") << describe(c) << " [" << s.batch << " " << s.q_tokens << " " << s.kv_tokens
                               << " " << s.heads << "]";
      }
    }
}

}  // namespace
}  // namespace headwise::test
