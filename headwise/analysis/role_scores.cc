#include "headwise/analysis/role_scores.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

constexpr double kLevel = 0.05;
constexpr Index kLeastUtterances = 10;  // on both sides of a comparison

struct Group {
  Index n = 0;
  double sum = 0, squares = 0;
  void add(double x) { ++n, sum += x, squares += x * x; }
  double mean() const { return n > 0 ? sum / static_cast<double>(n) : 0; }
  /// Squared standard error of the mean.
  double error() const {
    if (n < 2) return 0;
    const double m = static_cast<double>(n);
    return std::max(0.0, squares - sum * sum / m) / (m - 1) / m;
  }
};

double in_errors(double difference, double squared_error) {
  if (squared_error > 0) return difference / std::sqrt(squared_error);
  return difference > 0 ? 1e9 : 0;
}

}  // namespace

double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

RolePairs pairs_of(const RoleBook& book, std::string_view text, std::span<const TextSpan> spans) {
  const std::vector<ClassBits> tokens = book.classes_of(text, spans);
  RolePairs pairs;
  for (const Role& role : book.roles()) {
    pairs.of.emplace_back();
    book.each_pair(role, tokens, [&](Index i, Index j) { pairs.of.back().emplace_back(i, j); });
  }
  return pairs;
}

void add_masses(const RolePairs& pairs, const Tap& tap, Index map, std::vector<RoleScore>& scores) {
  for (std::size_t r = 0; r < pairs.of.size(); ++r) {
    RoleScore& s = scores[r];
    Index last = -1;
    for (const auto& [i, j] : pairs.of[r]) {
      ++s.pairs;
      s.mass += tap.at(map, i, j);
      s.uniform += 1 / static_cast<double>(tap.kv_tokens);
      if (i != last) ++s.sources, last = i;
    }
  }
}

void judge(const RoleBook& book, const HeadFigures& figures, std::span<const double> hurt,
           const std::vector<std::vector<bool>>& has, Index tests, std::vector<RoleScore>& scores) {
  const double needed = normal_quantile(kLevel / static_cast<double>(std::max<Index>(tests, 1)));
  for (std::size_t r = 0; r < scores.size(); ++r) {
    const Role& role = book.roles()[r];
    RoleScore& s = scores[r];
    if (role.spread > 0) {
      s.looks = s.claimed = figures.rows >= kLeastPairs && figures.spread >= role.spread;
      continue;
    }
    s.looks = s.pairs >= kLeastPairs && s.mass >= kLeastRatio * s.uniform && s.share() >= role.least_mass;
    Group with, without;
    for (std::size_t u = 0; u < hurt.size(); ++u) (has[r][u] ? with : without).add(hurt[u]);
    s.with = with.n, s.without = without.n;
    s.hurt_with = with.mean(), s.hurt_without = without.mean();
    s.certainty = std::min(in_errors(with.mean() - without.mean(), with.error() + without.error()),
                           in_errors(with.mean(), with.error()));
    const bool proven = with.n >= kLeastUtterances && without.n >= kLeastUtterances && s.certainty >= needed;
    s.claimed = s.looks && (proven || !role.meaning);
  }
}

int chief_role(const RoleBook& book, std::span<const RoleScore> scores) {
  int best = -1;
  for (int r = 0; r < static_cast<int>(scores.size()); ++r) {
    const RoleScore& s = scores[static_cast<std::size_t>(r)];
    if (!s.claimed) continue;
    const auto rank = [&](int i) {
      return std::pair(book.roles()[static_cast<std::size_t>(i)].meaning,
                       scores[static_cast<std::size_t>(i)].ratio());
    };
    if (best < 0 || rank(r) > rank(best)) best = r;
  }
  return best;
}

}  // namespace headwise
