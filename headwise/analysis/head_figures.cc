#include "headwise/analysis/head_figures.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

double entropy_term(double w) { return w > 0 ? -w * std::log(w) : 0; }  // 0 ln 0 = 0

}  // namespace

void HeadFigures::add(const HeadFigures& s) {
  rows += s.rows, entropy += s.entropy, spread += s.spread;
  confidence += s.confidence, distance += s.distance, self += s.self;
}

HeadFigures HeadFigures::mean() const {
  const double n = rows > 0 ? static_cast<double>(rows) : 1;
  return {rows, entropy / n, spread / n, confidence / n, distance / n, self / n};
}

HeadFigures sum_rows(const Tap& tap, Index head) {
  HeadFigures s;
  if (tap.kv_tokens < 2) return s;
  const double widest = std::log(static_cast<double>(tap.kv_tokens));
  for (Index i = 0; i < tap.q_tokens; ++i) {
    double entropy = 0, top = 0, distance = 0;
    for (Index j = 0; j < tap.kv_tokens; ++j) {
      const double w = tap.at(head, i, j);
      entropy += entropy_term(w);
      top = std::max(top, w);
      distance += w * std::abs(static_cast<double>(i - j));
    }
    ++s.rows;
    s.entropy += entropy, s.spread += entropy / widest, s.confidence += top, s.distance += distance;
    if (i < tap.kv_tokens) s.self += static_cast<double>(tap.at(head, i, i));
  }
  return s;
}

void HeadsApart::add(const Tap& tap) {
  if (tap.kv_tokens < 2) return;
  std::vector<double> entropy(static_cast<std::size_t>(tap.heads));
  for (Index i = 0; i < tap.q_tokens; ++i) {
    for (Index h = 0; h < tap.heads; ++h) {
      double& e = entropy[static_cast<std::size_t>(h)] = 0;
      for (Index j = 0; j < tap.kv_tokens; ++j) e += entropy_term(tap.at(h, i, j));
    }
    for (Index a = 0; a < tap.heads; ++a)
      for (Index b = a + 1; b < tap.heads; ++b) {
        // H((p + q) / 2) - (H(p) + H(q)) / 2: one logarithm a pair of weights
        double middle = 0;
        for (Index j = 0; j < tap.kv_tokens; ++j)
          middle += entropy_term(
              0.5 * (static_cast<double>(tap.at(a, i, j)) + static_cast<double>(tap.at(b, i, j))));
        const double both = entropy[static_cast<std::size_t>(a)] + entropy[static_cast<std::size_t>(b)];
        ++rows, sum += std::max(0.0, middle - 0.5 * both);
      }
  }
}

}  // namespace headwise
