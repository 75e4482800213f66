// Words of a text, the same way everywhere: trimmed, in lower case, as a JSON string.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace headwise {

/// Without the blanks on either side.
std::string_view trimmed(std::string_view s, std::string_view blanks = " ");
/// ASCII letters in lower case, everything else as it is.
std::string lowered(std::string_view s);

/// What json_string escapes beside quotes, backslashes and bytes below 32.
struct JsonEscapes {
  std::string_view also = "";         // further characters written as \u00xx
  std::string_view line = "\\u000a";  // how the end of a line is written
};
/// A JSON string with its quotes; `s` is UTF-8.
std::string json_string(std::string_view s, const JsonEscapes& escapes = {});

}  // namespace headwise
#pragma GCC visibility pop
