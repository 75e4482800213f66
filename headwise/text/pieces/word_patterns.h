// word_patterns: how byte-level tokenizers cut a text into words before pairs are merged, by named pattern.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The patterns known, each a regular expression of its models written out as a machine over code points:
///   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///   smollm  every \p{N} alone, then gpt2 on what lies between
///   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
///           \s*[\r\n]+|\s+(?!\S)|\s+
///   qwen2   llama3 with \p{N} in place of \p{N}{1,3}, over text in NFC
enum class WordPattern : std::uint8_t { gpt2, smollm, llama3, qwen2 };

/// The word's name in a GGUF file (gpt-2, smollm, llama-bpe, qwen2); empty: not known.
std::optional<WordPattern> gguf_word_pattern(std::string_view name);
/// The pattern whose regular expression this is; empty: not known.
std::optional<WordPattern> split_word_pattern(std::string_view expression);

/// The words, one after the other, are the text. Bytes that are no UTF-8 count as signs.
std::vector<std::string_view> pattern_words(WordPattern pattern, std::string_view text);

}  // namespace headwise
#pragma GCC visibility pop
