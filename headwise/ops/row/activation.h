// activation: relu, gelu, silu and sigmoid of every element, GLU pairs y * act(g), and the gradients of both.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"
#include "headwise/spec/gemm.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// out = act(x). x, out: one dtype and sizes, rank 1 to 4, any steps; out is x itself or apart from it.
/// Computed in f32 (f64 in f64), rounded once; an element's bits depend on the element alone.
void activation(Activation act, const InputView& x, const AnyView& out, Context& ctx);

/// dx = dout * act'(x). x is the input of the forward, not its output. dx is dout or x itself, or apart from
/// both.
void activation_backward(Activation act, const InputView& x, const InputView& dout, const AnyView& dx,
                         Context& ctx);

/// out = y * act(gate); with Activation::none the bilinear pair. out is y or gate itself, or apart from both.
void gated(Activation act, const InputView& y, const InputView& gate, const AnyView& out, Context& ctx);

/// dy = dout * act(gate), dgate = dout * y * act'(gate). Each is dout, y or gate itself, or apart from all
/// three; dy and dgate are apart from each other.
void gated_backward(Activation act, const InputView& y, const InputView& gate, const InputView& dout,
                    const AnyView& dy, const AnyView& dgate, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
