// WordPiece: BERT's tokenizer, token for token, with the place of every token in the source text.
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

struct WordPieceOptions {
  WordRules words;
  std::string unknown = "[UNK]";  // must be in the vocabulary
  std::string inside = "##";      // stands before a piece that does not begin a word
};

/// Tokens of one text. What is added around it ([CLS], [SEP]) has an empty span.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TextSpan> spans;
  Index invalid_bytes = 0;  // bytes that are no UTF-8; they give no token
  bool cut = false;         // the text had more tokens than were wanted
};

struct EncodeOptions {
  bool around = false;  // [CLS] before and [SEP] behind, counted by `most`
  Index most = -1;      // tokens at most; -1: all
};

class WordPiece {
 public:
  explicit WordPiece(Vocabulary vocabulary, WordPieceOptions options = {});

  /// Any bytes: an empty text gives no tokens. "[CLS]" and the like inside a text are words as any others:
  /// nobody's text can pose as structure.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Pieces joined to words again, with a space between words; the text's own spaces and capitals are gone.
  std::string decode(std::span<const TokenId> ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const WordPieceOptions& options() const { return options_; }
  TokenId unknown() const { return unknown_; }

 private:
  void add_word(const Word& word, Encoding& out) const;
  Vocabulary vocabulary_;
  WordPieceOptions options_;
  TokenId unknown_, cls_, sep_;
};

}  // namespace headwise
#pragma GCC visibility pop
