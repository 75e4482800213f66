// Reports on corpora: label statistics, duplicates and conflicts, and what leaks from one split to another.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/intent/corpus/corpus.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Two rows, by number, whose texts are equal but for case and white space.
struct SameText {
  Index first = 0, second = 0;
};

/// A text as duplicates are found by: lower case, white space squeezed to one space and cut off at the ends.
std::string text_key(std::string_view text);
/// The same without punctuation, unless there is nothing else: "Card lost!" is "card lost".
std::string word_key(std::string_view text);

struct CorpusReport {
  Index rows = 0;
  std::map<std::string, Index> labels;    // rows of each
  std::map<Index, Index> rows_by_labels;  // number of labels -> rows; more than one: multi-label
  std::vector<SameText> duplicates;       // a row and the first one with its text
  std::vector<SameText> near;             // a row and the first one that differs from it in marks alone
  std::vector<SameText> conflicts;        // those of both whose labels differ
  bool header = false;                    // the first row looks like the names of columns
  std::string joined = {};  // a label that falls into other labels at `separator`; "": none does
  char separator = 0;
  double mean_words = 0;
  Index most_words = 0;

  bool multi_label() const;
  /// A few lines for people; `most` examples of duplicates and conflicts.
  std::string print(const Corpus& corpus, Index most = 3) const;
};
CorpusReport examine(const Corpus& corpus);

struct SplitReport {
  std::vector<SameText> leaks;          // row of train, row of test
  std::vector<SameText> near;           // the same where texts differ in marks alone
  std::map<std::string, Index> unseen;  // labels of test that train never shows -> rows of test

  std::string print(const Corpus& train, const Corpus& test, Index most = 3) const;
};
/// Rows labelled `out_of_scope` belong to no intent, so that label needs no training.
SplitReport compare_splits(const Corpus& train, const Corpus& test, const std::string& out_of_scope = "oos");

/// Refuses, in one sentence, what nothing can be learnt from: no label at all, or one class only.
void require_trainable(const Corpus& train);
/// Refuses labels in `test` that `train` never shows, naming up to three.
void require_seen_labels(const Corpus& train, const Corpus& test, const std::string& out_of_scope = "oos");

}  // namespace headwise
#pragma GCC visibility pop
