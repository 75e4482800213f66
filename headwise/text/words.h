// WordSplitter: BERT's words of a text, cleaned, without accents, in lower case, each with its place in the
// source.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/model/word_rules.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Bytes [begin, end) of the source text.
struct TextSpan {
  Index begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// One word: its normalized text, where each of its code points begins in it, and the source bytes of each.
struct Word {
  std::string text;
  std::vector<Index> starts;
  std::vector<TextSpan> spans;
  TextSpan whole;
  Index chars = 0;  // above WordRules::word_chars the three lists hold only the first ones
};

/// Calls `on_word` for each word in order; the Word is the splitter's own and changes with the next. Returns
/// the number of bytes that are no UTF-8: they are read as U+FFFD, which BERT drops.
Index split_words(std::string_view text, const WordRules& rules,
                  const std::function<void(const Word&)>& on_word);

}  // namespace headwise
#pragma GCC visibility pop
