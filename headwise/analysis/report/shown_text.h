// Shown text: anybody's bytes as a page may hold them: valid, escaped, no hidden marks, masked where asked.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/text/words.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Which bytes of a text are masked: digits, and what looks like a name. Names are capitalised words but for
/// "I" and the first of a sentence, and the word behind Mr, Mrs, Ms or Dr. So are a Chinese surname before
/// 先生, 女士, 小姐 or 老师 or behind 小 or 老, and everything in a word with an @.
std::vector<bool> private_bytes(std::string_view text);

/// Bytes [span) of the text in valid UTF-8. Bytes that are not UTF-8 become U+FFFD, masked characters a dot.
/// Control characters and marks that turn the direction of writing become their names in angle brackets.
/// Above `most` characters the middle is left out and counted.
std::string shown(std::string_view text, TextSpan span, const std::vector<bool>* masked = nullptr,
                  Index most = 400);
std::string shown(std::string_view text, Index most = 400);

/// For HTML text and attributes.
std::string html(std::string_view shown);
/// A JSON string with its quotes that may stand inside a script element: no <, > or &, nor the line ends of
/// JavaScript.
std::string script_string(std::string_view shown);
std::string base64(const std::vector<unsigned char>& bytes);

}  // namespace headwise
#pragma GCC visibility pop
