// What the report page answers: answers judged, sentences with their weights, and the tables made of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>

#include "headwise/analysis/explain.h"
#include "headwise/analysis/report.h"

namespace headwise {

/// What a recogniser got right and wrong.
struct Answers {
  struct Label {
    std::string name;
    Index right = 0, missed = 0, extra = 0;  // given and true; true but not given; given but not true
    double f1() const;
  };
  std::vector<Label> labels;
  std::map<std::pair<Index, Index>, Index> counts;  // (true, given); the last label stands for none
  std::vector<Prediction> given;                    // by utterance
  std::vector<Index> wrong;                         // utterances, the most confident first
  Index right = 0;
};
Answers judge_answers(const Recognizer& recognizer, const Corpus& corpus, Session& session);

/// A sentence as the viewer draws it.
struct DrawnSentence {
  std::string text, model;  // model: whose heads they are; empty: the report's
  std::vector<std::string> tokens;
  std::vector<Index> special;      // places of [CLS] and [SEP]
  std::vector<double> importance;  // of each token; empty: unknown
  struct Head {
    Index layer, head;
    double importance;
  };
  std::vector<Head> heads;             // whose weights follow
  std::vector<unsigned char> weights;  // [heads tokens tokens], round(255 sqrt(w))
  std::string given;                   // the label its words speak for
};
/// `heads` of the heads with the largest importance; 0: every head, layer by layer.
DrawnSentence draw(const Recognizer& recognizer, const std::string& text, Index heads,
                   const ReportOptions& options, Session& session);
DrawnSentence draw(const TextEncoder& encoder, const std::string& text, const ReportOptions& options,
                   Session& session);

std::string json_of(const DrawnSentence& s);
std::string json_of(const Survey& survey, const RoleBook& book);

std::string head_grid(const Survey& survey, const RoleBook& book);
std::string head_figures(const Survey& survey, const RoleBook& book);
/// Claimed roles, with both of their figures.
std::string roles_found(const Survey& survey, const RoleBook& book);
std::string label_table(const Answers& answers);
std::string confused_table(const Answers& answers);
std::string case_list(const Recognizer& recognizer, const Corpus& corpus, const Answers& answers, Index most,
                      bool redact);

/// A text as the page shows it.
std::string shown_sentence(std::string_view text, bool redact);

}  // namespace headwise
