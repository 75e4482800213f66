// word_split: the words of a sentence that alignments count, and which pieces of an encoding belong to them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "headwise/text/bpe.h"
#include "headwise/text/words.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Runs of letters, digits and marks are words, with "-", "'" and their curly form between two of them
/// inside; every other sign that is no white space is a word by itself. Bytes of the text.
std::vector<TextSpan> split_sentence(std::string_view text);

/// For each token, the words [first, last) of which it holds a byte; none for white space alone.
struct WordRange {
  Index first = 0, last = 0;
};
std::vector<WordRange> words_of_tokens(const Bpe& bpe, std::span<const std::int32_t> tokens,
                                       std::span<const TextSpan> words);

}  // namespace headwise
#pragma GCC visibility pop
