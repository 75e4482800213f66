// HeadGates: hard-concrete gates of heads (Louizos et al. 2018, Voita et al. 2019) with an L0 price: open,
// shut or between.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "headwise/base/param.h"

#pragma GCC visibility push(default)
namespace headwise {

/// s = sigmoid((ln u - ln(1 - u) + log_a) / beta), g = clip(s (zeta - gamma) + gamma, 0, 1), u uniform.
struct HardConcrete {
  double beta = 0.33, gamma = -0.1, zeta = 1.1;

  double gate(double log_a, double u) const;
  /// d gate / d log_a: 0 where it is clipped.
  double slope(double log_a, double u) const;
  /// P(gate = 0) and P(gate = 1).
  double p_shut(double log_a) const;
  double p_full(double log_a) const;
  double p_open(double log_a) const { return 1 - p_shut(log_a); }
  /// Without noise: clip(sigmoid(log_a) (zeta - gamma) + gamma).
  double at_rest(double log_a) const;
};

/// One gate a head; the same for every token. gate() goes into HeadInputs::gate with step 0 over tokens.
class HeadGates {
 public:
  /// Declares `name` [heads] in params, all log_a at `start`: 2 leaves a trained model nearly as it was (gate
  /// 0.957).
  HeadGates(ParamSet& params, std::string_view name, Index heads, double start = 2, HardConcrete shape = {});

  Index heads() const noexcept { return heads_; }
  Learned log_a() const noexcept { return log_a_; }
  /// The draw of a step: head h takes word h % 4 of the Philox block {h / 4, step's words, site} under
  /// `seed`.
  void draw(std::uint64_t seed, Index step, std::uint32_t site = 0);
  /// Gates without noise, for evaluation.
  void rest();
  /// Gates of 0 or 1: open where P(1) > P(0).
  void decide();
  /// The gates of the last draw(), rest() or decide(), as [1 1 heads] f32, seen as [batch tokens heads] by
  /// steps of 0.
  ConstView gate(Index batch = 1, Index tokens = 1) const;
  std::span<const float> values() const noexcept;

  /// dgate [... heads], summed over all but the last axis in ascending order in double; adds to the gradient
  /// of log_a. Only after draw(): the others have no noise to differentiate through.
  void backward(const AnyView& dgate);
  /// lambda times the expected number of open heads; adds its gradient, scaled by `weight`, to log_a's.
  double price(double lambda, double weight = 1);
  /// Expected open heads.
  double open() const;

 private:
  double log_a_at(Index h) const;
  void add_grad(Index h, double x);
  HardConcrete shape_;
  Index heads_;
  Learned log_a_;
  std::vector<float> values_;
  std::vector<double> slopes_;  // of the last draw; empty otherwise
};

}  // namespace headwise
#pragma GCC visibility pop
