// cut_rows: the pieces of one intent each that labelled compounds are joins of, found by comparing rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/corpus/corpus.h"

#pragma GCC visibility push(default)
namespace headwise {

struct LabelledPiece {
  std::string text;
  Index label = 0;
};

struct CutRows {
  std::vector<LabelledPiece> pieces;        // each text of a label once, in the order of the rows
  std::map<std::string, Index> connectors;  // that stood between pieces, in lower case -> how often
  std::vector<Index> whole;                 // rows of several labels that could not be cut
  Index cut = 0;                            // rows of several labels that could
  Index by_words = 0;                       // of them: those whose pieces are no other row's
  std::vector<Index> rows_by_labels;        // [n]: rows of n labels
};

/// Labels of a row stand in the order of its text. A row is cut where every piece is known to have its label:
/// from a row of one label, or from two rows in which all other pieces are known; at last from one row. Of
/// what is left, rows are cut where the words of every piece fit its label better than any other.
/// `labels` gives the numbers; labels that are not among them make a row be left out.
CutRows cut_rows(const Corpus& corpus, std::span<const std::string> labels,
                 std::span<const std::string> connectors);

}  // namespace headwise
#pragma GCC visibility pop
