// WordPiece: BERT's golden vectors, spans back to the source, and texts nobody would wish for.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/wordpiece.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <sstream>

#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

using Ids = std::vector<TokenId>;

std::string data_folder() {
  const char* const data = std::getenv("HEADWISE_DATA");
  return data ? data : "";
}

const WordPiece& small() {
  static const WordPiece it(Vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "un",      "##aff", "##able",
                                        "aff",   ",",     "a",     "##a",   "利",      "率",    "e",
                                        "##e",   "[",     "]",     "cls",   "e\u0301", "i",     "##\u0307"}));
  return it;
}

/// The text each token came from.
std::vector<std::string> sources(const WordPiece& tokens, std::string_view text) {
  std::vector<std::string> out;
  for (const TextSpan s : tokens.encode(text).spans)
    out.emplace_back(
        text.substr(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin)));
  return out;
}

TEST(WordPiece, GoldenVectors) {
  if (data_folder().empty()) GTEST_SKIP() << "HEADWISE_DATA names no folder";
  const WordPiece tokens(Vocabulary::read(data_folder() + "/bert_vocab/bert-base-uncased-vocab.txt"));
  const std::string front = data_folder() + "/tokenizer_goldens/ggml-vocab-bert-bge.gguf";
  const std::string all = content_of(front + ".inp"), mark = "\n__ggml_vocab_test__\n";
  std::istringstream expected(content_of(front + ".out"));
  Index cases = 0;
  for (std::size_t at = 0; at < all.size(); ++cases) {
    const std::size_t end = std::min(all.find(mark, at), all.size());
    std::string line;
    std::getline(expected, line);
    std::istringstream numbers(line);
    Ids ids;
    for (TokenId id = 0; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(tokens.encode(all.substr(at, end - at)).ids, ids) << "case " << cases;
    at = end + mark.size();
  }
  EXPECT_GE(cases, 46);
}

TEST(WordPiece, LongestMatchFirst) {
  EXPECT_EQ(small().encode("unaffable").ids, (Ids{4, 5, 6}));
  EXPECT_EQ(small().encode("UNAFFABLE").ids, (Ids{4, 5, 6}));
  EXPECT_EQ(small().encode("affable aff").ids, (Ids{7, 6, 7}));
  EXPECT_EQ(small().encode("unaffablex a").ids, (Ids{1, 9})) << "a word is built whole or unknown";
  EXPECT_EQ(small().encode("a,a").ids, (Ids{9, 8, 9}));
  EXPECT_EQ(small().encode("利率").ids, (Ids{11, 12}));
  EXPECT_EQ(small().encode("a利a").ids, (Ids{9, 11, 9}));
}

TEST(WordPiece, AccentsAndCase) {
  EXPECT_EQ(small().encode("é").ids, Ids{13});
  EXPECT_EQ(small().encode("e\u0301").ids, Ids{13});
  EXPECT_EQ(small().encode("É").ids, Ids{13});
  EXPECT_EQ(small().encode("\u0130").ids, Ids{19});
  WordPieceOptions cased;
  cased.words.lower_case = cased.words.strip_accents = false;
  const WordPiece as_is(small().vocabulary(), cased);
  EXPECT_EQ(as_is.encode("e\u0301").ids, Ids{18});
  EXPECT_EQ(as_is.encode("A").ids, Ids{1});
  WordPieceOptions lower;
  lower.words.strip_accents = false;
  EXPECT_EQ(WordPiece(small().vocabulary(), lower).encode("\u0130").ids, (Ids{19, 20}));
}

TEST(WordPiece, CleansControlsAndSpaces) {
  EXPECT_EQ(small().encode("").ids, Ids{});
  EXPECT_EQ(small().encode(" \t\n\r\u00a0\u2003\u3000").ids, Ids{});
  EXPECT_EQ(small().encode("a\u200ba").ids, (Ids{9, 10})) << "U+200B is dropped, it is no space";
  EXPECT_EQ(small().encode(std::string("a\0a", 3)).ids, (Ids{9, 10}));
  EXPECT_EQ(small().encode("a\ufffda").ids, (Ids{9, 10}));
  EXPECT_EQ(small().encode("a\u2028a").ids, (Ids{9, 9}));
}

TEST(WordPiece, SpansNameTheSource) {
  EXPECT_EQ(sources(small(), "  UnAffable, É!"),
            (std::vector<std::string>{"Un", "Aff", "able", ",", "É", "!"}));
  EXPECT_EQ(sources(small(), "a利\u0301率"), (std::vector<std::string>{"a", "利", "率"}));
  EXPECT_EQ(sources(small(), "a xyz a"), (std::vector<std::string>{"a", "xyz", "a"}));
  const Encoding e = small().encode("a", {.around = true});
  EXPECT_EQ(e.ids, (Ids{2, 9, 3}));
  EXPECT_EQ(e.spans, (std::vector<TextSpan>{{0, 0}, {0, 1}, {1, 1}}));
}

TEST(WordPiece, CutsAtMost) {
  EXPECT_EQ(small().encode("a a a", {.most = 2}).ids, (Ids{9, 9}));
  EXPECT_TRUE(small().encode("a a a", {.most = 2}).cut);
  EXPECT_FALSE(small().encode("a a", {.most = 2}).cut);
  EXPECT_EQ(small().encode("unaffable", {.around = true, .most = 4}).ids, (Ids{2, 4, 5, 3}));
  EXPECT_EQ(small().encode("a", {.around = true, .most = 2}).ids, (Ids{2, 3}));
  EXPECT_EQ(small().encode("a", {.most = 0}).ids, Ids{});
}

TEST(WordPiece, TextCannotPoseAsStructure) { EXPECT_EQ(small().encode("[CLS]").ids, (Ids{15, 17, 16})); }

TEST(WordPiece, InvalidUtf8GivesNoToken) {
  const std::string text = std::string("a\xff") + "a \xe5\x88 a\xf0\x9f\x98";
  const Encoding e = small().encode(text);
  EXPECT_EQ(e.ids, (Ids{9, 10, 9}));
  EXPECT_EQ(e.invalid_bytes, 6);
  EXPECT_EQ(small().encode("\xed\xa0\x80\xc0\x80\xf5").ids, Ids{});
  EXPECT_EQ(small().encode("\xc3,").ids, Ids{8}) << "a byte that does not belong is read anew";
}

TEST(WordPiece, OneLineOfTenMegabytes) {
  const std::string word(10'000'000, 'a');
  const Encoding one = small().encode(word);
  EXPECT_EQ(one.ids, Ids{1});
  EXPECT_EQ(one.spans, (std::vector<TextSpan>{{0, 10'000'000}}));
  std::string words;
  while (words.size() < 10'000'000) words += "unaffable, ";
  EXPECT_EQ(small().encode(words).ids.size(), words.size() / 11 * 4);
  std::string marks = "e";  // one word of two million accents, in an order that must be sorted
  while (marks.size() < 4'000'000) marks += "\u0301\u0323";
  EXPECT_EQ(small().encode(marks).ids, Ids{13});
}

TEST(WordPiece, WordsAtTheLimit) {
  EXPECT_EQ(small().encode(std::string(100, 'a')).ids.size(), 100u);
  EXPECT_EQ(small().encode(std::string(101, 'a')).ids, Ids{1});
}

TEST(WordPiece, DecodesWords) {
  EXPECT_EQ(small().decode(small().encode("unaffable, A").ids), "unaffable , a");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { small().decode(Ids{99}); }),
            "vocabulary: got id 99; ids go from 0 to 20");
}

TEST(WordPiece, Refusals) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { WordPiece(Vocabulary({"a"})); }),
            "wordpiece: the vocabulary has no [UNK], which stands for words it cannot build; add it or name "
            "another");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [] { WordPiece(Vocabulary({"[UNK]"})).encode("a", {.around = true}); }),
            "wordpiece: the vocabulary has no [CLS]; add it or encode without around");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { small().encode("a", {.around = true, .most = 1}); }),
            "wordpiece: most is 1; [CLS] and [SEP] alone are 2 tokens");
}

/// Whatever the bytes: spans lie in the text, in order, and the same text gives the same tokens.
RC_GTEST_PROP(WordPiece, AnyBytes, (const std::string& bytes)) {
  const Encoding e = small().encode(bytes);
  RC_ASSERT(e.ids.size() == e.spans.size());
  for (const TextSpan s : e.spans) RC_ASSERT(0 <= s.begin && s.begin < s.end && s.end <= Index(bytes.size()));
  RC_ASSERT(small().encode(bytes).ids == e.ids);
}

}  // namespace
}  // namespace headwise
