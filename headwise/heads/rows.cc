#include "headwise/heads/rows.h"

#include "headwise/ops/projection_backward.h"

namespace headwise {
namespace {

/// What numbers of T are computed in.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace

void add_to(const AnyView& sum, const AnyView& x, Context& ctx) {
  require(sum.count() == x.count(), ErrorKind::bad_shape, "add", "got ", sum, " and ", x,
          "; both must have one size");
  constexpr Index kPiece = Index{1} << 14;
  const Index n = sum.count();
  visit_float(sum.dtype, [&]<class S>(Type<S>) {
    visit_float(x.dtype, [&]<class X>(Type<X>) {
      S* const to = static_cast<S*>(sum.data);
      const X* const from = static_cast<const X*>(x.data);
      ctx.pool().parallel_for(ceil_div(n, kPiece), [&](Index piece, int) {
        for (Index i = piece * kPiece; i < min_of(n, (piece + 1) * kPiece); ++i)
          to[i] = static_cast<S>(
              static_cast<Computed<S>>(static_cast<Computed<S>>(to[i]) + static_cast<Computed<X>>(from[i])));
      });
    });
  });
}

void project(const AnyView& x, const Learned& w, const Learned& b, Activation act, const AnyView& out,
             Context& ctx) {
  projection({.x = x, .weight = w.value(), .bias = b.value(), .out = out}, act, ctx);
}

void project_backward(const AnyView& dy, const AnyView& x, const Learned& w, const Learned& b,
                      const AnyView& dx, const AnyView& scratch, Context& ctx) {
  const ProjectionGrads g{.dy = dy,
                          .x = x,
                          .weight = w.value(),
                          .dx = dx.given() ? scratch : AnyView{},
                          .dweight = w.grad(),
                          .dbias = b.grad()};
  if (!g.dx.given() && !g.dweight.given() && !g.dbias.given()) return;
  projection_backward(g, ctx);
  if (dx.given()) add_to(dx, scratch, ctx);
}

}  // namespace headwise
