// Shown text: hostile bytes become plain text of a page, and private ones dots.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/analysis/report/shown_text.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

std::string masked(std::string_view text) {
  const std::vector<bool> hide = private_bytes(text);
  return shown(text, {0, static_cast<Index>(text.size())}, &hide);
}

TEST(ShownText, HiddenMarksAndBadBytesAreSeen) {
  EXPECT_EQ(shown("a\xff\xfe"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(shown("pay \xE2\x80\xAE"
                  "evil"),
            "pay <U+202E>evil");
  EXPECT_EQ(shown("a\x01\tb\xE2\x80\x8B"), "a<U+0001> b<U+200B>");
  EXPECT_EQ(shown(std::string(10240, 'x'), 60).size(),
            std::string("x").size() * 60 + std::string(" … 10180 characters more … ").size());
  EXPECT_EQ(shown("第2年", {3, 4}), "2");
}

TEST(ShownText, NothingEndsAnElementOrAString) {
  EXPECT_EQ(html("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
  EXPECT_EQ(script_string("</script>\"\\&\n\xE2\x80\xA8"),
            "\"\\u003c/script\\u003e\\\"\\\\\\u0026\\u000a\\u2028\"");
}

TEST(ShownText, Base64) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({'M'}), "TQ==");
  EXPECT_EQ(base64({'M', 'a'}), "TWE=");
  EXPECT_EQ(base64({'M', 'a', 'n', 255}), "TWFu/w==");
}

TEST(ShownText, DigitsAndNamesAreMasked) {
  EXPECT_EQ(masked("Send 40 to Anna, please. Then I pay"), "Send •• to ••••, please. Then I pay");
  EXPECT_EQ(masked("Mr Li and Mr. wang"), "Mr •• and ••. ••••");
  EXPECT_EQ(masked("给小王和李先生转３00元"), "给小•和•先生转•••元");
  EXPECT_EQ(masked("mail me@x.org now"), "mail •••••••• now");
}

}  // namespace
}  // namespace headwise
