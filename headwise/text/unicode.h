// Unicode: what BERT asks of a code point, and UTF-8 read without trust. Answers come from ICU.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {

inline constexpr char32_t kReplacement = 0xFFFD;

/// One code point and the bytes [begin, end) it came from.
struct CodePoint {
  char32_t value = 0;
  Index begin = 0, end = 0;
  bool valid = true;  // false: these bytes are no UTF-8, value is U+FFFD
};

/// The code point that begins at byte `at` < text.size(). Bytes that are no UTF-8 are taken as U+FFFD, as
/// many at once as Unicode recommends (the longest beginning of a well-formed sequence, else one).
CodePoint decode_utf8(std::string_view text, Index at);
void append_utf8(std::string& out, char32_t value);
/// How many code points; of well-formed text.
Index count_code_points(std::string_view text);

/// Category Cc, Cf, Cs or Co, but for tab, line feed and carriage return. Categories are those of Unicode 8,
/// whatever ICU knows besides: tokens must not change with its version.
bool is_control(char32_t c);
/// Unicode's White_Space.
bool is_white_space(char32_t c);
/// Category P, and everything in ASCII that is neither letter, digit, space nor control: "$" and "^" too.
bool is_punctuation(char32_t c);
/// The blocks BERT takes as Chinese: CJK ideographs, with extensions A to E and the compatibility ones.
bool is_chinese(char32_t c);
/// Category Mn: what is stripped as an accent after decomposition.
bool is_accent(char32_t c);
/// Categories L and N, as ICU knows them.
bool is_unicode_letter(char32_t c);
bool is_unicode_number(char32_t c);
/// The text in NFC; bytes that are no UTF-8 become U+FFFD where anything changes.
std::string composed(std::string_view text);
/// Canonical combining class; 0 for all that does not move in canonical order.
int combining_class(char32_t c);
/// Appends the full canonical decomposition of `c`; `c` itself when it has none.
void append_decomposition(std::u32string& out, char32_t c);
/// Appends the lower case of `c` alone: no context, so that a final sigma is an ordinary one.
void append_lower_case(std::u32string& out, char32_t c);

}  // namespace headwise
