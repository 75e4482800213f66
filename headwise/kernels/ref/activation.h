// Activations and their slopes in double: the formulas themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <numbers>

#include "headwise/spec/gemm.h"

namespace headwise::ref {

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
/// u of gelu_tanh: x (1 + tanh u) / 2 = x * sigmoid(2 u).
inline double tanh_argument(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

inline double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh: return x * sigmoid(2 * tanh_argument(x));
    case Activation::silu: return x * sigmoid(x);
    case Activation::sigmoid: return sigmoid(x);
  }
  return x;
}

/// d activate / dx; 0 at the corner of relu.
inline double slope_of(Activation kind, double x) {
  const auto sigmoid_slope = [](double y) { return sigmoid(y) * sigmoid(-y); };
  switch (kind) {
    case Activation::none: return 1;
    case Activation::relu: return x > 0 ? 1 : 0;
    case Activation::gelu:
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case Activation::gelu_tanh: {
      const double u = tanh_argument(x), du = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
      return sigmoid(2 * u) + x * sigmoid_slope(2 * u) * 2 * du;
    }
    case Activation::silu: return sigmoid(x) + x * sigmoid_slope(x);
    case Activation::sigmoid: return sigmoid_slope(x);
  }
  return 1;
}

}  // namespace headwise::ref
