#include "headwise/ops/norm/norm.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/row/norm.h"
#include "headwise/kernels/ref/norm.h"
#include "tests/ops/row_op_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Tensor rms(const InputView& x, const InputView& weight = {}, const RmsNormOptions& options = {},
           int threads = 2) {
  Context ctx({.threads = threads});
  Tensor out = tensor_like(x);
  rms_norm(x, weight, out.view(), options, ctx);
  return out;
}
Tensor l2(const InputView& x, const InputView& scale = {}, const L2NormOptions& options = {},
          int threads = 2) {
  Context ctx({.threads = threads});
  Tensor out = tensor_like(x);
  l2_norm(x, scale, out.view(), options, ctx);
  return out;
}
template <class T = float>
Tensor row(std::initializer_list<double> values) {
  Tensor t(dtype_of<T>, {static_cast<Index>(values.size())});
  Index i = 0;
  for (double v : values) store_double(t.view().data, dtype_of<T>, i++, v);
  return t;
}

TEST(Norm, ValuesByHand) {
  // mean(3^2, 4^2) = 12.5; the length is 5.
  Tensor x = row<double>({3, 4}), weight = row({2, -0.5});
  Tensor r = rms(x.view(), {}, {.eps = 0}), n = l2(x.view());
  EXPECT_NEAR(value(r.view(), 0), 0.84852813742385702928, 2e-16);
  EXPECT_NEAR(value(r.view(), 1), 1.13137084989847603904, 4e-16);
  EXPECT_NEAR(value(n.view(), 0), 0.6, 2e-16);
  EXPECT_NEAR(value(n.view(), 1), 0.8, 2e-16);
  Tensor weighed = rms(x.view(), weight.view(), {.eps = 3.5});  // 12.5 + 3.5 = 16
  EXPECT_EQ(value(weighed.view(), 0), 1.5);
  EXPECT_EQ(value(weighed.view(), 1), -0.5);
  Tensor one_plus = rms(x.view(), weight.view(), {.eps = 3.5, .weight_form = WeightForm::one_plus});
  EXPECT_EQ(value(one_plus.view(), 0), 2.25);
  EXPECT_EQ(value(one_plus.view(), 1), 0.5);
  EXPECT_EQ(value(l2(x.view(), {}, {.eps = 8}).view(), 1),
            0.5);  // eps is a floor of the length, not added to it
  EXPECT_NEAR(value(l2(x.view(), row({10}).view()).view(), 1), 8, 2e-15);
  EXPECT_EQ(RmsNormOptions{}.eps, 1e-6);
  EXPECT_EQ(L2NormOptions{}.eps, 1e-6);
}

TEST(Norm, MatchesTheReferenceInEveryLayout) {
  EXPECT_TRUE(rc::check("any sizes, steps, dtypes, weights", [] {
    const auto size = [](Index low, Index high) { return *rc::gen::inRange<Index>(low, high); };
    const DType dtype = kFloats[size(0, 4)], weight_dtype = kFloats[size(0, 4)];
    const Index batch = size(0, 4), tokens = size(0, 4), heads = size(0, 5), dim = size(0, 200),
                form = size(0, 3);
    const auto seed = static_cast<std::uint64_t>(size(0, 1000));
    Tensor x = random_normal({batch, tokens, heads, dim}, dtype, seed);
    Tensor w = form == 2 ? random_normal({heads, dim}, weight_dtype, seed + 1)
                         : random_normal({dim}, weight_dtype, seed + 2);
    const Scattered weight(w.view(), form == 2 ? std::vector<int>{1, 0} : std::vector<int>{0}, size(0, 3));
    const AnyView given = form == 0 ? AnyView{} : weight.view;
    const std::vector<int> orders[] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
    const Scattered from(x.view(), orders[size(0, 4)], size(0, 3));
    Scattered to(x.view(), orders[size(0, 4)], size(0, 3));
    Tensor truth(DType::f64, {batch, tokens, heads, dim});
    const bool is_rms = size(0, 2) == 1, plus = size(0, 2) == 1;
    Context ctx({.threads = static_cast<int>(size(1, 4))});
    if (is_rms) {
      rms_norm(from.view, given, to.view, {.weight_form = plus ? WeightForm::one_plus : WeightForm::plain},
               ctx);
    } else {
      l2_norm(from.view, given, to.view, {}, ctx);
    }
    RC_ASSERT(to.gaps_intact() && from.gaps_intact());
    each_index(x.view(), [&](const Index* at) {
      if (at[3] != 0) return;
      const AnyView in = row_of(x.view(), at), out = row_of(truth.view(), at);
      const Index head_at[] = {at[2], 0};
      const AnyView vector = form == 2 ? row_of(weight.view, head_at) : given;
      if (is_rms) {
        ref::rms_norm(in, vector, plus ? 1 : 0, 1e-6, out);
      } else {
        ref::l2_norm(in, vector, 1e-6, out);
      }
    });
    Tensor got = to.packed();
    for (Index i = 0; i < got.view().count(); ++i) {
      const double t = value(truth.view(), i);
      RC_ASSERT(rounded_once(dtype, value(got.view(), i), t, 1e-14 * std::abs(t)));
    }
  }));
}

TEST(NormBits, R101_RowsDoNotKnowHowManyThereAre) {
  const Index rows = 4096, dim = 33;
  Tensor x = random_normal({rows, dim}, DType::f32, 1), weight = random_normal({dim}, DType::f32, 2);
  Context ctx({.threads = 2});
  Tensor alone = tensor_like(x.view());
  for (Index r = 0; r < rows; ++r)
    rms_norm(slice(x.view(), 0, r, r + 1), weight.view(), slice(alone.view(), 0, r, r + 1), {}, ctx);
  for (Index count = 1; count <= rows; ++count) {
    Tensor together = tensor_like(slice(x.view(), 0, 0, count));
    rms_norm(slice(x.view(), 0, 0, count), weight.view(), together.view(), {}, ctx);
    ASSERT_TRUE(same_bits(together.view(), slice(alone.view(), 0, 0, count))) << count << " rows";
  }
}
TEST(NormBits, SameForThreadsLayoutsAndInPlace) {
  for (DType dtype : kFloats) {
    Tensor x = random_normal({3, 40, 4, 96}, dtype, 3), weight = random_normal({4, 96}, DType::f32, 4);
    Tensor one = rms(x.view(), weight.view(), {}, 1), unit = l2(x.view(), {}, {}, 1);
    for (int threads : {2, 3, 4, 7, 8, 16}) {
      EXPECT_TRUE(same_bits(one.view(), rms(x.view(), weight.view(), {}, threads).view()));
      EXPECT_TRUE(same_bits(unit.view(), l2(x.view(), {}, {}, threads).view()));
    }
    for (const std::vector<int>& order : {std::vector<int>{0, 2, 1, 3}, {3, 1, 2, 0}})
      for (Index gap : {0, 1, 5}) {
        Scattered s(x.view(), order, gap);
        Context ctx({.threads = 2});
        rms_norm(s.view, weight.view(), s.view, {}, ctx);
        EXPECT_TRUE(same_bits(one.view(), s.packed().view()) && s.gaps_intact());
      }
  }
}
TEST(NormBits, TheSumHasEightChainsInOneOrder) {
  for (Index dim : {0, 1, 7, 8, 9, 63, 64, 65, 129, 1000}) {
    Tensor x = random_normal({dim}, DType::f64, 5);
    double chain[8] = {};
    for (Index i = 0; i < dim; ++i) chain[i % 8] += value(x.view(), i) * value(x.view(), i);
    const double sum =
        ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
    EXPECT_EQ(cpu::sum_squares(x.values<const double>().data(), 1, dim), sum) << dim;
  }
}

TEST(Norm, RowsOfZerosGiveZerosWithAndWithoutEps) {
  for (DType dtype : kFloats) {
    Tensor x(dtype, {2, 16});
    for (double eps : {0.0, 1e-6}) {
      EXPECT_TRUE(same_bits(rms(x.view(), {}, {.eps = eps}).view(), x.view()));
      EXPECT_TRUE(same_bits(l2(x.view(), {}, {.eps = eps}).view(), x.view()));
    }
  }
}
TEST(Norm, HugeAndTinyValuesNeitherOverflowNorVanish) {
  for (double big : {1e19, 3e38, 1e-19, 1e-42}) {
    Tensor x = row({big, -big, big, big});
    for (Index i = 0; i < 4; ++i) {
      EXPECT_EQ(value(rms(x.view(), {}, {.eps = 0}).view(), i), i == 1 ? -1.0 : 1.0) << big;
      EXPECT_EQ(value(l2(x.view(), {}, {.eps = 0}).view(), i), i == 1 ? -0.5 : 0.5) << big;
    }
  }
  Tensor half = row<f16>({65504, 65504, 65504, -65504});
  EXPECT_EQ(value(rms(half.view()).view(), 3), -1.0);
  // A float sum of squares would lose all of them beside the first.
  Tensor uneven(DType::f32, {4097});
  for (float& v : uneven.values<float>()) v = 1;
  uneven.values<float>()[0] = 4096;
  EXPECT_EQ(value(l2(uneven.view()).view(), 1),
            static_cast<double>(static_cast<float>(1 / std::sqrt(4096.0 * 4097.0))));
}
TEST(Norm, NanAndInfinityStayInTheirRow) {
  Tensor x = random_normal({5, 12}, DType::f32, 6);
  Tensor clean = rms(x.view()), clean_unit = l2(x.view());
  x.values<float>()[1 * 12 + 3] = NAN;
  x.values<float>()[3 * 12 + 7] = INFINITY;
  Tensor y = rms(x.view()), unit = l2(x.view());
  for (const auto& [got, was] : {std::pair{&y, &clean}, std::pair{&unit, &clean_unit}})
    for (Index i = 0; i < 60; ++i) {
      const double v = value(got->view(), i);
      if (i / 12 == 1 || i == 3 * 12 + 7)
        EXPECT_TRUE(std::isnan(v)) << i;
      else
        EXPECT_EQ(v, i / 12 == 3 ? 0.0 : value(was->view(), i)) << i;
    }
}
TEST(NormLaws, PowersOfTwoDoNotChangeTheResult) {
  Tensor x = random_normal({9, 40}, DType::f32, 7);
  Tensor scaled = x.clone();
  for (float& v : scaled.values<float>()) v *= 0x1p60f;
  EXPECT_TRUE(same_bits(rms(x.view(), {}, {.eps = 0}).view(), rms(scaled.view(), {}, {.eps = 0}).view()));
  EXPECT_TRUE(same_bits(l2(x.view(), {}, {.eps = 0}).view(), l2(scaled.view(), {}, {.eps = 0}).view()));
}
TEST(NormLaws, LengthsAfterwards) {
  Tensor x = random_normal({9, 50}, DType::f64, 8);
  Tensor r = rms(x.view(), {}, {.eps = 0}), n = l2(x.view());
  for (Index i = 0; i < 9; ++i) {
    EXPECT_NEAR(ref::sum_squares(row_of(r.view(), std::initializer_list<Index>{i, 0}.begin())), 50, 1e-12);
    EXPECT_NEAR(ref::sum_squares(row_of(n.view(), std::initializer_list<Index>{i, 0}.begin())), 1, 1e-14);
  }
}
TEST(Norm, WeightsPerHeadAndScalesThatRepeat) {
  Tensor x = random_normal({2, 3, 4, 10}, DType::bf16, 9), per_head = random_normal({4, 1}, DType::f32, 10);
  AnyView spread = per_head.view();
  spread.size[1] = 10, spread.step[1] = 0;
  EXPECT_TRUE(same_bits(l2(x.view(), per_head.view()).view(), l2(x.view(), spread).view()));
  Tensor all = l2(x.view(), per_head.view());
  for (Index h = 0; h < 4; ++h) {
    Tensor head = Scattered(slice(x.view(), 2, h, h + 1), {0, 1, 2, 3}, 0).packed();
    Tensor one = row({value(per_head.view(), h)});
    EXPECT_TRUE(same_bits(l2(head.view(), one.view()).view(),
                          Scattered(slice(all.view(), 2, h, h + 1), {0, 1, 2, 3}, 0).packed().view()));
  }
}
TEST(Norm, RunsAllocateNothingAfterTheFirst) {
  Tensor x = random_normal({2, 9, 3, 64}, DType::f32, 12);
  Tensor weight = random_normal({3, 64}, DType::f32, 13);
  Context ctx({.threads = 2});
  rms_norm(x.view(), weight.view(), x.view(), {}, ctx);
  const std::uint64_t before = allocations();
  for (int run = 0; run < 10; ++run) {
    rms_norm(x.view(), weight.view(), x.view(), {}, ctx);
    l2_norm(x.view(), weight.view(), x.view(), {}, ctx);
  }
  EXPECT_EQ(allocations(), before);
}
TEST(Norm, EveryRankAndSizesOfZero) {
  Tensor four = random_normal({1, 1, 1, 6}, DType::f32, 11);
  Tensor expected = rms(four.view());
  for (int rank = 1; rank <= 4; ++rank) {
    AnyView v = AnyView::packed(four.view().data, DType::f32, {6});
    if (rank > 1) v = AnyView::packed(four.view().data, DType::f32, {1, 6});
    if (rank > 2) v = AnyView::packed(four.view().data, DType::f32, {1, 1, 6});
    if (rank > 3) v = four.view();
    EXPECT_TRUE(same_bits(rms(v).view(), expected.view()));
  }
  for (int axis = 0; axis < 3; ++axis) {
    Index n[] = {2, 3, 4};
    n[axis] = 0;
    Tensor x(DType::f32, {n[0], n[1], n[2]}), weight(DType::f32, {n[1], n[2]});
    EXPECT_EQ(rms(x.view(), weight.view()).view().count(), 0);
    EXPECT_EQ(l2(x.view(), weight.view()).view().count(), 0);
  }
}

TEST(NormErrors, EachIsOneSentence) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3, 8});
  Tensor out = tensor_like(x.view());
  const auto with = [&](const InputView& a, const InputView& weight, const InputView& b, double eps = 1e-6) {
    return error_of([&] { rms_norm(a, weight, b, {.eps = eps}, ctx); });
  };
  const auto unit = [&](const InputView& a, const InputView& scale, const InputView& b, double eps = 1e-6) {
    return error_of([&] { l2_norm(a, scale, b, {.eps = eps}, ctx); });
  };
  EXPECT_EQ(with(x.view(), {}, out.view(), -1), "rms_norm: eps is -1; give a finite number from 0 up");
  EXPECT_EQ(unit(x.view(), {}, out.view(), NAN), "l2_norm: eps is nan; give a finite number from 0 up");
  EXPECT_EQ(with({}, {}, out.view()), "rms_norm: x is empty; give a tensor of rank 1 to 4");
  Tensor whole(DType::i32, {2, 3, 8}), narrow(DType::f16, {2, 3, 8});
  EXPECT_EQ(with(whole.view(), {}, whole.view()), "rms_norm: x is i32 [2 3 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(unit(x.view(), {}, narrow.view()),
            "l2_norm: out is f16 [2 3 8] but x is f32 [2 3 8]; give out the dtype and sizes of x");
  Tensor seven(DType::f32, {7}), one(DType::f32, {1}), swapped(DType::f32, {8, 3}), count(DType::i64, {8});
  EXPECT_EQ(with(x.view(), seven.view(), out.view()),
            "rms_norm: weight is f32 [7] but x is f32 [2 3 8]; give [dim] or [heads dim]");
  EXPECT_EQ(with(x.view(), one.view(), out.view()),
            "rms_norm: weight is f32 [1] but x is f32 [2 3 8]; give [dim] or [heads dim]");
  EXPECT_EQ(with(x.view(), count.view(), out.view()),
            "rms_norm: weight is i64 [8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(unit(x.view(), swapped.view(), out.view()),
            "l2_norm: scale is f32 [8 3] but x is f32 [2 3 8]; give [dim] or [heads dim], 1 repeats");
  Tensor wide(DType::f32, {2, 3, 9});
  EXPECT_EQ(
      with(slice(wide.view(), 2, 0, 8), {}, slice(wide.view(), 2, 1, 9)),
      "rms_norm: out overlaps x without being x; give it memory of its own, or x itself to work in place");
  const AnyView inside = AnyView::packed(out.view().data, DType::f32, {8});
  EXPECT_EQ(with(x.view(), inside, out.view()), "rms_norm: out overlaps weight; give it memory of its own");
  EXPECT_EQ(unit(x.view(), inside, out.view()), "l2_norm: out overlaps scale; give it memory of its own");
}

}  // namespace
}  // namespace headwise
