// The built-in corpus: what the grammar holds, that draws repeat, and that nothing of the test was ever
// shown.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/corpus/builtin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "headwise/intent/corpus/report.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

const BuiltinCorpus& drawn() {
  static const BuiltinCorpus it = builtin_corpus();
  return it;
}

std::uint64_t fingerprint(const Corpus& corpus) {
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  const auto add = [&](std::string_view bytes) {
    for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    h = (h ^ 0xff) * 0x100000001b3ull;
  };
  for (const Utterance& row : corpus.rows) {
    add(row.text);
    for (const std::string& label : row.labels) add(label);
  }
  return h;
}

/// A template as words: a slot, a run of ASCII letters and digits, any character beyond ASCII.
std::vector<std::string> words_of(std::string_view all) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < all.size();) {
    const auto alone = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    std::size_t end = at + 1;
    if (all[at] == '{') {
      end = all.find('}', at) + 1;
    } else if (static_cast<unsigned char>(all[at]) >= 0x80) {
      while (end < all.size() && (all[end] & 0xc0) == 0x80) ++end;
    } else if (alone(all[at])) {
      while (end < all.size() && alone(all[end])) ++end;
    } else {
      ++at;
      continue;
    }
    out.emplace_back(all.substr(at, end - at));
    at = end;
  }
  return out;
}

/// Words to put in, take out or change until one is the other.
std::size_t words_apart(std::string_view one, std::string_view other) {
  const std::vector<std::string> a = words_of(one), b = words_of(other);
  std::vector<std::size_t> above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), 0u);
  for (std::size_t i = 0; i < a.size(); ++i, std::swap(above, row)) {
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j)
      row[j + 1] = std::min({above[j] + (a[i] != b[j]), above[j + 1] + 1, row[j] + 1});
  }
  return above.back();
}

TEST(Builtin, TheGrammarIsLargeEnough) {
  const Grammar& g = builtin_grammar();
  EXPECT_GE(g.intents.size(), 38u);
  std::set<std::string> train, test;
  for (const GrammarIntent& i : g.intents)
    for (const char* const language : {"en", "zh"}) {
      ASSERT_TRUE(i.languages.contains(language)) << i.name;
      const Templates& t = i.languages.at(language);
      EXPECT_GE(t.train.size(), 12u) << i.name;
      EXPECT_GE(t.test.size(), 4u) << i.name;
      train.insert(t.train.begin(), t.train.end());
      test.insert(t.test.begin(), t.test.end());
    }
  for (const std::string& t : test) EXPECT_FALSE(train.contains(t)) << t;
}

/// A held-out pattern is no training pattern with a word or two changed.
TEST(Builtin, HeldOutTemplatesAreFarFromTraining) {
  EXPECT_EQ(words_apart("raise it to {n}", "raise {n}"), 2u);
  EXPECT_EQ(words_apart("第{n}期", "第{total}期吗"), 2u);
  for (const GrammarIntent& i : builtin_grammar().intents)
    for (const auto& [language, templates] : i.languages)
      for (const std::string& held_out : templates.test)
        for (const std::string& shown : templates.train)
          EXPECT_GE(words_apart(held_out, shown), 3u) << i.name << ": " << held_out << " | " << shown;
}

TEST(Builtin, CountsAndShares) {
  const CorpusReport train = examine(drawn().train), test = examine(drawn().test);
  EXPECT_EQ(train.rows, 6000);
  EXPECT_EQ(drawn().dev.rows.size(), 600u);
  EXPECT_EQ(test.rows, 1200);
  EXPECT_EQ(train.labels.size(), builtin_grammar().intents.size());
  EXPECT_EQ(test.labels.size(), builtin_grammar().intents.size());
  EXPECT_NEAR(double(train.rows_by_labels.at(2)) / 6000, 0.3, 0.02);
  EXPECT_NEAR(double(train.rows_by_labels.at(3)) / 6000, 0.1, 0.02);
  for (const auto& [label, rows] : train.labels) EXPECT_GE(rows, 100) << label;
  EXPECT_EQ(train.duplicates.size(), 0u);
}

TEST(Builtin, NothingLeaks) {
  EXPECT_EQ(compare_splits(drawn().train, drawn().dev).leaks.size(), 0u);
  EXPECT_EQ(compare_splits(drawn().train, drawn().test).leaks.size(), 0u);
  EXPECT_TRUE(compare_splits(drawn().train, drawn().test).unseen.empty());
}

TEST(Builtin, ContradictionsAreNotJoined) {
  for (const Utterance& row : drawn().train.rows) {
    const std::set<std::string> labels(row.labels.begin(), row.labels.end());
    EXPECT_FALSE(labels.contains("buy_insurance") && labels.contains("refuse_insurance")) << row.text;
    EXPECT_EQ(row.text.find_first_of("{}"), std::string::npos) << row.text;
  }
}

/// The same corpus on every machine: another value here means that models trained on it are not comparable.
TEST(Builtin, RepeatsItself) {
  const BuiltinCorpus again = builtin_corpus();
  EXPECT_EQ(fingerprint(again.train), fingerprint(drawn().train));
  EXPECT_EQ(fingerprint(again.test), fingerprint(drawn().test));
  EXPECT_EQ(fingerprint(drawn().train), 13077052350812005289ull);
  EXPECT_EQ(fingerprint(drawn().test), 13103486377149662194ull);
  EXPECT_NE(fingerprint(builtin_corpus({.seed = 2}).train), fingerprint(drawn().train));
}

TEST(Builtin, OneLanguage) {
  const BuiltinCorpus zh =
      builtin_corpus({.languages = {"zh"}, .train = 200, .dev = 10, .test = 50, .two = 0, .three = 0});
  for (const Utterance& row : zh.test.rows) {
    EXPECT_EQ(row.labels.size(), 1u);
    EXPECT_TRUE(std::any_of(row.text.begin(), row.text.end(), [](char c) {
      return static_cast<unsigned char>(c) > 0x80;
    })) << row.text;
  }
}

TEST(Builtin, Refusals) {
  const auto say = [](const BuiltinOptions& o) {
    return sentence_of(ErrorKind::bad_argument, [&] { builtin_corpus(o); });
  };
  EXPECT_EQ(say({.languages = {"fr"}}), "builtin_corpus: the grammar has no language \"fr\"");
  EXPECT_EQ(say({.two = 0.9, .three = 0.2}),
            "builtin_corpus: two is 0.9 and three 0.2; they are shares, from 0 to 1 together");
  const Grammar tiny = Grammar::parse("slot en n: 1..3\nintent x g\nen: {n}\nen test: t\n", "g");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          builtin_corpus(
                              {.languages = {"en"}, .train = 4, .dev = 0, .test = 1, .two = 0, .three = 0},
                              tiny);
                        }),
            "builtin_corpus: the grammar gives 3 different utterances for built-in train, not the 4 asked "
            "for; ask for "
            "fewer, or for more with several intents");
}

TEST(Grammar, Refusals) {
  const auto say = [](std::string_view all) {
    return sentence_of(ErrorKind::bad_argument, [&] { Grammar::parse(all, "g.txt"); });
  };
  EXPECT_EQ(say(""), "grammar: g.txt: line 0 ends without an intent");
  EXPECT_EQ(say("slot en a: 1\nintent x\n"), "grammar: g.txt: line 2 must read intent NAME GROUP");
  EXPECT_EQ(say("slot en a: 1\nintent x g\nen: {b}\n"),
            "grammar: g.txt: line 3 uses slot \"b\", which no line above defines");
  EXPECT_EQ(say("slot en a: 1\nintent x g\nen: {a}\n"),
            "grammar: g.txt: line 3 ends, and intent x has no held-out template in en");
  EXPECT_EQ(say("slot en a: 1\nintent x g\nen: q\nen test: q\n"),
            "grammar: g.txt: line 4 repeats a template");
  EXPECT_EQ(say("slot en a: 9..2\n"), "grammar: g.txt: line 1 has a range that counts badly");
  EXPECT_EQ(say("join en: {a}\n"), "grammar: g.txt: line 1 joins without {a} and {b}");
  EXPECT_EQ(Grammar::parse("slot en a: 3..5\nintent x g\nen: {a}\nen test: t\n", "g")
                .languages.at("en")
                .slots.at("a"),
            (std::vector<std::string>{"3", "4", "5"}));
}

}  // namespace
}  // namespace headwise
