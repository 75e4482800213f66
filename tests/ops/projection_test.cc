#include "headwise/ops/projection/projection.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/ops/projection_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};

Tensor in_double(const Tensor& t) {
  Tensor wide(DType::f64, {t.view().size[0], t.view().size[1]});
  for (Index i = 0; i < t.view().count(); ++i)
    wide.values<double>()[static_cast<std::size_t>(i)] = value(t.view(), i);
  return wide.clone();
}

TEST(Projection, ValuesByHand) {
  Tensor x(DType::f32, {1, 2}), weight(DType::f32, {3, 2}), bias(DType::f64, {3}), y(DType::f32, {1, 3});
  const float w[] = {1, 2, 3, 4, 5, 6};
  std::copy(w, w + 6, weight.values<float>().begin());
  x.values<float>()[0] = 10, x.values<float>()[1] = -1;
  bias.values<double>()[1] = 0.5;
  Context ctx({.threads = 1});
  projection({.x = x.view(), .weight = weight.view(), .bias = bias.view(), .out = y.view()}, Activation::none,
             ctx);
  EXPECT_EQ(y.values<float>()[0], 8);
  EXPECT_EQ(y.values<float>()[1], 26.5f);
  EXPECT_EQ(y.values<float>()[2], 44);
}

TEST(Projection, AgreesWithTheTruthAtEverySizeAndLevel) {
  each_level([] {
    std::uint64_t seed = 1;
    for (const DType dtype : kNarrow)
      for (const auto& [rows, in, out] : {std::array<Index, 3>{1, 1, 1},
                                          {3, 5, 7},
                                          {13, 31, 33},
                                          {4, 512, 64},
                                          {33, 64, 100},
                                          {97, 129, 47},
                                          {200, 33, 70},
                                          {5, 1100, 17},
                                          {2, 48, 530},
                                          {96, 300, 192}})
        for (const bool adds : {false, true}) {
          seed += 10;
          Linear p(rows, in, out, dtype, seed, adds ? kActivations[seed / 10 % 6] : Activation::none, adds);
          EXPECT_TRUE(p.judge(p.run())) << dtype << " " << rows << " " << in << " " << out << " " << adds;
        }
  });
}
TEST(Projection, MeetsTheGuardOfUnitNormalData) {
  for (const DType dtype : kNarrow) {
    Linear p(64, 512, 256, dtype, 5);
    Tensor truth(DType::f64, {64, 256});
    p.plain<double>(truth.view());
    EXPECT_LT(distance_of(p.run().view(), truth.view()).relative, relative_guard(dtype)) << dtype;
  }
}
TEST(Projection, EveryActivationAgrees) {
  each_level([] {
    for (const DType dtype : kNarrow)
      for (const Activation a : kActivations) {
        Linear p(17, 40, 37, dtype, 50, a, true);
        EXPECT_TRUE(p.judge(p.run())) << dtype << " " << name_of(a);
      }
  });
}
/// out = act(s) * factor + residual and slope = act'(s), against the same run in f64 by `ref`.
TEST(Projection, FactorAndSlopeAgree) {
  Context ctx({.threads = 2});
  for (const DType dtype : kNarrow)
    for (const Activation a : kActivations) {
      Linear p(19, 24, 50, dtype, 70, a, true);
      Tensor factor = random_normal({19, 50}, dtype, 75), truth(DType::f64, {19, 50}),
             slopes(DType::f64, {19, 50});
      Tensor wide[] = {in_double(p.x), in_double(p.weight), in_double(p.residual), in_double(factor)};
      projection({.x = wide[0].view(),
                  .weight = wide[1].view(),
                  .bias = p.bias.view(),
                  .residual = wide[2].view(),
                  .factor = wide[3].view(),
                  .slope = slopes.view(),
                  .out = truth.view()},
                 a, ctx);
      each_level([&] {
        for (const Index gap : {0, 1}) {
          const Scattered out(p.residual.view(), {0, 1}, gap), times(factor.view(), {0, 1}, gap),
              slope(Tensor(DType::f32, {19, 50}).view(), {0, 1}, gap);
          projection({.x = p.x.view(),
                      .weight = p.weight.view(),
                      .bias = p.bias.view(),
                      .residual = p.residual.view(),
                      .factor = times.view,
                      .slope = slope.view,
                      .out = out.view},
                     a, ctx);
          EXPECT_TRUE(out.gaps_intact() && slope.gaps_intact());
          Tensor y = out.packed(), dy = slope.packed();
          const double unit = dtype == DType::f32 ? 4e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
          for (Index i = 0; i < 950; ++i) {
            const double t = value(truth.view(), i), d = value(slopes.view(), i);
            ASSERT_NEAR(value(y.view(), i), t, unit * (4 + std::abs(t))) << dtype << " " << name_of(a);
            ASSERT_NEAR(value(dy.view(), i), d, 2e-5) << dtype << " " << name_of(a);
          }
        }
      });
    }
}
TEST(Projection, ErrorsHaveNoBias) {
  Linear p(1000, 64, 1000, DType::f32, 3);
  Tensor truth(DType::f64, {1000, 1000});
  p.plain<double>(truth.view());
  EXPECT_LT(std::fabs(signed_bias(p.run().view(), truth.view())), 3.0);
}

TEST(ProjectionBits, F32IsOneFmaChainAtEveryLevel) {
  Linear p(19, 700, 35, DType::f32, 7);
  Tensor chain(DType::f32, {19, 35});
  for (Index i = 0; i < 19; ++i)
    for (Index j = 0; j < 35; ++j) {
      float sum = 0;
      for (Index l = 0; l < 700; ++l)
        sum = std::fma(p.x.values<float>()[static_cast<std::size_t>(i * 700 + l)],
                       p.weight.values<float>()[static_cast<std::size_t>(j * 700 + l)], sum);
      chain.values<float>()[static_cast<std::size_t>(i * 35 + j)] = sum;
    }
  each_level([&] { EXPECT_TRUE(same_bits(p.run(), chain)); });
}
TEST(ProjectionBits, ARowAloneIsTheRowInABatch) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      Linear p(203, 97, 130, dtype, 11, Activation::gelu, true);
      Tensor whole = p.run();
      Context ctx({.threads = 2});
      for (const Index count : {1, 2, 5, 12, 13, 32, 100})
        for (Index first = 0; first + count <= 203; first += count * 3 + 1) {
          Tensor y(dtype, {count, 130});
          projection({.x = slice(p.x.view(), 0, first, first + count),
                      .weight = p.weight.view(),
                      .bias = p.bias.view(),
                      .residual = slice(p.residual.view(), 0, first, first + count),
                      .out = y.view()},
                     p.activation, ctx);
          ASSERT_TRUE(same_bits(y.view(), slice(whole.view(), 0, first, first + count)))
              << dtype << " rows " << first << " to " << first + count;
        }
    }
  });
}
TEST(ProjectionBits, ThreadsAndPackingChangeNothing) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      Linear p(100, 600, 130, dtype, 13, Activation::silu, true);
      Tensor one = p.run(1);
      for (const int threads : kManyThreads) {
        EXPECT_TRUE(same_bits(p.run(threads), one)) << threads << " threads";
        Context ctx({.threads = threads});
        const PackedMatrix packed = pack_matrix(p.weight.view(), dtype, ctx);
        Tensor y(dtype, {100, 130});
        ProjectionArgs a = p.args(y);
        a.weight = {}, a.packed = &packed;
        projection(a, p.activation, ctx);
        EXPECT_TRUE(same_bits(y, one)) << threads << " threads, packed";
      }
    }
  });
}
TEST(ProjectionBits, LayoutsChangeNothing) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      const Index batch = 2, tokens = 17, heads = 3, dim = 20, out_heads = 4, out_dim = 9;
      Linear p(batch * tokens, heads * dim, out_heads * out_dim, dtype, 17);
      Tensor plain = p.run();
      const AnyView x4 = AnyView::packed(p.x.view().data, dtype, {batch, tokens, heads, dim});
      const AnyView y4 = AnyView::packed(plain.view().data, dtype, {batch, tokens, out_heads, out_dim});
      Context ctx({.threads = 2});
      // Heads before tokens, tokens apart, elements apart: all read and written where they lie.
      for (const std::vector<int>& order :
           {std::vector<int>{0, 2, 1, 3}, {0, 1, 2, 3}, {1, 0, 2, 3}, {2, 3, 0, 1}})
        for (const Index gap : {0, 1}) {
          const Scattered x(x4, order, gap),
              w(p.weight.view(), gap ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, gap);
          Scattered y(y4, order, gap);
          projection({.x = x.view, .weight = w.view, .out = y.view}, Activation::none, ctx);
          EXPECT_TRUE(same_bits(y.packed().view(), y4)) << dtype << " gap " << gap;
          EXPECT_TRUE(y.gaps_intact());
        }
    }
  });
}
TEST(Projection, RepeatedRowsAreInputsToo) {
  each_level([] {
    Linear p(1, 40, 50, DType::f32, 19);
    AnyView x = p.x.view();
    x.size[0] = 30, x.step[0] = 0;
    Tensor y(DType::f32, {30, 50});
    Context ctx({.threads = 2});
    projection({.x = x, .weight = p.weight.view(), .out = y.view()}, Activation::none, ctx);
    Tensor one = p.run();
    for (Index i = 0; i < 30; ++i) EXPECT_TRUE(same_bits(slice(y.view(), 0, i, i + 1), one.view()));
    Tensor ones(DType::f32, {1});
    ones.values<float>()[0] = 1;
    AnyView all = AnyView::packed(ones.view().data, DType::f32, {3, 40});
    all.step[0] = all.step[1] = 0;
    Tensor sums(DType::f32, {3, 50});
    projection({.x = all, .weight = p.weight.view(), .out = sums.view()}, Activation::none, ctx);
    EXPECT_TRUE(same_bits(slice(sums.view(), 0, 0, 1), slice(sums.view(), 0, 2, 3)));
  });
}
TEST(Projection, SizesOfZero) {
  each_level([] {
    Context ctx({.threads = 2});
    for (const auto& [rows, in, out] : {std::array<Index, 3>{0, 5, 3}, {4, 5, 0}, {0, 0, 0}}) {
      Linear p(rows, in, out, DType::f32, 1);
      EXPECT_EQ(p.run().view().count(), 0);
    }
    Linear p(2, 0, 3, DType::f32, 1, Activation::relu, true);  // nothing to sum: bias and residual stay
    Tensor y = p.run();
    for (Index i = 0; i < 6; ++i) {
      const float b = p.bias.values<float>()[static_cast<std::size_t>(i % 3)];
      EXPECT_EQ(y.values<float>()[static_cast<std::size_t>(i)],
                (b < 0 ? 0 : b) + p.residual.values<float>()[static_cast<std::size_t>(i)]);
    }
    EXPECT_EQ(pack_matrix(AnyView::packed(nullptr, DType::f32, {0, 4}), DType::f32, ctx).bytes(), 0u);
  });
}
TEST(Projection, NanStaysInItsRowAndItsColumn) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      Linear p(37, 50, 41, dtype, 23);
      Tensor clean = p.run();
      store_double(p.x.view().data, dtype, 5 * 50 + 7, NAN);
      store_double(p.x.view().data, dtype, 30 * 50 + 49, INFINITY);
      store_double(p.weight.view().data, dtype, 11 * 50 + 3, NAN);
      Tensor y = p.run();
      for (Index i = 0; i < 37; ++i)
        for (Index j = 0; j < 41; ++j) {
          const double got = value(y.view(), i * 41 + j);
          if (i == 5 || j == 11)
            EXPECT_TRUE(std::isnan(got));
          else if (i == 30)
            EXPECT_TRUE(std::isinf(got));
          else
            EXPECT_EQ(got, value(clean.view(), i * 41 + j));
        }
    }
  });
}
TEST(Projection, RefTakesF64) {
  Linear p(5, 9, 4, DType::f64, 29, Activation::gelu, true);
  Tensor truth(DType::f64, {5, 4});
  p.plain<double>(truth.view());
  EXPECT_LT(distance_of(p.run().view(), truth.view()).largest, 1e-14);
  const ProjectionPlan plan(projection_problem_of(p.args(truth), p.activation), 1, "");
  EXPECT_STREQ(plan.kernel(), "ref");
  ASSERT_EQ(plan.refusals().size(), 1u);
  EXPECT_EQ(plan.refusals()[0].why, "multiplies f32, bf16 and f16, but f64 was given");
}
TEST(Projection, MixedDtypes) {
  each_level([] {
    Context ctx({.threads = 2});
    for (const DType a : kNarrow)
      for (const DType b : kNarrow)
        for (const DType out : kNarrow) {
          Tensor x = random_normal({9, 70}, a, 31), w = random_normal({40, 70}, b, 32);
          Tensor y(out, {9, 40}), truth(DType::f64, {9, 40}), yard(out, {9, 40});
          projection({.x = x.view(), .weight = w.view(), .out = y.view()}, Activation::none, ctx);
          Linear p(9, 70, 40, DType::f32, 1);
          p.x = converted(x.view(), DType::f32), p.weight = converted(w.view(), DType::f32);
          p.plain<double>(truth.view()), p.plain<float>(yard.view());
          EXPECT_TRUE(close_to_truth(y.view(), truth.view(), yard.view())) << a << " " << b << " " << out;
        }
  });
}
TEST(Projection, RunsAllocateNothing) {
  for (const DType dtype : kNarrow) {
    Linear p(33, 70, 50, dtype, 37, Activation::gelu, true);
    Tensor y(dtype, {33, 50});
    Context ctx({.threads = 2});
    const PackedMatrix packed = pack_matrix(p.weight.view(), dtype, ctx);
    ProjectionArgs with = p.args(y);
    with.weight = {}, with.packed = &packed;
    const ProjectionPlan plan(projection_problem_of(p.args(y), p.activation), ctx);
    const ProjectionPlan packed_plan(projection_problem_of(with, p.activation), ctx);
    plan.run(p.args(y), ctx);
    const std::uint64_t before = allocations();
    for (int run = 0; run < 10; ++run) plan.run(p.args(y), ctx), packed_plan.run(with, ctx);
    EXPECT_EQ(allocations(), before);
  }
}
TEST(Projection, ExplainsItself) {
  Linear p(33, 70, 50, DType::f32, 1, Activation::gelu, true);
  Tensor y(DType::f32, {33, 50});
  const ProjectionPlan plan(projection_problem_of(p.args(y), p.activation), 2, "");
  const std::string words = explain(plan);
  EXPECT_NE(words.find("33 rows, 70 in, 50 out; x f32, weight f32, out f32, bias, gelu, residual"),
            std::string::npos)
      << words;
  EXPECT_NE(words.find("cpu/packed  chosen"), std::string::npos) << words;
  EXPECT_NE(words.find(plan.numerics()), std::string::npos) << words;
}

TEST(ProjectionErrors, EachIsOneSentence) {
  Context ctx({.threads = 1});
  Linear p(6, 8, 4, DType::f32, 1);
  Tensor y(DType::f32, {6, 4});
  const auto with = [&](const std::function<void(ProjectionArgs&)>& change) {
    ProjectionArgs a = p.args(y);
    change(a);
    return error_of([&] { projection(a, Activation::none, ctx); });
  };
  Tensor seven(DType::f32, {7}), whole(DType::i32, {6, 8}), rows(DType::f32, {5, 4}), f64(DType::f64, {6, 4});
  EXPECT_EQ(with([&](auto& a) { a.weight = {}; }), "projection: weight is missing; give [out in]");
  EXPECT_EQ(with([&](auto& a) { a.weight = seven.view(); }), "projection: weight is f32 [7]; give [out in]");
  EXPECT_EQ(with([&](auto& a) { a.x = whole.view(); }),
            "projection: x is i32 [6 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(with([&](auto& a) { a.x = y.view(); }),
            "projection: x is f32 [6 4] but its last axis, or its last two multiplied, must be 8");
  EXPECT_EQ(with([&](auto& a) { a.out = rows.view(); }),
            "projection: out is f32 [5 4], 5 rows, but x is f32 [6 8], 6 rows; give as many");
  EXPECT_EQ(with([&](auto& a) { a.bias = seven.view(); }),
            "projection: bias is f32 [7]; give [4], one number an output");
  EXPECT_EQ(with([&](auto& a) { a.residual = rows.view(); }),
            "projection: residual is f32 [5 4], 5 rows, but x has 6; give as many");
  EXPECT_EQ(with([&](auto& a) { a.residual = f64.view(); }),
            "projection: residual is f64 [6 4] but out is f32 [6 4]; an f64 residual needs an f64 out");
  EXPECT_EQ(
      with([&](auto& a) { a.out.step[0] = 0; }),
      "projection: out is f32 [6 4] with steps that put several elements in one place; give each its own");
  EXPECT_EQ(with([&](auto& a) { a.out.data = a.x.data; }),
            "projection: out overlaps x; give it memory of its own");
  EXPECT_EQ(with([&](auto& a) { a.out.data = a.weight.data; }),
            "projection: out overlaps weight; give it memory of its own");
  EXPECT_EQ(with([&](auto& a) { a.residual = y.view(); }),
            "projection: out overlaps residual; give it memory of its own");
  const PackedMatrix packed = pack_matrix(p.weight.view(), DType::f32, ctx);
  EXPECT_EQ(with([&](auto& a) { a.packed = &packed; }),
            "projection: got a weight and a packed one; give one of them");
  Tensor high(DType::f32, {2, 3, 2, 8});
  AnyView crossed = high.view();
  crossed.step[0] = 1, crossed.step[1] = 16, crossed.step[2] = 48, crossed.step[3] = 2;
  Tensor tall(DType::f32, {12, 4});
  EXPECT_EQ(with([&](auto& a) { a.x = crossed, a.out = tall.view(); }),
            "projection: x is f32 [2 3 2 8] with three axes of rows whose steps do not join; copy it to "
            "fewer axes first");
  const ProjectionPlan plan(projection_problem_of(p.args(y)), ctx);
  ProjectionArgs other = p.args(y);
  Tensor half(DType::f16, {6, 8});
  other.x = half.view();
  EXPECT_NE(error_of([&] { plan.run(other, ctx); }).find("make a plan for these tensors"), std::string::npos);
  EXPECT_NE(error_of([&] { plan.run(p.args(y), {}, ctx.pool()); }).find("plan.workspace_bytes()"),
            std::string::npos);
  Context online({.threads = 1, .kernels = "cpu/online"});
  EXPECT_EQ(error_of([&] { projection(p.args(y), Activation::none, online); }),
            "projection: \"cpu/online\" holds no kernel of this op; there are: cpu/packed, ref");
  EXPECT_EQ(error_of([&] { ProjectionPlan({.m = Index{1} << 40, .n = Index{1} << 40, .k = 1}, 1, ""); }),
            "projection: got 1099511627776 rows, 1 in and 1099511627776 out, which no memory holds; use "
            "smaller sizes");
}

}  // namespace
}  // namespace headwise
