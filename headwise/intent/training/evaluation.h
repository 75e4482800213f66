// Evaluation: how right a recogniser is: exact match by number of intents, F1, confusion, out of scope, bad
// cases.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// part of whole; nothing of nothing is 0.
struct Share {
  Index part = 0, whole = 0;
  double value() const { return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0; }
};

struct LabelFigures {
  std::string label;
  Index wanted = 0, given = 0, both = 0;  // rows that have it, rows it was given to, rows of both
  double precision() const { return Share{both, given}.value(); }
  double recall() const { return Share{both, wanted}.value(); }
  double f1() const { return Share{2 * both, wanted + given}.value(); }
};

/// A row of one wanted label that got another one.
struct Confusion {
  std::string wanted, given;
  Index rows = 0;
};

struct BadCase {
  Index row = 0;  // of the corpus
  std::string text;
  std::vector<std::string> wanted, given;
  double confidence = 0;
};

struct EvaluationOptions {
  std::string out_of_scope = "oos";       // the label of rows that belong to no intent
  Index confusions = 20, bad_cases = 50;  // at most
};

/// Rows with the out-of-scope label, and in single-label models rows without any, are out of scope; all
/// others are in scope.
struct Evaluation {
  std::string name;
  Share exact;                          // in scope: all wanted labels given and no other
  Share top;                            // in scope with labels: the most probable label is a wanted one
  std::map<Index, Share> by_intents;    // exact, by number of wanted labels
  double micro_f1 = 0, macro_f1 = 0;    // of all labels; of those that are wanted somewhere
  std::vector<LabelFigures> labels;     // in the model's order
  std::vector<Confusion> confusions;    // the most frequent first
  Share scope_recall, scope_precision;  // out-of-scope rows that were caught; caught rows that were ones
  std::vector<BadCase> bad_cases;       // the most confident first

  std::string print() const;
  std::string json() const;
};

/// Labels the model never learnt are refused by name.
Evaluation evaluate(const Recognizer& model, const Corpus& corpus, Session& session,
                    const EvaluationOptions& options = {});
/// The same of predictions made before, one a row.
Evaluation evaluate(const RecognizerConfig& config, const Corpus& corpus, std::span<const Prediction> given,
                    const EvaluationOptions& options = {});

/// Neither labelled, nor labelled with anything but `out_of_scope`.
bool is_out_of_scope(const Utterance& row, bool multi_label, const std::string& out_of_scope);

}  // namespace headwise
#pragma GCC visibility pop
