// Regressions R001 to R043 of the CPU forward: masks, empty rows, causal alignment, windows, positions.
// SPDX-License-Identifier: Apache-2.0
#include <cfloat>
#include <cstring>

#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

void expect_empty(const CaseRun& r, Index b, Index h, Index i) {
  const InputView& v = r.out.view();
  for (Index c = 0; c < v.size[3]; ++c) {
    const double x = load_double(v.data, v.dtype, ((b * v.size[1] + i) * v.size[2] + h) * v.size[3] + c);
    ASSERT_TRUE(x == 0 && !std::signbit(x)) << "row " << i << " holds " << x;
  }
  ASSERT_EQ(r.lse.values<float>()[static_cast<std::size_t>((b * v.size[2] + h) * v.size[1] + i)], kMinusInf)
      << i;
}

/// Case with a dense bias to write logits into: q is 0, so a logit is its bias.
struct Logits : CaseRun {
  Tensor bias;
  explicit Logits(const Case& c) : CaseRun(c), bias(DType::f32, {1, 1, c.q_tokens, c.kv_tokens}) {
    fill(q.view(), 0);
    args.inputs.bias = bias.view();
  }
  float& at(Index i, Index j) {
    return bias.values<float>()[static_cast<std::size_t>(i * bias.view().size[3] + j)];
  }
};

TEST(Regression, R001_R014_RowsWithEveryKeyMaskedAreExactZeros) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    each_level([&] {
      const Case c = with_dtype(
          {.name = "R001", .batch = 2, .q_tokens = 40, .kv_tokens = 70, .heads = 2, .kv_heads = 1}, dtype);
      for (Index closed = 0; closed < 40; closed += 3) {
        Tensor open(DType::u8, {40, 70});
        for (std::uint8_t& x : open.values<std::uint8_t>()) x = 1;
        std::memset(open.values<std::uint8_t>().data() + closed * 70, 0, 70);              // a row
        for (std::size_t i = 0; i < 40; ++i) open.values<std::uint8_t>()[i * 70 + 5] = 0;  // a column
        const Mask mask = Mask::dense(open.view());
        CaseRun r(c);
        r.args.mask = mask.set();
        poison(r.out), poison(r.lse);
        attention(r.args, online());
        for (Index b = 0; b < 2; ++b)
          for (Index h = 0; h < 2; ++h) expect_empty(r, b, h, closed);
        EXPECT_TRUE(matches_ref(r.args));
      }
    });
}

TEST(Regression, R002_RowsOfLargestNegativeNumbers) {
  Logits r({.name = "R002", .q_tokens = 6, .kv_tokens = 300, .heads = 2, .kv_heads = 1});
  for (Index j = 0; j < 300; ++j) {
    r.at(0, j) = -FLT_MAX, r.at(1, j) = -1e30f, r.at(2, j) = j % 2 ? -FLT_MAX : kMinusInf,
            r.at(3, j) = kMinusInf;
    r.at(4, j) = j == 299 ? 0 : -FLT_MAX, r.at(5, j) = j < 256 ? kMinusInf : -FLT_MAX;
  }
  expect_matches(r, "R002");
}

TEST(Regression, R005_LogitsBelowAnyFiniteStart) {
  for (const float low : {-5e4f, -65504.0f, -1e6f, -1e30f}) {
    Logits r({.name = "R005", .q_tokens = 3, .kv_tokens = 520, .heads = 1, .kv_heads = 1});
    for (Index i = 0; i < 3; ++i)
      for (Index j = 0; j < 520; ++j) r.at(i, j) = low - static_cast<float>(j % 3) * std::fabs(low) * 1e-6f;
    expect_matches(r, "R005");
    for (float x : r.out.values<float>()) EXPECT_TRUE(std::isfinite(x));
    EXPECT_NE(r.out.values<float>()[0], 0);
  }
}

TEST(Regression, R006_R007_EmptyTilesFirstMiddleLast) {
  const Index keys = 1100;
  for (int pattern = 0; pattern < 7; ++pattern) {
    Logits r({.name = "R006", .q_tokens = 4, .kv_tokens = keys, .heads = 1, .kv_heads = 1});
    for (Index i = 0; i < 4; ++i)
      for (Index j = 0; j < keys; ++j) {
        const Index tile = j / 256;
        const bool open = pattern < 5    ? tile >= pattern
                          : pattern == 5 ? tile == 0 || tile == 4
                                         : j == 256 * i + 7;  // last: one key a row
        r.at(i, j) = open ? static_cast<float>(j % 5) : kMinusInf;
      }
    expect_matches(r, "R006 by bias");
    Tensor blocked(DType::u8, {4, keys});
    for (std::size_t n = 0; n < blocked.values<std::uint8_t>().size(); ++n)
      blocked.values<std::uint8_t>()[n] = r.bias.values<float>()[n] == kMinusInf;
    const Mask first = Mask::from_blocked(blocked.view());
    r.args.mask = first.set();
    expect_matches(r, "R006 by mask");
  }
}

TEST(Regression, R008_EverySplitEmptyOrExactlyOneNot) {
  for (int open = -1; open < 3; ++open) {
    Logits r({.name = "R008", .q_tokens = 3, .kv_tokens = 4200, .heads = 1, .kv_heads = 1});
    for (Index i = 0; i < 3; ++i)
      for (Index j = 0; j < 4200; ++j) r.at(i, j) = j / 2048 == open && i != 1 ? 1.0f : kMinusInf;
    expect_matches(r, "R008");
  }
}

TEST(Regression, R009_ZeroQueriesGiveTheMeanAtEveryLength) {
  each_level([] {
    for (Index keys = 1; keys <= 530;
         keys += keys < 70 || (keys > 250 && keys < 262) || keys > 508 ? 1 : 13) {
      CaseRun r({.name = "R009",
                 .q_tokens = 2,
                 .kv_tokens = keys,
                 .heads = 1,
                 .kv_heads = 1,
                 .head_dim = 4,
                 .value_dim = 3});
      fill(r.q.view(), 0);
      attention(r.args, online());
      for (std::size_t d = 0; d < 3; ++d) {
        double mean = 0;
        for (Index j = 0; j < keys; ++j)
          mean += static_cast<double>(r.v.values<float>()[static_cast<std::size_t>(j * 3) + d]) /
                  static_cast<double>(keys);
        EXPECT_NEAR(r.out.values<float>()[d], mean, 1e-6) << keys;
      }
      EXPECT_NEAR(r.lse.values<float>()[0], std::log(static_cast<double>(keys)), 1e-6) << keys;
    }
  });
}

TEST(Regression, R012_RaggedCausalWithFarMoreQueriesThanKeys) {
  CaseRun r({.name = "R012", .q_tokens = 256, .kv_tokens = 3, .heads = 2, .kv_heads = 1});
  Tensor q = tensor_of(std::vector<Index>{0, 76, 110, 256}), kv = tensor_of(std::vector<Index>{0, 1, 2, 3});
  const MaskView causal = MaskView::causal();
  r.args.mask = {&causal, 1}, r.args.q_offsets = q.view(), r.args.kv_offsets = kv.view();
  expect_matches(r, "top left");
  Tensor end = tensor_of(std::vector<Index>{kStartEnd});
  r.args.q_start = end.view();
  expect_matches(r, "bottom right");
}

TEST(Regression, R015_R017_MasksWithNothingOpenEnd) {
  for (const char* text : {"prefix(0)", "lengths(0)", "documents(5000, 6000)", "window(3, 0) & prefix(0)"}) {
    CaseRun r({.name = "R015",
               .q_tokens = 300,
               .kv_tokens = 2500,
               .heads = 1,
               .kv_heads = 1,
               .head_dim = 4,
               .value_dim = 4});
    const Mask mask = parse_mask(text);
    r.args.mask = mask.set();
    each_level([&] {
      poison(r.out), poison(r.lse);
      attention(r.args, online());
      for (Index i = 0; i < 300; ++i) expect_empty(r, 0, 0, i);
    });
  }
}

TEST(Regression, R016_R041_WindowsAndLengthsAroundTileEdges) {
  for (const Index window : {1, 63, 64, 65, 255, 256, 257})
    for (const Index tokens : {63, 64, 65, 255, 256, 257, 320, 511, 512, 513}) {
      CaseRun r({.name = "R016",
                 .q_tokens = tokens,
                 .kv_tokens = tokens,
                 .heads = 1,
                 .kv_heads = 1,
                 .head_dim = 3,
                 .value_dim = 2});
      const Mask mask = Mask::causal() & Mask::sliding(window);
      r.args.mask = mask.set();
      expect_matches(r, "R016");
    }
}

TEST(Regression, R018_OddWidthsOfDenseMasks) {
  for (const Index keys : {1, 2, 63, 64, 65, 127, 129, 191, 255, 257, 319}) {
    CaseRun r({.name = "R018",
               .q_tokens = 35,
               .kv_tokens = keys,
               .heads = 2,
               .kv_heads = 2,
               .head_dim = 4,
               .value_dim = 4});
    Tensor open(DType::u8, {35, keys});
    const std::vector<Index> bits = random_integers(35 * keys, 0, 1, 9);
    for (std::size_t n = 0; n < bits.size(); ++n)
      open.values<std::uint8_t>()[n] = static_cast<std::uint8_t>(bits[n]);
    const Mask mask = Mask::dense(open.view());
    r.args.mask = mask.set();
    expect_matches(r, "R018");
  }
}

/// True means "may attend": changing a token that a row may not attend leaves the row, changing one that it
/// may does not.
TEST(Regression, R022_PolarityByPerturbation) {
  each_level([] {
    const Case c{.name = "R022", .q_tokens = 12, .kv_tokens = 12, .heads = 1, .kv_heads = 1};
    Tensor lower(DType::u8, {12, 12}), upper(DType::u8, {12, 12});
    for (std::size_t n = 0; n < 144; ++n)
      lower.values<std::uint8_t>()[n] = n % 12 <= n / 12, upper.values<std::uint8_t>()[n] = n % 12 > n / 12;
    for (const Mask& mask : {Mask::dense(lower.view()), Mask::from_blocked(upper.view())}) {
      CaseRun r(c), other(c);
      r.args.mask = other.args.mask = mask.set();
      fill(tokens_of(other.v.view(), 8, 1), 9);
      attention(r.args, online());
      attention(other.args, online());
      for (std::size_t i = 0; i < 12; ++i)
        EXPECT_EQ(r.out.values<float>()[i * 8] != other.out.values<float>()[i * 8], i >= 8) << i;
    }
  });
}

TEST(Regression, R023_TheBiasIsNotScaled) {
  Logits r({.name = "R023", .q_tokens = 4, .kv_tokens = 40, .heads = 1, .kv_heads = 1});
  Tensor scale = filled(1, 0.125);
  r.args.inputs.scale = scale.view();
  for (Index i = 0; i < 4; ++i)
    for (Index j = 0; j < 40; ++j) r.at(i, j) = j == 3 ? 8.0f : 0.0f;
  expect_matches(r, "R023");
  EXPECT_NEAR(r.lse.values<float>()[0], std::log(std::exp(8.0) + 39), 1e-5);
}

/// Left padding is a negative position of the first query: each sequence starts where its padding ends.
TEST(Regression, R024_LeftPaddingInChunks) {
  for (const Index chunk : {1, 4, 7, 24}) {
    for (Index begin = 0; begin < 24; begin += chunk) {
      CaseRun r({.name = "R024",
                 .batch = 3,
                 .q_tokens = min_of(chunk, 24 - begin),
                 .kv_tokens = 24,
                 .heads = 2,
                 .kv_heads = 1});
      Tensor at = tensor_of(std::vector<Index>{begin, begin - 3, begin - 20});
      const MaskView causal = MaskView::causal();
      r.args.mask = {&causal, 1}, r.args.q_start = at.view();
      expect_matches(r, "R024");
    }
  }
}

TEST(Regression, R025_AWindowAloneIsNotIgnored) {
  each_level([] {
    CaseRun r({.name = "R025", .q_tokens = 50, .kv_tokens = 50, .heads = 1, .kv_heads = 1}),
        all = CaseRun({.name = "R025", .q_tokens = 50, .kv_tokens = 50, .heads = 1, .kv_heads = 1});
    const Mask mask = Mask::window(4, 2);
    r.args.mask = mask.set();
    attention(r.args, online());
    attention(all.args, online());
    EXPECT_FALSE(same_bits(r.out, all.out));
    EXPECT_TRUE(matches_ref(r.args));
  });
}

/// One plan, two windows in turn: the mask belongs to the run.
TEST(Regression, R026_EachRunBringsItsOwnWindow) {
  each_level([] {
    CaseRun r({.name = "R026", .q_tokens = 60, .kv_tokens = 60, .heads = 2, .kv_heads = 1});
    const Mask narrow = Mask::sliding(4), wide = Mask::sliding(32);
    r.args.mask = narrow.set();
    const AttentionPlan plan(problem_of(r.args), online());
    for (const Mask* mask : {&narrow, &wide, &narrow}) {
      r.args.mask = mask->set();
      plan.run(r.args, online());
      EXPECT_TRUE(matches_ref(r.args));
    }
  });
}

TEST(Regression, R027_PrefixSpanClippedByAWindowAtAbsolutePositions) {
  for (const Index start : {0, 5, 40, 300}) {
    CaseRun r({.name = "R027", .q_tokens = 30, .kv_tokens = 340, .heads = 2, .kv_heads = 2});
    const Mask mask = (Mask::causal() | Mask::prefix(48)) & Mask::window(20, 20);
    Tensor at = tensor_of(std::vector<Index>{start});
    r.args.mask = mask.set(), r.args.q_start = at.view();
    expect_matches(r, "R027");
  }
}

TEST(Regression, R028_TopLeftAndBottomRight) {
  each_level([] {
    for (const Index q : {5, 9})
      for (const bool end : {false, true}) {
        const Index kv = 14 - q;
        CaseRun r({.name = "R028", .q_tokens = q, .kv_tokens = kv, .heads = 1, .kv_heads = 1}),
            by_hand({.name = "R028", .q_tokens = q, .kv_tokens = kv, .heads = 1, .kv_heads = 1});
        Tensor open(DType::u8, {q, kv});
        for (Index i = 0; i < q; ++i)
          for (Index j = 0; j < kv; ++j)
            open.values<std::uint8_t>()[static_cast<std::size_t>(i * kv + j)] = j <= i + (end ? kv - q : 0);
        const Mask explicit_mask = Mask::dense(open.view());
        const MaskView causal = MaskView::causal();
        Tensor start = tensor_of(std::vector<Index>{end ? kStartEnd : 0});
        r.args.mask = {&causal, 1}, r.args.q_start = start.view(), by_hand.args.mask = explicit_mask.set();
        attention(r.args, online());
        attention(by_hand.args, online());
        EXPECT_TRUE(same_bits(r.out, by_hand.out)) << q << " " << end;
      }
  });
}

TEST(Regression, R029_R030_FourSpellingsOfCausalAndTheWidthOfAWindow) {
  each_level([] {
    const Index n = 70;
    const Case c{.name = "R030", .q_tokens = n, .kv_tokens = n, .heads = 1, .kv_heads = 1};
    CaseRun first(c);
    const Mask causal = Mask::causal();
    first.args.mask = causal.set();
    attention(first.args, online());
    for (const Mask& mask : {Mask::window(n - 1, 0), Mask::sliding(n), Mask::causal() & Mask::window(n, n),
                             Mask::window(5000, 0)}) {
      CaseRun r(c);
      r.args.mask = mask.set();
      attention(r.args, online());
      EXPECT_TRUE(same_bits(first.out, r.out));
    }
    for (const Index width : {1, 2, 7}) {  // q = 0: lse is ln of the visible keys
      CaseRun r(c);
      fill(r.q.view(), 0);
      const Mask mask = Mask::sliding(width);
      r.args.mask = mask.set();
      attention(r.args, online());
      for (Index i = 0; i < n; ++i)
        EXPECT_NEAR(r.lse.values<float>()[static_cast<std::size_t>(i)],
                    std::log(static_cast<double>(std::min(width, i + 1))), 1e-6);
    }
  });
}

TEST(Regression, R032_R035_R036_ChunksOfAWindowedPrefill) {
  each_level([] {
    const Index n = 300, width = 24;
    const Case c{.name = "R032",
                 .q_tokens = n,
                 .kv_tokens = n,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 8,
                 .value_dim = 8};
    CaseRun whole(c);
    const Mask mask = Mask::sliding(width);
    whole.args.mask = mask.set();
    attention(whole.args, online());
    for (Index chunk = 1; chunk <= 2 * width; chunk += chunk < 6 ? 1 : 7)
      for (Index begin = 0; begin < n; begin += chunk) {
        const Index rows = min_of(chunk, n - begin);
        AttentionArgs a = whole.args;
        Tensor start = tensor_of(std::vector<Index>{begin});
        Tensor out(DType::f32, {1, rows, 2, 8});
        // Keys later than the chunk exist in memory and hold NaN: nothing may read them.
        Tensor k = whole.k.clone(), v = whole.v.clone();
        fill(tokens_of(k.view(), begin + rows, n - begin - rows), kNan),
            fill(tokens_of(v.view(), begin + rows, n - begin - rows), kNan);
        a.q = tokens_of(a.q, begin, rows), a.k = k.view(), a.v = v.view(), a.q_start = start.view(),
        a.out = out.view(), a.lse = {};
        attention(a, online());
        ASSERT_EQ(std::memcmp(out.view().data, whole.out.values<float>().data() + begin * 16,
                              static_cast<std::size_t>(rows * 16 * 4)),
                  0)
            << "chunk " << chunk << " at " << begin;
      }
  });
}

TEST(Regression, R037_R118_NoKeysWithQueriesAndTheirMerge) {
  each_level([] {
    CaseRun r({.name = "R037", .batch = 2, .q_tokens = 5, .kv_tokens = 0, .heads = 2, .kv_heads = 1});
    poison(r.out), poison(r.lse);
    attention(r.args, online());
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 2; ++h)
        for (Index i = 0; i < 5; ++i) expect_empty(r, b, h, i);
  });
}

TEST(Regression, R040_SeveralQueriesADecodeStep) {
  each_level([] {
    for (Index rows = 1; rows <= 16; ++rows) {
      CaseRun r({.name = "R040",
                 .batch = 4,
                 .q_tokens = rows,
                 .kv_tokens = 290,
                 .heads = 4,
                 .kv_heads = 1,
                 .head_dim = 16,
                 .value_dim = 8});
      const MaskView causal = MaskView::causal();
      Tensor starts = tensor_of(std::vector<Index>{250, 5, kStartEnd, 274});
      r.args.mask = {&causal, 1}, r.args.q_start = starts.view();
      attention(r.args, online(3));
      ASSERT_TRUE(matches_ref(r.args)) << rows;
    }
  });
}

}  // namespace
}  // namespace headwise::test
