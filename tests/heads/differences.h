// expect_gradients: a head's gradients in f64 against central differences of the layer's loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {

inline constexpr Place kSmallPlace{1, 4, 6};

struct HeadRows {
  Tensor x, x_kv, dy;
};
inline HeadRows rows_for(const HeadSetting& s, DType dtype) {
  return {random_normal({s.outer(), s.q_rows(), kSmallPlace.model_dim}, dtype, 21),
          random_normal({s.outer(), s.kv_rows(), kSmallPlace.model_dim}, dtype, 22),
          random_normal({s.outer(), s.q_rows(), kSmallPlace.model_dim}, dtype, 23)};
}

/// sum y dy + the head's own loss.
inline double loss_of(Layer& layer, const HeadSetting& s, const HeadRows& r, Context& ctx) {
  Tensor y = layer.forward(s, r.x.view(), r.x_kv.view(), ctx);
  double sum = layer.call().loss;
  for (std::size_t i = 0; i < y.values<double>().size(); ++i)
    sum += y.values<double>()[i] * r.dy.values<double>()[i];
  return sum;
}

/// At most `most` elements of n, spread over all.
inline std::vector<Index> some_of(Index n, Index most) {
  std::vector<Index> all;
  for (Index i = 0; i < min_of(n, most); ++i) all.push_back(n <= most ? i : i * (n - 1) / (most - 1));
  return all;
}

inline void expect_differences(const std::string& name, const InputView& value, const InputView& grad,
                               const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  for (const Index i : some_of(value.count(), 5)) {
    double& at = static_cast<double*>(value.data)[i];
    const double kept = at, got = static_cast<double*>(grad.data)[i];
    const double bound = 1e-8 * std::max(1.0, std::fabs(got));
    const auto slope = [&](double step) {
      at = kept + step;
      const double above = loss();
      at = kept - step;
      const double below = loss();
      at = kept;
      return (above - below) / (2 * step);
    };
    double difference = slope(kStep);
    // A norm over a vector near 0 bends: there the next term of the series is taken off as well.
    if (std::fabs(got - difference) > bound) difference = (4 * difference - slope(2 * kStep)) / 3;
    EXPECT_NEAR(got, difference, bound) << name << " element " << i;
  }
}

/// Of every parameter, W_Q, W_K, W_V, W_O included, and of the rows.
inline void expect_gradients(const std::string& head, const HeadSetting& s, Context& ctx) {
  SCOPED_TRACE(text(head, " ", s.name));
  Layer layer(head, DType::f64, kSmallPlace);
  disturb(layer.params(), 0.3);
  const HeadRows r = rows_for(s, DType::f64);
  const auto loss = [&] { return loss_of(layer, s, r, ctx); };
  loss();
  layer.backward(r.dy.view(), ctx);
  Tensor dx = std::move(layer.dx), dx_kv = std::move(layer.dx_kv);
  for (Param& p : layer.params().all()) expect_differences(p.name, p.value, p.grad, loss);
  expect_differences("x", r.x.view(), dx.view(), loss);
  if (s.cross) expect_differences("x_kv", r.x_kv.view(), dx_kv.view(), loss);
}

}  // namespace headwise::test
