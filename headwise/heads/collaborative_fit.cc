#include "headwise/heads/collaborative_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace headwise {
namespace {

constexpr std::string_view kOp = "fit_collaborative";

/// [rows columns] in double, row-major.
struct Matrix {
  Index rows = 0, columns = 0;
  std::vector<double> values;
  Matrix(Index r, Index c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  double* row(Index r) { return values.data() + r * columns; }
  const double* row(Index r) const { return values.data() + r * columns; }
};

Matrix doubles_of(const AnyView& v, Index columns) {
  Matrix m(v.count() / columns, columns);
  for (Index r = 0; r < m.rows; ++r)
    for (Index c = 0; c < columns; ++c)
      m.row(r)[c] = load_double(v.data, v.dtype, r * v.step[0] + (v.rank == 2 ? c * v.step[1] : 0));
  return m;
}

double dot(const double* a, const double* b, Index n) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
void add(double* to, double x, const double* from, Index n) {
  for (Index i = 0; i < n; ++i) to[i] += x * from[i];
}

/// a a^T.
Matrix gram(const Matrix& a) {
  Matrix g(a.rows, a.rows);
  for (Index i = 0; i < a.rows; ++i)
    for (Index j = 0; j <= i; ++j) g.row(i)[j] = g.row(j)[i] = dot(a.row(i), a.row(j), a.columns);
  return g;
}
/// Columns of `a` [n R] as rows: its gram is over R.
Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (Index i = 0; i < a.rows; ++i)
    for (Index j = 0; j < a.columns; ++j) t.row(j)[i] = a.row(i)[j];
  return t;
}
Matrix times(Matrix a, const Matrix& b) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] *= b.values[i];
  return a;
}

/// x with g x = b for every column of b [R n], in place; g [R R] is positive, and a little is added to its
/// diagonal where terms have become alike.
void solve(Matrix g, Matrix& b) {
  double most = 0;
  for (Index i = 0; i < g.rows; ++i) most = std::max(most, g.row(i)[i]);
  for (Index i = 0; i < g.rows; ++i) {  // Cholesky: g = l l^T, l over g
    for (Index j = 0; j <= i; ++j) {
      const double rest = g.row(i)[j] - dot(g.row(i), g.row(j), j);
      g.row(i)[j] = i == j ? std::sqrt(std::max(rest, 1e-13 * most)) : rest / g.row(j)[j];
    }
  }
  for (Index i = 0; i < g.rows; ++i) {
    for (Index j = 0; j < i; ++j) add(b.row(i), -g.row(i)[j], b.row(j), b.columns);
    for (Index c = 0; c < b.columns; ++c) b.row(i)[c] /= g.row(i)[i];
  }
  for (Index i = g.rows; i-- > 0;) {
    for (Index j = i + 1; j < g.rows; ++j) add(b.row(i), -g.row(j)[i], b.row(j), b.columns);
    for (Index c = 0; c < b.columns; ++c) b.row(i)[c] /= g.row(i)[i];
  }
}

/// T_h = wq_h^T wk_h; fit T_h = sum_r mixing[h r] q_r k_r^T.
struct Factors {
  const Matrix &wq, &wk;  // [heads*dim model]
  Index heads, dim;
  Matrix q, k, mixing;  // [R model], [R model], [heads R]

  /// to_r = sum_h mixing[h r] outer_h^T (inner_h from_r): what T gives against two of its three sides.
  Matrix against(const Matrix& outer, const Matrix& inner, const Matrix& from) const {
    Matrix to(from.rows, from.columns);
    for (Index r = 0; r < from.rows; ++r)
      for (Index row = 0; row < wq.rows; ++row)
        add(to.row(r), mixing.row(row / dim)[r] * dot(inner.row(row), from.row(r), from.columns),
            outer.row(row), from.columns);
    return to;
  }
  /// [R heads]: q_r^T T_h k_r.
  Matrix onto_heads() const {
    Matrix to(q.rows, heads);
    for (Index r = 0; r < q.rows; ++r)
      for (Index row = 0; row < wq.rows; ++row)
        to.row(r)[row / dim] += dot(wq.row(row), q.row(r), q.columns) * dot(wk.row(row), k.row(r), k.columns);
    return to;
  }
  void step() {
    const auto mixed = [&] { return gram(transposed(mixing)); };
    Matrix side = against(wq, wk, k);
    solve(times(gram(k), mixed()), side), q = std::move(side);
    side = against(wk, wq, q);
    solve(times(gram(q), mixed()), side), k = std::move(side);
    side = onto_heads();
    solve(times(gram(q), gram(k)), side), mixing = transposed(side);
  }
  /// Row by row of each T_h: exact also where the fit is, and only a row is held.
  double error() const {
    double apart = 0, whole = 0;
    std::vector<double> row(static_cast<std::size_t>(q.columns)), rest(row.size());
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < q.columns; ++i) {
        std::fill(row.begin(), row.end(), 0.0), std::fill(rest.begin(), rest.end(), 0.0);
        for (Index c = h * dim; c < (h + 1) * dim; ++c) add(row.data(), wq.row(c)[i], wk.row(c), q.columns);
        for (Index r = 0; r < q.rows; ++r)
          add(rest.data(), mixing.row(h)[r] * q.row(r)[i], k.row(r), q.columns);
        whole += dot(row.data(), row.data(), q.columns);
        add(rest.data(), -1, row.data(), q.columns);
        apart += dot(rest.data(), rest.data(), q.columns);
      }
    return whole > 0 ? std::sqrt(apart / whole) : std::sqrt(apart);
  }
  /// The same from what a step has at hand, good to about 1e-8: cheap enough to stop by.
  double estimate(double whole) const {
    const Matrix onto = onto_heads();
    double inner = 0, own = 0;
    for (Index r = 0; r < q.rows; ++r)
      for (Index h = 0; h < heads; ++h) inner += onto.row(r)[h] * mixing.row(h)[r];
    const Matrix all = times(times(gram(q), gram(k)), gram(transposed(mixing)));
    for (const double x : all.values) own += x;
    return std::sqrt(std::max(0.0, whole - 2 * inner + own) / std::max(whole, 1e-300));
  }
  /// |T|^2 = sum_h tr((wq_h wq_h^T) (wk_h wk_h^T)).
  double whole() const {
    double sum = 0;
    for (Index a = 0; a < wq.rows; ++a)
      for (Index b = a / dim * dim; b < (a / dim + 1) * dim; ++b)
        sum += dot(wq.row(a), wq.row(b), wq.columns) * dot(wk.row(a), wk.row(b), wk.columns);
    return sum;
  }
};

/// Rows of the trained matrices in order of |wq_r| |wk_r|, the size of the term they give their head.
std::vector<Index> strongest(const Matrix& wq, const Matrix& wk, Index count) {
  std::vector<double> size;
  for (Index r = 0; r < wq.rows; ++r)
    size.push_back(dot(wq.row(r), wq.row(r), wq.columns) * dot(wk.row(r), wk.row(r), wk.columns));
  std::vector<Index> order(size.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    return size[static_cast<std::size_t>(a)] > size[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

Tensor tensor_of(const Matrix& m) {
  Tensor t(DType::f64, {m.rows, m.columns});
  std::copy(m.values.begin(), m.values.end(), t.values<double>().begin());
  return t;
}

}  // namespace

CollaborativeFit fit_collaborative(const TrainedScores& trained, const FitOptions& options) {
  const AnyView &q = trained.w_q, &k = trained.w_k, &b = trained.b_q;
  require(q.rank == 2 && k.rank == 2 && q.size[0] == k.size[0] && q.size[1] == k.size[1],
          ErrorKind::bad_shape, kOp, "w_q is ", q, " and w_k is ", k, "; give both as [heads*dim model_dim]");
  require(trained.heads > 0 && q.size[0] > 0 && q.size[0] % trained.heads == 0, ErrorKind::bad_shape, kOp,
          "w_q has ", q.size[0], " rows, which must be a multiple of heads (", trained.heads, ")");
  require(!b.given() || (b.rank == 1 && b.size[0] == q.size[0]), ErrorKind::bad_shape, kOp, "b_q is ", b,
          "; give [", q.size[0], "], one number a row of w_q");
  const Index all = q.size[0], dim = all / trained.heads;
  const Index shared = options.shared ? options.shared : all;
  require(shared > 0 && shared <= all, ErrorKind::bad_argument, kOp, "shared is ", shared,
          "; give 1 to heads*dim (", all, "), where the fit is exact");
  const Matrix wq = doubles_of(q, q.size[1]), wk = doubles_of(k, k.size[1]);
  Factors f{wq,
            wk,
            trained.heads,
            dim,
            Matrix(shared, wq.columns),
            Matrix(shared, wq.columns),
            Matrix(trained.heads, shared)};
  const std::vector<Index> start = strongest(wq, wk, shared);
  for (Index r = 0; r < shared; ++r) {
    const Index from = start[static_cast<std::size_t>(r)];
    std::copy_n(wq.row(from), wq.columns, f.q.row(r));
    std::copy_n(wk.row(from), wk.columns, f.k.row(r));
    f.mixing.row(from / dim)[r] = 1;
  }
  CollaborativeFit fit;
  if (shared < all) {
    const double whole = f.whole();
    double last = f.estimate(whole);
    for (; fit.steps < options.steps; ++fit.steps) {
      f.step();
      const double now = f.estimate(whole);
      if (last - now < options.tolerance) break;
      last = now;
    }
  }
  fit.error = f.error();
  fit.config = {trained.heads,       dim,       shared,
                MixingStart::blocks, b.given(), 1 / std::sqrt(static_cast<double>(dim))};
  fit.w_q = tensor_of(f.q), fit.w_k = tensor_of(f.k), fit.mixing = tensor_of(f.mixing);
  if (b.given()) {
    const Matrix bias = doubles_of(b, 1);
    Matrix content(trained.heads, wk.columns);
    for (Index row = 0; row < all; ++row)
      add(content.row(row / dim), bias.values[static_cast<std::size_t>(row)], wk.row(row), wk.columns);
    fit.content = tensor_of(content);
  }
  return fit;
}

}  // namespace headwise
