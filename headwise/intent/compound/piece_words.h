// PieceWords: how well words fit a label, counted in pieces of one label each (naive Bayes): to cut rows by.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {

class PieceWords {
 public:
  explicit PieceWords(Index labels) : counts_(static_cast<std::size_t>(labels), 0) {}

  void add(std::string_view text, Index label);
  /// ln p of every label: words and pairs of neighbours as they were counted, each label as likely as any
  /// other. A text without words says nothing: all are equal.
  std::vector<double> scores(std::string_view text) const;

 private:
  std::vector<Index> counts_;                                    // of each label, all words together
  std::unordered_map<std::string, std::vector<Index>> by_word_;  // [labels]
};

}  // namespace headwise
