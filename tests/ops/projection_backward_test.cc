#include "headwise/ops/projection/backward.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include "tests/ops/projection_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};

/// Gradients of one projection; dweight and dbias start at `start` everywhere.
struct Gradients {
  Tensor dx, dweight, dbias;
  Gradients(const Linear& p, DType sums, double start)
      : dx(p.x.dtype(), {p.rows(), p.in()}), dweight(sums, {p.out(), p.in()}), dbias(sums, {p.out()}) {
    for (Tensor* t : {&dweight, &dbias})
      for (Index i = 0; i < t->view().count(); ++i) store_double(t->view().data, sums, i, start);
  }
  ProjectionGrads args(const Linear& p, const Tensor& dy) {
    return {.dy = dy.view(),
            .x = p.x.view(),
            .weight = p.weight.view(),
            .dx = dx.view(),
            .dweight = dweight.view(),
            .dbias = dbias.view()};
  }
};
Gradients run(const Linear& p, const Tensor& dy, int threads = 2, DType sums = DType::f32,
              double start = 0.5) {
  Context ctx({.threads = threads});
  Gradients g(p, sums, start);
  projection_backward(g.args(p, dy), ctx);
  return g;
}

/// The formulas in T, one sum after the other.
template <class T>
void plain(const Linear& p, const Tensor& dy, Gradients& g) {
  const auto at = [](const Tensor& t, Index i) {
    return static_cast<T>(load_double(t.view().data, t.dtype(), i));
  };
  const auto put = [](Tensor& t, Index i, T x) {
    store_double(t.view().data, t.dtype(), i, static_cast<double>(x));
  };
  const Index rows = p.rows(), in = p.in(), out = p.out();
  for (Index i = 0; i < rows; ++i)
    for (Index c = 0; c < in; ++c) {
      T sum = 0;
      for (Index j = 0; j < out; ++j) sum += at(dy, i * out + j) * at(p.weight, j * in + c);
      put(g.dx, i * in + c, sum);
    }
  for (Index j = 0; j < out; ++j) {
    for (Index c = 0; c < in; ++c) {
      T sum = at(g.dweight, j * in + c);
      for (Index i = 0; i < rows; ++i) sum += at(dy, i * out + j) * at(p.x, i * in + c);
      put(g.dweight, j * in + c, sum);
    }
    T sum = at(g.dbias, j);
    for (Index i = 0; i < rows; ++i) sum += at(dy, i * out + j);
    put(g.dbias, j, sum);
  }
}

TEST(ProjectionBackward, CentralDifferencesAgree) {
  Linear p(5, 7, 6, DType::f64, 1);
  p.bias = random_normal({6}, DType::f64, 9);
  Tensor dy = random_normal({5, 6}, DType::f64, 2);
  Gradients g = run(p, dy, 2, DType::f64, 0);
  const auto loss = [&] {
    Tensor y = p.run(1);
    double sum = 0;
    for (Index i = 0; i < 30; ++i) sum += value(y.view(), i) * value(dy.view(), i);
    return sum;
  };
  for (const auto& [of, gradient] : {std::pair{&p.x, &g.dx}, {&p.weight, &g.dweight}, {&p.bias, &g.dbias}})
    for (double& v : of->values<double>()) {
      const double eps = 1e-5, was = v;
      v = was + eps;
      const double above = loss();
      v = was - eps;
      const double below = loss();
      v = was;
      const double expected = (above - below) / (2 * eps);
      const double got =
          gradient->values<double>()[static_cast<std::size_t>(&v - of->values<double>().data())];
      EXPECT_LE(std::fabs(got - expected), 1e-8 * std::max(1.0, std::fabs(expected)));
    }
}
TEST(ProjectionBackward, AgreesWithTheTruthAtEveryLevel) {
  each_level([] {
    std::uint64_t seed = 100;
    for (const DType dtype : kNarrow)
      for (const auto& [rows, in, out] :
           {std::array<Index, 3>{1, 1, 1}, {3, 5, 7}, {40, 33, 65}, {130, 20, 100}, {33, 96, 64}}) {
        Linear p(rows, in, out, dtype, seed += 10);
        Tensor dy = random_normal({rows, out}, dtype, seed + 5);
        Gradients got = run(p, dy);
        Linear exact(rows, in, out, DType::f64, 1);
        exact.x = converted(p.x.view(), DType::f64), exact.weight = converted(p.weight.view(), DType::f64);
        Gradients truth(exact, DType::f64, 0.5), yard(p, DType::f32, 0.5);
        plain<double>(exact, dy, truth);
        plain<float>(p, dy, yard);
        EXPECT_TRUE(close_to_truth(got.dx.view(), truth.dx.view(), yard.dx.view()));
        EXPECT_TRUE(close_to_truth(got.dweight.view(), truth.dweight.view(), yard.dweight.view()));
        EXPECT_TRUE(close_to_truth(got.dbias.view(), truth.dbias.view(), yard.dbias.view()));
      }
  });
}
TEST(ProjectionBackwardBits, ThreadsChangeNothing) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      Linear p(170, 90, 300, dtype, 3);
      Tensor dy = random_normal({170, 300}, dtype, 4);
      Gradients one = run(p, dy, 1);
      for (const int threads : kManyThreads) {
        Gradients g = run(p, dy, threads);
        EXPECT_TRUE(same_bits(g.dx, one.dx) && same_bits(g.dweight, one.dweight) &&
                    same_bits(g.dbias, one.dbias))
            << dtype << " " << threads << " threads";
      }
    }
  });
}
TEST(ProjectionBackwardBits, MicroBatchesAddUpToTheBatch) {
  each_level([] {
    for (const auto& [dtype, in, out] : {std::tuple<DType, Index, Index>{DType::f32, 50, 70},
                                         {DType::bf16, 50, 70},
                                         {DType::f16, 50, 70},
                                         {DType::f32, 96, 64},
                                         {DType::bf16, 96, 64}}) {
      Linear p(160, in, out, dtype, 5);
      Tensor dy = random_normal({160, out}, dtype, 6);
      Gradients whole = run(p, dy);
      Gradients parts(p, DType::f32, 0.5);
      Context ctx({.threads = 2});
      Index first = 0;
      for (const Index end : {32, 128, 160}) {
        ProjectionGrads a = parts.args(p, dy);
        a.dy = slice(a.dy, 0, first, end), a.x = slice(a.x, 0, first, end), a.dx = slice(a.dx, 0, first, end);
        projection_backward(a, ctx);
        first = end;
      }
      EXPECT_TRUE(same_bits(parts.dx, whole.dx) && same_bits(parts.dweight, whole.dweight) &&
                  same_bits(parts.dbias, whole.dbias))
          << dtype;
    }
  });
}
TEST(ProjectionBackwardBits, HeadSplitsChangeNothing) {
  each_level([] {
    for (const DType dtype : kNarrow) {
      const Index batch = 2, tokens = 9, heads = 3, dim = 8, in = 40;
      Linear p(batch * tokens, in, heads * dim, dtype, 7);
      Tensor dy = random_normal({batch * tokens, heads * dim}, dtype, 8);
      Gradients plain_form = run(p, dy);
      const Scattered split(AnyView::packed(dy.view().data, dtype, {batch, tokens, heads, dim}), {0, 2, 1, 3},
                            1);
      Gradients g(p, DType::f32, 0.5);
      ProjectionGrads a = g.args(p, dy);
      a.dy = split.view;
      Context ctx({.threads = 2});
      projection_backward(a, ctx);
      EXPECT_TRUE(same_bits(g.dx, plain_form.dx) && same_bits(g.dweight, plain_form.dweight) &&
                  same_bits(g.dbias, plain_form.dbias))
          << dtype;
    }
  });
}
TEST(ProjectionBackward, ComputesOnlyWhatIsAsked) {
  Linear p(6, 5, 4, DType::f32, 9);
  Tensor dy = random_normal({6, 4}, DType::f32, 10);
  Gradients all = run(p, dy);
  for (int wanted = 1; wanted < 8; ++wanted) {
    Gradients g(p, DType::f32, 0.5);
    ProjectionGrads a = g.args(p, dy);
    if (!(wanted & 1)) a.dx = {}, a.weight = {};
    if (!(wanted & 2)) a.dweight = {}, a.x = {};
    if (!(wanted & 4)) a.dbias = {};
    Context ctx({.threads = 1});
    projection_backward(a, ctx);
    EXPECT_TRUE(!(wanted & 1) || same_bits(g.dx, all.dx));
    EXPECT_TRUE(!(wanted & 2) || same_bits(g.dweight, all.dweight));
    EXPECT_TRUE(!(wanted & 4) || same_bits(g.dbias, all.dbias));
  }
}
TEST(ProjectionBackward, SizesOfZeroAddNothing) {
  for (const auto& [rows, in, out] : {std::array<Index, 3>{0, 5, 3}, {4, 0, 3}, {4, 5, 0}}) {
    Linear p(rows, in, out, DType::f32, 1);
    Tensor dy = random_normal({rows, out}, DType::f32, 2);
    Gradients g = run(p, dy);
    for (const float v : g.dx.values<float>()) EXPECT_EQ(v, 0.0f);
    if (rows == 0) {
      for (const float v : g.dweight.values<float>()) EXPECT_EQ(v, 0.5f);
      for (const float v : g.dbias.values<float>()) EXPECT_EQ(v, 0.5f);
    }
  }
}
TEST(ProjectionBackward, RunsAllocateNothing) {
  Linear p(33, 70, 50, DType::bf16, 11);
  Tensor dy = random_normal({33, 50}, DType::bf16, 12);
  Gradients g(p, DType::f32, 0);
  Context ctx({.threads = 2});
  const ProjectionBackwardPlan plan(projection_backward_problem_of(g.args(p, dy)), ctx);
  EXPECT_NE(plan.numerics().find("; dweight: cpu/packed"), std::string::npos) << plan.numerics();
  plan.run(g.args(p, dy), ctx);
  const std::uint64_t before = allocations();
  for (int i = 0; i < 10; ++i) plan.run(g.args(p, dy), ctx);
  EXPECT_EQ(allocations(), before);
}
TEST(ProjectionBackwardErrors, EachIsOneSentence) {
  Linear p(6, 5, 4, DType::f32, 9);
  Tensor dy(DType::f32, {6, 4}), three(DType::f32, {3});
  Gradients g(p, DType::f32, 0);
  Context ctx({.threads = 1});
  const auto with = [&](const std::function<void(ProjectionGrads&)>& change) {
    ProjectionGrads a = g.args(p, dy);
    change(a);
    return error_of([&] { projection_backward(a, ctx); });
  };
  EXPECT_EQ(with([](auto& a) { a.dy = {}; }), "projection_backward: dy is missing; every gradient needs it");
  EXPECT_EQ(with([](auto& a) { a.weight = {}; }), "projection_backward: weight is missing; dx needs it");
  EXPECT_EQ(with([](auto& a) { a.x = {}; }), "projection_backward: x is missing; dweight needs it");
  EXPECT_EQ(with([](auto& a) { a.dx = {}, a.dweight = {}, a.dbias = {}; }),
            "projection_backward: no gradient is asked; give dx, dweight or dbias");
  EXPECT_EQ(with([&](auto& a) { a.dbias = three.view(); }),
            "projection_backward: dbias is f32 [3]; give [4], one number an output");
  EXPECT_EQ(with([&](auto& a) { a.dweight = a.dx; }),
            "projection_backward: dx overlaps dweight; give it memory of its own");
  EXPECT_EQ(with([&](auto& a) { a.dweight = a.weight; }),
            "projection_backward: dweight overlaps weight; give it memory of its own");
  EXPECT_EQ(with([&](auto& a) { a.x = slice(a.x, 0, 0, 5); }),
            "projection_backward: x is f32 [5 5], 5 rows, but dy is f32 [6 4], 6 rows; give as many");
}

}  // namespace
}  // namespace headwise
