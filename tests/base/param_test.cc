// ParamSet: names, starts that depend on the name alone, gradients, handles that stay valid.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/param.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/base/sentence.h"

namespace headwise {
namespace {

std::vector<double> numbers(const InputView& v) {
  std::vector<double> all;
  for (Index i = 0; i < v.count(); ++i) all.push_back(load_double(v.data, v.dtype, i));
  return all;
}

TEST(ParamSet, ScopesJoinNames) {
  ParamSet set;
  set.add("top", {1});
  {
    auto layer = set.scope("layer.0");
    auto head = set.scope("talking");
    EXPECT_EQ(set.identity("mix_before", 3).name(), "layer.0.talking.mix_before");
  }
  EXPECT_EQ(set.add("end", {2, 2}).name(), "end");
  EXPECT_EQ(set.all().size(), 3u);
  EXPECT_EQ(set.count(), 1 + 9 + 4);
}

TEST(ParamSet, StartsDependOnSeedAndNameAlone) {
  ParamSet a(DType::f32, 7), b(DType::f32, 7), other(DType::f32, 8);
  b.add("first", {50}, Init::normal(1));
  const auto init = Init::normal(0.5);
  const auto x = numbers(a.add("w", {20, 30}, init).value());
  EXPECT_EQ(x, numbers(b.add("w", {20, 30}, init).value()));
  EXPECT_NE(x, numbers(other.add("w", {20, 30}, init).value()));
  EXPECT_NE(x, numbers(a.add("w2", {20, 30}, init).value()));
  double mean = 0, square = 0;
  for (const double n : x) mean += n / 600, square += n * n / 600;
  EXPECT_NEAR(mean, 0, 6 * 0.5 / std::sqrt(600.0));
  EXPECT_NEAR(square, 0.25, 6 * 0.25 * std::sqrt(2.0 / 600));
}

TEST(ParamSet, EveryStartIsWhatItSays) {
  ParamSet set(DType::f64, 3);
  EXPECT_EQ(numbers(set.add("z", {2}).value()), (std::vector<double>{0, 0}));
  EXPECT_EQ(numbers(set.add("c", {2}, Init::constant(2.5)).value()), (std::vector<double>{2.5, 2.5}));
  EXPECT_EQ(numbers(set.identity("i", 2).value()), (std::vector<double>{1, 0, 0, 1}));
  double largest = 0, mean = 0;
  const auto u = numbers(set.add("u", {4000}, Init::uniform(3)).value());
  for (const double n : u) largest = std::max(largest, std::fabs(n)), mean += n / 4000;
  EXPECT_LT(largest, 3);
  EXPECT_GT(largest, 2.99);
  EXPECT_NEAR(mean, 0, 6 * std::sqrt(3.0 / 4000));
}

TEST(ParamSet, HandlesSeeGradientsMadeLater) {
  ParamSet set(DType::f64);
  const Learned w = set.add("w", {2, 3}, Init::constant(1));
  EXPECT_FALSE(w.grad().given());
  set.make_grads();
  for (int i = 0; i < 100; ++i) set.add(text("more", i), {1});
  ASSERT_TRUE(w.grad().given());
  EXPECT_EQ(numbers(w.grad()), std::vector<double>(6, 0));
  store_double(w.grad().data, DType::f64, 4, 5);
  EXPECT_EQ(numbers(set.find("w").grad())[4], 5);
  EXPECT_TRUE(set.find("more99").grad().given());
  set.zero_grads();
  EXPECT_EQ(numbers(w.grad()), std::vector<double>(6, 0));
  EXPECT_EQ(numbers(w.value()), std::vector<double>(6, 1));
}

TEST(ParamSet, ABlankSetStartsAsZeros) {
  ParamSet set = ParamSet::blank(DType::f64);
  EXPECT_EQ(numbers(set.add("w", {2, 2}, Init::normal(1)).value()), std::vector<double>(4, 0));
  EXPECT_EQ(numbers(set.add("b", {3}, Init::constant(1)).value()), std::vector<double>(3, 0));
}

TEST(ParamSet, ABlankSetHoldsWhatItsFileHas) {
  ParamSet set = ParamSet::blank(DType::f32, 10);
  set.add("w", {2, 4});
  EXPECT_THROW(set.add("b", {3}), Error);
  EXPECT_THROW(set.add("wide", {Index{1} << 30, Index{1} << 30}), Error);
  set.add("c", {2});
}

TEST(ParamSet, JoinedOnesLieSideBySide) {
  for (const bool grads_first : {false, true}) {
    ParamSet set(DType::f64, 3), alone(DType::f64, 3);
    if (grads_first) set.make_grads();
    const Learned a = set.add("a", {2, 2}, Init::normal(1)), bias = set.add("bias", {2}, Init::constant(7)),
                  b = set.add("b", {3, 2}, Init::normal(1));
    set.join({a, Learned{}, b});
    set.make_grads();
    EXPECT_EQ(static_cast<double*>(a.value().data) + 4, b.value().data);
    EXPECT_EQ(static_cast<double*>(a.grad().data) + 4, b.grad().data);
    EXPECT_EQ(numbers(a.value()), numbers(alone.add("a", {2, 2}, Init::normal(1)).value()));
    EXPECT_EQ(numbers(b.value()), numbers(alone.add("b", {3, 2}, Init::normal(1)).value()));
    EXPECT_EQ(numbers(bias.value()), std::vector<double>(2, 7));
    store_double(b.grad().data, DType::f64, 5, 1);
    ParamSet moved = std::move(set);
    moved.zero_grads();
    EXPECT_EQ(numbers(moved.find("b").grad()), std::vector<double>(6, 0));
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                          [&] {
                            moved.join({b, bias});
                          }),
              "params: \"b\" is joined twice; join all of its neighbours at once");
  }
}

TEST(ParamSet, RefusesInWords) {
  ParamSet set;
  set.add("w", {2});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { set.add("w", {2}); }),
            "params: \"w\" is declared twice; open a scope with a name of its own");
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [&] {
                          set.add("v", {2, -1});
                        }),
            "params: \"v\" has a size of -1; sizes start at 0");
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [&] {
                          set.add("m", {2, 3}, Init::identity());
                        }),
            "params: \"m\" starts as the identity, so it must be square");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { set.find("x"); }),
            "params: there is no \"x\" among the 1 parameters; see ParamSet::all()");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { ParamSet(DType::i32); }),
            "params: got i32; parameters are f32, f64, bf16 or f16");
}

}  // namespace
}  // namespace headwise
