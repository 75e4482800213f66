// survey_weights: how the weights of a recogniser's heads look over many texts, layer by layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/analysis/head_figures.h"
#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct LayerWeights {
  HeadFigures figures;  // means over all heads
  double apart = 0;     // HeadsApart of all pairs; 0 for one head
};

struct WeightSurvey {
  Index texts = 0, heads = 0;        // looked at; maps of a layer
  std::vector<LayerWeights> layers;  // of mixed heads as shares of their rows
  /// Over layers.
  LayerWeights mean() const;
};

/// Forwards alone, over at most `texts` of the corpus, evenly chosen. Same bits for any number of threads.
WeightSurvey survey_weights(const Recognizer& recognizer, const Corpus& corpus, Session& session,
                            Index texts = 400);

}  // namespace headwise
#pragma GCC visibility pop
