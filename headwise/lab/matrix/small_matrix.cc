#include "headwise/lab/matrix/small_matrix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/lab/matrix/product_rows.h"

namespace headwise {
namespace {

constexpr int kMostSweeps = 60;
constexpr double kTiny = 1e-15;

/// Columns p and q of m turned by the angle of (c, s).
void turn_columns(SmallMatrix& m, Index p, Index q, double c, double s) {
  for (Index i = 0; i < m.rows; ++i) {
    const double x = m.at(i, p), y = m.at(i, q);
    m.at(i, p) = c * x - s * y, m.at(i, q) = s * x + c * y;
  }
}

/// The turn that makes a 2 x 2 symmetric [app apq; apq aqq] diagonal.
std::pair<double, double> jacobi_turn(double app, double apq, double aqq) {
  const double tau = (aqq - app) / (2 * apq);
  const double t = (tau >= 0 ? 1 : -1) / (std::abs(tau) + std::sqrt(1 + tau * tau));
  const double c = 1 / std::sqrt(1 + t * t);
  return {c, t * c};
}

}  // namespace

SmallMatrix SmallMatrix::identity(Index n) {
  SmallMatrix m(n, n);
  for (Index i = 0; i < n; ++i) m.at(i, i) = 1;
  return m;
}

SmallMatrix product(const SmallMatrix& a, const SmallMatrix& b) {
  SmallMatrix c(a.rows, b.columns);
  multiply_rows<double>({.x = a.values.data(),
                         .row_step = a.columns,
                         .term_step = 1,
                         .m = b.values.data(),
                         .m_step = b.columns,
                         .to = c.values.data(),
                         .to_step = c.columns,
                         .rows = a.rows,
                         .terms = a.columns,
                         .columns = b.columns});
  return c;
}

SmallMatrix transposed(const SmallMatrix& a) {
  SmallMatrix t(a.columns, a.rows);
  for (Index i = 0; i < a.rows; ++i)
    for (Index j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

double inner(const SmallMatrix& a, const SmallMatrix& b) {
  return std::inner_product(a.values.begin(), a.values.end(), b.values.begin(), 0.0);
}

void add_scaled(SmallMatrix& a, const SmallMatrix& b, double factor) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += factor * b.values[i];
}

Svd svd_of(const SmallMatrix& a) {
  Svd out{a, SmallMatrix::identity(a.columns), std::vector<double>(static_cast<std::size_t>(a.columns))};
  SmallMatrix& u = out.u;
  bool turned = true;
  for (int sweep = 0; turned && sweep < kMostSweeps; ++sweep) {
    turned = false;
    for (Index p = 0; p + 1 < a.columns; ++p)
      for (Index q = p + 1; q < a.columns; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (Index i = 0; i < a.rows; ++i)
          pp += u.at(i, p) * u.at(i, p), qq += u.at(i, q) * u.at(i, q), pq += u.at(i, p) * u.at(i, q);
        if (std::abs(pq) <= kTiny * std::sqrt(pp * qq)) continue;
        turned = true;
        const auto [c, s] = jacobi_turn(pp, pq, qq);
        turn_columns(u, p, q, c, s), turn_columns(out.v, p, q, c, s);
      }
  }
  for (Index j = 0; j < a.columns; ++j) {
    double square = 0;
    for (Index i = 0; i < a.rows; ++i) square += u.at(i, j) * u.at(i, j);
    const double length = out.s[static_cast<std::size_t>(j)] = std::sqrt(square);
    for (Index i = 0; length > 0 && i < a.rows; ++i) u.at(i, j) /= length;
  }
  std::vector<Index> order(out.s.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index x, Index y) {
    return out.s[static_cast<std::size_t>(x)] > out.s[static_cast<std::size_t>(y)];
  });
  Svd sorted = out;
  for (Index j = 0; j < a.columns; ++j) {
    const Index from = order[static_cast<std::size_t>(j)];
    sorted.s[static_cast<std::size_t>(j)] = out.s[static_cast<std::size_t>(from)];
    for (Index i = 0; i < a.rows; ++i) sorted.u.at(i, j) = u.at(i, from);
    for (Index i = 0; i < a.columns; ++i) sorted.v.at(i, j) = out.v.at(i, from);
  }
  return sorted;
}

SmallMatrix nearest_orthogonal(const SmallMatrix& a) {
  // Directions in which `a` is 0 may turn any way: a trace of the identity keeps them as they are.
  SmallMatrix full = a;
  const double size = std::sqrt(inner(a, a));
  for (Index i = 0; i < a.rows; ++i) full.at(i, i) += size > 0 ? 1e-10 * size : 1;
  const Svd f = svd_of(full);
  return product(f.u, transposed(f.v));
}

SymmetricEigen symmetric_eigen(const SmallMatrix& given) {
  SmallMatrix a = given, v = SmallMatrix::identity(given.rows);
  const Index n = a.rows;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0;
    for (Index p = 0; p < n; ++p)
      for (Index q = p + 1; q < n; ++q) off += a.at(p, q) * a.at(p, q);
    if (off <= kTiny * kTiny * inner(a, a)) break;
    for (Index p = 0; p + 1 < n; ++p)
      for (Index q = p + 1; q < n; ++q) {
        if (a.at(p, q) == 0) continue;
        const auto [c, s] = jacobi_turn(a.at(p, p), a.at(p, q), a.at(q, q));
        turn_columns(a, p, q, c, s);
        for (Index j = 0; j < n; ++j) {
          const double x = a.at(p, j), y = a.at(q, j);
          a.at(p, j) = c * x - s * y, a.at(q, j) = s * x + c * y;
        }
        turn_columns(v, p, q, c, s);
      }
  }
  std::vector<Index> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index x, Index y) { return a.at(x, x) > a.at(y, y); });
  SymmetricEigen out{{}, SmallMatrix(n, n)};
  for (Index j = 0; j < n; ++j) {
    const Index from = order[static_cast<std::size_t>(j)];
    out.values.push_back(a.at(from, from));
    for (Index i = 0; i < n; ++i) out.vectors.at(i, j) = v.at(i, from);
  }
  return out;
}

std::vector<std::complex<double>> eigenvalues(SmallMatrix a) {
  // QR steps in complex numbers with Wilkinson's shift: short, and sizes here are those of heads.
  using C = std::complex<double>;
  const Index n = a.rows;
  std::vector<C> h(a.values.begin(), a.values.end());
  const auto at = [&](Index i, Index j) -> C& { return h[static_cast<std::size_t>(i * n + j)]; };
  for (Index k = 0; k + 2 < n; ++k)  // Hessenberg form by turns
    for (Index i = n - 1; i > k + 1; --i) {
      const C x = at(i - 1, k), y = at(i, k);
      const double r = std::sqrt(std::norm(x) + std::norm(y));
      if (std::abs(y) == 0) continue;
      const C c = x / r, s = y / r;
      for (Index j = 0; j < n; ++j) {
        const C p = at(i - 1, j), q = at(i, j);
        at(i - 1, j) = std::conj(c) * p + std::conj(s) * q, at(i, j) = -s * p + c * q;
      }
      for (Index j = 0; j < n; ++j) {
        const C p = at(j, i - 1), q = at(j, i);
        at(j, i - 1) = p * c + q * s, at(j, i) = -std::conj(s) * p + std::conj(c) * q;
      }
    }
  std::vector<C> out;
  Index end = n - 1;
  for (int step = 0; end > 0 && step < 200 * static_cast<int>(n); ++step) {
    Index low = end;
    while (low > 0 &&
           std::abs(at(low, low - 1)) > 1e-14 * (std::abs(at(low, low)) + std::abs(at(low - 1, low - 1))))
      --low;
    if (low == end) {
      --end;
      continue;
    }
    const C a0 = at(end - 1, end - 1), b0 = at(end - 1, end), c0 = at(end, end - 1), d0 = at(end, end);
    const C half = (a0 - d0) / 2.0, root = std::sqrt(half * half + b0 * c0);
    C shift = d0 - b0 * c0 / (half + (std::abs(half + root) > std::abs(half - root) ? root : -root));
    if (std::abs(half) + std::abs(root) == 0) shift = d0;
    if (step % 31 == 30) shift += std::abs(c0);  // out of a cycle
    for (Index i = low; i <= end; ++i) at(i, i) -= shift;
    std::vector<std::pair<C, C>> turns;
    for (Index i = low; i < end; ++i) {
      const C x = at(i, i), y = at(i + 1, i);
      const double r = std::sqrt(std::norm(x) + std::norm(y));
      const C c = r > 0 ? x / r : C(1), s = r > 0 ? y / r : C(0);
      turns.emplace_back(c, s);
      for (Index j = i; j <= end; ++j) {
        const C p = at(i, j), q = at(i + 1, j);
        at(i, j) = std::conj(c) * p + std::conj(s) * q, at(i + 1, j) = -s * p + c * q;
      }
    }
    for (Index i = low; i < end; ++i) {
      const auto [c, s] = turns[static_cast<std::size_t>(i - low)];
      for (Index j = low; j <= min_of(end, i + 1); ++j) {
        const C p = at(j, i), q = at(j, i + 1);
        at(j, i) = p * c + q * s, at(j, i + 1) = -std::conj(s) * p + std::conj(c) * q;
      }
    }
    for (Index i = low; i <= end; ++i) at(i, i) += shift;
  }
  for (Index i = 0; i < n; ++i) out.push_back(at(i, i));
  return out;
}

}  // namespace headwise
