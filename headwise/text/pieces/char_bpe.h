// CharBpe: SentencePiece's BPE as tokenizer.json has it: ranked merges over characters, bytes for the rest.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <unordered_map>
#include <utility>

#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Where a space is put before a text: before every stretch between special tokens, before the first one
/// alone, or nowhere. `unless_there`: not where one stands already.
struct SpaceRule {
  enum class Where : std::uint8_t { nowhere, first, every };
  Where where = Where::nowhere;
  bool unless_there = false;
};

/// What a file says of such a tokenizer, in its own spelling: U+2581 for a space.
struct CharBpeParts {
  struct AddedToken {
    TokenId id = -1;
    std::string text;
    bool special = true;
  };
  std::vector<std::string> pieces;                          // by id; "" for a hole
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  std::vector<AddedToken> added;
  SpaceRule space;
  bool words = false;        // pairs are not merged across spaces
  bool whole_words = false;  // a word that is a piece is not merged at all ("ignore_merges")
  bool bytes = true;         // characters that are no piece become <0xNN>
  TokenId unknown = -1;      // what they become otherwise; -1: nothing
  bool fuse_unknown = false;
  TokenId begin = -1;
  bool add_begin = false;
  bool strip = false;  // a space before a whole text is taken away again
  std::vector<TokenId> ends;
};

class CharBpe final : public Tokenizer {
 public:
  CharBpe(const CharBpeParts& parts, std::string_view where);
  std::string_view bytes(TokenId id) const override;
  Index size() const override { return static_cast<Index>(bytes_.size()); }

 private:
  void encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const override;
  void encode_word(std::string_view word, std::vector<TokenId>& out) const;
  TokenId find(std::string_view piece) const;

  SpaceRule space_;
  bool words_, whole_words_, fuse_unknown_;
  TokenId unknown_;
  std::vector<std::string> bytes_;                          // by id
  std::unordered_map<std::string, TokenId> ids_;            // of pieces as the file spells them
  std::array<TokenId, 256> byte_ids_ = {};                  // -1: there is no fallback
  std::unordered_map<std::uint64_t, std::int64_t> merges_;  // left << 32 | right -> rank << 32 | id
};

}  // namespace headwise
#pragma GCC visibility pop
