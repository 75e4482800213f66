// What the report page answers: answers judged, sentences with their weights, and the tables made of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>

#include "headwise/analysis/explain.h"
#include "headwise/analysis/report/report.h"
#include "headwise/analysis/report/report_words.h"
#include "headwise/analysis/report/trust.h"

namespace headwise {

/// What a recogniser got right and wrong.
struct Answers {
  struct Label {
    std::string name;
    Index right = 0, missed = 0, extra = 0;  // given and true; true but not given; given but not true
    double f1() const;
  };
  std::vector<Label> labels;
  /// (true, given); the last label stands for out of scope. A label missed beside others that were given is
  /// paired with those, one given too much with those that were wanted.
  std::map<std::pair<Index, Index>, Index> counts;
  std::vector<Prediction> given;  // by utterance
  std::vector<Index> wrong;       // utterances, the most confident first
  Index right = 0;
};
Answers judge_answers(const Recognizer& recognizer, const Corpus& corpus, Session& session);

/// A sentence as the viewer draws it.
struct DrawnSentence {
  std::string text, model;  // model: whose heads they are; empty: the report's
  std::vector<std::string> tokens;
  std::vector<Index> words;        // of each token: pieces of one word have one number
  std::vector<Index> special;      // places of [CLS] and [SEP]
  std::vector<double> importance;  // of each token; empty: unknown
  struct Head {
    Index layer, head;
    double importance;
  };
  std::vector<Head> heads;  // whose weights follow
  /// By head and row, as bytes round(255 sqrt(w)). Up to kDenseTokens tokens: one for each token. Above: how
  /// many are kept, then the place of each in two bytes, low byte first, and the byte itself; the heaviest
  /// kKeptKeys.
  std::vector<unsigned char> weights;
  std::string given;  // the label its words speak for
};
constexpr Index kDenseTokens = 48, kKeptKeys = 24;
/// Bytes of one head's weights.
constexpr Index weight_bytes_of(Index tokens) {
  return tokens <= kDenseTokens ? tokens * tokens : tokens * (1 + 3 * kKeptKeys);
}
constexpr Index kAllHeads = 0, kNoHead = -1;
/// `heads` of the heads with the largest importance, or every head, layer by layer, or none.
DrawnSentence draw(const Recognizer& recognizer, const std::string& text, Index heads,
                   const ReportOptions& options, Session& session);
DrawnSentence draw(const TextEncoder& encoder, const std::string& text, const ReportOptions& options,
                   Session& session);

std::string json_of(const DrawnSentence& s);
std::string json_of(const Survey& survey, const RoleBook& book);

std::string head_grid(const Survey& survey, const RoleBook& book, const ReportWords& say);
std::string head_figures(const Survey& survey, const RoleBook& book, const ReportWords& say);
/// Claimed roles, with both of their figures.
std::string roles_found(const Survey& survey, const RoleBook& book, const ReportWords& say);
/// A label as the page names it; the last stands for out of scope.
std::string label_name(const Answers& answers, Index label, const ReportWords& say);
std::string label_table(const Answers& answers, const ReportWords& say);
/// Pairs (true, given) that were taken for each other, the most frequent first.
std::vector<std::pair<Index, std::pair<Index, Index>>> confused_pairs(const Answers& answers);
std::string confused_table(const Answers& answers, const ReportWords& say);
/// How good, what goes wrong most, which heads matter: a sentence each.
std::string summary_of(const Answers& answers, const Survey& survey, const RoleBook& book,
                       const ReportWords& say);
/// A mistake to open, each with its note.
std::string case_list(const Recognizer& recognizer, const Corpus& corpus, const Answers& answers,
                      std::span<const std::string> notes, bool redact, const ReportWords& say);
/// Of a mistake: what each missed label has, what it would have needed, and the words against it.
struct NoteWay {
  bool redact;
  const ReportWords& say;
};
std::string missed_note(const Recognizer& recognizer, const Utterance& row, const Prediction& given,
                        const NoteWay& way, Session& session);
/// How sure every answer was and whether it was right.
std::vector<Trusted> trusted_answers(const Answers& answers);

/// A text as the page shows it.
std::string shown_sentence(std::string_view text, bool redact);

}  // namespace headwise
