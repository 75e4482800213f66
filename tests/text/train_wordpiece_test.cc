// train_wordpiece: the merges it makes, their order, what it does with rare characters, and that it repeats
// itself.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/train_wordpiece.h"

#include <gtest/gtest.h>

#include "headwise/text/wordpiece.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

using Texts = std::vector<std::string_view>;

std::vector<std::string> pieces_of(const Vocabulary& v) {
  std::vector<std::string> out;
  for (TokenId i = 0; i < v.size(); ++i) out.push_back(v.piece(i));
  return out;
}

TEST(TrainWordPiece, MergesTheMostFrequentPair) {
  const Texts texts = {"low low low", "lower", "new newer"};
  const Vocabulary v = train_wordpiece(texts, {.special = {"[UNK]"}});
  // l ##o 4, ##o ##w 4, n ##e 2, ##e ##w 2, ##e ##r 2, ##w ##e 2: equal ones in the order of the list.
  EXPECT_EQ(pieces_of(v), (std::vector<std::string>{"[UNK]", "l", "n", "##e", "##o", "##r", "##w", "lo",
                                                    "low", "ne", "##er", "new"}));
}

TEST(TrainWordPiece, CoversWhatItLearnt) {
  const Texts texts = {"My instalment 3 of 12 is late; 提前还款要罚息吗?", "late late INSTALMENTS, 还款"};
  const WordPiece tokens(train_wordpiece(texts, {.least_count = 1}));
  for (const std::string_view t : texts)
    for (const TokenId id : tokens.encode(t).ids) EXPECT_NE(id, tokens.unknown());
  EXPECT_EQ(tokens.encode("late").ids.size(), 1u);
  EXPECT_EQ(tokens.encode("unheard").ids, std::vector<TokenId>{tokens.unknown()});
}

TEST(TrainWordPiece, RepeatsItself) {
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i) lines.push_back(text("word", i % 7, " ab", i % 13, "cd 利率", i));
  Texts texts(lines.begin(), lines.end());
  const Vocabulary a = train_wordpiece(texts), b = train_wordpiece(texts);
  EXPECT_EQ(pieces_of(a), pieces_of(b));
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(pieces_of(train_wordpiece(texts)), pieces_of(a))
      << "the order of the lines is no part of the corpus";
  const ScratchFolder folder;
  a.save(folder / "vocab.txt");
  EXPECT_EQ(pieces_of(Vocabulary::read(folder / "vocab.txt")), pieces_of(a));
}

TEST(TrainWordPiece, KeepsToItsLimits) {
  const Texts texts = {"aaa aaa aab abb b b b c"};
  EXPECT_EQ(train_wordpiece(texts, {.pieces = 10}).size(), 10);
  const Vocabulary two = train_wordpiece(texts, {.alphabet = 2});
  EXPECT_EQ(two.find("c"), -1);
  EXPECT_GE(two.find("b"), 0);
}

TEST(TrainWordPiece, Refusals) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [] {
                          train_wordpiece(Texts{" ", "\xff"});
                        }),
            "train_wordpiece: the 2 texts hold no word; give some that do");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { train_wordpiece(Texts{"a"}, {.pieces = 5}); }),
            "train_wordpiece: pieces is 5 and alphabet 6000; at least 6 and 1 are needed");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { train_wordpiece(Texts{"a b c"}, {.pieces = 6}); }),
            "train_wordpiece: special pieces and alphabet alone are 8 pieces; raise pieces (6) or lower "
            "alphabet (6000)");
}

}  // namespace
}  // namespace headwise
