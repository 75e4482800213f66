// JoinedTexts: compounds and pieces drawn afresh for every step, with a label and a mark for every token.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

#include "headwise/intent/compound/pieces.h"
#include "headwise/text/wordpiece.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What a token of a joined text is.
enum class TokenMark : std::uint8_t { plain, start, connector };

/// One drawn text: tokens without [CLS] and [SEP]. A text of several intents, or half of one, has the number
/// of labels as its label.
struct DrawnText {
  std::vector<TokenId> ids;
  std::vector<TokenMark> marks;  // start: a further intent begins here
  Index label = 0;
};

class JoinedTexts {
 public:
  using Tokenize = std::function<std::vector<TokenId>(const std::string&)>;
  /// `connectors`: those that may be drawn beside the ones that were seen. Pieces are tokenized once.
  JoinedTexts(const CutRows& rows, Index labels, std::span<const std::string> connectors,
              const Tokenize& tokenize);

  /// As many labels as the rows have it, different ones, each drawn evenly; then a piece of each, and
  /// connectors as often as they were seen. Depends on seed and number alone.
  DrawnText compound(std::uint64_t seed, std::uint32_t number) const;
  /// One piece of a label; of those with a connector inside some are broken there.
  DrawnText piece(std::uint64_t seed, std::uint32_t number) const;

  Index most_intents() const { return static_cast<Index>(share_.size()); }
  /// Tokens of the longest connector.
  Index connector_tokens() const;

 private:
  struct Piece {
    std::vector<TokenId> ids;
    std::vector<std::pair<std::size_t, std::size_t>> breaks;  // connectors inside: tokens [first, second)
    bool chinese = false;
  };
  class Draw;
  struct Connector {
    std::vector<TokenId> ids;
    double upto = 0;  // cumulative share
  };
  const Piece& piece_of(Index label, const bool* chinese, Draw& draw) const;
  const Connector& connector(bool chinese, Draw& draw) const;
  void add_connectors(const CutRows& rows, std::span<const std::string> others, const Tokenize& tokenize);

  Index labels_;
  std::vector<Piece> pieces_;
  std::vector<Index> learnt_;                          // labels that have a piece
  std::vector<std::vector<std::size_t>> by_label_[2];  // [chinese][label]: numbers of pieces
  std::vector<Connector> connectors_[2];               // [chinese]
  std::vector<double> share_;                          // cumulative, of 1, 2, ... intents
};

}  // namespace headwise
#pragma GCC visibility pop
