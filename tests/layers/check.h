// What tests of layers share: a step's call, and gradient checks in random directions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "headwise/base/context.h"
#include "headwise/layers/basic/module.h"
#include "tests/ops/row_op_cases.h"

namespace headwise::test {

/// A context and memory, and calls on them.
struct Bench {
  explicit Bench(int threads = 2) : ctx({.threads = threads}) {}
  Context ctx;
  StepMemory memory;
  Call call(Sequences sequences = {}, bool training = false) {
    memory.reset();
    return {.ctx = ctx, .memory = memory, .sequences = sequences, .training = training, .seed = 7, .step = 3};
  }
};

inline Tensor longs(std::initializer_list<Index> numbers) {
  Tensor t(DType::i64, {static_cast<Index>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), t.values<std::int64_t>().begin());
  return t;
}

inline double dot(const InputView& a, const InputView& b) {
  double sum = 0;
  for (Index i = 0; i < a.count(); ++i) sum += value(a, i) * value(b, i);
  return sum;
}

/// The loss sum(w * y) + loss_weight * call.loss of a layer over f64 inputs and parameters.
struct GradientCase {
  std::string name;
  ParamSet& params;
  std::vector<AnyView> inputs;
  std::function<Call()> call;
  std::function<AnyView(Call&, bool keep)> forward;
  std::function<std::vector<AnyView>(const InputView& dy, Call&)> backward;  // a gradient an input
};

/// 16 random directions through all inputs and parameters together, relative 1e-6.
inline void expect_gradients(const GradientCase& c) {
  c.params.make_grads();
  c.params.zero_grads();
  std::vector<AnyView> values = c.inputs, grads;
  for (Param& p : c.params.all()) values.push_back(p.value);
  // Weights that start at 0 or 1 would hide terms of the gradient.
  for (Param& p : c.params.all())
    for (Index i = 0; i < p.value.count(); ++i)
      static_cast<double*>(p.value.data)[i] += 0.1 * normal_at(std::hash<std::string>{}(p.name), i);
  Call call = c.call();
  const AnyView y = c.forward(call, true);
  Tensor w = random_normal({y.count()}, DType::f64, 99);
  AnyView dy = y;
  dy.data = w.view().data;
  for (const auto& g : c.backward(dy, call)) grads.push_back(g);
  for (Param& p : c.params.all()) grads.push_back(p.grad);
  std::vector<std::vector<double>> slopes;
  for (std::size_t k = 0; k < values.size(); ++k) {
    ASSERT_EQ(grads[k].count(), values[k].count()) << c.name;
    slopes.emplace_back();
    for (Index i = 0; i < grads[k].count(); ++i) slopes.back().push_back(value(grads[k], i));
  }
  const auto loss = [&] {
    Call again = c.call();
    const AnyView out = c.forward(again, false);
    return dot(w.view(), out) + again.loss_weight * again.loss;
  };
  for (std::uint64_t direction = 0; direction < 16; ++direction) {
    const auto along = [&](std::size_t k, Index i) { return normal_at(1000 * direction + k, i); };
    double slope = 0;
    for (std::size_t k = 0; k < values.size(); ++k)
      for (Index i = 0; i < values[k].count(); ++i)
        slope += slopes[k][static_cast<std::size_t>(i)] * along(k, i);
    double here = 0;  // where the values stand, in steps
    const auto at = [&](double step) {
      for (std::size_t k = 0; k < values.size(); ++k)
        for (Index i = 0; i < values[k].count(); ++i)
          static_cast<double*>(values[k].data)[i] += (step - here) * along(k, i);
      here = step;
      return loss();
    };
    constexpr double kEps = 1e-5;
    const double numeric = (8 * (at(kEps) - at(-kEps)) - (at(2 * kEps) - at(-2 * kEps))) / (12 * kEps);
    at(0);
    EXPECT_NEAR(slope, numeric, 1e-6 * std::max(1.0, std::abs(slope)))
        << c.name << ", direction " << direction;
  }
}

}  // namespace headwise::test
