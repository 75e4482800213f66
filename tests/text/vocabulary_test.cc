// Vocabulary: what a file may hold, what is refused and in which words.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/vocabulary.h"

#include <gtest/gtest.h>

#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

/// What reading a file of these bytes says behind "vocabulary: PATH: "; "" when it is accepted.
std::string verdict(const std::string& bytes, const VocabularyLimits& limits = {}) {
  static const ScratchFolder folder;
  const std::string path = folder.file("vocab.txt", bytes), front = "vocabulary: " + path + ": ";
  try {
    Vocabulary::read(path, limits);
    return "";
  } catch (const Error& e) {
    const std::string all = e.what();
    EXPECT_EQ(all.substr(0, front.size()), front);
    return all.substr(front.size());
  }
}

TEST(Vocabulary, FindsAndMatches) {
  const Vocabulary v({"a", "ab", "abcd", "##b", "b"});
  EXPECT_EQ(v.size(), 5);
  EXPECT_EQ(v.find("abcd"), 2);
  EXPECT_EQ(v.find("abc"), -1);
  EXPECT_EQ(v.find(""), -1);
  EXPECT_EQ(v.longest("", "abcx").id, 1);
  EXPECT_EQ(v.longest("", "abcx").bytes, 2);
  EXPECT_EQ(v.longest("", "x").id, -1);
  EXPECT_EQ(v.longest("##", "bb").id, 3);
  EXPECT_EQ(v.longest("##", "bb").bytes, 1);
  EXPECT_EQ(v.longest("##", "").id, -1);
}

TEST(Vocabulary, ReadsLines) {
  const ScratchFolder folder;
  for (const char* const bytes : {"a\nb\n", "a\nb", "a\r\nb\r\n"}) {
    const Vocabulary v = Vocabulary::read(folder.file("v", bytes));
    EXPECT_EQ(v.size(), 2);
    EXPECT_EQ(v.piece(1), "b");
  }
}

TEST(Vocabulary, SavesWhatItReads) {
  const ScratchFolder folder;
  const Vocabulary v({"[UNK]", "利", "##率"});
  v.save(folder / "v");
  EXPECT_EQ(content_of(folder / "v"), "[UNK]\n利\n##率\n");
  EXPECT_EQ(Vocabulary::read(folder / "v").find("##率"), 2);
}

TEST(Vocabulary, Refusals) {
  EXPECT_EQ(verdict(""), "holds no piece; give one a line");
  EXPECT_EQ(verdict("a\n\nb\n"), "piece 1 (line 2) is empty; each line holds one piece");
  EXPECT_EQ(verdict("a\nb\na\n"), "piece 2 (line 3) is the same as piece 0; keep one of them");
  EXPECT_EQ(verdict("a\n\xff\n"), "piece 1 (line 2) is no UTF-8 text; convert the file");
  EXPECT_EQ(verdict(std::string("a\0b\n", 4)), "piece 0 (line 1) holds a line feed or a NUL; no piece may");
  EXPECT_EQ(verdict(std::string(2000, 'a')), "piece 0 (line 1) has 2000 bytes; at most 1024 are read");
  EXPECT_EQ(verdict("a\nb\nc\n", {.pieces = 2}), "holds 3 pieces; at most 2 are read");
  EXPECT_EQ(verdict("a\nb\n", {.file_bytes = 3}), "has 4 bytes; at most 3 are read");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Vocabulary::read("/nowhere/vocab.txt"); }),
            "vocabulary: /nowhere/vocab.txt: cannot open: No such file or directory; check the name");
}

}  // namespace
}  // namespace headwise
