// cross_entropy: losses of logits against labels, one class a row or many (binary), and their gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// The sum of the losses, and over how many rows (binary: elements) it goes; their quotient is the mean.
struct LossSum {
  double loss = 0;
  Index counted = 0;
  double mean() const { return counted ? loss / static_cast<double>(counted) : 0; }
};

struct CrossEntropyOptions {
  double label_smoothing = 0;  // q = (1 - s) at the label + s / classes everywhere
  Index ignore = -100;         // rows with this label count nowhere and have gradient 0
};

/// Per row -sum_c q_c ln softmax(x)_c. logits [rows classes], any float type and steps; labels [rows], i64 or
/// i32: `ignore`, or 0..classes-1, anything else is refused with its place. dlogits, like logits or empty:
/// (softmax(x) - q) * weight, overwritten, logits itself or apart from it. In double; of f32 side
/// by side the exponentials in f32, their sum in double. Rows are summed in ascending order: the same bits
/// for any thread count.
LossSum cross_entropy(const InputView& logits, const InputView& labels, const CrossEntropyOptions& options,
                      const AnyView& dlogits, double weight, Context& ctx);
inline LossSum cross_entropy(const InputView& logits, const InputView& labels,
                             const CrossEntropyOptions& options, Context& ctx) {
  return cross_entropy(logits, labels, options, {}, 1, ctx);
}

/// Rows whose label is not `ignore`: what a mean divides by, known before any logits are.
Index counted_labels(const InputView& labels, Index ignore);

/// Per element -y ln s - (1 - y) ln(1 - s), s = sigmoid(x): several classes may hold at once. labels like
/// logits, any float type or u8, each from 0 to 1. dlogits as above: (s - y) * weight.
LossSum binary_cross_entropy(const InputView& logits, const InputView& labels, const AnyView& dlogits,
                             double weight, Context& ctx);
inline LossSum binary_cross_entropy(const InputView& logits, const InputView& labels, Context& ctx) {
  return binary_cross_entropy(logits, labels, {}, 1, ctx);
}

}  // namespace headwise
#pragma GCC visibility pop
