// Every gradient of ref is the slope of its forward: crossed features, in f64, against central differences.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/cover.h"
#include "tests/support/gradients.h"

namespace headwise::test {
namespace {

/// Few tokens and columns: the loss is computed four times for each element of each input.
Sizes small_sizes(const Choice& c) {
  constexpr Index kQ[] = {5, 1, 9}, kKv[] = {6, 1, 11}, kDim[] = {3, 1}, kValue[] = {4, 2};
  Sizes s = sizes_of(c);
  s.q_tokens = kQ[c[kQTokens]], s.kv_tokens = kKv[c[kKvTokens]];
  s.head_dim = kDim[c[kHeadDim]], s.value_dim = kValue[c[kValueDim]];
  return s;
}

TEST(Gradients, EveryPairOfFeaturesMatchesCentralDifferences) {
  Choice counts = Cover::all_values();
  for (const int option : {kDtype, kLayout, kOutLayout, kLse, kRowProbe, kTopK, kClasses, kColumns, kPicked,
                           kStage, kThreads, kKernels, kKeysValues})
    counts[static_cast<std::size_t>(option)] = 1;
  counts[kQTokens] = counts[kKvTokens] = 3;
  counts[kHeadDim] = counts[kValueDim] = 2;
  counts[kHeads] = 4;  // without 12 heads and without none
  counts[kScale] = 6;  // a scale of 1e30 has no slope that differences could see
  Cover cover(3, counts, 1e9);
  int cases = 0;
  for (; !cover.done(); ++cases) {
    const Choice c = cover.next();
    const Sizes s = small_sizes(c);
    const auto seed = static_cast<std::uint64_t>(cases + 1);
    Posed posed;
    pose(c, {.seed = seed, .sizes = &s}, posed);
    GradientRun run = double_of(posed, seed);
    EXPECT_EQ(differs_from_differences(run), "") << describe(c) << " seed " << seed;
  }
  std::printf("gradient check: %d cases\n", cases);
}

}  // namespace
}  // namespace headwise::test
