// explain_text: which heads and which tokens of a text speak for the label a recogniser gives it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/layers/multi_head/mixed_taps.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ExplainTextOptions {
  Index label = -1;                         // whose score is explained; -1: the most probable one
  bool weights = false;                     // keep attention weights too
  const std::atomic<bool>* stop = nullptr;  // looked at between runs of the model: set, an Error says so
};

struct ExplainedToken {
  TextSpan span;          // in the text's bytes; empty for [CLS] and [SEP]
  std::string piece;      // as the vocabulary has it
  Index word = -1;        // pieces of one word (see word_breaks) have one number, from 0; -1: [CLS], [SEP]
  double importance = 0;  // its part of s - s', s' with the word hidden as [MASK]; 0 of [CLS] and [SEP]
  bool frees = false;     // a label that was not given would be, with this word hidden
};

/// Everything speaks of s, the log-odds of the label, ln p / (1 - p): positive numbers speak for the label,
/// negative ones against it. No shares of a whole: of two words that say the same, each can be spared.
struct Explanation {
  Prediction prediction;
  Index label = 0;
  bool given = false;      // the label is among those the prediction gives
  double probability = 0;  // of the label
  double needed = 0;  // from which it would be given, the others as they are: a threshold, or the rival's
  Index rival = -1;   // of texts with one label, the likeliest other one; -1: labels are judged apart
  std::vector<ExplainedToken> tokens;
  Index layers = 0, heads = 0;          // heads 0: this kind of head has no outputs of its own
  std::vector<double> head_importance;  // [layers heads]: ds / dgate, what the head adds to s
  std::vector<Tap> taps;                // of every layer and chunk, where asked; of mixed heads as shares

  /// What s lacks of the log-odds it would have needed; 0 where the label was given.
  double lacks() const;
  double head(Index layer, Index h) const {
    return head_importance[static_cast<std::size_t>(layer * heads + h)];
  }
};

/// A word of an explanation: its pieces together.
struct WordWeight {
  TextSpan span;
  double importance = 0;
  bool frees = false;
};
/// In the order of the text; those that stand in no token, as white space, are left out.
std::vector<WordWeight> words_of(const Explanation& explanation);

/// A forward and a backward for the heads, a forward for each word. Pieces of a word get equal parts of its
/// figure; above 128 words, or 2^15 tokens in all these forwards, neighbouring words are hidden together and
/// share theirs. The recogniser's gradients are not touched, so threads may share it, each with its session;
/// same bits for any number of threads. The prediction equals that of predict, bit for bit. Of a recogniser
/// that cuts, tokens and heads are those of the span that said the label, read alone as predict reads it.
Explanation explain_text(const Recognizer& recognizer, std::string_view text, Session& session,
                         const ExplainTextOptions& options = {});

/// Heads whose outputs can be switched off one by one, of the layer with most and of one layer; 0: none.
Index gated_heads(const Recognizer& recognizer);
Index gated_heads(const Recognizer& recognizer, Index layer);
/// Heads exchange weights: taps are what multiplies the values after that, looked at as shares of each row.
bool mixes_heads(const Recognizer& recognizer);
/// Heads whose weights are drawn: those above, or where there are none all the maps.
Index drawn_heads(const Recognizer& recognizer);
Index drawn_heads(const Recognizer& recognizer, Index layer);

}  // namespace headwise
#pragma GCC visibility pop
