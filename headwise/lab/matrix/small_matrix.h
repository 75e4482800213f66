// SmallMatrix: matrices of a head's size in double: products, singular values, eigenvalues, nearest rotation.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <complex>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SmallMatrix {
  Index rows = 0, columns = 0;
  std::vector<double> values = {};  // row-major

  SmallMatrix() = default;
  SmallMatrix(Index r, Index c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  static SmallMatrix identity(Index n);
  double& at(Index r, Index c) { return values[static_cast<std::size_t>(r * columns + c)]; }
  double at(Index r, Index c) const { return values[static_cast<std::size_t>(r * columns + c)]; }
};

SmallMatrix product(const SmallMatrix& a, const SmallMatrix& b);
SmallMatrix transposed(const SmallMatrix& a);
/// sum of a_ij b_ij: trace(a^T b).
double inner(const SmallMatrix& a, const SmallMatrix& b);
/// a += factor * b
void add_scaled(SmallMatrix& a, const SmallMatrix& b, double factor);

/// a = u diag(s) v^T with s descending, by one-sided Jacobi turns; rows >= columns.
struct Svd {
  SmallMatrix u, v;
  std::vector<double> s;
};
Svd svd_of(const SmallMatrix& a);
/// The orthogonal r with the largest inner(r, a): the answer to Procrustes' question.
SmallMatrix nearest_orthogonal(const SmallMatrix& a);

/// Eigenvalues of a symmetric matrix, descending, and their vectors as columns.
struct SymmetricEigen {
  std::vector<double> values;
  SmallMatrix vectors;
};
SymmetricEigen symmetric_eigen(const SmallMatrix& a);
/// Eigenvalues of any square matrix, by Hessenberg form and shifted QR steps.
std::vector<std::complex<double>> eigenvalues(SmallMatrix a);

}  // namespace headwise
#pragma GCC visibility pop
