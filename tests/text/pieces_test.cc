// Tokenizers of decoders: published goldens, patterns cut by cut, exact bytes back.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <sstream>

#include "headwise/text/pieces/byte_bpe.h"
#include "headwise/text/pieces/score_bpe.h"
#include "headwise/text/pieces/tokenizer_gguf.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

std::string goldens() {
  const char* const data = std::getenv("HEADWISE_DATA");
  return data != nullptr ? text(data, "/tokenizer_goldens/ggml-vocab-gpt-2.gguf") : "";
}

TEST(Pieces, Gpt2HasTheIdsOfItsGoldens) {
  if (goldens().empty()) GTEST_SKIP() << "HEADWISE_DATA names no folder";
  const auto tokenizer = read_gguf_tokenizer(Gguf(goldens()), 0);
  const std::string in = content_of(goldens() + ".inp"), separator = "\n__ggml_vocab_test__\n";
  std::istringstream out(content_of(goldens() + ".out"));
  int cases = 0;
  for (std::size_t at = 0; at <= in.size();) {
    const std::size_t end = std::min(in.find(separator, at), in.size());
    const std::string sample = in.substr(at, end - at);
    at = end + separator.size();
    std::string line;
    if (!std::getline(out, line)) break;
    std::istringstream numbers(line);
    std::vector<TokenId> want;
    for (TokenId id = 0; numbers >> id;) want.push_back(id);
    const std::vector<TokenId> got = tokenizer->encode(sample, {.specials = false, .begin = false});
    EXPECT_EQ(got, want) << "case " << cases << ": " << sample;
    EXPECT_EQ(tokenizer->decode(got), sample);
    ++cases;
  }
  EXPECT_GE(cases, 46);
  // Any bytes at all come back: every one of the 256 is a token.
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes, {.specials = false})), bytes);
  }
}

std::string cut(WordPattern pattern, std::string_view text) {
  std::string out;
  for (const std::string_view w : pattern_words(pattern, text))
    out += (out.empty() ? "" : "|") + std::string(w);
  return out;
}

TEST(Pieces, PatternsCutWordsAsTheirExpressionsDo) {
  EXPECT_EQ(cut(WordPattern::gpt2, "I'm 12,345  you'LL \n\n x"), "I|'m| 12|,|345| | you|'|LL| \n\n| x");
  EXPECT_EQ(cut(WordPattern::smollm, "a 123 b "), "a| |1|2|3| b| ");
  EXPECT_EQ(cut(WordPattern::llama3, "I'm 12345 you'LL \n\n x!\n"), "I|'m| |123|45| you|'LL| \n\n| x|!\n");
  EXPECT_EQ(cut(WordPattern::qwen2, "12 \tab\r\nc"), "1|2| |\tab|\r\n|c");
  EXPECT_EQ(cut(WordPattern::gpt2, "   "), "   ");
  EXPECT_EQ(cut(WordPattern::gpt2, "'"), "'");
  EXPECT_EQ(cut(WordPattern::gpt2, ""), "");
  EXPECT_FALSE(split_word_pattern(R"(\w+)").has_value());
  EXPECT_FALSE(gguf_word_pattern("other").has_value());
}

TEST(Pieces, MergesGoByRankAndSpecialsComeFirst) {
  ByteBpeParts p;
  p.pieces = {"a", "b", "c", "ab", "bc", "abc", "<|e|>"};
  p.merges = {{"b", "c"}, {"a", "b"}, {"a", "bc"}};
  p.added = {{6, "<|e|>"}};
  p.ends = {6};
  const ByteBpe t(p, "test");
  EXPECT_EQ(t.encode("abc"), (std::vector<TokenId>{5}));
  EXPECT_EQ(t.encode("abab"), (std::vector<TokenId>{3, 3}));
  EXPECT_EQ(t.encode("ab<|e|>c"), (std::vector<TokenId>{3, 6, 2}));
  EXPECT_EQ(t.special("<|e|>"), 6);
  EXPECT_EQ(t.bytes(6), "");
  EXPECT_EQ(t.encode("axb"),
            (std::vector<TokenId>{3}));  // x has no piece and is left out, as the reference does
  p.merges.push_back({"c", "c"});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { const ByteBpe bad(p, "test"); }),
            "test: merge 3 joins \"c\" and \"c\"; both and what they make must be tokens");
  p.merges.clear();
  p.pieces[1] = "a";
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { const ByteBpe bad(p, "test"); }),
            "test: token 1, \"a\", stands there twice");
}

TEST(Pieces, ScoresDecideAndBytesFallBack) {
  using Kind = ScoreBpeParts::Kind;
  ScoreBpeParts p;
  p.pieces = {{"<unk>", 0, Kind::unknown},
              {"<s>", 0, Kind::control},
              {"</s>", 0, Kind::control},
              {"<0xC3>", 0, Kind::byte},
              {"<0xA9>", 0, Kind::byte},
              {" ", -9},
              {"a", -9},
              {"b", -9},
              {" a", -2},
              {"ab", -1}};
  const ScoreBpe t(p, "test");
  EXPECT_EQ(t.encode("ab"), (std::vector<TokenId>{1, 5, 9}));
  EXPECT_EQ(t.encode("a"), (std::vector<TokenId>{1, 8}));
  EXPECT_EQ(t.encode("a\xc3\xa9"), (std::vector<TokenId>{1, 8, 3, 4}));
  EXPECT_EQ(t.encode("a\xe2\x96\x81"), (std::vector<TokenId>{1, 8, 5}));
  EXPECT_EQ(t.decode(t.encode("a\xc3\xa9 b")), "a\xc3\xa9 b");
  EXPECT_EQ(t.encode("z"), (std::vector<TokenId>{1, 5, 0}));
}

}  // namespace
}  // namespace headwise
