// Small passes that heads share: sums into gradients, and projections whose gradients add up.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "headwise/base/context.h"
#include "headwise/base/param.h"
#include "headwise/spec/gemm.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What numbers of T are computed in.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// f(Type<A>{}, Type<B>{}) for the float types that two dtypes name.
template <class F>
void visit_two(DType a, DType b, F&& f) {
  visit_float(a,
              [&]<class A>(Type<A>) { visit_float(b, [&]<class B>(Type<B>) { f(Type<A>{}, Type<B>{}); }); });
}
/// f(token) for every token, in pieces over the threads; f must not throw.
template <class F>
void each_token(Index tokens, Context& ctx, const F& f) {
  constexpr Index kPiece = 32;
  ctx.pool().parallel_for(ceil_div(tokens, kPiece), [&](Index piece, int) {
    for (Index t = piece * kPiece; t < min_of(tokens, (piece + 1) * kPiece); ++t) f(t);
  });
}

/// Every element of a row-major tensor. fill is for parameters, not for hot code.
void fill(const AnyView& v, double x);
void clear(const AnyView& v, Context& ctx);
/// to = from, row-major, one size and dtype.
void copy_rows(const InputView& from, const AnyView& to, Context& ctx);

/// v *= x.
void scale(const AnyView& v, double x, Context& ctx);

/// sum += x, element by element: one size, both row-major, any float dtype each.
void add_to(const AnyView& sum, const InputView& x, Context& ctx);

/// out = act(x w^T + b); b may be empty.
void project(const InputView& x, const Learned& w, const Learned& b, Activation act, const AnyView& out,
             Context& ctx);
/// w.grad += dy^T x, b.grad += column sums of dy, dx += dy w. `scratch` is like dx; dx and scratch empty: not
/// wanted.
void project_backward(const InputView& dy, const InputView& x, const Learned& w, const Learned& b,
                      const AnyView& dx, const AnyView& scratch, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
