// train_wordpiece: a small WordPiece vocabulary learnt from texts, the same one every time and everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/text/vocabulary.h"
#include "headwise/text/words.h"

#pragma GCC visibility push(default)
namespace headwise {

struct WordPieceTraining {
  Index pieces = 8000;    // at most, with special pieces and alphabet; fewer when nothing is left to merge
  Index least_count = 2;  // a pair seen less often is not merged
  Index alphabet = 6000;  // characters kept, the most frequent first; words with others teach nothing
  WordRules words = {};   // those the tokenizer will use
  std::vector<std::string> special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
};

/// In order: the special pieces; the characters as they begin words and (with ##) as they go on, in the order
/// of their bytes; then merges. Each merge joins the pair of pieces seen most often inside words, the one met
/// first in this list where two are equal.
Vocabulary train_wordpiece(std::span<const std::string_view> texts, const WordPieceTraining& training = {});

}  // namespace headwise
#pragma GCC visibility pop
