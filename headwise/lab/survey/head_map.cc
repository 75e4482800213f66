#include "headwise/lab/survey/head_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/lab/figures/entropy_term.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Entropies of the rows of the mean of two maps; of one of them if both are the same. term: room for a map.
void row_entropies(const float* a, const float* b, Index rows, std::vector<float>& term, double* to) {
  const Index all = std::ssize(term), keys = all / rows;
  float* const t = term.data();
  for (Index e = 0; e < all; ++e) t[e] = entropy_term(0.5f * (a[e] + b[e]));
  for (Index i = 0; i < rows; ++i) {
    double sum = 0;
    for (Index j = 0; j < keys; ++j) sum += static_cast<double>(t[i * keys + j]);
    to[i] = sum;
  }
}

double mean_between(const SmallMatrix& d, const std::vector<Index>& a, const std::vector<Index>& b) {
  double sum = 0;
  for (const Index x : a)
    for (const Index y : b) sum += d.at(x, y);
  return sum / static_cast<double>(a.size() * b.size());
}

}  // namespace

Index add_divergences(const std::vector<const float*>& maps, const MapSize& size, SmallMatrix& sum,
                      ThreadPool* pool) {
  const auto& [tokens, keys, causal] = size;
  const auto count = static_cast<Index>(maps.size());
  const Index first = causal ? 1 : 0;  // the first row of a causal map has one key
  SmallMatrix entropy(count, tokens);
  const std::size_t entries = at(tokens * keys);
  std::vector<float> room(entries);
  for (Index a = 0; a < count; ++a) row_entropies(maps[at(a)], maps[at(a)], tokens, room, &entropy.at(a, 0));
  const auto row = [&, tokens = tokens](Index a, int) {
    std::vector<float> term(entries);
    std::vector<double> middle(at(tokens));
    for (Index b = a + 1; b < count; ++b) {
      row_entropies(maps[at(a)], maps[at(b)], tokens, term, middle.data());
      for (Index i = first; i < tokens; ++i) {
        const double js = std::max(0.0, middle[at(i)] - 0.5 * (entropy.at(a, i) + entropy.at(b, i)));
        sum.at(a, b) += js, sum.at(b, a) += js;
      }
    }
  };
  if (pool)
    pool->parallel_for(count, row);
  else
    for (Index a = 0; a < count; ++a) row(a, 0);
  return max_of(0, tokens - first);
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

std::vector<std::pair<double, double>> label_places(const std::vector<std::pair<double, double>>& dots,
                                                    const LabelSizes& z) {
  constexpr int kTurns = 16, kRings = 40;
  constexpr double kTurn = 2 * 3.14159265358979323846 / kTurns;
  std::vector<std::pair<double, double>> places;
  const auto meets_name = [&](double x, double y) {
    return std::any_of(places.begin(), places.end(), [&](const auto& p) {
      return std::abs(p.first - x) < z.wide && std::abs(p.second - y) < z.high;
    });
  };
  const auto meets_dot = [&](double x, double y) {
    return std::any_of(dots.begin(), dots.end(), [&](const auto& d) {
      return std::abs(d.first - x) < z.wide / 2 + z.dot && std::abs(d.second - y) < z.high / 2 + z.dot;
    });
  };
  for (const auto& [x, y] : dots) {
    // Beside the dot first; then rings around it, wider ones only where there is no room.
    std::pair<double, double> best = {x + z.dot + z.wide / 2 + 1, y};
    bool found = !meets_name(best.first, best.second) && !meets_dot(best.first, best.second);
    for (int ring = 0; ring < kRings && !found; ++ring)
      for (int turn = 0; turn < kTurns && !found; ++turn) {
        const double out = z.dot + 2 + z.high / 2 * static_cast<double>(ring);
        const double px = x + (z.wide / 2 + out) * std::cos(kTurn * turn),
                     py = y + (z.high / 2 + out) * std::sin(kTurn * turn);
        found = !meets_name(px, py) && !meets_dot(px, py);
        if (found) best = {px, py};
      }
    places.push_back(best);
  }
  return places;
}

}  // namespace headwise
