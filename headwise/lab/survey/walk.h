// A walk: all texts go through one model once, one forward a group, and every figure takes its sums.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "headwise/lab/survey/head_survey.h"

namespace headwise {

/// Hits of one relation by one head, in both directions.
struct Hits {
  Index forth = 0, back = 0;
};

/// What one walk over all texts gives for one model.
struct Walk {
  std::vector<HeadSums> heads;
  DepthSums depth;
  ShownPath shown;
  std::vector<std::vector<Hits>> relations;  // [heads][relations]
  SmallMatrix apart;
  Index apart_rows = 0;
};

/// Texts as the model reads them, and what is true of them.
struct ReadTexts {
  std::vector<SurveyTokens> texts, repeats, related;
  std::vector<std::string> words;               // by text
  std::vector<Index> rarest;                    // by text
  std::vector<std::vector<Index>> word_of;      // by related text: the word of each token, -1: none
  std::vector<std::vector<Index>> relation_of;  // by related text and relation: its number
  std::vector<RelationName> names;
};

ReadTexts read_all(const SurveySubject& model, const std::vector<std::string>& texts,
                   const HeadSurveyOptions& options);
/// The same with at most so many texts, evenly chosen.
ReadTexts sampled(const ReadTexts& all, Index most);

struct WalkOptions {
  bool apart = false;                         // heads are held against each other
  std::function<void(double)> progress = {};  // the share of texts done
};
Walk walk_model(SurveySubject& model, const ReadTexts& texts, const HeadSurveyOptions& options,
                const WalkOptions& walk);

}  // namespace headwise
