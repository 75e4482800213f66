// layer_norm: (x - mean) / sqrt(variance + eps) * weight + bias along the last axis, and its gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// x, out: rank 1 to 4, any steps, one dtype; out is x itself or apart from it. weight, bias: [dim] of any
/// float type, or empty (1 and 0). moments: f64 [rows 2] row-major, written where given: each row's mean and
/// 1 / sqrt(variance + eps), which spare the backward their sums. In double, rounded once; a row's bits
/// depend on the row alone. On a CUDA device: in f32, moments f32 [2 rows], all means first; the backward
/// needs them.
struct LayerNormArgs {
  InputView x = {}, weight = {}, bias = {};
  AnyView out = {}, moments = {};
  double eps = 1e-5;
};
void layer_norm(const LayerNormArgs& args, Context& ctx);

/// dx: like x, dout itself or apart from it; overwritten. residual: like x, added to dx before it is rounded.
/// moments: as layer_norm wrote them, or empty.
/// dweight, dbias [dim], any float type: added to, so that micro-batches add up; their sums go in steps of 64
/// rows, whatever the threads. What is empty is not computed.
struct LayerNormGrads {
  InputView x = {}, weight = {}, dout = {}, residual = {}, moments = {};
  AnyView dx = {}, dweight = {}, dbias = {};
  double eps = 1e-5;
};
/// With n = (x - mean) / r, r = sqrt(variance + eps), g = dout * weight: dx = (g - mean(g) - n mean(g n)) /
/// r, dweight += sum of dout n, dbias += sum of dout.
void layer_norm_backward(const LayerNormGrads& args, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
