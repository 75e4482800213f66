// ScoreBpe: SentencePiece's BPE: pieces with scores, the pair whose union scores best is joined first.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <unordered_map>

#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ScoreBpeParts {
  enum class Kind : std::uint8_t {
    plain,
    unknown,
    control,
    own,
    byte
  };  // own: the user's, found in a text first
  struct Piece {
    std::string text;  // spaces as spaces
    double score = 0;
    Kind kind = Kind::plain;
  };
  std::vector<Piece> pieces;  // by id
  bool space_before = true;   // a space is put before a text that is not empty
  TokenId begin = 1;
  bool add_begin = true;
  std::vector<TokenId> ends = {2};
};

class ScoreBpe final : public Tokenizer {
 public:
  ScoreBpe(const ScoreBpeParts& parts, std::string_view where);
  std::string_view bytes(TokenId id) const override;
  Index size() const override { return static_cast<Index>(bytes_.size()); }

 private:
  void encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const override;

  std::vector<std::string> bytes_;                // by id
  std::vector<std::int64_t> ranks_;               // by id: place in the order of scores, best first
  std::unordered_map<std::string, TokenId> ids_;  // of plain pieces
  std::array<TokenId, 256> byte_ids_ = {};        // -1: none
  TokenId unknown_ = -1;
};

/// llama2.c's tokenizer.bin of `vocabulary` tokens: u32 longest, then f32 score, u32 length, bytes each.
std::unique_ptr<Tokenizer> read_llama2c_tokenizer(const std::string& path, Index vocabulary);

}  // namespace headwise
#pragma GCC visibility pop
