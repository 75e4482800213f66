// JsonReader: a strict scanner for the small JSON grammars of model files; every refusal names the byte.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "headwise/base/error.h"
#include "headwise/base/index.h"

#pragma GCC visibility push(default)  // headwise_text reads its corpora with it
namespace headwise {

/// A name from a file as it may stand in a sentence: quoted, control characters escaped, cut after 80 bytes.
std::string quoted(std::string_view name);

/// Well-formed UTF-8 without NUL, overlong forms or surrogates; else the offset of the first bad byte, -1
/// when there is none.
Index first_bad_utf8(std::string_view bytes);

/// Reads tokens one after another; the grammar, and so the depth, is the caller's. The text must be UTF-8
/// (first_bad_utf8).
class JsonReader {
 public:
  /// `where` begins every sentence, such as "safetensors: model.safetensors".
  JsonReader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  /// Skips white space; 0 at the end.
  char peek();
  /// Takes `c` or refuses, saying what it would have ended or begun.
  void take(char c, std::string_view what);
  /// Takes `c` when it is next.
  bool try_take(char c);
  /// A string with its escapes decoded; at most `most` bytes of it.
  std::string string(std::string_view what, Index most);
  /// Plain decimal digits below 2^53: no sign, fraction, exponent or leading zero.
  Index integer(std::string_view what);
  /// Any value, of at most `depth` lists and objects inside each other.
  void skip(std::string_view what, int depth = 64);
  std::size_t at() const { return at_; }

  /// Whose value is being read: sentences name it. It must outlive its use; "" ends it.
  void about(std::string_view name) { about_ = name; }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument,
                headwise::text(where_, ": ", about_.empty() ? "" : quoted(about_) + ": ", parts..., " (byte ",
                               at_, " of the JSON)"));
  }

 private:
  std::uint32_t hex4(std::string_view what);
  void escape(std::string& out, std::string_view what);
  void skip_word(std::string_view what);
  /// The next character, all its bytes: half of one in a sentence is no UTF-8.
  std::string_view character() const;

  std::string_view text_;
  std::string where_;
  std::string_view about_;
  std::size_t at_ = 0;
};

}  // namespace headwise
#pragma GCC visibility pop
