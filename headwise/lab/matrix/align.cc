#include "headwise/lab/matrix/align.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

constexpr int kMostSteps = 16;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// The turn of the rule with the largest inner product with m.
SmallMatrix best_turn(const SmallMatrix& m, const TurnRule& rule) {
  if (rule.turns == Turns::any) return nearest_orthogonal(m);
  SmallMatrix r = SmallMatrix::identity(m.rows);
  if (rule.turns == Turns::none) return r;
  const Index dim = rule.rope.rotary_dim == kWholeHead ? m.rows : rule.rope.rotary_dim;
  for (Index i = 0; i < dim / 2; ++i) {
    const bool half = rule.rope.kind == RopeKind::half;
    const Index a = half ? i : 2 * i, b = half ? i + dim / 2 : 2 * i + 1;
    const double angle = std::atan2(m.at(b, a) - m.at(a, b), m.at(a, a) + m.at(b, b));
    r.at(a, a) = r.at(b, b) = std::cos(angle);
    r.at(b, a) = std::sin(angle), r.at(a, b) = -r.at(b, a);
  }
  return r;
}

/// A_h^T shared, for every head.
std::vector<SmallMatrix> with_shared(const HeadGram& gram, const std::vector<Index>& heads,
                                     const Alignment& a) {
  std::vector<SmallMatrix> all;
  for (const Index h : heads) {
    SmallMatrix m(gram.dim, gram.dim);
    for (std::size_t g = 0; g < heads.size(); ++g)
      if (a.share[g] != 0) add_scaled(m, product(gram.block(h, heads[g]), a.turn[g]), a.share[g]);
    all.push_back(std::move(m));
  }
  return all;
}

/// |shared|^2, from what with_shared gave.
double square_of(const Alignment& a, const std::vector<SmallMatrix>& cross) {
  double sum = 0;
  for (std::size_t h = 0; h < cross.size(); ++h) sum += a.share[h] * inner(a.turn[h], cross[h]);
  return sum;
}

void measure(const HeadGram& gram, const std::vector<Index>& heads, Alignment& a) {
  const std::vector<SmallMatrix> cross = with_shared(gram, heads, a);
  const double square = square_of(a, cross);
  a.error = 0;
  for (std::size_t h = 0; h < heads.size(); ++h)
    a.error +=
        gram.square(heads[h]) - 2 * a.size[h] * inner(a.turn[h], cross[h]) + a.size[h] * a.size[h] * square;
  a.error = std::max(0.0, a.error);
}

Alignment plain(const HeadGram& gram, const std::vector<Index>& heads) {
  Alignment a;
  a.turn.assign(heads.size(), SmallMatrix::identity(gram.dim));
  a.size.assign(heads.size(), 1);
  a.share.assign(heads.size(), 0);
  return a;
}

double cost_of(const SmallMatrix& distance, const std::vector<Index>& group) {
  double sum = 0;
  for (std::size_t i = 0; i < group.size(); ++i)
    for (std::size_t j = i + 1; j < group.size(); ++j) sum += distance.at(group[i], group[j]);
  return sum;
}

}  // namespace

SmallMatrix HeadGram::block(Index h, Index g) const {
  SmallMatrix m(dim, dim);
  for (Index i = 0; i < dim; ++i)
    for (Index j = 0; j < dim; ++j) m.at(i, j) = all.at(h * dim + i, g * dim + j);
  return m;
}

double HeadGram::square(Index h) const {
  double sum = 0;
  for (Index i = h * dim; i < (h + 1) * dim; ++i) sum += all.at(i, i);
  return sum;
}

void HeadGram::add_row(const float* row) {
  const Index wide = heads * dim;
  for (Index i = 0; i < wide; ++i) {
    const double x = row[i];
    double* to = &all.at(i, 0);
    for (Index j = 0; j < wide; ++j) to[j] += x * static_cast<double>(row[j]);
  }
}

Alignment mean_of(const HeadGram& gram, const std::vector<Index>& heads) {
  Alignment a = plain(gram, heads);
  for (double& share : a.share) share = 1 / static_cast<double>(heads.size());
  measure(gram, heads, a);
  return a;
}

Alignment first_of(const HeadGram& gram, const std::vector<Index>& heads) {
  Alignment a = plain(gram, heads);
  a.share[0] = 1;
  measure(gram, heads, a);
  return a;
}

Alignment aligned(const HeadGram& gram, const std::vector<Index>& heads, const TurnRule& rule) {
  Alignment best = mean_of(gram, heads);
  if (heads.size() < 2) return best;
  for (int step = 0; step < kMostSteps; ++step) {
    Alignment next = best;
    const std::vector<SmallMatrix> cross = with_shared(gram, heads, best);
    const double square = square_of(best, cross);
    if (!(square > 0)) break;
    double sizes = 0;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      next.turn[h] = best_turn(cross[h], rule);
      next.size[h] = std::max(0.0, inner(next.turn[h], cross[h]) / square);
      sizes += next.size[h] * next.size[h];
    }
    if (!(sizes > 0)) break;
    for (std::size_t h = 0; h < heads.size(); ++h) next.share[h] = next.size[h] / sizes;
    measure(gram, heads, next);
    if (!(next.error < best.error)) break;
    const bool stands = best.error - next.error < 1e-4 * best.error;
    best = std::move(next);
    if (stands) break;
  }
  return best;
}

double distance_aligned(const HeadGram& gram, Index h, Index g, const TurnRule& rule) {
  const SmallMatrix cross = gram.block(h, g);
  return gram.square(h) + gram.square(g) - 2 * inner(best_turn(cross, rule), cross);
}

std::vector<std::vector<Index>> grouped_by(const SmallMatrix& distance, Index groups) {
  const Index each = distance.rows / groups;
  std::vector<std::vector<Index>> all(at(groups));
  for (Index h = 0; h < groups * each; ++h) all[at(h / each)].push_back(h);
  for (bool better = true; better;) {
    better = false;
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = a + 1; b < all.size(); ++b)
        for (Index& x : all[a])
          for (Index& y : all[b]) {
            const double before = cost_of(distance, all[a]) + cost_of(distance, all[b]);
            std::swap(x, y);
            if (cost_of(distance, all[a]) + cost_of(distance, all[b]) < before * (1 - 1e-12))
              better = true;
            else
              std::swap(x, y);
          }
  }
  for (auto& group : all) std::sort(group.begin(), group.end());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace headwise
