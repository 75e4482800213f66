// Layer norm, embedding, cross-entropy, dropout: central differences in f64, ref, bits, refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/ref/cross_entropy.h"
#include "headwise/kernels/ref/layer_norm.h"
#include "headwise/ops/norm/layer_norm.h"
#include "headwise/ops/row/cross_entropy.h"
#include "headwise/ops/row/dropout.h"
#include "headwise/ops/row/embedding.h"
#include "tests/ops/row_op_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

double dot_of(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (Index n = 0; n < a.view().count(); ++n) sum += value(a.view(), n) * value(b.view(), n);
  return sum;
}

template <class Loss>
void expect_slopes(const char* name, Tensor& input, const Tensor& gradient, const Loss& loss) {
  for (Index n = 0; n < input.view().count(); ++n) {
    constexpr double kEps = 1e-5;
    double& x = input.values<double>()[static_cast<std::size_t>(n)];
    const double here = x;
    const auto at = [&](double step) {
      x = here + step;
      return loss();
    };
    const double slope = (8 * (at(kEps) - at(-kEps)) - (at(2 * kEps) - at(-2 * kEps))) / (12 * kEps);
    x = here;
    const double g = value(gradient.view(), n);
    EXPECT_NEAR(g, slope, 1e-8 * std::max(1.0, std::abs(g))) << name << " " << n;
  }
}

Tensor labels_of(std::initializer_list<Index> numbers) {
  Tensor t(DType::i64, {static_cast<Index>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), t.values<std::int64_t>().begin());
  return t;
}

TEST(LayerNorm, EveryElementMatchesCentralDifferences) {
  Context ctx({.threads = 2});
  for (const bool plain : {false, true}) {
    Tensor x = random_normal({2, 3, 5}, DType::f64, 1), dout = random_normal({2, 3, 5}, DType::f64, 2),
           weight = random_normal({5}, DType::f64, 3), bias = random_normal({5}, DType::f64, 4),
           out = tensor_like(x.view());
    Tensor dx = tensor_like(x.view()), dweight = tensor_like(weight.view()), dbias = tensor_like(bias.view());
    LayerNormArgs forward{.x = x.view(), .out = out.view()};
    LayerNormGrads backward{.x = x.view(), .dout = dout.view(), .dx = dx.view()};
    if (!plain) {
      forward.weight = backward.weight = weight.view(), forward.bias = bias.view();
      backward.dweight = dweight.view(), backward.dbias = dbias.view();
    }
    layer_norm_backward(backward, ctx);
    const auto loss = [&] {
      layer_norm(forward, ctx);
      return dot_of(out, dout);
    };
    expect_slopes("dx", x, dx, loss);
    if (plain) {  // y = norm(x) + x
      backward.residual = dout.view();
      layer_norm_backward(backward, ctx);
      expect_slopes("dx + residual", x, dx, [&] { return loss() + dot_of(x, dout); });
      continue;
    }
    expect_slopes("dweight", weight, dweight, loss);
    expect_slopes("dbias", bias, dbias, loss);
    layer_norm_backward(backward, ctx);  // a second micro-batch adds up
    Tensor once = dweight.clone();
    for (double& v : once.values<double>()) v /= 2;
    expect_slopes("twice", weight, once, loss);
  }
}

TEST(LayerNorm, MatchesTheReferenceInEveryLayoutAndDtype) {
  for (DType dtype : kFloats)
    for (Index dim : {1, 7, 64, 131}) {
      Tensor x = random_normal({3, 4, dim}, dtype, 1), dout = random_normal({3, 4, dim}, dtype, 2),
             weight = random_normal({dim}, DType::f32, 3), bias = random_normal({dim}, DType::bf16, 4);
      Context ctx({.threads = 3});
      Scattered from(x.view(), {2, 0, 1}, 1), back(dout.view(), {1, 0, 2}, 2), to(x.view(), {0, 2, 1}, 0),
          slope(x.view(), {1, 2, 0}, 1);
      Tensor dweight(DType::f64, {dim}), dbias(DType::f64, {dim});
      layer_norm({.x = from.view, .weight = weight.view(), .bias = bias.view(), .out = to.view}, ctx);
      layer_norm_backward({.x = from.view,
                           .weight = weight.view(),
                           .dout = back.view,
                           .dx = slope.view,
                           .dweight = dweight.view(),
                           .dbias = dbias.view()},
                          ctx);
      EXPECT_TRUE(to.gaps_intact() && slope.gaps_intact());
      Tensor truth(DType::f64, {3, 4, dim}), dtruth(DType::f64, {3, 4, dim}), sums(DType::f64, {2, dim});
      each_index(x.view(), [&](const Index* at) {
        if (at[2] != 0) return;
        ref::layer_norm(row_of(x.view(), at), weight.view(), bias.view(), 1e-5, row_of(truth.view(), at));
        double* sum = sums.values<double>().data();
        ref::layer_norm_backward(row_of(x.view(), at), weight.view(), 1e-5, row_of(dout.view(), at),
                                 row_of(dtruth.view(), at), sum, sum + dim);
      });
      Tensor got = to.packed(), dgot = slope.packed();
      for (Index i = 0; i < got.view().count(); ++i) {
        const double t = value(truth.view(), i), d = value(dtruth.view(), i);
        ASSERT_TRUE(rounded_once(dtype, value(got.view(), i), t, 1e-12 * (1 + std::abs(t)))) << dtype << i;
        // dim 1: inverse is 1 / sqrt(eps), and what it multiplies is rounding.
        ASSERT_TRUE(rounded_once(dtype, value(dgot.view(), i), d, 1e-12 * (1 + std::abs(d)))) << dtype << i;
      }
      for (Index i = 0; i < dim; ++i) {
        ASSERT_NEAR(value(dweight.view(), i), value(sums.view(), i), 1e-12);
        ASSERT_NEAR(value(dbias.view(), i), value(sums.view(), dim + i), 1e-12);
      }
    }
}

TEST(LayerNorm, SameBitsForThreadsAndInPlace) {
  Tensor x = random_normal({700, 24}, DType::f32, 1), dout = random_normal({700, 24}, DType::f32, 2),
         weight = random_normal({24}, DType::f32, 3);
  const auto run = [&](int threads, Tensor& dx, Tensor& dweight, Tensor& dbias) {
    Context ctx({.threads = threads});
    layer_norm_backward({.x = x.view(),
                         .weight = weight.view(),
                         .dout = dout.view(),
                         .dx = dx.view(),
                         .dweight = dweight.view(),
                         .dbias = dbias.view()},
                        ctx);
  };
  Tensor dx = tensor_like(x.view()), dweight(DType::f32, {24}), dbias(DType::f32, {24});
  run(1, dx, dweight, dbias);
  for (int threads : {2, 3, 5}) {
    Tensor a = tensor_like(x.view()), b(DType::f32, {24}), c(DType::f32, {24});
    run(threads, a, b, c);
    EXPECT_TRUE(same_bits(a.view(), dx.view()) && same_bits(b.view(), dweight.view()) &&
                same_bits(c.view(), dbias.view()));
  }
  Context ctx({.threads = 2});
  Tensor out = tensor_like(x.view()), copy = x.clone();
  layer_norm({.x = x.view(), .out = out.view()}, ctx);
  layer_norm({.x = copy.view(), .out = copy.view()}, ctx);
  EXPECT_TRUE(same_bits(out.view(), copy.view()));
}

/// Rows side by side take each level's vectors, rows with gaps the plain loop: one order of sums for both.
TEST(LayerNorm, SameBitsAtEveryLevelAndStep) {
  for (const Index dim : {1, 7, 8, 9, 24, 65, 128, 131}) {
    Tensor x = random_normal({70, dim}, DType::f32, 1), dout = random_normal({70, dim}, DType::f32, 2),
           weight = random_normal({dim}, DType::f32, 3), bias = random_normal({dim}, DType::f32, 4),
           residual = random_normal({70, dim}, DType::f32, 5);
    struct Found {
      Tensor out, dx, dweight, dbias;
    };
    const auto run = [&](Index gap) {
      Context ctx({.threads = 2});
      const Scattered from(x.view(), {0, 1}, gap), to(x.view(), {0, 1}, gap), back(dout.view(), {0, 1}, gap),
          slope(x.view(), {0, 1}, gap), rest(residual.view(), {0, 1}, gap);
      Found f{{}, {}, Tensor(DType::f32, {dim}), Tensor(DType::f32, {dim})};
      Tensor moments(DType::f64, {70, 2});
      layer_norm({.x = from.view,
                  .weight = weight.view(),
                  .bias = bias.view(),
                  .out = to.view,
                  .moments = moments.view()},
                 ctx);
      layer_norm_backward({.x = from.view,
                           .weight = weight.view(),
                           .dout = back.view,
                           .residual = rest.view,
                           .moments = gap ? AnyView{} : moments.view(),
                           .dx = slope.view,
                           .dweight = f.dweight.view(),
                           .dbias = f.dbias.view()},
                          ctx);
      f.out = to.packed(), f.dx = slope.packed();
      return f;
    };
    const Found plain = run(1);
    for (const cpu::IsaLevel& level : cpu::isa_levels()) {
      if (!level.supported()) continue;
      cpu::force_isa(&level);
      const Found found = run(0);
      EXPECT_TRUE(same_bits(found.out.view(), plain.out.view())) << level.name << " " << dim;
      EXPECT_TRUE(same_bits(found.dx.view(), plain.dx.view())) << level.name << " " << dim;
      EXPECT_TRUE(same_bits(found.dweight.view(), plain.dweight.view())) << level.name << " " << dim;
      EXPECT_TRUE(same_bits(found.dbias.view(), plain.dbias.view())) << level.name << " " << dim;
    }
    cpu::force_isa(nullptr);
  }
}

TEST(Embedding, ReadsRowsAndAddsThemBack) {
  Context ctx({.threads = 3});
  Tensor table = random_normal({6, 70}, DType::f32, 1), ids = labels_of({5, 0, 5, 2}),
         out(DType::f32, {4, 70}), dtable(DType::f32, {6, 70});
  embedding(table.view(), ids.view(), 2.0, out.view(), ctx);
  for (Index t = 0; t < 4; ++t)
    for (Index c = 0; c < 70; ++c)
      EXPECT_EQ(value(out.view(), t * 70 + c),
                2 * value(table.view(), ids.values<std::int64_t>()[static_cast<std::size_t>(t)] * 70 + c));
  embedding_backward(out.view(), ids.view(), 2.0, dtable.view(), ctx);
  for (Index c = 0; c < 70; ++c) {
    const auto twice = static_cast<float>(4 * value(table.view(), 350 + c));
    EXPECT_EQ(dtable.values<float>()[static_cast<std::size_t>(350 + c)], twice + twice);  // row 5 came twice
    EXPECT_EQ(value(dtable.view(), 70 + c), 0);                                           // row 1 never
  }
  // Halves after each other are the whole.
  Tensor halves(DType::f32, {6, 70});
  for (Index at : {0, 2})
    embedding_backward(slice(out.view(), 0, at, at + 2), slice(ids.view(), 0, at, at + 2), 2.0, halves.view(),
                       ctx);
  EXPECT_TRUE(same_bits(halves.view(), dtable.view()));
}

TEST(CrossEntropy, MatchesTheReferenceAndCentralDifferences) {
  Context ctx({.threads = 2});
  Tensor labels = labels_of({3, 0, -100, 6, 2});
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    Tensor x = random_normal({5, 7}, DType::f64, 1), dx = tensor_like(x.view());
    const CrossEntropyOptions options{.label_smoothing = smoothing};
    const LossSum got = cross_entropy(x.view(), labels.view(), options, dx.view(), 0.25, ctx);
    double truth = 0;
    for (Index r = 0; r < 5; ++r)
      if (const Index label = labels.values<std::int64_t>()[static_cast<std::size_t>(r)]; label >= 0) {
        const Index at[] = {r, 0};
        const AnyView row = row_of(x.view(), at);
        truth += ref::cross_entropy(row, label, smoothing);
        for (Index c = 0; c < 7; ++c)
          EXPECT_NEAR(value(dx.view(), r * 7 + c), 0.25 * ref::cross_entropy_slope(row, label, smoothing, c),
                      1e-14);
      }
    EXPECT_NEAR(got.loss, truth, 1e-13);
    EXPECT_EQ(got.counted, 4);
    EXPECT_NEAR(got.mean(), truth / 4, 1e-13);
    expect_slopes("dlogits", x, dx,
                  [&] { return 0.25 * cross_entropy(x.view(), labels.view(), options, ctx).loss; });
    for (Index c = 0; c < 7; ++c) EXPECT_EQ(value(dx.view(), 14 + c), 0);  // the ignored row
  }
}

TEST(CrossEntropy, StandsHugeLogitsAndClosedClasses) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {1, 3});
  x.values<float>()[0] = 3e38f, x.values<float>()[1] = -3e38f, x.values<float>()[2] = -INFINITY;
  Tensor label = labels_of({0}), dx = tensor_like(x.view());
  EXPECT_EQ(cross_entropy(x.view(), label.view(), {}, dx.view(), 1, ctx).loss, 0);
  for (Index c = 0; c < 3; ++c) EXPECT_EQ(value(dx.view(), c), 0);
  x.values<float>()[1] = NAN;
  EXPECT_TRUE(std::isnan(cross_entropy(x.view(), label.view(), {}, ctx).loss));
}

/// Rows side by side take each level's vectors, rows with gaps the loop in double.
TEST(CrossEntropy, EveryLevelAgreesWithDouble) {
  Context ctx({.threads = 2});
  for (const Index classes : {1, 7, 16, 65, 256, 300, 1001}) {
    Tensor x = random_normal({6, classes}, DType::f32, 3), dx = tensor_like(x.view());
    for (float& v : x.values<float>()) v *= 10;
    const Scattered apart(x.view(), {0, 1}, 1), slope(x.view(), {0, 1}, 1);
    Tensor labels(DType::i64, {6});
    for (Index r = 0; r < 6; ++r)
      labels.values<std::int64_t>()[static_cast<std::size_t>(r)] = r * 5 % classes;
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing};
      const double truth = cross_entropy(apart.view, labels.view(), options, slope.view, 0.5, ctx).loss;
      Tensor wanted = slope.packed();
      double first = NAN;
      for (const cpu::IsaLevel& level : cpu::isa_levels()) {
        if (!level.supported()) continue;
        cpu::force_isa(&level);
        const double loss = cross_entropy(x.view(), labels.view(), options, dx.view(), 0.5, ctx).loss;
        EXPECT_NEAR(loss, truth, 2e-7 * std::abs(truth)) << level.name << " " << classes;
        EXPECT_EQ(cross_entropy(x.view(), labels.view(), options, ctx).loss, loss);
        for (Index i = 0; i < dx.view().count(); ++i)
          ASSERT_NEAR(value(dx.view(), i), value(wanted.view(), i),
                      1e-9 + 4e-7 * std::abs(value(wanted.view(), i)))
              << level.name << " " << classes;
        if (std::isnan(first)) first = loss;
        EXPECT_EQ(loss, first) << level.name;
      }
      cpu::force_isa(nullptr);
    }
  }
}

TEST(BinaryCrossEntropy, MatchesTheReferenceAndCentralDifferences) {
  Context ctx({.threads = 2});
  Tensor x = random_normal({4, 3}, DType::f64, 1), dx = tensor_like(x.view());
  x.values<double>()[0] = 800, x.values<double>()[1] = -800;
  Tensor y(DType::u8, {4, 3});
  for (Index i = 0; i < 12; ++i) y.values<std::uint8_t>()[static_cast<std::size_t>(i)] = i % 3 == 1;
  const LossSum got = binary_cross_entropy(x.view(), y.view(), dx.view(), 0.5, ctx);
  double truth = 0;
  for (Index i = 0; i < 12; ++i) {
    truth += ref::binary_cross_entropy(value(x.view(), i), i % 3 == 1);
    EXPECT_NEAR(value(dx.view(), i), 0.5 * ref::binary_cross_entropy_slope(value(x.view(), i), i % 3 == 1),
                1e-15);
  }
  EXPECT_NEAR(got.loss, truth, 1e-11);
  EXPECT_EQ(got.counted, 12);
  x.values<double>()[0] = 1, x.values<double>()[1] = -1;
  binary_cross_entropy(x.view(), y.view(), dx.view(), 0.5, ctx);
  expect_slopes("dlogits", x, dx, [&] { return 0.5 * binary_cross_entropy(x.view(), y.view(), ctx).loss; });
}

TEST(CrossEntropy, SameBitsForThreads) {
  Tensor x = random_normal({500, 300}, DType::f32, 1), one = tensor_like(x.view());
  Tensor labels(DType::i32, {500});
  for (Index i = 0; i < 500; ++i)
    labels.values<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % 300);
  Context single({.threads = 1});
  const double loss = cross_entropy(x.view(), labels.view(), {}, one.view(), 1, single).loss;
  for (int threads : {2, 3, 5}) {
    Context ctx({.threads = threads});
    Tensor many = tensor_like(x.view());
    EXPECT_EQ(cross_entropy(x.view(), labels.view(), {}, many.view(), 1, ctx).loss, loss);
    EXPECT_TRUE(same_bits(one.view(), many.view()));
  }
}

/// Side by side f32 goes through the lanes, what has gaps does not: the same bits.
TEST(DropoutBits, LayoutsAndLevelsChangeNothing) {
  Context ctx({.threads = 2});
  const DropoutOptions options{.p = 0.3, .seed = 5, .site = 2, .first_row = (Index{1} << 33) + 7};
  for (const Index columns : {1, 63, 64, 101, 200})
    for (const bool adds : {false, true}) {
      Tensor x = random_normal({9, columns}, DType::f32, 3), r = random_normal({9, columns}, DType::f32, 4);
      for (std::size_t i = 0; i < 9; ++i) x.values<float>()[i] = i % 3 == 0 ? -0.0f : INFINITY;
      const Scattered apart(x.view(), {0, 1}, 1);
      dropout(apart.view, adds ? r.view() : AnyView{}, options, apart.view, ctx);
      Tensor wanted = apart.packed();
      for (const cpu::IsaLevel& level : cpu::isa_levels()) {
        if (!level.supported()) continue;
        cpu::force_isa(&level);
        Tensor y = x.clone();
        dropout(y.view(), adds ? r.view() : AnyView{}, options, y.view(), ctx);
        EXPECT_TRUE(same_bits(y.view(), wanted.view())) << level.name << " " << columns << " " << adds;
      }
      cpu::force_isa(nullptr);
    }
}
TEST(Dropout, FollowsItsRuleAndKeepsTheMean) {
  Context ctx({.threads = 3});
  Tensor x(DType::f32, {300, 101}), out = tensor_like(x.view());
  for (float& v : x.values<float>()) v = 3;
  const DropoutOptions options{.p = 0.25, .seed = 9, .site = 4, .first_row = 1000};
  dropout(x.view(), {}, options, out.view(), ctx);
  double kept = 0;
  for (Index r = 0; r < 300; ++r)
    for (Index c = 0; c < 101; ++c) {
      const auto block =
          Philox::block(9, {static_cast<std::uint32_t>(c / 4), static_cast<std::uint32_t>(1000 + r), 0, 4});
      const bool keep = block[static_cast<std::size_t>(c % 4)] >= 1u << 30;
      ASSERT_EQ(value(out.view(), r * 101 + c), keep ? 4 : 0) << r << " " << c;
      kept += keep;
    }
  EXPECT_NEAR(kept / (300 * 101), 0.75, 3 * std::sqrt(0.25 * 0.75 / (300 * 101)));
  // Rows taken apart, one thread, in place, and on top of a residual: the same draw.
  Context one({.threads = 1});
  Tensor again = x.clone(), sum = tensor_like(x.view());
  DropoutOptions later = options;
  later.first_row += 120;
  dropout(slice(again.view(), 0, 0, 120), {}, options, slice(again.view(), 0, 0, 120), one);
  dropout_backward(slice(again.view(), 0, 120, 300), later, slice(again.view(), 0, 120, 300), one);
  EXPECT_TRUE(same_bits(out.view(), again.view()));
  dropout(x.view(), x.view(), options, sum.view(), ctx);
  for (Index i = 0; i < sum.view().count(); ++i) ASSERT_EQ(value(sum.view(), i), 3 + value(out.view(), i));
  dropout(x.view(), {}, {.p = 1}, sum.view(), ctx);
  for (Index i = 0; i < sum.view().count(); ++i) ASSERT_EQ(value(sum.view(), i), 0);
  dropout(x.view(), {}, {.p = 0}, sum.view(), ctx);
  EXPECT_TRUE(same_bits(sum.view(), x.view()));
}

TEST(TrainingOps, RunsAllocateNothingAfterTheFirst) {
  Context ctx({.threads = 2});
  Tensor x = random_normal({40, 16}, DType::f32, 1), out = tensor_like(x.view()),
         weight = random_normal({16}, DType::f32, 2), sum(DType::f32, {16}), labels(DType::i64, {40});
  const auto run = [&] {
    layer_norm({.x = x.view(), .weight = weight.view(), .out = out.view()}, ctx);
    layer_norm_backward(
        {.x = x.view(), .weight = weight.view(), .dout = x.view(), .dx = out.view(), .dweight = sum.view()},
        ctx);
    embedding(x.view(), labels.view(), 1, out.view(), ctx);
    cross_entropy(x.view(), labels.view(), {}, out.view(), 1, ctx);
    dropout(x.view(), {}, {.p = 0.5}, out.view(), ctx);
  };
  run();
  const std::uint64_t before = allocations();
  for (int n = 0; n < 10; ++n) run();
  EXPECT_EQ(allocations(), before);
}

TEST(TrainingOps, BadInputIsOneSentence) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3}), out(DType::f32, {2, 3}), table(DType::f32, {5, 3}), two(DType::f32, {2});
  const auto ids = [&](Index a, Index b) {
    return error_of([&] { embedding(table.view(), labels_of({a, b}).view(), 1, out.view(), ctx); });
  };
  EXPECT_EQ(ids(4, 0), "no error");
  EXPECT_EQ(ids(0, 5), "embedding: ids[1] is 5 but table has 5 rows; give numbers from 0 to 4");
  EXPECT_EQ(ids(-1, 0), "embedding: ids[0] is -1 but table has 5 rows; give numbers from 0 to 4");
  const auto loss = [&](Index a, double smoothing = 0) {
    return error_of([&] {
      cross_entropy(x.view(), labels_of({0, a}).view(), {.label_smoothing = smoothing}, ctx);
    });
  };
  EXPECT_EQ(loss(-100), "no error");
  EXPECT_EQ(loss(3),
            "cross_entropy: labels[1] is 3 but there are 3 classes; give 0 to 2, or -100 to leave the row "
            "out");
  EXPECT_EQ(loss(-1),
            "cross_entropy: labels[1] is -1 but there are 3 classes; give 0 to 2, or -100 to leave the row "
            "out");
  EXPECT_EQ(loss(0, 1.5), "cross_entropy: label_smoothing is 1.5; give a number from 0 to 1");
  EXPECT_EQ(error_of([&] { cross_entropy(x.view(), labels_of({1}).view(), {}, ctx); }),
            "cross_entropy: labels is i64 [1] but logits is f32 [2 3]; give i64 or i32 [2]");
  Tensor y(DType::f32, {2, 3});
  y.values<float>()[4] = 1.5f;
  EXPECT_EQ(error_of([&] { binary_cross_entropy(x.view(), y.view(), ctx); }),
            "binary_cross_entropy: labels[1 1] is 1.5; give numbers from 0 to 1");
  EXPECT_EQ(error_of([&] { dropout(x.view(), {}, {.p = -0.1}, out.view(), ctx); }),
            "dropout: p is -0.1; give a number from 0 to 1");
  EXPECT_EQ(error_of([&] { layer_norm({.x = x.view(), .weight = two.view(), .out = out.view()}, ctx); }),
            "layer_norm: weight is f32 [2] but x is f32 [2 3]; give [dim] of a float type");
  EXPECT_EQ(error_of([&] { layer_norm_backward({.x = x.view(), .dout = out.view()}, ctx); }),
            "layer_norm_backward: no gradient is asked; give dx, dweight or dbias");
}

}  // namespace
}  // namespace headwise
