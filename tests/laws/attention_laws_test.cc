// Laws of attention that need no oracle, on cpu/online at every ISA level of this CPU.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr DType kHalves[] = {DType::f32, DType::bf16, DType::f16};

/// Copies `count` vectors along axis 2 so that head h of the result is head from[h] of x.
Tensor with_heads(const Tensor& x, const std::vector<Index>& from) {
  const InputView& v = x.view();
  Tensor t(v.dtype, {v.size[0], v.size[1], static_cast<Index>(from.size()), v.size[3]});
  for (Index b = 0; b < v.size[0]; ++b)
    for (Index i = 0; i < v.size[1]; ++i)
      for (std::size_t h = 0; h < from.size(); ++h)
        for (Index c = 0; c < v.size[3]; ++c)
          store_double(
              t.view().data, v.dtype,
              ((b * v.size[1] + i) * static_cast<Index>(from.size()) + static_cast<Index>(h)) * v.size[3] + c,
              load_double(v.data, v.dtype, ((b * v.size[1] + i) * v.size[2] + from[h]) * v.size[3] + c));
  return t;
}

const Case kSmall{.name = "law",
                  .batch = 2,
                  .q_tokens = 37,
                  .kv_tokens = 301,
                  .heads = 4,
                  .kv_heads = 4,
                  .head_dim = 20,
                  .value_dim = 24};

TEST(Laws, PermutedHeadsPermuteTheOutput) {
  each_level([] {
    for (const DType dtype : kHalves) {
      CaseRun r(with_dtype(kSmall, dtype)), p(with_dtype(kSmall, dtype));
      const std::vector<Index> order = {2, 0, 3, 1};
      p.q = with_heads(r.q, order), p.k = with_heads(r.k, order), p.v = with_heads(r.v, order);
      p.point();
      attention(r.args, online());
      attention(p.args, online());
      EXPECT_TRUE(same_bits(p.out, with_heads(r.out, order))) << dtype;
    }
  });
}

TEST(Laws, GroupedHeadsAreRepeatedHeads) {
  each_level([] {
    for (const Index kv_heads : {1, 2, 7, 14}) {
      Case c = kSmall;
      c.heads = 14, c.kv_heads = kv_heads;
      CaseRun grouped(c);
      c.kv_heads = 14;
      CaseRun repeated(c);
      std::vector<Index> from;
      for (Index h = 0; h < 14; ++h) from.push_back(h / (14 / kv_heads));
      repeated.k = with_heads(grouped.k, from), repeated.v = with_heads(grouped.v, from);
      repeated.point();
      const MaskView causal = MaskView::causal();
      grouped.args.mask = repeated.args.mask = {&causal, 1};
      attention(grouped.args, online());
      attention(repeated.args, online());
      EXPECT_TRUE(same_bits(grouped.out, repeated.out)) << kv_heads;
      EXPECT_TRUE(same_bits(grouped.lse, repeated.lse)) << kv_heads;
    }
  });
}

TEST(Laws, AConstantBiasShiftsOnlyTheLogSumExp) {
  each_level([] {
    for (const double shift : {3.0, -50.0, 1000.0}) {
      CaseRun r(kSmall), s(kSmall);
      Tensor bias = filled(1, shift);
      s.args.inputs.bias = AnyView::packed(bias.view().data, DType::f32, {1, 1, 1, 1});
      attention(r.args, online());
      attention(s.args, online());
      const Distance d = distance_of(s.out.view(), r.out.view());
      const double bound = hostile_bound({.out = DType::f32,
                                          .most_v = largest_of(r.v.view()),
                                          .most_logit = std::fabs(shift) + 4,
                                          .most_q = 3,
                                          .most_k = 3,
                                          .scale = 0.25,
                                          .dim = 20,
                                          .tiles = 2});
      EXPECT_LE(d.largest, bound) << shift;
      for (std::size_t n = 0; n < r.lse.values<float>().size(); ++n)
        EXPECT_NEAR(s.lse.values<float>()[n] - r.lse.values<float>()[n], shift,
                    4 * 0x1p-24 * (std::fabs(shift) + 10));
    }
  });
}

TEST(Laws, AppendedClosedKeysChangeNoBit) {
  each_level([] {
    for (const DType dtype : kHalves)
      for (const Index keys : {1, 31, 64, 255, 256, 257, 301}) {
        Case c = with_dtype(kSmall, dtype);
        c.kv_tokens = keys;
        CaseRun open(c);
        c.kv_tokens = keys + 290;
        CaseRun more(c);
        fill(more.k.view(), kNan), fill(more.v.view(), kInf);
        for (Index b = 0; b < c.batch; ++b) {
          const auto copy = [&](Tensor& to, const Tensor& from, Index width) {
            const auto bytes = static_cast<std::size_t>(c.kv_heads * width * size_of(dtype));
            std::memcpy(
                static_cast<std::byte*>(to.view().data) + static_cast<std::size_t>(b * c.kv_tokens) * bytes,
                static_cast<const std::byte*>(from.view().data) + static_cast<std::size_t>(b * keys) * bytes,
                static_cast<std::size_t>(keys) * bytes);
          };
          copy(more.k, open.k, c.head_dim), copy(more.v, open.v, c.value_dim);
        }
        more.q = open.q.clone();
        more.point();
        const MaskView prefix = MaskView::prefix(keys);
        const std::vector<Index> each(2, keys);
        const Mask lengths = Mask::lengths(each);
        attention(open.args, online());
        for (const MaskSet mask : {MaskSet{&prefix, 1}, lengths.set()}) {
          more.args.mask = mask;
          poison(more.out);
          attention(more.args, online());
          EXPECT_TRUE(same_bits(open.out, more.out)) << dtype << " " << keys;
          EXPECT_TRUE(same_bits(open.lse, more.lse)) << dtype << " " << keys;
        }
      }
  });
}

TEST(Laws, DuplicatedKeysWithHalfTheWeightEach) {
  each_level([] {
    CaseRun r(kSmall);
    Case c = kSmall;
    c.kv_tokens *= 2;
    CaseRun twice(c);
    for (Index n = 0; n < twice.k.view().count(); ++n) {
      const Index row = kSmall.kv_heads * kSmall.head_dim, token = n / row, b = token / c.kv_tokens,
                  j = token % c.kv_tokens / 2;
      twice.k.values<float>()[static_cast<std::size_t>(n)] =
          r.k.values<float>()[static_cast<std::size_t>((b * kSmall.kv_tokens + j) * row + n % row)];
    }
    for (Index n = 0; n < twice.v.view().count(); ++n) {
      const Index row = kSmall.kv_heads * kSmall.value_dim, token = n / row, b = token / c.kv_tokens,
                  j = token % c.kv_tokens / 2;
      twice.v.values<float>()[static_cast<std::size_t>(n)] =
          r.v.values<float>()[static_cast<std::size_t>((b * kSmall.kv_tokens + j) * row + n % row)];
    }
    Tensor half = filled(1, -std::log(2.0));
    twice.args.inputs.bias = AnyView::packed(half.view().data, DType::f32, {1, 1, 1, 1});
    attention(r.args, online());
    attention(twice.args, online());
    EXPECT_LE(distance_of(twice.out.view(), r.out.view()).relative, 2e-6);
    EXPECT_LE(distance_of(twice.lse.view(), r.lse.view()).largest, 2e-6);
  });
}

/// R087, R088: parts merge by weights exp(lse_part - lse), natural logarithm, whatever the scale.
TEST(Laws, R087_R088_SplitAnywhereAndMergeByLse) {
  each_level([] {
    const Case c{.name = "split",
                 .q_tokens = 9,
                 .kv_tokens = 300,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 16,
                 .value_dim = 12};
    CaseRun whole(c);
    Tensor scale = filled(1, 0.7);
    whole.args.inputs.scale = scale.view();
    attention(whole.args, online());
    for (const Index cut : {0, 1, 63, 64, 150, 256, 299, 300}) {
      Tensor out[2], lse[2];
      for (int part = 0; part < 2; ++part) {
        out[part] = Tensor(DType::f32, {1, 9, 2, 12}), lse[part] = Tensor(DType::f32, {1, 2, 9});
        AttentionArgs a = whole.args;
        const Index first = part ? cut : 0, count = part ? 300 - cut : cut;
        a.k = tokens_of(a.k, first, count), a.v = tokens_of(a.v, first, count);
        a.out = out[part].view(), a.lse = lse[part].view();
        attention(a, online());
      }
      for (Index i = 0; i < 9; ++i)
        for (Index h = 0; h < 2; ++h) {
          const auto row = static_cast<std::size_t>(h * 9 + i);
          const double x = static_cast<double>(lse[0].values<float>()[row]),
                       y = static_cast<double>(lse[1].values<float>()[row]);
          const double top = std::max(x, y), both = top + std::log(std::exp(x - top) + std::exp(y - top));
          EXPECT_NEAR(static_cast<double>(whole.lse.values<float>()[row]), both, 2e-6) << cut;
          for (Index d = 0; d < 12; ++d) {
            const auto at = static_cast<std::size_t>((i * 2 + h) * 12 + d);
            const double merged = std::exp(x - both) * static_cast<double>(out[0].values<float>()[at]) +
                                  std::exp(y - both) * static_cast<double>(out[1].values<float>()[at]);
            EXPECT_NEAR(static_cast<double>(whole.out.values<float>()[at]), merged,
                        3e-6 * std::max(1.0, std::abs(merged)))
                << cut;
          }
        }
    }
  });
}

TEST(Laws, ValuesOfOneGiveExactlyOne) {
  each_level([] {
    for (const DType dtype : kHalves)
      for (const Index keys : {1, 2, 33, 64, 257, 2300}) {
        Case c = with_dtype(kSmall, dtype);
        c.kv_tokens = keys, c.batch = 1;
        CaseRun r(c);
        fill(r.v.view(), 1);
        const Mask mask = Mask::causal() | Mask::strided(3, 2);
        for (const bool masked : {false, true}) {
          r.args.mask = masked ? mask.set() : MaskSet{};
          attention(r.args, online());
          for (Index n = 0; n < r.out.view().count(); ++n)
            ASSERT_EQ(load_double(r.out.view().data, dtype, n), 1.0)
                << dtype << " keys " << keys << " at " << n;
        }
      }
  });
}

TEST(Laws, ACausalPrefixNeverSeesTheRest) {
  each_level([] {
    for (const DType dtype : kHalves)
      for (const Index from : {1, 15, 64, 255, 256, 257}) {
        Case c = with_dtype(kSmall, dtype);
        c.q_tokens = c.kv_tokens = 270, c.batch = 1;
        CaseRun r(c), other(c);
        const MaskView causal = MaskView::causal();
        r.args.mask = other.args.mask = {&causal, 1};
        attention(r.args, online());
        for (Tensor* t : {&other.q, &other.k, &other.v}) {
          const AnyView v = tokens_of(t->view(), from, c.q_tokens - from);
          fill(v, t == &other.v ? kNan : -7);
        }
        attention(other.args, online());
        const auto bytes = static_cast<std::size_t>(from * c.heads * c.value_dim * size_of(dtype));
        EXPECT_EQ(std::memcmp(r.out.view().data, other.out.view().data, bytes), 0)
            << dtype << " from " << from;
        for (Index h = 0; h < c.heads; ++h)
          EXPECT_EQ(
              std::memcmp(r.lse.values<float>().data() + h * 270, other.lse.values<float>().data() + h * 270,
                          static_cast<std::size_t>(from) * 4),
              0);
      }
  });
}

TEST(Laws, OneHotValuesRecoverTheWeights) {
  each_level([] {
    const Case c{.name = "one hot",
                 .q_tokens = 40,
                 .kv_tokens = 65,
                 .heads = 3,
                 .kv_heads = 1,
                 .head_dim = 16,
                 .value_dim = 65};
    CaseRun r(c);
    fill(r.v.view(), 0);
    for (std::size_t j = 0; j < 65; ++j) r.v.values<float>()[j * 65 + j] = 1;
    const Mask mask = Mask::window(30, 4);
    r.args.mask = mask.set();
    attention(r.args, online());
    const DenseTruth truth = dense_truth(r.args, {}, ScoreStage::weights);
    for (std::size_t i = 0; i < 40; ++i)
      for (std::size_t h = 0; h < 3; ++h)
        for (std::size_t j = 0; j < 65; ++j) {
          const double w = truth.logits.values<double>()[(h * 40 + i) * 65 + j];
          const double got = static_cast<double>(r.out.values<float>()[(i * 3 + h) * 65 + j]);
          EXPECT_NEAR(got, w, 2e-6 * w);
          EXPECT_EQ(w == 0, got == 0);
        }
  });
}

TEST(Laws, PermutedKeysGiveTheSameOutput) {
  each_level([] {
    Case c = kSmall;
    c.batch = 1;
    CaseRun r(c), p(c);
    for (Index j = 0; j < c.kv_tokens; ++j) {
      const Index source = (j * 11 + 3) % c.kv_tokens;  // 11 and 301 share no factor
      std::memcpy(p.k.values<float>().data() + j * 80, r.k.values<float>().data() + source * 80, 80 * 4);
      std::memcpy(p.v.values<float>().data() + j * 96, r.v.values<float>().data() + source * 96, 96 * 4);
    }
    attention(r.args, online());
    attention(p.args, online());
    EXPECT_LE(distance_of(p.out.view(), r.out.view()).relative, 1e-6);
  });
}

TEST(Laws, SequencesJoinedToABatchKeepTheirBits) {
  each_level([] {
    for (const DType dtype : kHalves) {
      Case c = with_dtype(kSmall, dtype);
      c.batch = 5;
      CaseRun all(c);
      attention(all.args, online(3));
      for (Index b = 0; b < 5; ++b) {
        AttentionArgs one = all.args;
        c.batch = 1;
        CaseRun alone(c);
        one.q = batch_of(one.q, b, 1), one.k = batch_of(one.k, b, 1), one.v = batch_of(one.v, b, 1);
        one.out = alone.out.view(), one.lse = alone.lse.view();
        attention(one, online(1));
        const AnyView part = batch_of(all.out.view(), b, 1), lse = batch_of(all.lse.view(), b, 1);
        EXPECT_TRUE(same_bits(part, alone.out.view())) << dtype << " " << b;
        EXPECT_TRUE(same_bits(lse, alone.lse.view())) << dtype << " " << b;
      }
    }
  });
}

}  // namespace
}  // namespace headwise::test
