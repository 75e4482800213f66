// Connectors: words and marks that may stand between two intents of one text, and where they do.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Those of English and Chinese: "and then", "，", ...
const std::vector<std::string>& default_connectors();

/// Bytes [begin, end) of a text that are a connector, or up to three of them with nothing but blanks between.
struct ConnectorPlace {
  Index begin = 0, end = 0;
};
/// Every place in order of its begin; "and then" gives "and" and "and then". Words are found whole, ASCII
/// letters in any case. Of a text with more than `most` places none is given.
std::vector<ConnectorPlace> connector_places(std::string_view text, std::span<const std::string> connectors,
                                             Index most = 256);

/// A text as pieces are compared: as text_key has it, and without the marks a sentence ends with.
std::string piece_key(std::string_view text);
/// Without blanks around it.
std::string_view without_blanks(std::string_view text);
/// Some character is one of the blocks BERT takes as Chinese: such pieces are joined with each other.
bool holds_chinese(std::string_view text);

}  // namespace headwise
#pragma GCC visibility pop
