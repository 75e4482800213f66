#include "headwise/heads/sums.h"

#include <cstring>

#include "headwise/base/context.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/memory.h"
#include "headwise/ops/projection/backward.h"
#include "headwise/ops/row/dropout.h"

namespace headwise {
namespace {

constexpr Index kPiece = Index{1} << 14;

/// Bytes of all elements, in pieces over the threads: f(first byte, count).
template <class F>
void each_piece(const AnyView& v, Context& ctx, const F& f) {
  const Index bytes = v.count() * size_of(v.dtype);
  ctx.pool().parallel_for(ceil_div(bytes, kPiece), [&](Index piece, int) {
    f(piece * kPiece, static_cast<std::size_t>(min_of(kPiece, bytes - piece * kPiece)));
  });
}

/// A row-major tensor as [1 count].
AnyView in_one_row(const AnyView& v) {
  return AnyView::packed(v.data, v.dtype, {1, v.count()}).on(v.where());
}

}  // namespace

void fill(const AnyView& v, double x) {
  for (Index i = 0; i < v.count(); ++i) store_double(v.data, v.dtype, i, x);
}
void clear(const AnyView& v, Context& ctx) {
  if (!v.on_cpu()) return clear_bytes(v, ctx);
  each_piece(v, ctx,
             [&](Index at, std::size_t n) { std::memset(static_cast<std::byte*>(v.data) + at, 0, n); });
}
void copy_rows(const InputView& from, const AnyView& to, Context& ctx) {
  const Device there = device_of("copy", {{"from", from}, {"to", to}});
  if (!there.is_cpu()) return headwise::to(in_one_row(from), in_one_row(to), ctx);
  each_piece(to, ctx, [&](Index at, std::size_t n) {
    std::memcpy(static_cast<std::byte*>(to.data) + at, static_cast<const std::byte*>(from.data) + at, n);
  });
}

void scale(const AnyView& v, double x, Context& ctx) {
  const Index n = v.count();
  visit_float(v.dtype, [&]<class T>(Type<T>) {
    T* const at = static_cast<T*>(v.data);
    ctx.pool().parallel_for(ceil_div(n, kPiece), [&](Index piece, int) {
      for (Index i = piece * kPiece; i < min_of(n, (piece + 1) * kPiece); ++i)
        at[i] = static_cast<T>(static_cast<Computed<T>>(at[i]) * static_cast<Computed<T>>(x));
    });
  });
}

void add_to(const AnyView& sum, const InputView& x, Context& ctx) {
  require(sum.count() == x.count(), ErrorKind::bad_shape, "add", "got ", sum, " and ", x,
          "; both must have one size");
  const Index n = sum.count();
  // Without a share that is dropped, dropout is the sum of its two inputs.
  if (!device_of("add", {{"sum", sum}, {"x", x}}).is_cpu())
    return dropout(in_one_row(x), in_one_row(sum), {}, in_one_row(sum), ctx);
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

void project(const InputView& x, const Learned& w, const Learned& b, Activation act, const AnyView& out,
             Context& ctx) {
  projection({.x = x, .weight = w.value(), .bias = b.value(), .out = out}, act, ctx);
}

void project_backward(const InputView& dy, const InputView& x, const Learned& w, const Learned& b,
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
