// Learner: a recogniser as a Trainer's functions: rows in, loss and gradients out; and its answers on dev.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/intent/training/training.h"

namespace headwise {

class Learner {
 public:
  /// All of them outlive it. Rows of `train` are tokenized once.
  Learner(const Recognizer& model, const Corpus& train, const TrainingOptions& options, Session& session);

  /// A Trainer's Learn: softmax or binary cross-entropy per text, tokens dropped by the micro-batch's seed.
  double learn(const MicroBatch& micro);

 private:
  struct Losses {
    AnyView logits, dlogits;
    AnyView there;  // where the sum lies on a device; not given: on the CPU
    double weight = 0;
  };
  bool has_label(Index example) const { return !labels_[static_cast<std::size_t>(example)].empty(); }
  std::vector<Index> in_order(std::span<const Index> examples) const;
  double loss_of_several(std::span<const Index> examples, const Losses& l, Call& call) const;
  double loss_of_one(std::span<const Index> examples, const Losses& l, Call& call) const;
  void drop_tokens(TextBatch& batch, std::uint64_t seed) const;

  const Recognizer& model_;
  const TrainingOptions& options_;
  Session& session_;
  Recognizer::Saved saved_;
  std::vector<Encoding> rows_;
  std::vector<std::vector<Index>> labels_;
  std::vector<char> special_;  // by token: stands for no text
  TokenId mask_ = 0;
};

/// Mean of -ln p over wanted labels (softmax) or over all labels (binary), of predictions on dev.
double mean_loss(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given);

}  // namespace headwise
