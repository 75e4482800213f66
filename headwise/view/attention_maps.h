// AttentionMaps: the weights of every layer and head of one attention over two lists of tokens, row by row.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/base/index.h"
#include "headwise/view/circuits.h"
#include "headwise/view/generation.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What stands beside a row or a column. Texts are shown as they are; the page never reads them as markup.
struct ViewTokens {
  std::vector<std::string> texts;
  std::vector<Index> words = {};    // pieces of one word have one number; empty: every token is a word
  std::vector<Index> special = {};  // places of [CLS], [SEP] and the like
  Index count() const { return static_cast<Index>(texts.size()); }
};

struct AttentionMaps {
  std::string name = "self";  // self, encoder, decoder, cross: what the page calls it
  ViewTokens queries, keys;
  std::vector<Index> heads;  // of each layer
  /// Fills the weights of one query over all keys. Any number may come; the page says what was unusual.
  std::function<void(Index layer, Index head, Index query, std::span<float> weights)> row;
  /// Sizes of what a key adds to the output, |v W_O|: [layer][heads keys]; empty: unknown.
  std::vector<std::vector<float>> value_norms = {};
  /// Queries and keys as they meet in the scores: [layer][heads tokens head_dim]; empty: unknown.
  std::vector<std::vector<float>> q = {}, k = {};
  Index head_dim = 0;
  std::optional<Generation> generation = {};  // of a decoder that wrote the end of the text

  std::optional<Circuits> circuits = {};  // of its heads, from the weights alone

  Index layers() const { return static_cast<Index>(heads.size()); }
};

/// Refuses lists, sizes and layers that disagree, in words; `op` begins the sentence.
void check_maps(const AttentionMaps& maps, const char* op);

}  // namespace headwise
#pragma GCC visibility pop
