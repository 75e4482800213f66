// Row products: rows times a matrix, with sums of several rows and columns in registers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise {

/// to(r, c) = sum over k of x(r, k) m(k, c), every sum in the order of k.
template <class T>
struct RowProduct {
  const T* x;  // x(r, k) at r * row_step + k * term_step
  Index row_step, term_step;
  const T* m;  // rows m_step apart
  Index m_step;
  T* to;  // rows to_step apart
  Index to_step;
  Index rows, terms, columns;
  bool onto = false;  // to what is there already
};

/// R rows of the product and V vectors of columns from (r, c) on.
template <int R, int V, class T>
inline void multiply_tile(const RowProduct<T>& p, Index r, Index c) {
  typedef T Vector __attribute__((vector_size(16)));
  typedef T Apart __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
  Vector sum[R][V];
  T* const to = p.to + r * p.to_step + c;
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sum[i][v] = p.onto ? reinterpret_cast<const Apart*>(to + i * p.to_step)[v] : Vector{};
  const T *x = p.x + r * p.row_step, *m = p.m + c;
  for (Index k = 0; k < p.terms; ++k, x += p.term_step, m += p.m_step) {
    Vector line[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) line[v] = reinterpret_cast<const Apart*>(m)[v];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] += x[i * p.row_step] * line[v];
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) reinterpret_cast<Apart*>(to + i * p.to_step)[v] = sum[i][v];
}

/// All rows of V vectors of columns.
template <int V, class T>
inline void multiply_columns(const RowProduct<T>& p, Index c) {
  Index r = 0;
  for (; r + 4 <= p.rows; r += 4) multiply_tile<4, V>(p, r, c);
  switch (p.rows - r) {
    case 3: return multiply_tile<3, V>(p, r, c);
    case 2: return multiply_tile<2, V>(p, r, c);
    case 1: return multiply_tile<1, V>(p, r, c);
    default: return;
  }
}

template <class T>
void multiply_rows(RowProduct<T> p) {
  // Parts of m whose lines stay in a cache while all rows go over them.
  constexpr Index kVector = 16 / sizeof(T), kTerms = 32;
  const RowProduct<T> whole = p;
  for (Index k = 0; k == 0 || k < whole.terms; k += kTerms, p.onto = true) {
    p.x = whole.x + k * p.term_step, p.m = whole.m + k * p.m_step;
    p.terms = min_of(kTerms, whole.terms - k);
    Index c = 0;
    if (p.rows == 1)  // one row has no others beside it
      for (; c + 4 * kVector <= p.columns; c += 4 * kVector) multiply_tile<1, 4>(p, 0, c);
    for (; c + 2 * kVector <= p.columns; c += 2 * kVector) multiply_columns<2>(p, c);
    for (; c < p.columns; ++c)
      for (Index r = 0; r < p.rows; ++r) {
        T sum = p.onto ? p.to[r * p.to_step + c] : T(0);
        for (Index i = 0; i < p.terms; ++i)
          sum += p.x[r * p.row_step + i * p.term_step] * p.m[i * p.m_step + c];
        p.to[r * p.to_step + c] = sum;
      }
  }
}

}  // namespace headwise
