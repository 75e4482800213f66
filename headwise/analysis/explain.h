// explain_text: which heads and which tokens of a text speak for the label a recogniser gives it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/intent/recognizer.h"
#include "headwise/layers/taps.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ExplainOptions {
  Index label = -1;      // whose score is explained; -1: the most probable one
  bool weights = false;  // keep attention weights too
};

struct ExplainedToken {
  TextSpan span;          // in the text's bytes; empty for [CLS] and [SEP]
  std::string piece;      // as the vocabulary has it
  double importance = 0;  // gradient times input of the rows the first block reads
};

/// Everything speaks of s, the log-odds of the label, ln p / (1 - p): positive numbers speak for the label,
/// negative ones against it. They are first-order figures at the text itself, not shares of a whole.
struct Explanation {
  Prediction prediction;
  Index label = 0;
  std::vector<ExplainedToken> tokens;
  Index layers = 0, heads = 0;          // heads 0: this kind of head has no outputs of its own
  std::vector<double> head_importance;  // [layers heads]: ds / dgate, what the head adds to s
  std::vector<Tap> taps;                // of every layer and chunk, where asked; none where heads are mixed

  double head(Index layer, Index h) const {
    return head_importance[static_cast<std::size_t>(layer * heads + h)];
  }
};

/// One forward and one backward; the recogniser's gradients are not touched, so threads may share it, each
/// with its session. The prediction has the bits of predict.
Explanation explain_text(const Recognizer& recognizer, std::string_view text, Session& session,
                         const ExplainOptions& options = {});

/// Heads whose outputs can be switched off one by one; 0: none, whose weights can be looked at: false.
Index gated_heads(const Recognizer& recognizer);
bool has_weights(const Recognizer& recognizer);

}  // namespace headwise
#pragma GCC visibility pop
