// normalize: logits to weights in double: softmax (alpha 1), entmax of any alpha up to 2, and its gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace headwise::ref {

/// tau of z with max 0, by sorting: alpha 1.5 (sum of squares is 1) and 2 (sum is 1).
inline double exact_tau(std::vector<double> z, double alpha) {
  std::sort(z.begin(), z.end(), std::greater<>());
  double sum = 0, squares = 0, tau = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const auto k = static_cast<double>(i + 1);
    sum += z[i], squares += z[i] * z[i];
    const double mean = sum / k, spread = squares - k * mean * mean;
    const double t = alpha == 2 ? mean - 1 / k : mean - std::sqrt(std::max(0.0, (1 - spread) / k));
    if (t > z[i]) break;  // z[i] would weigh nothing, and so do all below it
    tau = t;
  }
  return tau;
}

/// tau of z with max 0: Halley's steps, and the middle of the bracket where one leaves it.
inline double halley_tau(const std::vector<double>& z, double alpha) {
  const double power = 1 / (alpha - 1);
  double low = -1, high = -std::pow(static_cast<double>(z.size()), 1 - alpha), tau = (low + high) / 2;
  for (int step = 0; step < 200 && low < high; ++step) {
    double f = -1, slope = 0, bend = 0;
    for (const double x : z) {
      if (!(x > tau)) continue;
      const double d = x - tau, p = std::pow(d, power);
      f += p, slope -= power * p / d, bend += power * (power - 1) * p / (d * d);
    }
    (f >= 0 ? low : high) = tau;
    const double next = tau - 2 * f * slope / (2 * slope * slope - f * bend);
    const double used = low < next && next < high ? next : (low + high) / 2;
    if (used == tau) break;
    tau = used;
  }
  return tau;
}

/// w of the logits s; -inf weighs nothing. Returns tau of w = max(0, (alpha - 1) s - tau)^(1 / (alpha - 1)),
/// for alpha 1 the log-sum-exp; -inf when nothing is open.
inline double normalize(const std::vector<double>& s, double alpha, std::vector<double>& w) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  double top = kMinusInfinity, sum = 0;
  for (const double x : s)
    if (!(x <= top)) top = x;
  w.assign(s.size(), 0);
  if (top == kMinusInfinity) return top;
  if (!std::isfinite(top)) {  // NaN, or +inf, whose distance from itself is NaN
    w.assign(s.size(), std::numeric_limits<double>::quiet_NaN());
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (alpha == 1) {
    for (std::size_t i = 0; i < s.size(); ++i) sum += w[i] = std::exp(s[i] - top);
    for (double& x : w) x /= sum;
    return top + std::log(sum);
  }
  std::vector<double> z;
  for (const double x : s)
    if (x != kMinusInfinity) z.push_back((alpha - 1) * (x - top));
  const double tau = alpha == 1.5 || alpha == 2 ? exact_tau(z, alpha) : halley_tau(z, alpha);
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double d = (alpha - 1) * (s[i] - top) - tau;
    sum += w[i] = d <= 0 ? 0.0 : std::pow(d, 1 / (alpha - 1));
  }
  for (double& x : w) x /= sum;
  return (alpha - 1) * top + tau;
}

/// dw, the gradient of the weights w, becomes that of the logits; returns that of alpha (0 for alpha 1).
///   u = w^(2 - alpha) on the support, q = u / sum u:  ds = u (dw - q.dw)
///   dalpha = sum_j dw_j ((w_j - q_j) / (alpha - 1)^2 - (w_j ln w_j - q_j sum w ln w) / (alpha - 1))
inline double normalize_backward(const std::vector<double>& w, double alpha, std::vector<double>& dw) {
  double all = 0, dot = 0, entropy = 0, dalpha = 0;
  std::vector<double> u(w.size(), 0.0);
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (w[i] == 0) continue;
    u[i] = std::pow(w[i], 2 - alpha);
    all += u[i], dot += u[i] * dw[i], entropy += w[i] * std::log(w[i]);
  }
  const double less = alpha - 1;
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (w[i] == 0) {
      dw[i] = 0;
      continue;
    }
    const double q = u[i] / all;
    if (less > 0)
      dalpha += dw[i] * ((w[i] - q) / (less * less) - (w[i] * std::log(w[i]) - q * entropy) / less);
    dw[i] = u[i] * (dw[i] - dot / all);
  }
  return dalpha;
}

}  // namespace headwise::ref
