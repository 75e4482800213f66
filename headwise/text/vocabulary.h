// Vocabulary: the pieces a tokenizer knows, numbered by their line, found by longest match; read without
// trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

using TokenId = std::int32_t;

struct VocabularyLimits {
  Index pieces = 2'000'000;
  Index piece_bytes = 1024;
  Index file_bytes = Index{256} << 20;
};

class Vocabulary {
 public:
  /// Piece i gets id i. Refused: none, an empty one, one twice, one that is no UTF-8 or holds a line feed.
  explicit Vocabulary(std::vector<std::string> pieces, std::string_view op = "vocabulary",
                      const VocabularyLimits& limits = {});
  /// vocab.txt: one piece a line, with or without a last line feed; a carriage return before it is dropped.
  static Vocabulary read(const std::string& path, const VocabularyLimits& limits = {});
  /// Replaced whole: a crash leaves the old file.
  void save(const std::string& path) const;

  Index size() const { return static_cast<Index>(pieces_.size()); }
  const std::string& piece(TokenId id) const;
  /// -1 when it is not there.
  TokenId find(std::string_view piece) const;

  struct Match {
    TokenId id = -1;
    Index bytes = 0;
  };
  /// The longest piece that is `front` followed by a beginning of `rest`, which must not be empty; `bytes`
  /// counts those of `rest`. One walk over the bytes: a 10 MB word costs 10 million steps.
  Match longest(std::string_view front, std::string_view rest) const;

 private:
  /// A trie whose edges (node, byte) lie in one open table: node 0 is the root, child 0 an empty place.
  struct Edge {
    std::uint32_t from = 0, byte = 0, to = 0;
  };
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;
  std::uint32_t grow(std::uint32_t node, unsigned char byte);

  std::vector<std::string> pieces_;
  std::vector<Edge> edges_;
  std::vector<TokenId> ids_;  // by node
};

}  // namespace headwise
#pragma GCC visibility pop
