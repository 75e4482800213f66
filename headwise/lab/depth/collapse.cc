#include "headwise/lab/depth/collapse.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// sqrt(|X|_1 |X|_inf) of what `entry(row, column)` gives.
template <class F>
double composite_norm(Index rows, Index columns, F&& entry) {
  std::vector<double> down(at(columns), 0);
  double across = 0;
  for (Index r = 0; r < rows; ++r) {
    double sum = 0;
    for (Index c = 0; c < columns; ++c) {
      const double x = std::abs(entry(r, c));
      sum += x, down[at(c)] += x;
    }
    across = std::max(across, sum);
    if (!std::isfinite(sum)) return std::numeric_limits<double>::quiet_NaN();
  }
  return std::sqrt(across * *std::max_element(down.begin(), down.end()));
}

}  // namespace

double spread_of(const AnyView& x) {
  const Index rows = x.size[0], columns = x.size[1];
  const auto entry = [&](Index r, Index c) {
    return load_double(x.data, x.dtype, r * x.step[0] + c * x.step[1]);
  };
  std::vector<double> mean(at(columns), 0);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) mean[at(c)] += entry(r, c) / static_cast<double>(rows);
  const double rest =
      composite_norm(rows, columns, [&](Index r, Index c) { return entry(r, c) - mean[at(c)]; });
  return rest / composite_norm(rows, columns, entry);
}

void add_collapse(SurveySubject& model, const SurveyTokens& text, DepthSums& to) {
  for (const CollapseWay& way : kCollapseWays) {
    std::vector<Mean>& figure = to.figures[depth_figure_at(way.figure)];
    model.run_parts(text, way.parts, [&](Index behind, const AnyView& rows) {
      if (behind == 0) return;
      if (const double spread = spread_of(rows); std::isfinite(spread)) figure[at(behind - 1)].add(spread);
    });
  }
}

}  // namespace headwise
