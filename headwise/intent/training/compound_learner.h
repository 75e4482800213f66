// CompoundLearner: a recogniser that cuts as a Trainer's function: drawn texts in, loss and gradients out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/intent/compound/joined_texts.h"
#include "headwise/intent/training/training.h"

namespace headwise {

class CompoundLearner {
 public:
  /// All of them outlive it.
  CompoundLearner(const Recognizer& model, const JoinedTexts& texts, const TrainingOptions& options,
                  Session& session);

  /// A Trainer's Learn: as many compounds as the micro-batch has examples, and as many pieces, all drawn by
  /// its seed. Where intents begin and what joins them, binary cross-entropy of every token; the class of
  /// compounds and pieces, softmax.
  double learn(const MicroBatch& micro);

 private:
  struct Drawn;
  void draw(const MicroBatch& micro, Drawn& drawn) const;
  double tag_loss(const AnyView& tags, const Drawn& drawn, double weight, const AnyView& dtags) const;

  const Recognizer& model_;
  const JoinedTexts& texts_;
  const TrainingOptions& options_;
  Session& session_;
  Recognizer::Saved saved_;
  TokenId cls_, sep_, mask_;
};

}  // namespace headwise
