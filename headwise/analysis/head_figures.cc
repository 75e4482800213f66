#include "headwise/analysis/head_figures.h"

#include <algorithm>
#include <cmath>

namespace headwise {

void HeadFigures::add(const HeadFigures& s) {
  rows += s.rows, entropy += s.entropy, spread += s.spread;
  confidence += s.confidence, distance += s.distance;
}

HeadFigures HeadFigures::mean() const {
  const double n = rows > 0 ? static_cast<double>(rows) : 1;
  return {rows, entropy / n, spread / n, confidence / n, distance / n};
}

HeadFigures sum_rows(const Tap& tap, Index head) {
  HeadFigures s;
  if (tap.kv_tokens < 2) return s;
  const double widest = std::log(static_cast<double>(tap.kv_tokens));
  for (Index i = 0; i < tap.q_tokens; ++i) {
    double entropy = 0, top = 0, distance = 0;
    for (Index j = 0; j < tap.kv_tokens; ++j) {
      const double w = tap.at(head, i, j);
      if (w > 0) entropy -= w * std::log(w);  // 0 ln 0 = 0
      top = std::max(top, w);
      distance += w * std::abs(static_cast<double>(i - j));
    }
    ++s.rows;
    s.entropy += entropy, s.spread += entropy / widest, s.confidence += top, s.distance += distance;
  }
  return s;
}

}  // namespace headwise
