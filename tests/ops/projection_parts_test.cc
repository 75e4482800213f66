#include <gtest/gtest.h>

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/ops/projection/backward.h"
#include "tests/ops/projection_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

bool has_parts() { return cpu::chosen_isa().gemm()->f32_parts != nullptr; }

Linear in_parts(Index rows, Index in, Index out, std::uint64_t seed, Activation act = Activation::none,
                bool adds = false) {
  Linear p(rows, in, out, DType::f32, seed, act, adds);
  p.parts = true;
  return p;
}
Tensor rows_of(const Linear& p, Index first, Index count) {
  Context ctx({.threads = 2});
  Tensor y(DType::f32, {count, p.out()});
  ProjectionArgs a = p.args(y);
  a.x = slice(p.x.view(), 0, first, first + count);
  if (a.residual.given()) a.residual = slice(a.residual, 0, first, first + count);
  projection(a, p.activation, ctx);
  return y;
}
float& element(Tensor& t, Index row, Index column) {
  return t.values<float>()[static_cast<std::size_t>(row * t.view().size[1] + column)];
}

TEST(ProjectionParts, AgreesWithTheTruthAndBeatsTheChain) {
  each_level([] {
    std::uint64_t seed = 1;
    for (const auto& [rows, in, out] : {std::array<Index, 3>{1, 128, 64},
                                        {13, 64, 130},
                                        {32, 512, 64},
                                        {33, 65, 129},
                                        {70, 300, 77},
                                        {5, 1100, 65},
                                        {49, 130, 531}})
      for (const bool adds : {false, true}) {
        seed += 10;
        Linear p = in_parts(rows, in, out, seed, adds ? Activation::gelu : Activation::none, adds);
        Tensor parts = p.run();
        EXPECT_TRUE(p.judge(parts)) << rows << " " << in << " " << out << " " << adds;
        p.parts = false;
        Tensor chain = p.run();
        if (!has_parts()) {
          EXPECT_TRUE(same_bits(parts, chain));
          continue;
        }
        Tensor truth(DType::f64, {rows, out});
        p.plain<double>(truth.view());
        if (!adds) {
          EXPECT_LT(distance_of(parts.view(), truth.view()).relative,
                    0.8 * distance_of(chain.view(), truth.view()).relative);
        }
      }
  });
}
TEST(ProjectionParts, ErrorsHaveNoBias) {
  Linear p = in_parts(1000, 64, 1000, 3);
  Tensor truth(DType::f64, {1000, 1000});
  p.plain<double>(truth.view());
  EXPECT_LT(std::fabs(signed_bias(p.run().view(), truth.view())), 3.0);
}
TEST(ProjectionParts, SmallProductsAreChains) {
  each_level([] {
    for (const auto& [in, out] : {std::array<Index, 2>{64, 64}, {40, 300}, {300, 40}}) {
      Linear p = in_parts(40, in, out, 7);
      Tensor small = p.run();
      p.parts = false;
      EXPECT_TRUE(same_bits(small, p.run()));
    }
    const auto numerics = [](Index n) {
      return ProjectionPlan({.m = 9, .n = n, .k = 128, .parts = true}, 1, "cpu/packed").numerics();
    };
    EXPECT_EQ(numerics(128).ends_with(" f32x3"), has_parts());
    EXPECT_TRUE(numerics(32).ends_with(" f32"));
  });
}
TEST(ProjectionPartsBits, ARowAloneIsTheRowInABatch) {
  each_level([] {
    Linear p = in_parts(203, 97, 130, 11, Activation::gelu, true);
    element(p.x, 40, 33) = 1e30f, element(p.x, 77, 2) = 1e-40f, element(p.weight, 9, 70) = 1e-33f;
    Tensor whole = p.run();
    for (const Index count : {1, 2, 7, 8, 9, 16, 17, 32, 40, 100})
      for (Index first = 0; first + count <= 203; first += count * 2 + 1)
        ASSERT_TRUE(same_bits(rows_of(p, first, count).view(), slice(whole.view(), 0, first, first + count)))
            << "rows " << first << " to " << first + count;
  });
}
TEST(ProjectionPartsBits, ThreadsAndPackingChangeNothing) {
  each_level([] {
    Linear p = in_parts(100, 600, 130, 13, Activation::silu, true);
    element(p.weight, 100, 555) = -4e20f;
    Tensor one = p.run(1);
    for (const int threads : kManyThreads) {
      EXPECT_TRUE(same_bits(p.run(threads), one)) << threads << " threads";
      Context ctx({.threads = threads});
      const PackedMatrix packed = pack_matrix(p.weight.view(), DType::f32, ctx, true);
      Tensor y(DType::f32, {100, 130});
      ProjectionArgs a = p.args(y);
      a.weight = {}, a.packed = &packed;
      projection(a, p.activation, ctx);
      EXPECT_TRUE(same_bits(y, one)) << threads << " threads, packed";
    }
  });
}
TEST(ProjectionPartsBits, LayoutsChangeNothing) {
  each_level([] {
    const Index batch = 2, tokens = 37, heads = 3, dim = 44, out_heads = 5, out_dim = 19;
    Linear p = in_parts(batch * tokens, heads * dim, out_heads * out_dim, 17);
    Tensor plain = p.run();
    const AnyView x4 = AnyView::packed(p.x.view().data, DType::f32, {batch, tokens, heads, dim});
    const AnyView y4 = AnyView::packed(plain.view().data, DType::f32, {batch, tokens, out_heads, out_dim});
    Context ctx({.threads = 2});
    for (const std::vector<int>& order :
         {std::vector<int>{0, 2, 1, 3}, {0, 1, 2, 3}, {1, 0, 2, 3}, {2, 3, 0, 1}})
      for (const Index gap : {0, 1}) {
        const Scattered x(x4, order, gap),
            w(p.weight.view(), gap ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, gap);
        Scattered y(y4, order, gap);
        projection({.x = x.view, .weight = w.view, .out = y.view, .parts = true}, Activation::none, ctx);
        EXPECT_TRUE(same_bits(y.packed().view(), y4)) << "gap " << gap;
        EXPECT_TRUE(y.gaps_intact());
      }
  });
}
TEST(ProjectionParts, NanStaysInItsRowAndItsColumn) {
  each_level([] {
    Linear p = in_parts(70, 130, 141, 23);
    Tensor clean = p.run();
    element(p.x, 5, 7) = NAN, element(p.x, 66, 129) = INFINITY, element(p.weight, 11, 3) = NAN;
    Tensor y = p.run();
    for (Index i = 0; i < 70; ++i)
      for (Index j = 0; j < 141; ++j) {
        const float got = element(y, i, j);
        if (i == 5 || j == 11)
          EXPECT_TRUE(std::isnan(got));
        else if (i == 66)
          EXPECT_TRUE(std::isinf(got));
        else
          ASSERT_EQ(got, element(clean, i, j));
      }
  });
}
/// Rows and columns of all sizes a float has: each sum is as near as its own products allow, and infinite
/// where the chain's is.
TEST(ProjectionParts, HugeTinyAndDenormalNumbers) {
  each_level([] {
    constexpr Index m = 75, k = 96, n = 128;
    Linear p = in_parts(m, k, n, 29);
    const float sizes[] = {1, 1e-41f, 1e-37f, 1e-30f, 1e-20f, 1e-12f, 1e12f, 1e16f, 1e20f, 1e37f, 0};
    for (Index i = 0; i < m; ++i)
      for (Index l = 0; l < k; ++l)
        element(p.x, i, l) *= sizes[i < 55 ? i / 5 : (i * 7 + l * 5) % 11];  // rows of one size, mixed rows
    for (Index j = 0; j < n; ++j)
      for (Index l = 0; l < k; ++l) element(p.weight, j, l) *= sizes[j < 110 ? j / 10 : (j + l) % 11];
    Tensor parts = p.run();
    p.parts = false;
    Tensor chain = p.run();
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) {
        double truth = 0, size = 0;
        for (Index l = 0; l < k; ++l) {
          const double product = static_cast<double>(element(p.x, i, l)) * element(p.weight, j, l);
          truth += product, size += std::fabs(product);
        }
        const float got = element(parts, i, j), was = element(chain, i, j);
        if (!std::isfinite(was)) {
          ASSERT_FALSE(std::isfinite(got)) << i << " " << j;
        } else {
          ASSERT_LE(std::fabs(got - truth), static_cast<double>(k) * (size * 0x1p-24 + 0x1p-125))
              << i << " " << j << " " << got << " " << was;
        }
      }
  });
}
TEST(ProjectionParts, RunsAllocateNothing) {
  Linear p = in_parts(40, 130, 100, 37, Activation::gelu, true);
  Tensor y(DType::f32, {40, 100});
  Context ctx({.threads = 2});
  const ProjectionPlan plan(projection_problem_of(p.args(y), p.activation), ctx);
  plan.run(p.args(y), ctx);
  const std::uint64_t before = allocations();
  for (int run = 0; run < 10; ++run) plan.run(p.args(y), ctx);
  EXPECT_EQ(allocations(), before);
}

struct Grads {
  Tensor dx, dweight;
};
Grads backward(const Linear& p, const Tensor& dy, int threads = 2) {
  Context ctx({.threads = threads});
  Grads g{Tensor(DType::f32, {p.rows(), p.in()}), Tensor(DType::f32, {p.out(), p.in()})};
  projection_backward({.dy = dy.view(),
                       .x = p.x.view(),
                       .weight = p.weight.view(),
                       .dx = g.dx.view(),
                       .dweight = g.dweight.view(),
                       .parts = p.parts},
                      ctx);
  return g;
}
/// dx = dy W and dW = dy^T x are projections too: by the transposed weight, of the transposed dy.
TEST(ProjectionPartsBackward, GradientsAreProjections) {
  each_level([] {
    for (const auto& [rows, in, out] : {std::array<Index, 3>{130, 140, 100}, {140, 65, 129}, {33, 256, 77}}) {
      Linear p = in_parts(rows, in, out, 41);
      Tensor dy = random_normal({rows, out}, DType::f32, 43);
      Grads one = backward(p, dy, 1);
      for (const int threads : {2, 3}) {
        Grads g = backward(p, dy, threads);
        EXPECT_TRUE(same_bits(g.dx, one.dx) && same_bits(g.dweight, one.dweight));
      }
      Linear dx = in_parts(rows, out, in, 1), dw = in_parts(out, rows, in, 1);
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < out; ++j) element(dx.x, i, j) = element(dw.x, j, i) = element(dy, i, j);
      for (Index c = 0; c < in; ++c) {
        for (Index j = 0; j < out; ++j) element(dx.weight, c, j) = element(p.weight, j, c);
        for (Index i = 0; i < rows; ++i) element(dw.weight, c, i) = element(p.x, i, c);
      }
      EXPECT_TRUE(dx.judge(one.dx)) << rows;
      EXPECT_TRUE(dw.judge(one.dweight)) << rows;
      EXPECT_TRUE(same_bits(one.dx, dx.run())) << rows;
      if (rows >= 64) {  // fewer: the projection chains
        EXPECT_TRUE(same_bits(one.dweight, dw.run())) << rows;
      }
    }
  });
}
TEST(ProjectionPartsBackward, ABatchCutAt32RowsAddsUpToTheSameBits) {
  each_level([] {
    Linear p = in_parts(170, 100, 90, 47);
    Tensor dy = random_normal({170, 90}, DType::f32, 48);
    element(dy, 3, 5) = 1e-39f, element(dy, 100, 80) = 1e22f, element(p.x, 130, 9) = 1e-36f;
    Grads whole = backward(p, dy);
    for (const Index cut : {32, 64, 160}) {
      Context ctx({.threads = 2});
      Tensor sum(DType::f32, {90, 100});
      for (const auto& [from, to] : {std::array<Index, 2>{0, cut}, {cut, 170}})
        projection_backward({.dy = slice(dy.view(), 0, from, to),
                             .x = slice(p.x.view(), 0, from, to),
                             .dweight = sum.view(),
                             .parts = true},
                            ctx);
      EXPECT_TRUE(same_bits(sum, whole.dweight)) << cut;
    }
  });
}

}  // namespace
}  // namespace headwise
