// Circuits of a decoder's heads from its weights alone: bare embeddings, and what values write.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <utility>

#include "headwise/decoder/files/source.h"
#include "headwise/view/circuits.h"

namespace headwise {

class Context;

struct CircuitQuestion {
  std::vector<TokenId> text;                        // whose tokens are set against each other
  std::vector<std::pair<Index, Index>> heads = {};  // layer and head; empty: all
  Index vocabulary = 0;                             // tokens that have a name; rows behind them are padding
  std::function<std::string(TokenId)> name;
};

/// A token is its embedding behind the layer's norm, so positions play no part: as if both stood at one
/// place. Heads of deeper layers read more than embeddings; this is the part that comes straight from the
/// tokens. Of the vocabulary so many first tokens are read that the work stays below some 30 billion
/// products.
Circuits circuits_of(DecoderSource& source, const CircuitQuestion& question, Context& ctx);

/// "all", or heads as 2.5,3.0: layer, point, head. Refuses others in words.
std::vector<std::pair<Index, Index>> parse_heads(const std::string& words, const DecoderConfig& config);

}  // namespace headwise
