// leaf_sums has the bits of a projection for every leaf, added as a tree one after the other, and the value
// of one product.
#include "headwise/ops/projection/leaf_sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/ops/projection/projection.h"
#include "tests/ops/projection_cases.h"

namespace headwise {
namespace {

using namespace test;

struct Case {
  Index rows, columns, leaves;
  std::vector<std::array<Index, 2>> terms;  // columns of x, repeats
  bool tail = false;
  DType dtype = DType::f32;
};

struct Drawn {
  std::vector<Tensor> x, weights;
  Tensor bias, residual;
  std::vector<LeafTermArgs> terms;

  explicit Drawn(const Case& c)
      : bias(random_normal({c.columns}, c.dtype, 7)),
        residual(random_normal({c.rows, c.columns}, c.dtype, 8)) {
    for (const auto& [in, repeats] : c.terms) {
      const auto seed = static_cast<std::uint64_t>(x.size());
      x.push_back(random_normal({c.rows, in}, c.dtype, 20 + seed));
      weights.push_back(random_normal({c.columns, in / repeats}, c.dtype, 40 + seed));
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      terms.push_back({x[i].view(), weights[i].view(), c.terms[i][1]});
  }
  Tensor sums(const Case& c, int threads, DType out, bool& taken) const {
    Context ctx({.threads = threads});
    Tensor y(out, {c.rows, c.columns});
    LeafSumsArgs a{.terms = terms, .leaves = c.leaves, .out = y.view()};
    if (c.tail) a.bias = bias.view(), a.residual = residual.view();
    taken = leaf_sums(a, ctx);
    return y;
  }
};

AnyView columns_of(AnyView v, Index begin, Index size) {
  v.data = static_cast<std::byte*>(v.data) + begin * v.step[1] * size_of(v.dtype);
  v.size[1] = size;
  return v;
}

/// node(begin, end) by projections in f32 and plain sums.
std::vector<float> node(const Case& c, const Drawn& d, Index begin, Index end) {
  if (end - begin > 1) {
    std::vector<float> left = node(c, d, begin, (begin + end) / 2);
    const std::vector<float> right = node(c, d, (begin + end) / 2, end);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
    return left;
  }
  std::vector<float> sum;
  Context ctx({.threads = 1});
  for (const LeafTermArgs& t : d.terms) {
    const Index size = t.x.size[1] / c.leaves;
    Tensor y(DType::f32, {c.rows, c.columns});
    projection({.x = columns_of(t.x, begin * size, size),
                .weight = columns_of(t.weight, begin / t.repeats * size, size),
                .out = y.view()},
               Activation::none, ctx);
    const std::span<const float> one = y.values<const float>();
    if (sum.empty())
      sum.assign(one.begin(), one.end());
    else
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  return sum;
}

/// The whole of it, rounded to `out` once.
Tensor by_projections(const Case& c, const Drawn& d, DType out) {
  std::vector<float> sum = node(c, d, 0, c.leaves);
  Tensor y(out, {c.rows, c.columns});
  for (Index i = 0; i < c.rows * c.columns; ++i) {
    float s = sum[static_cast<std::size_t>(i)];
    if (c.tail) {
      s += static_cast<float>(load_double(d.bias.view().data, c.dtype, i % c.columns));
      s += static_cast<float>(load_double(d.residual.view().data, c.dtype, i));
    }
    store_double(y.view().data, out, i, static_cast<double>(s));
  }
  return y;
}

TEST(LeafSums, HaveTheBitsOfProjectionsAddedAsATree) {
  const Case cases[] = {
      {1, 24, 8, {{8, 1}}},
      {5, 77, 8, {{64, 1}}, true},
      {33, 130, 8, {{512, 1}}},
      {192, 96, 8, {{512, 1}}},                           // sums may lie in out
      {49, 100, 8, {{2048, 1}}, true},                    // a leaf is a block of k
      {20, 48, 8, {{6400, 1}}},                           // and more than one
      {64, 200, 4, {{96, 1}}},                            // leaves of 24
      {7, 31, 2, {{10, 1}}, true},                        // of 5
      {200, 64, 1, {{300, 1}}},                           // one leaf is one chain
      {40, 64, 8, {{128, 1}, {128, 1}, {128, 1}}},        // dx of three maps
      {40, 64, 8, {{128, 1}, {128, 4}, {128, 4}}, true},  // kv heads that leaves share
      {12, 50, 8, {{4800, 1}, {4800, 1}}},
      {33, 60, 8, {{256, 1}}, true, DType::bf16},
      {33, 60, 4, {{256, 1}, {64, 2}}, true, DType::f16},
  };
  each_level([&] {
    for (const Case& c : cases) {
      const Drawn d(c);
      for (const DType out : {DType::f32, c.dtype})
        for (const int threads : {1, 2, 3}) {
          bool taken = false;
          const Tensor y = d.sums(c, threads, out, taken);
          const bool chains =
              c.dtype == DType::f32 || !cpu::chosen_isa().gemm()->bf16 || c.dtype == DType::f16;
          EXPECT_EQ(taken, chains);
          if (!taken) continue;
          EXPECT_TRUE(same_bits(y, by_projections(c, d, out)))
              << c.rows << " " << c.columns << " in " << c.leaves << " leaves, " << threads << " threads";
        }
    }
  });
}

TEST(LeafSums, AreTheProduct) {
  const Case c{33, 130, 8, {{512, 1}}};
  const Drawn d(c);
  bool taken = false;
  const Tensor y = d.sums(c, 2, DType::f32, taken);
  for (Index i = 0; i < c.rows; ++i)
    for (Index j = 0; j < c.columns; ++j) {
      double truth = 0, size = 0;
      for (Index k = 0; k < 512; ++k) {
        const double one = load_double(d.x[0].view().data, DType::f32, i * 512 + k) *
                           load_double(d.weights[0].view().data, DType::f32, j * 512 + k);
        truth += one, size += std::abs(one);
      }
      EXPECT_NEAR(load_double(y.view().data, DType::f32, i * c.columns + j), truth, 1e-6 * size);
    }
}

TEST(LeafSums, LeaveToOthersWhatTheyCannotAdd) {
  bool taken = true;
  const Case c{4, 8, 8, {{64, 1}}, false, DType::f64};
  Drawn(c).sums(c, 1, DType::f64, taken);
  EXPECT_FALSE(taken);
  const Case many{4, 8, 16, {{64, 1}}};
  Drawn(many).sums(many, 1, DType::f32, taken);
  EXPECT_FALSE(taken);
  const Case f32{4, 8, 8, {{64, 1}}};
  Context ctx({.threads = 1, .kernels = "ref"});
  Tensor y(DType::f32, {4, 8});
  const Drawn d(f32);
  EXPECT_FALSE(leaf_sums({.terms = d.terms, .leaves = 8, .out = y.view()}, ctx));
}

TEST(LeafSums, RefuseInWords) {
  const std::pair<Case, const char*> cases[] = {
      {{4, 8, 3, {{64, 1}}}, "leaves that divide in"},
      {{4, 16, 2, {{64, 4}}}, "repeats that divide leaves"},  // a leaf would go behind the weights
      {{4, 16, 8, {{96, 3}}}, "repeats that divide leaves"}};
  for (const auto& [c, words] : cases) {
    bool taken = false;
    try {
      Drawn(c).sums(c, 1, DType::f32, taken);
      FAIL() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace headwise
