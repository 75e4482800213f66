// survey_heads: what every head of a recogniser does on labelled utterances: figures, importance, roles.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

#include "headwise/analysis/role_scores.h"
#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SurveyOptions {
  Index utterances = 400;  // at most, evenly from the corpus
  /// Called with the share done, 0 to 1.
  std::function<void(double)> progress = {};
};

struct SurveyedHead {
  Index layer = 0, head = 0;
  bool there = true;  // layers may have fewer heads than the one that has most
  HeadFigures figures = {};
  double importance = 0;              // mean over utterances of |dL / dgate|, L the loss of the true labels
  double hurt = 0;                    // mean rise of L when the head is switched off
  std::vector<RoleScore> roles = {};  // one for each role of the book
  int role = -1;                      // the chief one of those claimed; -1: none
};

struct Survey {
  Index layers = 0, heads = 0, utterances = 0;
  Index unknown = 0;   // utterances left out: the recogniser does not know one of their labels
  double loss = 0;     // mean L of the utterances with all heads on
  bool mixed = false;  // figures and roles are of weights after mixing: see to_shares
  std::vector<SurveyedHead> all = {};  // layer by layer

  const SurveyedHead& at(Index layer, Index head) const {
    return all[static_cast<std::size_t>(layer * heads + head)];
  }
};

/// L is the cross-entropy of the true label, or the sum of binary ones over all labels. Every head is
/// switched off once over all the utterances: layers x heads forwards. Same bits for any number of threads.
Survey survey_heads(const Recognizer& recognizer, const Corpus& corpus, const RoleBook& book,
                    Session& session, const SurveyOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
