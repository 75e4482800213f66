// Bpe: byte-level byte-pair encoding: learnt from a text, codes any bytes and gives exactly them back.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Tokens 0..255 are the bytes; token 256 + m is merge m, two tokens before it. No merge crosses a word: an
/// optional space and letters (bytes from 128 up count as letters), digits or other signs, or a run of white
/// space.
class Bpe {
 public:
  /// The 256 bytes alone.
  Bpe();
  /// At most `vocabulary` tokens: each merge is the pair seen most often inside words, the smaller one where
  /// two are equal; pairs seen once are not merged. The same text gives the same merges, everywhere.
  static Bpe train(std::string_view text, Index vocabulary);

  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;

  Index vocabulary() const noexcept { return static_cast<Index>(tokens_.size()); }
  /// The bytes of one token.
  const std::string& bytes(std::int32_t token) const;

  /// "headwise-bpe 1", then one merge a line.
  void save(const std::string& path) const;
  static Bpe load(const std::string& path);
  std::string print() const;
  /// Refuses merges of unknown tokens, repeated ones, tokens above 64 KiB; `path` is only named.
  static Bpe parse(std::string_view text, std::string_view path);

 private:
  void add(std::int32_t left, std::int32_t right);
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  std::vector<std::string> tokens_;
  std::vector<std::array<std::int32_t, 2>> merges_;
  struct Pairs;
  std::shared_ptr<Pairs> merged_;  // pair -> token; whole once a Bpe is made, so copies share it
};

}  // namespace headwise
#pragma GCC visibility pop
