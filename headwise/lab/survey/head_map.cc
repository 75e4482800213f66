#include "headwise/lab/survey/head_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

double entropy_term(double w) { return w > 0 ? -w * std::log(w) : 0; }

double mean_between(const SmallMatrix& d, const std::vector<Index>& a, const std::vector<Index>& b) {
  double sum = 0;
  for (const Index x : a)
    for (const Index y : b) sum += d.at(x, y);
  return sum / static_cast<double>(a.size() * b.size());
}

}  // namespace

Index add_divergences(const std::vector<const float*>& maps, Index tokens, bool causal, SmallMatrix& sum) {
  const auto count = static_cast<Index>(maps.size());
  std::vector<double> entropy(maps.size());
  Index rows = 0;
  for (Index i = causal ? 1 : 0; i < tokens; ++i, ++rows) {
    const Index end = causal ? i + 1 : tokens;
    const auto w = [&](Index m, Index j) { return static_cast<double>(maps[at(m)][i * tokens + j]); };
    for (Index m = 0; m < count; ++m) {
      entropy[at(m)] = 0;
      for (Index j = 0; j < end; ++j) entropy[at(m)] += entropy_term(w(m, j));
    }
    for (Index a = 0; a < count; ++a)
      for (Index b = a + 1; b < count; ++b) {
        double middle = 0;
        for (Index j = 0; j < end; ++j) middle += entropy_term(0.5 * (w(a, j) + w(b, j)));
        const double js = std::max(0.0, middle - 0.5 * (entropy[at(a)] + entropy[at(b)]));
        sum.at(a, b) += js, sum.at(b, a) += js;
      }
  }
  return rows;
}

std::vector<Index> clusters_of(const SmallMatrix& distance, Index clusters) {
  std::vector<std::vector<Index>> groups;
  for (Index i = 0; i < distance.rows; ++i) groups.push_back({i});
  while (static_cast<Index>(groups.size()) > max_of(1, clusters)) {
    std::size_t a = 0, b = 1;
    double least = mean_between(distance, groups[0], groups[1]);
    for (std::size_t x = 0; x < groups.size(); ++x)
      for (std::size_t y = x + 1; y < groups.size(); ++y)
        if (const double d = mean_between(distance, groups[x], groups[y]); d < least) least = d, a = x, b = y;
    groups[a].insert(groups[a].end(), groups[b].begin(), groups[b].end());
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(b));
  }
  std::vector<Index> number(at(distance.rows));
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const Index i : groups[g]) number[at(i)] = static_cast<Index>(g);
  return number;
}

std::vector<std::pair<double, double>> places_of(const SmallMatrix& distance) {
  const Index n = distance.rows;
  SmallMatrix b(n, n);
  std::vector<double> mean(at(n));
  double all = 0;
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) {
      const double square = distance.at(i, j) * distance.at(i, j);
      mean[at(i)] += square / static_cast<double>(n), all += square / static_cast<double>(n * n);
    }
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j)
      b.at(i, j) = -0.5 * (distance.at(i, j) * distance.at(i, j) - mean[at(i)] - mean[at(j)] + all);
  const SymmetricEigen e = symmetric_eigen(b);
  std::vector<std::pair<double, double>> places;
  const auto axis = [&](Index i, Index k) {
    return k < n ? e.vectors.at(i, k) * std::sqrt(std::max(0.0, e.values[at(k)])) : 0;
  };
  for (Index i = 0; i < n; ++i) places.emplace_back(axis(i, 0), axis(i, 1));
  return places;
}

}  // namespace headwise
