// Bpe: any bytes come back exactly, merges are the most frequent pairs, files and hostile files.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <sstream>

#include "headwise/text/bpe_words.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> all;
  for_each_word(text, [&](std::string_view w) { all.emplace_back(w); });
  return all;
}

std::string text_of(std::pair<std::int32_t, std::int32_t> merge) {
  return text(merge.first, ' ', merge.second, '\n');
}

/// The two tokens merge `token` is made of, as its file says.
std::pair<std::int32_t, std::int32_t> halves(const Bpe& bpe, std::int32_t token) {
  std::istringstream in(bpe.print());
  std::string line;
  for (std::int32_t i = 255; i <= token; ++i) std::getline(in, line);
  std::istringstream two(line);
  std::pair<std::int32_t, std::int32_t> out;
  two >> out.first >> out.second;
  return out;
}

TEST(Bpe, WordsAreCutAtClasses) {
  EXPECT_EQ(words_of("Hello, you  two42!\n\n a"),
            (std::vector<std::string>{"Hello", ",", " you", " ", " two", "42", "!", "\n\n", " a"}));
  EXPECT_EQ(words_of(" "), (std::vector<std::string>{" "}));
  EXPECT_EQ(words_of("   "), (std::vector<std::string>{"   "}));
  EXPECT_EQ(words_of("\xc3\xa4hm"), (std::vector<std::string>{"\xc3\xa4hm"}));
  EXPECT_TRUE(words_of("").empty());
}

TEST(Bpe, MergesTheMostFrequentPairFirst) {
  const Bpe bpe = Bpe::train("ab ab ab abc abc", 260);
  EXPECT_EQ(bpe.bytes(256), "ab");
  EXPECT_EQ(bpe.bytes(257), " ab");
  EXPECT_EQ(bpe.bytes(258), " abc");
  EXPECT_EQ(bpe.vocabulary(), 259);  // nothing else is seen twice
  EXPECT_EQ(bpe.encode("ab abc"), (std::vector<std::int32_t>{256, 258}));
  // Equal counts: the smaller pair, by its left token, then its right one.
  EXPECT_EQ(Bpe::train("zy\nzy\nab\nab", 257).bytes(256), "ab");
  EXPECT_EQ(Bpe::train("", 1000).vocabulary(), 256);
}

/// The same by its definition: count all, merge, count all again.
Bpe slow_train(std::string_view text, Index vocabulary) {
  std::vector<std::vector<std::int32_t>> words;
  for (const std::string& w : words_of(text)) {
    words.emplace_back();
    for (const char c : w) words.back().push_back(static_cast<unsigned char>(c));
  }
  std::string file = "headwise-bpe 1\n";
  for (std::int32_t made = 256; made < vocabulary; ++made) {
    std::map<std::pair<std::int32_t, std::int32_t>, Index> counts;
    for (const auto& w : words)
      for (std::size_t i = 0; i + 1 < w.size(); ++i) ++counts[{w[i], w[i + 1]}];
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < 2) break;
    const auto pair = best->first;
    file += text_of(pair);
    for (auto& w : words) {
      std::vector<std::int32_t> merged;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const bool here = i + 1 < w.size() && std::pair(w[i], w[i + 1]) == pair;
        merged.push_back(here ? made : w[i]);
        i += here;
      }
      w = merged;
    }
  }
  return Bpe::parse(file, "slow");
}

TEST(Bpe, TrainingIsItsDefinition) {
  std::string sample;
  for (int i = 0; i < 400; ++i)
    sample += text("the aaaa ", i * i % 37, " banana", i % 3 ? "s, " : " ",
                   i % 5 ? "bandanas" : "an\xc3\xa4naa", '\n');
  EXPECT_EQ(Bpe::train(sample, 330).print(), slow_train(sample, 330).print());
}

TEST(Bpe, EncodingIsMergesInTheirOrder) {
  std::string sample;
  for (int i = 0; i < 300; ++i)
    sample += text("mississippi ", i % 7, " missing ppi ", i % 11 ? "sips" : "aaaaaaa", ' ');
  const Bpe bpe = Bpe::train(sample, 300);
  for (const std::string word : {"mississippi", "aaaaaaaaaaaaa", "sipping missis", "ippiss"}) {
    std::vector<std::int32_t> want;
    for (const std::string& w : words_of(word)) {
      std::vector<std::int32_t> tokens;
      for (const char c : w) tokens.push_back(static_cast<unsigned char>(c));
      for (std::int32_t made = 256; made < bpe.vocabulary(); ++made) {
        std::vector<std::int32_t> merged;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          // A merge is told by its halves: those whose bytes join to it, in the printed order.
          const bool here = i + 1 < tokens.size() && halves(bpe, made) == std::pair(tokens[i], tokens[i + 1]);
          merged.push_back(here ? made : tokens[i]);
          i += here;
        }
        tokens = merged;
      }
      want.insert(want.end(), tokens.begin(), tokens.end());
    }
    EXPECT_EQ(bpe.encode(word), want) << word;
  }
}

RC_GTEST_PROP(Bpe, AnyBytesComeBack,
              (const std::vector<unsigned char>& learnt, const std::vector<unsigned char>& coded)) {
  const std::string a(learnt.begin(), learnt.end()), b(coded.begin(), coded.end());
  const Bpe bpe = Bpe::train(a + a + b, 300);
  RC_ASSERT(bpe.decode(bpe.encode(b)) == b);
  RC_ASSERT(bpe.decode(bpe.encode(a)) == a);
  RC_ASSERT(Bpe::parse(bpe.print(), "again").print() == bpe.print());
}

TEST(Bpe, LongWordsTakeNoSquareTime) {
  const std::string run(1 << 20, 'a');
  const std::clock_t start = std::clock();  // of this process: others may have the machine
  const Bpe bpe = Bpe::train(run, 270);
  EXPECT_EQ(bpe.bytes(269).size(), 1u << 14);
  EXPECT_EQ(bpe.encode(run).size(), 64u);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 30);
}

TEST(Bpe, FilesComeBackAndDamagedOnesAreRefused) {
  const ScratchFolder folder;
  const Bpe bpe = Bpe::train("so so so sorry sorry", 262);
  bpe.save(folder / "b.bpe");
  EXPECT_EQ(Bpe::load(folder / "b.bpe").print(), bpe.print());
  const auto refusal = [](const std::string& lines) {
    return sentence_of(ErrorKind::bad_argument, [&] { Bpe::parse("headwise-bpe 1\n" + lines, "f"); });
  };
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Bpe::parse("x", "f"); }),
            "bpe: f: does not begin with \"headwise-bpe 1\"; it is no such file");
  EXPECT_EQ(refusal("1 2\n3 4"), "bpe: f: line 3 has no end; the file is cut short");
  for (const std::string bad : {"1  2\n", "1 2 3\n", "a b\n", "\n", "1\n", "1 99999999999\n"})
    EXPECT_EQ(refusal(bad), "bpe: f: line 2 is no merge; it has two tokens and a space between them") << bad;
  EXPECT_EQ(refusal("1 256\n"), "bpe: f: line 2 merges 1 and 256; only tokens below 256 are known there");
  EXPECT_EQ(refusal("-1 2\n"), "bpe: f: line 2 merges -1 and 2; only tokens below 256 are known there");
  EXPECT_EQ(refusal("1 2\n1 2\n"), "bpe: f: line 3 repeats a merge");
  std::string doubling = "97 97\n";
  for (int t = 256; t < 300; ++t) doubling += text(t, ' ', t, '\n');
  EXPECT_EQ(refusal(doubling), "bpe: f: line 18 makes a token of more than 65536 bytes");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Bpe::train("x", 255); }),
            "bpe: the vocabulary is 255; give 256 (the bytes) to 1000000");
  const std::int32_t wrong[] = {5, 400};
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { bpe.decode(wrong); }),
            text("bpe: got token 400; there are ", bpe.vocabulary()));
}

}  // namespace
}  // namespace headwise
