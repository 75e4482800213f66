// for_each_word: cuts bytes into words: an optional space and letters, digits or signs, or a run of white
// space.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/error.h"

namespace headwise {

enum class ByteClass : unsigned char { space, letter, digit, sign };

constexpr ByteClass class_of(char c) {
  const auto b = static_cast<unsigned char>(c);
  if (b == ' ' || (b >= 9 && b <= 13)) return ByteClass::space;
  if (b >= '0' && b <= '9') return ByteClass::digit;
  if (b >= 128 || (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z')) return ByteClass::letter;
  return ByteClass::sign;
}

/// The words, one after the other, are the text.
template <class F>
void for_each_word(std::string_view text, F&& f) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    // One space belongs to the word behind it; of more, the last one.
    if (text[at] == ' ' && at + 1 < text.size() && class_of(text[at + 1]) != ByteClass::space) ++end;
    const ByteClass kind = class_of(text[end]);
    while (end < text.size() && class_of(text[end]) == kind) ++end;
    if (kind == ByteClass::space && end < text.size() && end - at > 1 && text[end - 1] == ' ') --end;
    f(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace headwise
