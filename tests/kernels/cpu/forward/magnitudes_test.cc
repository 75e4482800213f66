#include <cfloat>

#include "tests/support/online.h"

namespace headwise::test {
namespace {

Case small(Index q_tokens, Index kv_tokens, Index dim) {
  return {.name = "magnitudes",
          .q_tokens = q_tokens,
          .kv_tokens = kv_tokens,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = dim,
          .value_dim = dim};
}
void multiply(const InputView& x, double by) {
  for (Index n = 0; n < x.count(); ++n)
    store_double(x.data, x.dtype, n, load_double(x.data, x.dtype, n) * by);
}
float* row_of(const InputView& x, Index token, Index head = 0) {
  return static_cast<float*>(x.data) + token * x.step[1] + head * x.step[2];
}

/// Products of the two ends of the range are ordinary logits: q * k is unchanged when one shrinks by what the
/// other grows.
TEST(Magnitudes, ScoresOfTinyAndHugeRows) {
  for (const Index dim : {40, 128})
    for (const double up : {0x1p45, 0x1p110}) {
      CaseRun r(small(9, 270, dim));
      multiply(r.q.view(), up), multiply(r.k.view(), 1 / up);
      expect_matches(r, "large queries, small keys");
      CaseRun s(small(9, 270, dim));
      multiply(s.q.view(), 1 / up), multiply(s.k.view(), up);
      expect_matches(s, "small queries, large keys");
    }
}

/// Denormal keys against large queries: flushed to 0 every weight would be equal.
TEST(Magnitudes, DenormalKeysAreKept) {
  CaseRun r(small(5, 70, 32));
  multiply(r.q.view(), 0x1p126), multiply(r.k.view(), 0x1p-127);
  expect_matches(r);
}

/// A score of one row among others: the pair is alike whatever stands beside it.
TEST(Magnitudes, RowsOfOtherSizesKeepTheirNeighboursBits) {
  each_level([] {
    CaseRun r(small(40, 40, 64));
    const Mask causal = Mask::causal();
    r.args.mask = causal.set();
    attention(r.args, online());
    const std::vector<float> before(r.out.values<float>().begin(), r.out.values<float>().end());
    for (const float x : {1e-41f, 1e-33f, 1e33f, INFINITY, NAN}) {
      for (Index c = 0; c < 64; ++c) row_of(r.k.view(), 39)[c] = x;  // only the last query sees it
      for (Index c = 0; c < 64; ++c) row_of(r.q.view(), 3)[c] = x;
      attention(r.args, online());
      for (Index token = 0; token < 39; ++token)
        for (Index head = 0; head < 2; ++head) {
          if (token == 3 && head == 0) continue;
          const Index at = (token * 2 + head) * 64;
          ASSERT_EQ(0, std::memcmp(row_of(r.out.view(), token, head), before.data() + at, 64 * 4))
              << "token " << token << " beside " << x;
        }
    }
  });
}

/// One visible key gives its value, whatever its size and whatever stands beside it.
TEST(Magnitudes, OneKeyGivesItsValue) {
  const float sizes[] = {1e-45f, 1e-41f, FLT_MIN, 1e-33f, 1e-30f, 1e-20f, 1.0f, 1e18f, 1e22f, 1e30f, FLT_MAX};
  constexpr Index n = std::size(sizes);
  each_level([&] {
    CaseRun r(small(n, n, n));
    const Mask own = Mask::window(0, 0);
    r.args.mask = own.set();
    for (Index token = 0; token < n; ++token)
      for (Index c = 0; c < n; ++c) row_of(r.v.view(), token)[c] = sizes[(token + c) % n] * (c % 2 ? -1 : 1);
    attention(r.args, online());
    for (Index token = 0; token < n; ++token)
      for (Index c = 0; c < n; ++c)
        ASSERT_EQ(row_of(r.out.view(), token)[c], row_of(r.v.view(), token)[c]) << token << ' ' << c;
  });
}

/// A weight of 2^-123 beside one of 1 is a number like others where its value is large.
TEST(Magnitudes, TinyWeightsOfLargeValues) {
  each_level([] {
    CaseRun r({.name = "tiny", .kv_tokens = 2, .head_dim = 1, .value_dim = 1});
    Tensor scale = filled(1, 1.0);
    r.args.inputs.scale = scale.view();
    fill(r.q.view(), 1);
    *row_of(r.k.view(), 0) = 0, *row_of(r.k.view(), 1) = -85;
    *row_of(r.v.view(), 0) = 0, *row_of(r.v.view(), 1) = 0x1p60f;
    attention(r.args, online());
    const double truth = std::exp(-85.0) * 0x1p60;
    EXPECT_NEAR(static_cast<double>(*row_of(r.out.view(), 0)), truth, 2e-5 * truth);
  });
}

/// Columns of different sizes are means of their own: each as exact as alone.
TEST(Magnitudes, ColumnsOfDifferentSizes) {
  each_level([] {
    const double sizes[] = {0x1p-140, 0x1p-126, 0x1p-110, 0x1p-60, 1, 0x1p60, 0x1p75, 0x1p120};
    CaseRun r(small(33, 600, 8));
    for (Index token = 0; token < 600; ++token)
      for (Index c = 0; c < 8; ++c)
        row_of(r.v.view(), token)[c] =
            static_cast<float>(static_cast<double>(row_of(r.v.view(), token)[c]) * sizes[c]);
    attention(r.args, online());
    const DenseTruth truth = dense_truth(r.args);
    for (Index n = 0; n < r.out.view().count(); ++n) {
      const double size = sizes[n % 8], y = truth.out.values<double>()[static_cast<std::size_t>(n)];
      const double x = static_cast<double>(r.out.values<float>()[static_cast<std::size_t>(n)]);
      ASSERT_NEAR(x, y, std::max(4e-6 * size, 0x1p-148)) << "column " << n % 8;
    }
  });
}

}  // namespace
}  // namespace headwise::test
