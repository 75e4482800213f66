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

/// Floats of a square matrix, rows a multiple of four wide so that they go in whole vectors.
struct Square {
  Index size, wide;
  std::vector<float> values;
  explicit Square(Index n) : size(n), wide((n + 3) / 4 * 4), values(at(n * wide), 0.0f) {}
  float* row(Index i) { return values.data() + i * wide; }
  const float* row(Index i) const { return values.data() + i * wide; }
};

/// to += from[0..count) times the rows of m that begin at it.
void add_rows(const float* from, Index count, const Square& m, float* to) {
  for (Index k = 0; k < count; ++k) {
    const float x = from[k];
    const float* const line = m.row(k);
    for (Index j = 0; j < m.wide; ++j) to[j] += x * line[j];
  }
}

/// A direction of the largest eigenvalue of a matrix whose eigenvalues are not negative; empty: all are 0.
/// The matrix is squared again and again, so that a step is worth all before it, until one direction is left,
/// or several of one size.
std::vector<double> top_direction(Square g) {
  constexpr int kMost = 20;
  const auto trace = [](const Square& m) {
    float sum = 0;
    for (Index i = 0; i < m.size; ++i) sum += m.row(i)[i];
    return sum;
  };
  Square next(g.size);
  float size = trace(g);
  for (int step = 0; step < kMost && size > 0; ++step) {
    for (float& x : g.values) x /= size;
    std::fill(next.values.begin(), next.values.end(), 0.0f);
    for (Index i = 0; i < g.size; ++i) add_rows(g.row(i), g.size, g, next.row(i));
    std::swap(g, next);
    size = trace(g);
    if (size > 1 - 1e-6f) break;
  }
  if (!(size > 0)) return {};
  Index most = 0;
  for (Index i = 1; i < g.size; ++i)
    if (g.row(i)[i] > g.row(most)[most]) most = i;
  std::vector<double> x;
  for (Index i = 0; i < g.size; ++i) x.push_back(g.row(i)[most]);
  return x;
}

void multiply(const SmallMatrix& m, const std::vector<double>& x, std::vector<double>& y) {
  for (Index i = 0; i < m.rows; ++i) {
    y[at(i)] = 0;
    for (Index j = 0; j < m.columns; ++j) y[at(i)] += m.at(i, j) * x[at(j)];
  }
}

/// Few rows: q k^T itself is the smaller matrix, and x^T s s^T x / x^T x the square of its top.
double rank_by_scores(const ScoreRows& q, const ScoreRows& k) {
  Square s(q.count), turned(q.count), gram(q.count);
  turned.values.assign(at(k.dim * turned.wide), 0.0f);
  for (Index j = 0; j < k.count; ++j)
    for (Index d = 0; d < k.dim; ++d) turned.row(d)[j] = k.first[j * k.step + d];
  for (Index i = 0; i < q.count; ++i) add_rows(q.first + i * q.step, q.dim, turned, s.row(i));
  for (Index i = 0; i < q.count; ++i)
    for (Index j = 0; j < q.count; ++j) turned.row(j)[i] = s.row(i)[j];
  for (Index i = 0; i < q.count; ++i) add_rows(s.row(i), q.count, turned, gram.row(i));
  const std::vector<double> x = top_direction(std::move(gram));
  if (x.empty()) return 0;
  double square = 0, top = 0, length = 0;
  for (Index j = 0; j < q.count; ++j) {
    double sum = 0;
    for (Index i = 0; i < q.count; ++i) {
      const double score = s.row(i)[j];
      sum += x[at(i)] * score, square += score * score;
    }
    top += sum * sum, length += x[at(j)] * x[at(j)];
  }
  return square * length / top;
}

/// Many rows: of the grams a and b, the top of a b by x^T b a b x / x^T b x.
double rank_by_grams(const SmallMatrix& a, const SmallMatrix& b) {
  const SmallMatrix m = product(a, b);
  Square g(m.rows);
  // Of one size for floats, whatever size q and k have.
  double most = 0;
  for (const double v : m.values) most = std::max(most, std::abs(v));
  for (Index i = 0; most > 0 && i < m.rows; ++i)
    for (Index j = 0; j < m.rows; ++j) g.row(i)[j] = static_cast<float>(m.at(i, j) / most);
  const std::vector<double> x = top_direction(std::move(g));
  if (x.empty()) return 0;
  std::vector<double> bx(x.size()), mx(x.size());
  multiply(b, x, bx), multiply(m, x, mx);
  double top = 0, length = 0;
  for (std::size_t i = 0; i < x.size(); ++i) top += bx[i] * mx[i], length += bx[i] * x[i];
  return top > 0 ? inner(a, b) * length / top : 0;
}

}  // namespace

std::vector<double> norms_under(const SmallMatrix& gram, const ScoreRows& v) {
  Square g(v.dim);
  for (Index i = 0; i < v.dim; ++i)
    for (Index j = 0; j < v.dim; ++j) g.row(i)[j] = static_cast<float>(gram.at(i, j));
  std::vector<double> all;
  std::vector<float> turned(at(g.wide));
  for (Index t = 0; t < v.count; ++t) {
    const float* const row = v.first + t * v.step;
    std::fill(turned.begin(), turned.end(), 0.0f);
    add_rows(row, v.dim, g, turned.data());
    double sum = 0;
    for (Index i = 0; i < v.dim; ++i) sum += static_cast<double>(turned[at(i)]) * static_cast<double>(row[i]);
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
  return q.count > q.dim ? rank_by_grams(gram_of(q), gram_of(k)) : rank_by_scores(q, k);
}

double stable_rank(const SmallMatrix& a, const SmallMatrix& b) {
  const double top = largest_singular(a, b);
  return top > 0 ? inner(a, b) / (top * top) : 0;
}

}  // namespace headwise
