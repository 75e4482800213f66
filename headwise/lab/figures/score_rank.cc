#include "headwise/lab/figures/score_rank.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// The lower half of a symmetric matrix from its upper one.
void mirror(SmallMatrix& m) {
  for (Index i = 0; i < m.rows; ++i)
    for (Index j = 0; j < i; ++j) m.at(i, j) = m.at(j, i);
}

/// x^T x of rows.
SmallMatrix gram_of(const ScoreRows& x) {
  SmallMatrix g(x.dim, x.dim);
  std::vector<double> row(at(x.dim));
  for (Index t = 0; t < x.count; ++t) {
    for (Index i = 0; i < x.dim; ++i) row[at(i)] = static_cast<double>(x.first[t * x.step + i]);
    for (Index i = 0; i < x.dim; ++i) {
      const double own = row[at(i)];
      double* const to = g.values.data() + i * x.dim;
      for (Index j = i; j < x.dim; ++j) to[j] += own * row[at(j)];
    }
  }
  mirror(g);
  return g;
}

/// The largest eigenvalue of a matrix whose eigenvalues are not negative, by powers from a fixed start.
template <class F>
double largest_eigenvalue(Index size, F&& times) {
  std::vector<double> x(at(size), 1), y(at(size));
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    times(x, y);
    double square = 0;
    for (const double v : y) square += v * v;
    const double next = std::sqrt(square);
    if (!(next > 0)) return 0;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = y[i] / next;
    const double moved = std::abs(next - last);
    last = next;
    if (moved < 1e-9 * next) break;
  }
  return last;
}

/// The square of the largest singular value: s s^T is squared again and again, so that a step is worth all
/// before it.
double largest_square(const SmallMatrix& s) {
  SmallMatrix g(s.rows, s.rows), next(s.rows, s.rows);
  const SmallMatrix turned = transposed(s);
  // All products here are symmetric: half of one is the other.
  const auto times = [](const SmallMatrix& a, const SmallMatrix& b, SmallMatrix& to) {
    std::fill(to.values.begin(), to.values.end(), 0.0);
    for (Index i = 0; i < a.rows; ++i) {
      double* const row = &to.values[at(i * b.columns)];
      for (Index k = 0; k < a.columns; ++k) {
        const double x = a.at(i, k);
        const double* const line = &b.values[at(k * b.columns)];
        for (Index j = i; j < b.columns; ++j) row[j] += x * line[j];
      }
    }
    mirror(to);
  };
  const auto trace = [](const SmallMatrix& m) {
    double sum = 0;
    for (Index i = 0; i < m.rows; ++i) sum += m.at(i, i);
    return sum;
  };
  times(s, turned, g);
  // With h_n = g^(2^n) over its trace, ln of g's largest eigenvalue is the sum of ln trace / 2^n. What is
  // left of h_n comes by its own square: exact where one eigenvalue is left, or several that are alike.
  constexpr int kMost = 20;
  double size = trace(g), logs = 0, power = 1;
  for (int step = 0; size > 0; ++step, power *= 2) {
    for (double& x : g.values) x /= size;
    logs += std::log(size) / power;
    times(g, g, next), std::swap(g, next);
    size = trace(g);
    if (size > 1 - 1e-9 || step == kMost) return std::exp(logs + std::log(size) / power);
  }
  return 0;
}

void multiply(const SmallMatrix& m, const std::vector<double>& x, std::vector<double>& y) {
  for (Index i = 0; i < m.rows; ++i) {
    y[at(i)] = 0;
    for (Index j = 0; j < m.columns; ++j) y[at(i)] += m.at(i, j) * x[at(j)];
  }
}

}  // namespace

std::vector<double> norms_under(const SmallMatrix& gram, const ScoreRows& v) {
  std::vector<double> all, turned(at(v.dim));
  for (Index t = 0; t < v.count; ++t) {
    const float* row = v.first + t * v.step;
    std::fill(turned.begin(), turned.end(), 0.0);
    // Of the symmetric matrix the upper half, twice.
    for (Index j = 0; j < v.dim; ++j) {
      const double x = row[j];
      const double* const line = &gram.values[at(j * v.dim)];
      double* const to = turned.data();
      to[j] += 0.5 * x * line[j];
      for (Index i = j + 1; i < v.dim; ++i) to[i] += x * line[i];
    }
    double sum = 0;
    for (Index i = 0; i < v.dim; ++i) sum += 2 * turned[at(i)] * static_cast<double>(row[i]);
    all.push_back(std::sqrt(std::max(0.0, sum)));
  }
  return all;
}

double largest_singular(const SmallMatrix& a, const SmallMatrix& b) {
  // The squares of a b^T's singular values are the eigenvalues of (a^T a)(b^T b): by powers from a fixed
  // start.
  const SmallMatrix m = product(a, b);
  return std::sqrt(largest_eigenvalue(m.rows, [&](const auto& x, auto& y) { multiply(m, x, y); }));
}

double score_rank_of(const ScoreRows& q, const ScoreRows& k) {
  if (q.count > q.dim) return stable_rank(gram_of(q), gram_of(k));
  // Few rows: q k^T itself is the smaller matrix.
  SmallMatrix s(q.count, k.count), turned(k.dim, k.count);
  for (Index j = 0; j < k.count; ++j)
    for (Index d = 0; d < k.dim; ++d) turned.at(d, j) = k.first[j * k.step + d];
  double square = 0;
  for (Index i = 0; i < q.count; ++i) {
    double* row = &s.values[at(i * k.count)];
    for (Index d = 0; d < q.dim; ++d) {
      const double x = q.first[i * q.step + d];
      const double* line = &turned.values[at(d * k.count)];
      for (Index j = 0; j < k.count; ++j) row[j] += x * line[j];
    }
    for (Index j = 0; j < k.count; ++j) square += row[j] * row[j];
  }
  const double top = largest_square(s);
  return top > 0 ? square / top : 0;
}

double stable_rank(const SmallMatrix& a, const SmallMatrix& b) {
  const double top = largest_singular(a, b);
  return top > 0 ? inner(a, b) / (top * top) : 0;
}

}  // namespace headwise
