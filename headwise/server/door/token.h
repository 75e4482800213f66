// Token: the secret a client shows in its Authorization header; made at random, read with care, compared
// blindly.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace headwise::server {

class Token {
 public:
  /// 256 bits of the system's randomness, as 43 characters of base64url.
  static Token random();
  struct InFile;
  /// One a line; empty lines and those that begin with # are none. A file others may write is refused; links
  /// are followed, because volumes of secrets are made of them.
  static InFile read(const std::string& path);
  /// The value of a variable of the environment.
  static Token from_environment(const std::string& name);

  const std::string& words() const { return words_; }
  /// In a time that does not depend on where they differ.
  bool equals(std::string_view other) const;

 private:
  Token(std::string words, std::string_view from);
  std::string words_;
};

struct Token::InFile {
  std::vector<Token> tokens;     // one or more
  bool readable_by_all = false;  // not its owner and group alone
};

/// What stands behind "Bearer " in an Authorization header, or the password behind "Basic "; empty when
/// neither.
std::string bearer_of(std::string_view authorization);
std::string password_of(std::string_view authorization);

}  // namespace headwise::server
