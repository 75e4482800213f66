// Links: merging against hand-worked sets, error rates against hand-worked numbers, gold files, words.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/translation/links.h"

#include <gtest/gtest.h>

#include "headwise/base/error.h"
#include "headwise/translation/word_split.h"

namespace headwise {
namespace {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

/// Both directions agree on 0-0 and 3-3. 1-1 touches 0-0, and 2-1 then touches 1-1. 2-2 touches 3-3; 5-0 and
/// 0-5 touch nothing, and 6-6 has two words that have no link.
const WordLinks kForward = {{0, 0}, {0, 5}, {1, 1}, {3, 3}, {6, 6}};
const WordLinks kBackward = {{0, 0}, {2, 1}, {3, 3}, {5, 0}};

TEST(Links, MergesAreThoseOfTheirDefinitions) {
  const auto merged = [](Merge m) { return pharaoh(merge_links(kForward, kBackward, m)); };
  EXPECT_EQ(merged(Merge::argmax), "0-0 0-5 1-1 3-3 6-6");
  EXPECT_EQ(merged(Merge::intersection), "0-0 3-3");
  EXPECT_EQ(merged(Merge::join), "0-0 0-5 1-1 2-1 3-3 5-0 6-6");
  EXPECT_EQ(merged(Merge::grow_diag), "0-0 1-1 2-1 3-3");
  EXPECT_EQ(merged(Merge::grow_diag_final), "0-0 0-5 1-1 2-1 3-3 5-0 6-6");
  EXPECT_EQ(merged(Merge::grow_diag_final_and), "0-0 1-1 2-1 3-3 6-6");
}

TEST(Links, SharesDivideByColumnThenByRow) {
  // Columns 0 and 1 sum to 1 and 0.4: {0.75, 0.5, 0.25, 0.5} before rows are divided; a column of zeros
  // stays.
  const std::vector<float> weights = {0.75F, 0.2F, 0.0F, 0.25F, 0.2F, 0.0F};
  const std::vector<float> wanted = {0.6F, 0.4F, 0.0F, 1 / 3.0F, 2 / 3.0F, 0.0F};
  const std::vector<float> got = shares_of(weights, 2, 3);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], wanted[i]) << i;
  EXPECT_EQ(pharaoh(best_of_rows(weights, 2, 3)), "0-0 0-1");
  EXPECT_EQ(pharaoh(best_of_rows(got, 2, 3)), "0-0 1-1");
}

TEST(Links, OfEqualWeightsTheFirstIsTakenAndZerosAreNone) {
  const std::vector<float> weights = {0.5F, 0.5F, 0.0F,   // target 0: sources 0 and 1 alike
                                      0.2F, 0.7F, 0.0F,   // target 1
                                      0.0F, 0.0F, 0.0F};  // target 2: nothing
  EXPECT_EQ(pharaoh(best_of_rows(weights, 3, 3)), "0-0 1-1");
  EXPECT_EQ(pharaoh(best_of_columns(weights, 3, 3)), "0-0 1-1");
}

TEST(Links, ErrorRateIsOchAndNeys) {
  // Sure 0-0 and 1-1, possible 2-1 besides; found 0-0, 2-1 and 2-2: one is sure, two are possible.
  const std::vector<GoldPair> gold = parse_gold("# by hand\n7: 0-0 1-1 2?1\n\n9: 0-0\n", "gold");
  ASSERT_EQ(gold.size(), 2U);
  EXPECT_EQ(gold[0].line, 7);
  EXPECT_EQ(pharaoh(gold[0].sure), "0-0 1-1");
  EXPECT_EQ(pharaoh(gold[0].possible), "0-0 1-1 2-1");
  LinkScore s;
  s.add({{0, 0}, {2, 1}, {2, 2}}, gold[0]);
  EXPECT_DOUBLE_EQ(s.precision(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(s.recall(), 1.0 / 2);
  EXPECT_DOUBLE_EQ(s.error_rate(), 1 - 3.0 / 5);
  s.add({{0, 0}}, gold[1]);  // counts of pairs are added, not their rates
  EXPECT_DOUBLE_EQ(s.error_rate(), 1 - 5.0 / 7);
  s = {};
  s.add(gold[0].sure, gold[0]);
  EXPECT_EQ(s.error_rate(), 0);
  EXPECT_EQ(LinkScore{}.error_rate(), 0);
}

TEST(Links, BadGoldIsRefusedInWords) {
  const auto refusal = [](const char* text) {
    return error_of([&] { parse_gold(text, "align: gold.txt"); });
  };
  EXPECT_EQ(
      refusal("0-0 1-1"),
      "align: gold.txt: line 1 does not begin with the number of a pair and \":\"; write \"12: 0-0 1?2\"");
  EXPECT_EQ(
      refusal("\n3: 0-0 1+1"),
      "align: gold.txt: line 2: \"1+1\" is no link; write 0-0 where it is sure, 0?0 where it is possible");
  EXPECT_NE(refusal("0: 0-0"), "no error");
  EXPECT_NE(refusal("3: 0-"), "no error");
  EXPECT_NE(refusal("3: 0-99999999999999999999"), "no error");
  EXPECT_EQ(refusal("3: 0-0\n3: 0-0"), "align: gold.txt: line 2 is for pair 3 again; give each pair once");
  EXPECT_EQ(error_of([] { parse_merge("grow"); }),
            "align: there is no merge \"grow\"; give one of argmax, intersection, union, grow-diag, "
            "grow-diag-final, grow-diag-final-and");
}

TEST(WordSplit, WordsHoldHyphensInsideAndSignsStandAlone) {
  const std::string text = "Ein \"U-Bahn\"-Fahrer's Schlö\u00dfchen, 3 m!? -x-";
  std::vector<std::string> words;
  for (const TextSpan& w : split_sentence(text))
    words.push_back(
        text.substr(static_cast<std::size_t>(w.begin), static_cast<std::size_t>(w.end - w.begin)));
  EXPECT_EQ(words, (std::vector<std::string>{"Ein", "\"", "U-Bahn", "\"", "-", "Fahrer's", "Schlö\u00dfchen",
                                             ",", "3", "m", "!", "?", "-", "x", "-"}));
  EXPECT_TRUE(split_sentence(" \t\n").empty());
}

TEST(WordSplit, PiecesBelongToTheWordsWhoseBytesTheyHold) {
  const std::string text = "to-day !?";
  const Bpe bytes;  // every byte is a token
  const std::vector<TextSpan> words = split_sentence(text);
  ASSERT_EQ(words.size(), 3U);
  const auto of = words_of_tokens(bytes, bytes.encode(text), words);
  ASSERT_EQ(of.size(), text.size());
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(of[i].first == 0 && of[i].last == 1) << i;
  EXPECT_EQ(of[6].first, of[6].last);  // the space is of no word
  EXPECT_TRUE(of[7].first == 1 && of[7].last == 2 && of[8].first == 2 && of[8].last == 3);
  const Bpe pairs = Bpe::train("!? !? !? !?", 258);
  const auto joined = words_of_tokens(pairs, pairs.encode("!?"), split_sentence("!?"));
  ASSERT_EQ(joined.size(), 1U);  // one piece of two words is both's
  EXPECT_TRUE(joined[0].first == 0 && joined[0].last == 2);
}

}  // namespace
}  // namespace headwise
