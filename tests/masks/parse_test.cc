// The text of masks: what prints, what parses, and where an error points.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

using Numbers = std::vector<Index>;

std::string refusal(std::string_view text) {
  try {
    parse_mask(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_argument);
    return e.what();
  }
  return "accepted";
}

/// What a term may begin with: the kinds of the list that have a text, and the words that stand for others.
std::string beginnings() {
  std::string names;
  for (const MaskKind& kind : kMaskKinds) {
    if (kind.form == MaskForm::dense || kind.form == MaskForm::join) continue;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
    if (kind.op == MaskOp::window) names += ", sliding";
  }
  return names + " or \"(\"";
}

TEST(MaskText, PrintsEveryTerm) {
  EXPECT_EQ(to_text(Mask()), "all");
  EXPECT_EQ(to_text(Mask::causal() & Mask::window(256, 0)), "causal & window(256, 0)");
  EXPECT_EQ(to_text(Mask::causal() | Mask::prefix(4)), "causal | prefix(4)");
  EXPECT_EQ(to_text(Mask::lengths(Numbers{3, 7})), "lengths(3, 7)");
  EXPECT_EQ(to_text(Mask::lengths({})), "lengths()");
  EXPECT_EQ(to_text(Mask::documents(Numbers{0, 5, 5, 9})), "documents(0, 5, 5, 9)");
  EXPECT_EQ(to_text(Mask::blocks(64, 32, Numbers{0, 2, 3}, Numbers{0, 1, 1})),
            "blocks(64, 32; 0, 2, 3; 0, 1, 1)");
  EXPECT_EQ(to_text(Mask::blocks(1, 1, Numbers{0}, {})), "blocks(1, 1; 0; )");
  EXPECT_EQ(to_text(Mask::strided(8)), "strided(8, 1)");
  EXPECT_EQ(to_text(Mask::global(Numbers{9, 0})), "global(0, 9)");
  EXPECT_EQ(to_text(Mask::sliding(4)), "window(3, 0)");
  std::uint8_t bytes[6] = {};
  EXPECT_EQ(to_text(Mask::dense(AnyView::packed(bytes, DType::u8, {2, 3})) & Mask::causal()),
            "dense[1 1 2 3] & causal");
  EXPECT_EQ(
      to_text(Mask::per_head(std::vector<Mask>{Mask::causal(), Mask(), Mask::prefix(1) | Mask::causal()})),
      "per_head(causal; all; prefix(1) | causal)");
}

TEST(MaskText, ParenthesesStandOnlyWhereTheyMatter) {
  const Mask a = Mask::causal(), b = Mask::prefix(1), c = Mask::prefix(2);
  EXPECT_EQ(to_text((a | b) & c), "(causal | prefix(1)) & prefix(2)");
  EXPECT_EQ(to_text(a & (b | c)), "causal & (prefix(1) | prefix(2))");
  EXPECT_EQ(to_text((a & b) | c), "causal & prefix(1) | prefix(2)");
  EXPECT_EQ(to_text(a | (b & c)), "causal | prefix(1) & prefix(2)");
  EXPECT_EQ(to_text(a & (b & c)), "causal & prefix(1) & prefix(2)");
}

TEST(MaskText, ParsesWithPrecedenceAndFreeSpaces) {
  EXPECT_EQ(parse_mask("causal|prefix(1)&prefix(2)"), Mask::causal() | (Mask::prefix(1) & Mask::prefix(2)));
  EXPECT_EQ(parse_mask(" \t( causal\n| prefix ( 1 ) ) &prefix(2)\r\n"),
            (Mask::causal() | Mask::prefix(1)) & Mask::prefix(2));
  EXPECT_EQ(parse_mask("((((causal))))"), Mask::causal());
  EXPECT_EQ(parse_mask("sliding(8) & strided(3)"), Mask::window(7, 0) & Mask::strided(3, 1));
  EXPECT_EQ(parse_mask("global( ) | lengths(1,2 , 3)"), Mask::global({}) | Mask::lengths(Numbers{1, 2, 3}));
  EXPECT_EQ(parse_mask("blocks(4, 2; 0, 1; 7)"), Mask::blocks(4, 2, Numbers{0, 1}, Numbers{7}));
  EXPECT_EQ(parse_mask("window(9223372036854775807, 0)"), Mask::window(std::numeric_limits<Index>::max(), 0));
  EXPECT_EQ(parse_mask("per_head( causal ;all)").heads(), 2);
  EXPECT_EQ(parse_mask("all & all"), Mask::all());
}

TEST(MaskText, ErrorsNameTheColumnAndWhatWasExpected) {
  const std::string terms = beginnings();
  EXPECT_EQ(terms.rfind("all, causal, window, sliding, prefix, ", 0), 0u) << terms;
  EXPECT_EQ(refusal("window(1,x)"), "mask: column 10: expected a number, got \"x\"");
  EXPECT_EQ(refusal(""), "mask: column 1: expected " + terms + ", got the end");
  EXPECT_EQ(refusal("Causal"), "mask: column 1: expected " + terms + ", got \"Causal\"");
  EXPECT_EQ(refusal("causal & "), "mask: column 10: expected " + terms + ", got the end");
  EXPECT_EQ(refusal("causal window(1, 2)"),
            "mask: column 8: expected \"&\", \"|\" or the end, got \"window\"");
  EXPECT_EQ(refusal("causal)"), "mask: column 7: expected \"&\", \"|\" or the end, got \")\"");
  EXPECT_EQ(refusal("(causal"), "mask: column 8: expected \"&\", \"|\" or \")\", got the end");
  EXPECT_EQ(refusal("window(256)"), "mask: column 11: expected \",\", got \")\"");
  EXPECT_EQ(refusal("window(1, 2, 3)"), "mask: column 12: expected \")\", got \",\"");
  EXPECT_EQ(refusal("prefix"), "mask: column 7: expected \"(\", got the end");
  EXPECT_EQ(refusal("lengths(1 2)"), "mask: column 11: expected \",\" or \")\", got \"2\"");
  EXPECT_EQ(refusal("lengths(1, )"), "mask: column 12: expected a number, got \")\"");
  EXPECT_EQ(refusal("blocks(1, 1, 0)"), "mask: column 12: expected \";\", got \",\"");
  EXPECT_EQ(refusal("per_head(causal, all)"), "mask: column 16: expected \";\" or \")\", got \",\"");
  EXPECT_EQ(refusal("\x1b"), "mask: column 1: expected " + terms + ", got \"\\x1b\"");
  EXPECT_EQ(refusal("prefix(99999999999999999999)"),
            "mask: column 8: the number does not fit in 64 bits; positions end at 9223372036854775807");
  EXPECT_EQ(refusal("causal & dense[1 1 2 2]"),
            "mask: column 10: dense masks have no text; build one with Mask::dense");
  EXPECT_EQ(refusal("causal & per_head(all; all)"),
            "mask: column 10: per_head must be outermost; combine each head's mask inside it");
  EXPECT_EQ(refusal("per_head(per_head(all; causal); all)"),
            "mask: column 10: per_head must be outermost; combine each head's mask inside it");
  EXPECT_EQ(refusal("window(-1, 0)"),
            "mask: window(-1, 0) counts keys besides the query itself, both numbers must be 0 or more; "
            "causal() has no "
            "limit behind");
}

TEST(MaskText, EveryKindOfTheListIsReadBack) {
  const std::vector<Index> numbers[] = {{}, {4}, {4, 2}, {0, 2, 4}, {0, 2, 4}};
  for (const MaskKind& kind : kMaskKinds) {
    if (kind.form > MaskForm::offsets) continue;
    const Mask m = Mask::of_kind(kind.op, numbers[static_cast<std::size_t>(kind.form)]);
    EXPECT_EQ(to_text(m).rfind(kind.name, 0), 0u) << kind.name;
    EXPECT_EQ(parse_mask(to_text(m)), m) << kind.name;
    EXPECT_EQ(parse_mask(text("(", to_text(m), ")")), m) << kind.name;
  }
  EXPECT_EQ(parse_mask("strided(4)"), Mask::strided(4, 1));
  EXPECT_THROW(Mask::of_kind(MaskOp::window, numbers[1]), Error);
  EXPECT_THROW(Mask::of_kind(MaskOp::dense, {}), Error);
}

TEST(MaskText, DeepAndLongTextsAreAnsweredInWords) {
  EXPECT_EQ(refusal(std::string(64, '(') + "causal" + std::string(64, ')')), "accepted");
  EXPECT_EQ(
      refusal(std::string(100000, '(')),
      "mask: column 65: more than 64 parentheses stand inside each other; write the expression flatter");
  std::string chain = "causal";
  for (int i = 0; i < 20000; ++i) chain += " & causal";
  EXPECT_EQ(parse_mask(chain), Mask::causal());
  std::string list = "lengths(0";
  for (int i = 1; i < 100000; ++i) list += ", " + std::to_string(i);
  EXPECT_EQ(to_text(parse_mask(list + ")")), list + ")");
  EXPECT_EQ(refusal(std::string(1000, 'a')),
            "mask: column 1: expected " + beginnings() + ", got \"aaaaaaaaaaaaaaaaaaaaaaaa\"");
}

}  // namespace
}  // namespace headwise
