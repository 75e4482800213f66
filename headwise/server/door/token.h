// Token: the secret a client shows in its Authorization header; made at random, read with care, compared
// blindly.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace headwise::server {

class Token {
 public:
  /// 256 bits of the system's randomness, as 43 characters of base64url.
  static Token random();
  /// The first line of a file that nobody else may read; links are not followed.
  static Token read(const std::string& path);
  /// The value of a variable of the environment.
  static Token from_environment(const std::string& name);

  const std::string& words() const { return words_; }
  /// In a time that does not depend on where they differ.
  bool equals(std::string_view other) const;

 private:
  Token(std::string words, std::string_view from);
  std::string words_;
};

/// What stands behind "Bearer " in an Authorization header, or the password behind "Basic "; empty when
/// neither.
std::string bearer_of(std::string_view authorization);
std::string password_of(std::string_view authorization);

}  // namespace headwise::server
