// Every pair of option values appears in some case; each case matches ref or is refused in words.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>

#include "tests/support/setting.h"

namespace headwise::test {
namespace {

/// Multiplications of ref a case may cost: pairs that cannot stay below it are left out of the promise, and
/// counted.
constexpr double kWork = 4e6;

using Pair = std::array<int, 4>;  // option, value, option, value; the first option is the lower
bool affordable(const Choice& c) { return work_of(c) <= kWork; }

/// Greedy cover: each case starts from a pair nobody has shown yet and takes, option by option in random
/// order, the value that shows most missing pairs.
class Cover {
 public:
  explicit Cover(unsigned seed) : random_(seed) {
    for (int i = 0; i < kOptions; ++i)
      for (int j = i + 1; j < kOptions; ++j)
        for (int x = 0; x < values_of(i); ++x)
          for (int y = 0; y < values_of(j); ++y) missing_.insert({i, x, j, y});
  }
  bool done() const { return missing_.empty(); }
  std::size_t missing() const { return missing_.size(); }

  Choice next() {
    const Pair first = *missing_.begin();
    Choice c{}, fixed{};
    // Small sizes until chosen, so that the budget says no only to what is really large.
    c[kHeadDim] = c[kValueDim] = 1, c[kQTokens] = 2, c[kKvTokens] = 2, c[kHeads] = 1;
    set(c, fixed, first[0], first[1]);
    set(c, fixed, first[2], first[3]);
    std::vector<int> order;
    for (int i = 0; i < kOptions; ++i)
      if (!fixed[static_cast<std::size_t>(i)]) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int option : order) {
      int best = -1, best_gain = -1;
      const int n = values_of(option), from = static_cast<int>(random_() % static_cast<unsigned>(n));
      for (int k = 0; k < n; ++k) {
        const int value = (from + k) % n;
        Choice trial = c;
        trial[static_cast<std::size_t>(option)] = value;
        if (!affordable(trial)) continue;
        const int gain = gain_of(trial, fixed, option, value);
        if (gain > best_gain) best = value, best_gain = gain;
      }
      set(c, fixed, option, best < 0 ? c[static_cast<std::size_t>(option)] : best);
    }
    for (int i = 0; i < kOptions; ++i)
      for (int j = i + 1; j < kOptions; ++j)
        missing_.erase({i, c[static_cast<std::size_t>(i)], j, c[static_cast<std::size_t>(j)]});
    missing_.erase(first);
    return c;
  }

 private:
  static void set(Choice& c, Choice& fixed, int option, int value) {
    c[static_cast<std::size_t>(option)] = value;
    fixed[static_cast<std::size_t>(option)] = 1;
  }
  int gain_of(const Choice& c, const Choice& fixed, int option, int value) const {
    int gain = 0;
    for (int other = 0; other < kOptions; ++other) {
      if (!fixed[static_cast<std::size_t>(other)] || other == option) continue;
      const int theirs = c[static_cast<std::size_t>(other)];
      const Pair p = other < option ? Pair{other, theirs, option, value} : Pair{option, value, other, theirs};
      gain += static_cast<int>(missing_.count(p));
    }
    return gain;
  }
  std::set<Pair> missing_;
  std::mt19937 random_;
};

bool expect_right(const Choice& c, std::uint64_t seed) {
  const Verdict v = judge(c, {.seed = seed});
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
  Cover cover(1);
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
