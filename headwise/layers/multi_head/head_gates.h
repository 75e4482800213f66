// head_gates: a factor on every head's output before W_O, and the gradient of the factor, token by token.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// y [rows heads*dim], gates [heads]: out_th = gate_h y_th. A gate of 1 keeps every bit.
void scale_heads(const AnyView& y, const AnyView& gates, const AnyView& out, Context& ctx);
/// dgates [rows heads], any float: dgate_th = y_th . dout_th, summed in ascending order in double. Its sum
/// over rows is dL / dgate_h, the importance of Michel et al. 2019 before the absolute value.
void gate_gradient(const AnyView& y, const AnyView& dout, const AnyView& dgates, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
