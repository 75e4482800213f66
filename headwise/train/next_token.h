// NextToken: a Transformer as a Trainer's function: examples in, cross-entropy and heads' own losses,
// gradients out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/base/callable.h"
#include "headwise/layers/transformer/transformer.h"
#include "headwise/ops/row/cross_entropy.h"
#include "headwise/train/steps/late_loss.h"
#include "headwise/train/trainer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Fills one example: inputs and labels [width]; a label of -100 counts nowhere.
using ReadExample =
    Callable<void(Index example, std::span<std::int32_t> inputs, std::span<std::int32_t> labels)>;

struct NextTokenOptions {
  double label_smoothing = 0;
  Index head_budget = 0;  // routed heads a token may use while judged (moh); 0: as in training
};

/// It runs where the model's parameters lie. A loss on a device is added to MicroBatch::late.
class NextToken {
 public:
  /// All of them outlive it.
  NextToken(const Transformer& model, Index width, ReadExample read, Context& ctx,
            const NextTokenOptions& options = {});

  /// A Trainer's Learn.
  double learn(const MicroBatch& micro);
  /// Mean cross-entropy over examples first .. first + count - 1, `rows` at a time, without dropout.
  double judge(Index first, Index count, Index rows = 16);
  /// Mean share of counted labels that are the most probable token, over the same examples.
  double accuracy(Index first, Index count, Index rows = 16);

 private:
  /// Reads examples and computes logits [rows * width vocabulary].
  AnyView forward(std::span<const Index> examples, Call& call, Transformer::Saved* saved);
  ConstView labels() const;
  Call call_there() { return {.ctx = ctx_, .memory = memory_.on(model_.device())}; }

  const Transformer& model_;
  Index width_;
  ReadExample read_;
  Context& ctx_;
  NextTokenOptions options_;
  StepMemory memory_;
  Transformer::Saved saved_;
  std::vector<std::int32_t> inputs_, labels_;
};

}  // namespace headwise
#pragma GCC visibility pop
