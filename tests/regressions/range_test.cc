// Regressions R069 to R107 that concern the CPU forward: integer width, range, precision, sinks, dropout.
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cfloat>

#include "headwise/base/random.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

/// Address space without memory behind it: pages appear where they are touched.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Sparse() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

constexpr Index kPast31 = (Index{1} << 31) + 1, kPast32 = (Index{1} << 32) + 1;

/// The same numbers with one axis stepping past 2^31 or 2^32 elements.
TEST(Regression, R069_R076_OffsetsPast32Bits) {
  each_level([] {
    for (const Index far : {kPast31, kPast32})
      for (int axis = 0; axis < 3; ++axis) {
        const Case c = with_dtype({.name = "R069",
                                   .batch = 2,
                                   .q_tokens = 2,
                                   .kv_tokens = 2,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .value_dim = 8},
                                  DType::bf16);
        CaseRun plain(c);
        attention(plain.args, online());
        const Sparse memory(static_cast<std::size_t>(far + 64) * 2 * 4);
        ASSERT_TRUE(memory.ok());
        AttentionArgs a = plain.args;
        AnyView* views[] = {&a.q, &a.k, &a.v, &a.out};
        for (int n = 0; n < 4; ++n) {
          const AnyView from = *views[n];
          views[n]->data = static_cast<std::byte*>(memory.data()) + n * (far + 64) * 2;
          views[n]->step[axis] = far;
          for (Index e = 0; e < from.count(); ++e) {
            Index to = 0, rest = e;
            for (int i = 3; i >= 0; --i) to += rest % from.size[i] * views[n]->step[i], rest /= from.size[i];
            store_double(views[n]->data, DType::bf16, to, load_double(from.data, DType::bf16, e));
          }
        }
        attention(a, online());
        EXPECT_TRUE(same_bits(converted(a.out, DType::bf16), plain.out)) << far << " axis " << axis;
      }
  });
}

/// A dense mask of more than 2^31 bits, and a bias of more than 2^32 elements.
TEST(Regression, R073_R074_MaskBitsAndBiasPast32Bits) {
  const Index row_words = (Index{1} << 25) + 1;  // 2^31 + 64 bits a row
  const Sparse memory(static_cast<std::size_t>(row_words) * 8 * 3);
  ASSERT_TRUE(memory.ok());
  auto* bits = static_cast<std::uint64_t*>(memory.data());
  MaskStep step{.op = MaskOp::dense};
  step.bits = bits;
  step.size[0] = step.size[1] = 1, step.size[2] = 3, step.size[3] = 64 * row_words;
  step.words[2] = row_words;
  const MaskView mask = MaskView::one(step);
  const Index far = 64 * row_words - 5;
  bits[2 * row_words + far / 64] |= std::uint64_t{1} << (far % 64);
  EXPECT_TRUE(mask.may_attend(2, far));
  EXPECT_FALSE(mask.may_attend(1, far));
  EXPECT_FALSE(mask.may_attend(2, far - 1));
  EXPECT_FALSE(mask.may_attend(2, far - (Index{1} << 31)));
  EXPECT_EQ(mask.tile(2, 3, far - 10, far + 5), TileKind::mixed);
  std::uint64_t open = 0;
  mask.row_bits(2, far - 7, 1, &open);
  EXPECT_EQ(open & 0xfff, std::uint64_t{1} << 7);

  CaseRun r({.name = "R073", .q_tokens = 2, .kv_tokens = 3, .heads = 1, .kv_heads = 1});
  const Sparse far_bias(static_cast<std::size_t>(kPast32 + 64) * 4);
  ASSERT_TRUE(far_bias.ok());
  Tensor near_bias(DType::f32, {1, 1, 2, 3});
  for (Index n = 0; n < 6; ++n)
    near_bias.values<float>()[static_cast<std::size_t>(n)] = static_cast<float>(n);
  for (Index n = 0; n < 6; ++n)
    static_cast<float*>(far_bias.data())[n / 3 * kPast32 + n % 3] = static_cast<float>(n);
  each_level([&] {
    r.args.inputs.bias = near_bias.view();
    attention(r.args, online());
    Tensor out = r.out.clone();
    r.args.inputs.bias.data = far_bias.data(), r.args.inputs.bias.step[2] = kPast32;
    attention(r.args, online());
    EXPECT_TRUE(same_bits(out, r.out));
  });
}

static_assert(ceil_div(std::numeric_limits<Index>::max(), 2) == Index{1} << 62);
static_assert(!(Checked(Index{1} << 32) * Checked(Index{1} << 31)).ok &&
              (Checked(Index{1} << 31) * Checked(Index{1} << 31)).ok);
static_assert(MaskView::causal().tile(kPast32, kPast32 + 8, kPast32 + 8, kPast32 + 16) == TileKind::empty);
static_assert(MaskView::window(3, 0).may_attend(kPast32, kPast32 - 3) &&
              !MaskView::window(3, 0).may_attend(kPast32, kPast32 - 4));
static_assert(DropoutRule::counter(0, 0, 0, kPast31)[0] == static_cast<std::uint32_t>(kPast31 >> 2));

TEST(Regression, R075_KeysPast32767And65535) {
  each_level([] {
    for (const Index keys : {32769, 65537}) {
      CaseRun r({.name = "R075",
                 .q_tokens = 2,
                 .kv_tokens = keys,
                 .heads = 1,
                 .kv_heads = 1,
                 .head_dim = 2,
                 .value_dim = 2});
      const MaskView causal = MaskView::window(70000, 0);
      Tensor end = tensor_of(std::vector<Index>{kStartEnd});
      r.args.mask = {&causal, 1}, r.args.q_start = end.view();
      attention(r.args, online());
      ASSERT_TRUE(matches_ref(r.args)) << keys;
    }
  });
}

TEST(Regression, R077_MoreSequencesThanSixteenBits) {
  for (const Index batch : {65535, 65536, 200000}) {
    if (kSanitized && batch != 65536) continue;
    CaseRun r({.name = "R077", .batch = batch, .head_dim = 1, .value_dim = 1});
    attention(r.args, online());
    for (std::size_t n = 0; n < static_cast<std::size_t>(batch); ++n)
      ASSERT_EQ(r.out.values<float>()[n], r.v.values<float>()[n]) << n;
  }
}

/// Planning any shape, empty and huge ones included, ends in a plan or in a sentence.
TEST(Regression, R079_R080_PlansForAnyShape) {
  int asked = 0, planned = 0, refused = 0;
  for (std::uint64_t n = 0; n < 20000; ++n) {
    const auto size = [&](std::uint32_t i) -> Index {
      const auto word = Philox::block(n, {i, 1, 2, 3});
      return static_cast<Index>(word[0]) >> (word[1] % 33) << (word[2] % 8 == 0 ? word[3] % 31 : 0);
    };
    AttentionProblem p;
    p.dtype = DType::f32;
    p.batch = size(0), p.q_tokens = size(1), p.kv_tokens = size(2);
    const Index kv_heads = size(3), group = size(4);
    if (!(Checked(kv_heads) * Checked(group)).ok) continue;
    ++asked;
    p.heads.q = HeadLayout::split(kv_heads * group, size(5));
    p.heads.k = HeadLayout::grouped(kv_heads * group, kv_heads, p.heads.q.dim),
    p.heads.v = HeadLayout::grouped(kv_heads * group, kv_heads, size(6));
    p.probe = {.rows = n % 3 == 0, .top_k = size(7), .classes = size(8), .columns = n % 5 == 0};
    try {
      const AttentionPlan plan(p, 1 + static_cast<int>(n % 16), "cpu/online,ref");
      planned += plan.workspace_bytes() < (std::size_t{1} << 63);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_EQ(planned + refused, asked);
  EXPECT_GT(planned, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Regression, R081_ValuesAtTheEdgeOfHalfPrecision) {
  CaseRun r(with_dtype({.name = "R081",
                        .q_tokens = 2,
                        .kv_tokens = 8192,
                        .heads = 1,
                        .kv_heads = 1,
                        .head_dim = 8,
                        .value_dim = 4},
                       DType::f16));
  for (Index n = 0; n < r.v.view().count(); ++n)
    store_double(r.v.view().data, DType::f16, n, n % 3 ? 6e4 : 5.9e4);
  expect_matches(r, "R081");
  for (Index n = 0; n < 8; ++n) EXPECT_GT(load_double(r.out.view().data, DType::f16, n), 5.8e4);
}

TEST(Regression, R082_ScoresPastTheRangeOfHalfPrecision) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    CaseRun r(with_dtype({.name = "R082",
                          .q_tokens = 4,
                          .kv_tokens = 300,
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 16,
                          .value_dim = 8},
                         dtype));
    for (Tensor* t : {&r.q, &r.k})
      for (Index n = 0; n < t->view().count(); ++n)
        store_double(t->view().data, dtype, n, 200 * load_double(t->view().data, dtype, n));
    expect_matches(r, "R082");
  }
}

TEST(Regression, R083_BiasOfTenThousand) {
  for (const double size : {1e4, -1e4}) {
    CaseRun r({.name = "R083", .q_tokens = 5, .kv_tokens = 300, .heads = 2, .kv_heads = 1});
    Tensor bias(DType::f32, {1, 1, 5, 300});
    for (std::size_t n = 0; n < 1500; ++n) bias.values<float>()[n] = static_cast<float>(n % 4 ? size : -size);
    r.args.inputs.bias = bias.view();
    expect_matches(r, "R083");
  }
}

TEST(Regression, R084_JumpsOfTheMaximumBetweenTiles) {
  for (const float jump : {50.0f, 87.0f, 88.5f, 100.0f, 103.9f, 126.0f, 200.0f, 1000.0f, 1e6f}) {
    CaseRun r({.name = "R084", .q_tokens = 4, .kv_tokens = 1100, .heads = 1, .kv_heads = 1});
    Tensor bias(DType::f32, {1, 1, 4, 1100});
    for (Index i = 0; i < 4; ++i)
      for (Index j = 0; j < 1100; ++j)  // up, down, up and down, up in the last tile alone
        bias.values<float>()[static_cast<std::size_t>(i * 1100 + j)] =
            i == 0   ? jump * static_cast<float>(j / 256)
            : i == 1 ? -jump * static_cast<float>(j / 256)
            : i == 2 ? jump * static_cast<float>(j / 256 % 2)
                     : jump * static_cast<float>(j / 1024);
    r.args.inputs.bias = bias.view();
    expect_matches(r, "R084");
  }
}

/// Numbers below the normal range are kept, in and out: f32 and f16 (bf16 matrix instructions flush them by
/// class).
TEST(Regression, R089_SubnormalsAreKept) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::f16}) {
      CaseRun r(with_dtype(
          {.name = "R089", .q_tokens = 3, .kv_tokens = 5, .heads = 1, .kv_heads = 1, .value_dim = 4}, dtype));
      fill(r.q.view(), 0);
      const double tiny = dtype == DType::f32 ? 0x1p-140 : 0x1p-20;
      fill(r.v.view(), tiny);
      attention(r.args, online());
      for (Index n = 0; n < 12; ++n) EXPECT_EQ(load_double(r.out.view().data, dtype, n), tiny) << dtype;
      fill(r.v.view(), -0.0);
      attention(r.args, online());
      for (Index n = 0; n < 12; ++n) EXPECT_EQ(load_double(r.out.view().data, dtype, n), 0) << dtype;
    }
  });
}

TEST(Regression, R092_SinksCountOnceWhateverTheSplits) {
  for (const double sink : {-10.0, 0.0, 10.0})
    for (const Index keys : {0, 1, 300, 2048, 2049, 4200})
      for (const bool empty_range : {false, true}) {
        CaseRun r({.name = "R092",
                   .q_tokens = 3,
                   .kv_tokens = keys,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 4,
                   .value_dim = 3});
        fill(r.q.view(), 0);
        Tensor sinks = filled(2, sink);
        r.args.inputs.sinks = sinks.view();
        const Mask late = Mask::documents(std::vector<Index>{0, 2100, 5000});
        Tensor start = tensor_of(std::vector<Index>{2200});
        if (empty_range) r.args.mask = late.set(), r.args.q_start = start.view();
        expect_matches(r, "R092");
        const double open = static_cast<double>(empty_range ? std::max<Index>(0, keys - 2100) : keys);
        EXPECT_NEAR(r.lse.values<float>()[0], std::log(std::exp(sink) + open), 1e-5);
      }
}

TEST(Regression, R093_SinksOfOddGroups) {
  for (const Index heads : {1, 3, 5, 7, 9, 13}) {
    CaseRun r({.name = "R093", .q_tokens = 11, .kv_tokens = 40, .heads = heads, .kv_heads = 1});
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      Tensor sinks =
          random_normal({heads}, dtype, 4);  // memory ends with the last head: the sanitizer sees a step past
      r.args.inputs.sinks = sinks.view();
      expect_matches(r, "R093");
    }
  }
}

/// Which weights are dropped is a rule of seed, sequence, head and positions; v = one-hot shows each weight.
TEST(Regression, R107_DropoutFollowsItsRule) {
  each_level([] {
    const Index q = 20, kv = 300, heads = 3;
    CaseRun r({.name = "R107",
               .batch = 2,
               .q_tokens = q,
               .kv_tokens = kv,
               .heads = heads,
               .kv_heads = 1,
               .head_dim = 4,
               .value_dim = kv});
    fill(r.v.view(), 0), fill(r.q.view(), 0);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t j = 0; j < 300; ++j) r.v.values<float>()[(b * 300 + j) * 300 + j] = 1;
    Tensor start = tensor_of(std::vector<Index>{7}), ids = tensor_of(std::vector<Index>{3, 1 << 20});
    r.args.q_start = start.view(), r.args.inputs.sequence_ids = ids.view();
    r.args.inputs.dropout = 0.3, r.args.inputs.seed = 0x123456789abcdefull;
    attention(r.args, online());
    const DropoutRule rule = DropoutRule::of(0.3, 0x123456789abcdefull);
    Index kept = 0;
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < q; ++i)
        for (Index h = 0; h < heads; ++h)
          for (Index j = 0; j < kv; ++j) {
            const bool keep = rule.keep(b ? 1 << 20 : 3, h, 7 + i, j);
            kept += keep;
            ASSERT_NEAR(r.out.values<float>()[static_cast<std::size_t>(((b * q + i) * heads + h) * kv + j)],
                        keep ? 1.0 / 300 / 0.7 : 0, 1e-8);
          }
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(2 * q * heads * kv), 0.7, 0.01);
    Tensor first = r.out.clone();
    r.args.inputs.seed = 1;
    attention(r.args, online());
    EXPECT_FALSE(same_bits(first, r.out));
  });
}

}  // namespace
}  // namespace headwise::test
