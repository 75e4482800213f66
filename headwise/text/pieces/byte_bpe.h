// ByteBpe: byte-level BPE of pretrained models: vocabulary, ranked merges, word pattern, special tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <unordered_map>
#include <utility>

#include "headwise/text/pieces/tokenizer.h"
#include "headwise/text/pieces/word_patterns.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What a file says of such a tokenizer, in its own spelling: pieces and merges in GPT-2's printable bytes.
struct ByteBpeParts {
  struct AddedToken {
    TokenId id = -1;
    std::string text;
    bool special = true;
  };
  std::vector<std::string> pieces;                          // by id; "" where an added token stands
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  std::vector<AddedToken> added;
  WordPattern pattern = WordPattern::gpt2;
  bool whole_words = false;  // a word that is a piece is not merged at all ("ignore_merges")
  TokenId begin = -1;        // of the text
  bool add_begin = false;
  std::vector<TokenId> ends;
};

class ByteBpe final : public Tokenizer {
 public:
  /// Refused: pieces that are no printable bytes, merges of unknown pieces, ids outside. `where` begins every
  /// sentence. Bytes that have no piece are left out, as the reference does.
  ByteBpe(const ByteBpeParts& parts, std::string_view where);

  std::string_view bytes(TokenId id) const override;
  Index size() const override { return static_cast<Index>(bytes_.size()); }

 private:
  void encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const override;
  void encode_word(std::string_view word, std::vector<TokenId>& out) const;

  WordPattern pattern_;
  bool whole_words_;
  std::vector<std::string> bytes_;                          // by id
  std::unordered_map<std::string, TokenId> ids_;            // of the bytes of ordinary pieces
  std::array<TokenId, 256> byte_ids_ = {};                  // -1: none
  std::unordered_map<std::uint64_t, std::int64_t> merges_;  // left << 32 | right -> rank << 32 | id
};

}  // namespace headwise
#pragma GCC visibility pop
