// The largest products of two lists of vectors: all pairs, and pairs of those that stand out, against a loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "headwise/base/buffer.h"
#include "headwise/base/context.h"
#include "headwise/view/decoder/top_pairs.h"

namespace headwise {
namespace {

/// Vectors of different lengths, as embeddings have: some stand out.
std::vector<float> vectors(Index count, Index dim, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(count * dim));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto v = static_cast<double>(i / static_cast<std::size_t>(dim));
    out[i] = static_cast<float>(normal_at(seed, static_cast<Index>(i)) / std::sqrt(1 + 0.05 * v));
  }
  return out;
}

TEST(TopPairs, AreTheLargestOfALoop) {
  const Index count = 900, dim = 6, most = 20;
  const std::vector<float> a = vectors(count, dim, 1), b = vectors(count, dim, 2);
  std::vector<IndexPair> want;
  for (Index i = 0; i < count; ++i)
    for (Index j = 0; j < count; ++j) {
      double sum = 0;
      for (Index d = 0; d < dim; ++d)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * dim + d)]) *
               static_cast<double>(b[static_cast<std::size_t>(j * dim + d)]);
      want.push_back({i, j, static_cast<float>(sum)});
    }
  std::partial_sort(want.begin(), want.begin() + most, want.end(),
                    [](const IndexPair& x, const IndexPair& y) { return x.score > y.score; });
  Context ctx({.threads = 2});
  for (const Index all_up_to : {kAllPairs, Index{100}}) {
    const std::vector<IndexPair> got = top_pairs({a, b, count, dim}, most, ctx, all_up_to);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(most));
    for (std::size_t p = 0; p < got.size(); ++p) {
      EXPECT_EQ(got[p].row, want[p].row) << p;
      EXPECT_EQ(got[p].column, want[p].column) << p;
      EXPECT_NEAR(got[p].score, want[p].score, 1e-5);
    }
  }
}

TEST(TopPairs, GiveNoMoreThanThereAre) {
  Context ctx({.threads = 1});
  const std::vector<float> a = {1, 2}, b = {3, -1};
  const std::vector<IndexPair> got = top_pairs({a, b, 2, 1}, 10, ctx);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[0].score, 6.0f);
  EXPECT_EQ(got[3].score, -2.0f);
}

}  // namespace
}  // namespace headwise
