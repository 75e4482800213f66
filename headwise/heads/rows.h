// Small passes that heads share: sums into gradients, and projections whose gradients add up.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/context.h"
#include "headwise/base/param.h"
#include "headwise/spec/gemm.h"

#pragma GCC visibility push(default)
namespace headwise {

/// sum += x, element by element: one size, both row-major, any float dtype each.
void add_to(const AnyView& sum, const AnyView& x, Context& ctx);

/// out = act(x w^T + b); b may be empty.
void project(const AnyView& x, const Learned& w, const Learned& b, Activation act, const AnyView& out,
             Context& ctx);
/// w.grad += dy^T x, b.grad += column sums of dy, dx += dy w. `scratch` is like dx; dx and scratch empty: not
/// wanted.
void project_backward(const AnyView& dy, const AnyView& x, const Learned& w, const Learned& b,
                      const AnyView& dx, const AnyView& scratch, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
