// Settings of heads as text, and one sentence for each that cannot be.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "headwise/heads/any_head.h"
#include "headwise/heads/list.inc"
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
            "gqa: has no setting \"kvheads\"; it has heads, kv_heads, dim, value_dim");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:heads"),
            "gqa: got \"heads\"; settings are written key=value and joined by commas");
  EXPECT_EQ(sentence(ErrorKind::bad_argument, "gqa:heads=8x"),
            "gqa: heads is \"8x\" but must be an integer up to 1048576");
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

/// Each whole number of each head, at sizes whose products do not fit: one sentence, no overflow (the
/// sanitized run sees them). The limit itself is taken or refused in words.
TEST(HeadConfig, SettingsNearTheEndOfIndexAreRefused) {
  const Index numbers[] = {Index{1} << 62,
                           (Index{1} << 62) - 1,
                           -(Index{1} << 62),
                           std::numeric_limits<Index>::max(),
                           std::numeric_limits<Index>::min(),
                           Index{1} << 32,
                           kMostSetting + 1,
                           -kMostSetting - 1};
  Index tried = 0;
  AllHeads::each([&]<class H>(Type<H>) {
    each_field<H>([&](const auto& f) {
      if constexpr (std::is_same_v<typename std::remove_cvref_t<decltype(f)>::Value, Index>) {
        for (const Index n : numbers) {
          const std::string head = text(H::name, ':', f.name, '=', n);
          EXPECT_EQ(sentence(ErrorKind::bad_argument, head),
                    text(H::name, ": ", f.name, " is \"", n, "\" but must be an integer up to 1048576"));
          ++tried;
        }
        for (const Index n : {kMostSetting, -kMostSetting})
          for (const Index model_dim : {Index{64}, Index{1} << 31}) {
            try {
              ParamSet params = ParamSet::blank(DType::f32, 1 << 24);
              const AnyHead made = make_head(text(H::name, ':', f.name, '=', n), params, {0, 1, model_dim});
              EXPECT_GE(made.widths().q, 0);
            } catch (const Error& e) {
              EXPECT_NE(std::string_view(e.what()).find(':'), std::string_view::npos);
            }
          }
      }
    });
  });
  EXPECT_GE(tried, 23 * 8);
  for (const Index model_dim : {Index{1} << 62, std::numeric_limits<Index>::max(), Index{-1}})
    EXPECT_EQ(sentence(ErrorKind::bad_shape, "mha", model_dim),
              text("heads: model_dim is ", model_dim, "; give 0 to 2147483648"));
}

}  // namespace
}  // namespace headwise::test
