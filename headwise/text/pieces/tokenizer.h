// Tokenizer: a decoder model's way from text to token ids and back to exact bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/text/vocabulary.h"

#pragma GCC visibility push(default)
namespace headwise {

struct TokenizeOptions {
  bool specials = true;  // special tokens spelt out in the text become themselves
  bool begin = true;     // the token of the beginning first, where the model has one
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  std::vector<TokenId> encode(std::string_view text, const TokenizeOptions& options = {}) const;
  /// The bytes of one token; special tokens have none.
  virtual std::string_view bytes(TokenId id) const = 0;
  virtual Index size() const = 0;
  /// The exact bytes of a text that begins with `ids`: a space the encoder put before it is taken away.
  std::string decode(std::span<const TokenId> ids) const;
  /// The same for one token behind `before`; -1: it is the first.
  std::string_view bytes_after(TokenId before, TokenId id) const;

  /// -1: the model has no such token.
  TokenId begin_token() const { return begin_; }
  /// Tokens that end a text.
  const std::vector<TokenId>& end_tokens() const { return ends_; }
  /// The id of a special token; -1 when there is none of that spelling.
  TokenId special(std::string_view spelling) const;

 protected:
  /// A token that is found in the text before anything else.
  struct Added {
    std::string text;
    TokenId id = -1;
    bool special = true;
  };
  virtual void encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const = 0;
  /// Longest first among those that begin at one place.
  void set_added(std::vector<Added> added);

  TokenId begin_ = -1;
  bool add_begin_ = false;
  bool space_before_ = false;  // the encoder puts a space before a text
  std::vector<TokenId> ends_;

 private:
  std::vector<Added> added_;
};

}  // namespace headwise
#pragma GCC visibility pop
