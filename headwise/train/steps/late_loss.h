// late_loss: losses of logits on a CUDA device, whose sum stays there until the trainer reads it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/basic/module.h"
#include "headwise/ops/row/cross_entropy.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Where the losses of a micro-batch are added, and what their sum counts for.
struct LateLoss {
  AnyView sum = {};  // f64 [1] on the device
  double share = 0;  // set by who learns: times the sum it is the mean loss
};

/// As cross_entropy, for logits on a CUDA device and labels on the CPU: adds the losses to `sum` there and
/// returns how many rows are counted, at once.
Index late_cross_entropy(const InputView& logits, const InputView& labels, const CrossEntropyOptions& options,
                         const AnyView& dlogits, double weight, const AnyView& sum, Call& call);
/// As binary_cross_entropy, the same way: returns the number of elements.
Index late_binary_cross_entropy(const InputView& logits, const InputView& labels, const AnyView& dlogits,
                                double weight, const AnyView& sum, Call& call);

/// A sum for who has none: zero, in the call's memory.
AnyView no_losses(Call& call);
/// What stands in a sum; waits for it.
double read_losses(const AnyView& sum, Call& call);

}  // namespace headwise
#pragma GCC visibility pop
