// trimmed, lowered and json_string.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/words.h"

namespace headwise {

std::string_view trimmed(std::string_view s, std::string_view blanks) {
  const std::size_t first = s.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(blanks) - first + 1);
}

std::string lowered(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string json_string(std::string_view s, const JsonEscapes& escapes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : s) {
    if (c == '\n') {
      out += escapes.line;
    } else if (static_cast<unsigned char>(c) < 0x20 || escapes.also.find(c) != std::string_view::npos) {
      out += "\\u00";
      out += kHex[(c >> 4) & 15];
      out += kHex[c & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

}  // namespace headwise
