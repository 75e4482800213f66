// Words: blanks cut, ASCII lowered, JSON strings that a reader of JSON takes back.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/words.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headwise {
namespace {

TEST(Words, TrimmedLosesBlanksAtEitherEndAlone) {
  EXPECT_EQ(trimmed("  a b "), "a b");
  EXPECT_EQ(trimmed("\ta b"), "\ta b");
  EXPECT_EQ(trimmed("\t a b\r\n", " \t\r\n"), "a b");
  EXPECT_EQ(trimmed("   "), "");
  EXPECT_EQ(trimmed(""), "");
}

TEST(Words, LoweredLeavesBytesOfOtherLettersAlone) {
  EXPECT_EQ(lowered("AZ[az]@9"), "az[az]@9");
  EXPECT_EQ(lowered("\xc3\x84X"), "\xc3\x84x");
}

TEST(Words, JsonStringsReadBackAsTheyWere) {
  std::string all;
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  all += std::string("\0\xc3\xa9", 3);
  for (const JsonEscapes& escapes : {JsonEscapes{}, {.also = "<\x7f"}, {.line = "\\n"}})
    EXPECT_EQ(nlohmann::json::parse(json_string(all, escapes)).get<std::string>(), all);
}

TEST(Words, JsonStringsEscapeWhatIsAsked) {
  EXPECT_EQ(json_string("a\"\\\n<\x7f"), "\"a\\\"\\\\\\u000a<\x7f\"");
  EXPECT_EQ(json_string("a\n<\x7f", {.also = "<\x7f"}), "\"a\\u000a\\u003c\\u007f\"");
  EXPECT_EQ(json_string("a\n<", {.line = "\\n"}), "\"a\\n<\"");
}

}  // namespace
}  // namespace headwise
