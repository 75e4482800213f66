// Settings of heads as text, and one sentence for each that cannot be.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "headwise/heads/any_head.h"
#include "tests/base/sentence.h"

namespace headwise::test {
namespace {

std::string sentence(ErrorKind kind, std::string_view head, Index model_dim = 64) {
  return sentence_of(kind, [&] {
    ParamSet params;
    make_head(head, params, {0, 1, model_dim});
  });
}

TEST(HeadConfig, SettingsAreReadByName) {
  ParamSet params;
  EXPECT_EQ(make_head("gqa:kv_heads=4,heads=16", params, {0, 1, 64}).settings(),
            "gqa:heads=16,kv_heads=4,dim=4");
  EXPECT_EQ(make_head("mha", params, {0, 1, 64}).settings(), "mha:heads=8,dim=8");
  EXPECT_EQ(make_head("mha:", params, {0, 1, 64}).settings(), "mha:heads=8,dim=8");
  EXPECT_EQ(make_head("mha:dim=5", params, {0, 1, 64}).widths(), Widths::same(40));
}

TEST(HeadConfig, UnknownWordsListTheKnownOnes) {
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gga:heads=8"),
            "heads: there is no head \"gga\"; there are " + head_names());
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:kvheads=8"),
            "gqa: has no setting \"kvheads\"; it has heads, kv_heads, dim");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:heads"),
            "gqa: got \"heads\"; settings are written key=value and joined by commas");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:heads=8x"), "gqa: heads is \"8x\" but must be an integer");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:heads=8,heads=9"), "gqa: heads is set twice; set it once");
}

TEST(HeadConfig, SizesThatCannotBeAreRefused) {
  EXPECT_EQ(sentence(ErrorKind::bad_shape, "gqa:heads=6,kv_heads=4,dim=8"),
            "gqa: heads (6) must be a multiple of kv_heads (4); change one of them");
  EXPECT_EQ(sentence(ErrorKind::bad_shape, "mha:heads=6"),
            "mha: model_dim (64) must be a multiple of heads (6); change one of them or give dim");
  EXPECT_EQ(sentence(ErrorKind::bad_shape, "mha:heads=0"),
            "mha: got 0 heads of dim 0; heads start at 1, and dim 0 stands for model_dim / heads");
}

}  // namespace
}  // namespace headwise::test
