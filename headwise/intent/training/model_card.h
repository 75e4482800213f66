// Model card: metrics.json and card.md of a trained recogniser, for programs and for people.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/intent/training/training.h"

namespace headwise {

/// What was learnt from and how, beside the result itself.
struct Described {
  const Corpus &train, &dev;
  const TrainingOptions& options;
  std::string curve;     // a JSON list: a judgement an epoch
  std::string numerics;  // numerics_id of the run
  std::string scope;     // what is answered as out of scope: scope_words
  bool given_encoder = false;
};

/// Fills metrics and card of `result` from its model, figures and times.
void describe(TrainedRecognizer& result, const Described& described);

}  // namespace headwise
