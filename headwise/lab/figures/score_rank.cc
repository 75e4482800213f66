#include "headwise/lab/figures/score_rank.h"

#include <algorithm>
#include <cmath>

#include "headwise/lab/matrix/product_rows.h"

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

/// Floats of a square matrix, rows a multiple of eight wide so that they go in whole vectors.
struct Square {
  Index size, wide;
  std::vector<float> values;
  explicit Square(Index n) : Square(n, n) {}
  Square(Index rows, Index columns)
      : size(rows), wide((columns + 7) / 8 * 8), values(at(rows * wide), 0.0f) {}
  float* row(Index i) { return values.data() + i * wide; }
  const float* row(Index i) const { return values.data() + i * wide; }
};

/// Rows of floats that are multiplied by a matrix.
struct FloatRows {
  const float* first;
  Index count, step, terms;
};
/// to = the first `terms` columns of x times the first rows of m.
void multiply(const FloatRows& x, const Square& m, Square& to) {
  multiply_rows<float>({.x = x.first,
                        .row_step = x.step,
                        .term_step = 1,
                        .m = m.values.data(),
                        .m_step = m.wide,
                        .to = to.values.data(),
                        .to_step = to.wide,
                        .rows = x.count,
                        .terms = x.terms,
                        .columns = m.wide});
}

/// The column of the largest entry of the diagonal.
std::vector<double> heaviest_column(const Square& g) {
  Index most = 0;
  for (Index i = 1; i < g.size; ++i)
    if (g.row(i)[i] > g.row(most)[most]) most = i;
  std::vector<double> x;
  for (Index i = 0; i < g.size; ++i) x.push_back(g.row(i)[most]);
  return x;
}

/// g becomes its square over its trace squared; the trace it has then is 1 where one direction is left. 0:
/// all are 0.
float sharpen(Square& g, Square& room) {
  const auto trace = [](const Square& m) {
    float sum = 0;
    for (Index i = 0; i < m.size; ++i) sum += m.row(i)[i];
    return sum;
  };
  const float size = trace(g);
  if (!(size > 0)) return 0;
  for (float& x : g.values) x /= size;
  multiply({g.row(0), g.size, g.wide, g.size}, g, room);
  std::swap(g, room);
  return trace(g);
}

/// x becomes g x, of length 1, until g symmetric makes it no longer any more; how long that is, or 0 where it
/// goes on growing.
float stands_still(const Square& g, std::vector<double>& x) {
  constexpr int kTurns = 5;
  Square own(1, g.size), next(1, g.size);
  std::copy(x.begin(), x.end(), own.row(0));
  float last = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    multiply({own.row(0), 1, own.wide, g.size}, g, next);
    float square = 0;
    for (const float v : next.values) square += v * v;
    const float length = std::sqrt(square);
    if (!(length > 0)) return 0;
    for (Index i = 0; i < own.wide; ++i) own.row(0)[i] = next.row(0)[i] / length;
    if (turn > 1 && length - last < 1e-6f * length) {
      std::copy_n(own.row(0), x.size(), x.begin());
      return length;
    }
    last = length;
  }
  return 0;
}

/// A direction of the largest eigenvalue of a matrix whose eigenvalues are not negative; empty: all are 0.
/// The matrix is squared again and again, so that a step is worth all before it, until one direction is left,
/// or several of one size; a symmetric one, until a vector that it turns stands still with more than half of
/// the trace, so that no other direction has more.
std::vector<double> top_direction(Square g, bool symmetric) {
  constexpr int kMost = 20, kUnasked = 2;
  Square room(g.size);
  for (int step = 1; step <= kMost; ++step) {
    const float left = sharpen(g, room);
    if (!(left > 0)) return {};
    if (left > 1 - 1e-6f) break;
    if (!symmetric || step < kUnasked) continue;
    std::vector<double> x = heaviest_column(g);
    if (2 * stands_still(g, x) > left) return x;
  }
  return heaviest_column(g);
}

void turn(const SmallMatrix& m, const std::vector<double>& x, std::vector<double>& y) {
  for (Index i = 0; i < m.rows; ++i) {
    y[at(i)] = 0;
    for (Index j = 0; j < m.columns; ++j) y[at(i)] += m.at(i, j) * x[at(j)];
  }
}

/// Few rows: q k^T itself is the smaller matrix, and x^T s s^T x / x^T x the square of its top.
double rank_by_scores(const ScoreRows& q, const ScoreRows& k) {
  Square s(q.count), turned(max_of(q.count, k.dim), q.count), gram(q.count);
  for (Index j = 0; j < k.count; ++j)
    for (Index d = 0; d < k.dim; ++d) turned.row(d)[j] = k.first[j * k.step + d];
  multiply({q.first, q.count, q.step, q.dim}, turned, s);
  for (Index i = 0; i < q.count; ++i)
    for (Index j = 0; j < q.count; ++j) turned.row(j)[i] = s.row(i)[j];
  multiply({s.row(0), q.count, s.wide, q.count}, turned, gram);
  const std::vector<double> x = top_direction(std::move(gram), true);
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
  const std::vector<double> x = top_direction(std::move(g), false);
  if (x.empty()) return 0;
  std::vector<double> bx(x.size()), mx(x.size());
  turn(b, x, bx), turn(m, x, mx);
  double top = 0, length = 0;
  for (std::size_t i = 0; i < x.size(); ++i) top += bx[i] * mx[i], length += bx[i] * x[i];
  return top > 0 ? inner(a, b) * length / top : 0;
}

}  // namespace

RowNorms::RowNorms(const SmallMatrix& gram) : dim_(gram.rows), wide_((dim_ + 7) / 8 * 8) {
  // v^T g v by the upper half of g, twice what lies off the diagonal.
  form_.assign(at(dim_ * wide_), 0.0f);
  for (Index i = 0; i < dim_; ++i) {
    form_[at(i * wide_ + i)] = static_cast<float>(gram.at(i, i));
    for (Index j = i + 1; j < dim_; ++j) form_[at(i * wide_ + j)] = static_cast<float>(2 * gram.at(i, j));
  }
}

std::vector<double> RowNorms::of(const ScoreRows& v) const {
  constexpr Index kLine = 8;
  std::vector<float> turned(at(v.count * wide_));
  for (Index c = 0; c < wide_; c += kLine)  // what lies below the diagonal is left out
    multiply_rows<float>({.x = v.first,
                          .row_step = v.step,
                          .term_step = 1,
                          .m = form_.data() + c,
                          .m_step = wide_,
                          .to = turned.data() + c,
                          .to_step = wide_,
                          .rows = v.count,
                          .terms = min_of(dim_, c + kLine),
                          .columns = kLine});
  std::vector<double> all;
  for (Index t = 0; t < v.count; ++t) {
    const float *const row = v.first + t * v.step, *const under = turned.data() + t * wide_;
    double sum = 0;
    for (Index i = 0; i < dim_; ++i) sum += static_cast<double>(under[i]) * static_cast<double>(row[i]);
    all.push_back(std::sqrt(std::max(0.0, sum)));
  }
  return all;
}

double largest_singular(const SmallMatrix& a, const SmallMatrix& b) {
  // The squares of a b^T's singular values are the eigenvalues of (a^T a)(b^T b): by powers from a fixed
  // start.
  const SmallMatrix m = product(a, b);
  return std::sqrt(largest_eigenvalue(m.rows, [&](const auto& x, auto& y) { turn(m, x, y); }));
}

double score_rank_of(const ScoreRows& q, const ScoreRows& k) {
  return q.count > q.dim ? rank_by_grams(gram_of(q), gram_of(k)) : rank_by_scores(q, k);
}

double stable_rank(const SmallMatrix& a, const SmallMatrix& b) {
  const double top = largest_singular(a, b);
  return top > 0 ? inner(a, b) / (top * top) : 0;
}

}  // namespace headwise
