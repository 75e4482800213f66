// Roles: figures of known heads, rows of role files, and the verdict over pairs and over heads switched off.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/roles.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headwise/analysis/role_scores.h"
#include "headwise/base/random.h"
#include "headwise/text/words.h"
#include "tests/ops/row_op_cases.h"

namespace headwise {
namespace {

using test::error_of;

/// One head whose row i has weight w(i, j).
template <class F>
Tap tap_of(Index n, F&& w) {
  Tap t{.heads = 1, .q_tokens = n, .kv_tokens = n};
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) t.weights.push_back(static_cast<float>(w(i, j)));
  return t;
}

TEST(HeadFigures, OfKnownHeads) {
  const HeadFigures alike = sum_rows(tap_of(4, [](Index, Index) { return 0.25; }), 0).mean();
  EXPECT_EQ(alike.rows, 4);
  EXPECT_NEAR(alike.entropy, 1.386294, 1e-6);
  EXPECT_NEAR(alike.spread, 1, 1e-12);
  EXPECT_NEAR(alike.confidence, 0.25, 1e-12);
  EXPECT_NEAR(alike.distance, 1.25, 1e-12);
  const HeadFigures own = sum_rows(tap_of(4, [](Index i, Index j) { return i == j; }), 0).mean();
  EXPECT_EQ(own.entropy, 0);
  EXPECT_EQ(own.confidence, 1);
  EXPECT_EQ(own.distance, 0);
  EXPECT_EQ(own.self, 1);
  EXPECT_NEAR(alike.self, 0.25, 1e-12);
  EXPECT_EQ(sum_rows(tap_of(1, [](Index, Index) { return 1; }), 0).rows, 0);
}

/// Heads of one row each.
double apart(std::vector<std::vector<float>> heads) {
  Tap t{.heads = static_cast<Index>(heads.size()),
        .q_tokens = 1,
        .kv_tokens = static_cast<Index>(heads[0].size())};
  for (const std::vector<float>& row : heads) t.weights.insert(t.weights.end(), row.begin(), row.end());
  HeadsApart sum;
  sum.add(t);
  return sum.mean();
}

TEST(HeadsApart, IsJensenShannonOfPairs) {
  EXPECT_EQ(apart({{0.5f, 0.5f}, {0.5f, 0.5f}}), 0);
  EXPECT_NEAR(apart({{1, 0}, {0, 1}}), std::log(2.0), 1e-12);
  EXPECT_NEAR(apart({{0.5f, 0.5f}, {1, 0}}), 0.215762, 1e-6);
  EXPECT_NEAR(apart({{1, 0, 0}, {1, 0, 0}, {0, 0, 1}}), std::log(2.0) * 2 / 3, 1e-12);  // two of three pairs
  EXPECT_EQ(apart({{0.25f, 0.75f}}), 0);  // one head differs from none
}

TEST(Roles, NormalQuantiles) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-9);
  EXPECT_NEAR(normal_quantile(0.05), 1.644854, 1e-6);
  EXPECT_NEAR(normal_quantile(0.05 / 64), 3.162, 1e-3);
}

std::vector<TextSpan> words_of(std::string_view text) {
  std::vector<TextSpan> spans;
  split_words(text, {}, [&](const Word& w) { spans.push_back(w.whole); });
  return spans;
}

/// `text` with each token of a class in brackets.
std::string marked(std::string_view text, std::string_view name) {
  const RoleBook& book = RoleBook::builtin();
  const std::vector<TextSpan> spans = words_of(text);
  const std::vector<ClassBits> bits = book.classes_of(text, spans);
  std::string out;
  for (std::size_t t = 0; t < spans.size(); ++t) {
    const std::string piece(text.substr(static_cast<std::size_t>(spans[t].begin),
                                        static_cast<std::size_t>(spans[t].end - spans[t].begin)));
    out += bits[t] >> book.find_class(name) & 1 ? "[" + piece + "]" : piece;
    out += ' ';
  }
  return out;
}

TEST(Roles, ShippedClassesFindTheirTokens) {
  EXPECT_EQ(marked("第2年第3次调整", "number"), "[第] [2] 年 [第] [3] 次 调 整 ");
  EXPECT_EQ(marked("第2年第3次调整", "change"), "第 2 年 第 3 次 [调] [整] ");
  EXPECT_EQ(marked("不需要保险服务", "negator"), "[不] 需 要 保 险 服 务 ");
  EXPECT_EQ(marked("不需要保险服务", "entity"), "不 需 要 [保] [险] 服 务 ");
  EXPECT_EQ(marked("Separate RATES moderate", "rate"), "Separate [RATES] moderate ");
  EXPECT_EQ(marked("the 3rd of two, 10%", "number"), "the [3rd] of [two] , [10] % ");
  EXPECT_EQ(marked("I didn't", "negator"), "I [didn] ['] [t] ");
  EXPECT_EQ(marked("Yes. No", "separator"), "Yes [.] No ");
  // Bytes that are no UTF-8 belong to no word.
  EXPECT_EQ(marked("rate \xff", "rate"), "[rate] ");
}

TEST(Roles, PairsFollowTheRow) {
  const RoleBook book = RoleBook::parse(
      "class any: @any\nclass no: not\nclass a: red | blue\n"
      "role negation: no <-> any within 1..2\nrole colours: a -> a\nrole before: any -> any within -1..-1\n",
      "test");
  const std::string text = "not red blue x";
  const RolePairs pairs = pairs_of(book, text, words_of(text));
  using Pairs = std::vector<std::pair<Index, Index>>;
  EXPECT_EQ(pairs.of[0], (Pairs{{0, 1}, {0, 2}, {1, 0}, {2, 0}}));
  EXPECT_EQ(pairs.of[1], (Pairs{{1, 2}, {2, 1}}));
  EXPECT_EQ(pairs.of[2], (Pairs{{1, 0}, {2, 1}, {3, 2}}));
  EXPECT_TRUE(book.roles()[0].meaning);
  EXPECT_FALSE(book.roles()[2].meaning);
}

TEST(Roles, AnotherFileAddsToTheShippedRows) {
  RoleBook book = RoleBook::builtin();
  book.add("class symptom: fever | cough\nclass entity: aspirin\nrole symptom: symptom <-> entity\n",
           "medical");
  EXPECT_EQ(book.roles().size(), RoleBook::builtin().roles().size() + 1);
  const std::string text = "aspirin for fever";
  EXPECT_EQ(pairs_of(book, text, words_of(text)).of.back().size(), 2u);
}

TEST(Roles, BadRowsAreRefusedWithTheirLine) {
  const auto refusal = [](std::string_view text) {
    RoleBook book = RoleBook::builtin();
    const std::size_t before = book.classes().size();
    const std::string why = error_of([&] { book.add(text, "my.txt"); });
    EXPECT_EQ(book.classes().size(), before) << text;  // whole or not at all
    return why;
  };
  EXPECT_EQ(refusal("class x: a\nhello"),
            "roles: my.txt line 2: got \"hello\"; a row is class NAME: words, or role NAME: A -> B");
  EXPECT_EQ(
      refusal("class x: @letters"),
      "roles: my.txt line 1: kind \"@letters\" is unknown; kinds are @digits, @punctuation, @special and "
      "@any");
  EXPECT_EQ(refusal("class x: a | | b"), "roles: my.txt line 1: a word between | is empty; leave out the |");
  EXPECT_EQ(refusal("role r: any -> pain"),
            "roles: my.txt line 1: class \"pain\" is unknown; write its row before the role's");
  EXPECT_EQ(refusal("role r: any any"),
            "roles: my.txt line 1: the role has no ->; write role NAME: SOURCE -> TARGET");
  EXPECT_EQ(refusal("role number: any -> number"),
            "roles: my.txt line 1: role \"number\" is there already; give it another name");
  EXPECT_EQ(
      refusal("role r: any -> any within 2..1"),
      "roles: my.txt line 1: got \"within\" \"2..1\"; a role ends in within A..B, mass M or spread S, with "
      "A <= B and M, S in 0..1");
  EXPECT_EQ(refusal("class \xff: a"), "roles: my.txt line 1: it is no UTF-8; save the file as UTF-8");
}

/// 40 utterances, every second with a number as its token 2 of 6; the head looks at it, or nowhere special.
struct Survey {
  RoleBook book = RoleBook::parse(
      "class any: @any\nclass number: @digits\nrole number: any -> number\n"
      "role previous: any -> any within -1..-1 mass 0.5\nrole broad: any -> any spread 0.9\n",
      "test");
  HeadFigures figures;
  std::vector<RoleScore> scores{3};
  std::vector<std::vector<bool>> has{3};

  explicit Survey(bool looks) {
    for (int u = 0; u < 40; ++u) {
      const std::string text = u % 2 ? "a b 7 c d e" : "a b c d e f";
      const RolePairs pairs = pairs_of(book, text, words_of(text));
      const Tap tap = tap_of(6, [&](Index, Index j) { return !looks ? 1.0 / 6 : j == 2 ? 0.75 : 0.05; });
      figures.add(sum_rows(tap, 0));
      add_masses(pairs, tap, 0, scores);
      for (std::size_t r = 0; r < 3; ++r) has[r].push_back(!pairs.of[r].empty());
    }
    figures = figures.mean();
  }
  std::string verdict(double with, double without, double noise = 0.1) {
    std::vector<double> hurt;
    for (Index u = 0; u < 40; ++u) hurt.push_back((u % 2 ? with : without) + noise * normal_at(1, u));
    judge(book, figures, hurt, has, 8, scores);
    const int role = chief_role(book, scores);
    return role < 0 ? "none" : book.roles()[static_cast<std::size_t>(role)].name;
  }
};

TEST(Roles, NeedTheLookAndTheProof) {
  Survey looks(true);
  EXPECT_EQ(looks.verdict(0.5, 0.0), "number");
  EXPECT_EQ(looks.scores[0].pairs, 20 * 5);
  EXPECT_NEAR(looks.scores[0].ratio(), 0.75 * 6, 1e-5);
  EXPECT_NEAR(looks.scores[0].hurt_with - looks.scores[0].hurt_without, 0.5, 0.1);
  EXPECT_EQ(looks.verdict(0.0, 0.0), "none");     // looks, but nothing is lost without it
  EXPECT_EQ(looks.verdict(0.5, 0.5), "none");     // all are hurt alike
  EXPECT_EQ(looks.verdict(-0.1, -0.6), "none");   // less helped is not hurt
  EXPECT_EQ(looks.verdict(0.5, 0.0, 3), "none");  // may well be chance
  Survey everywhere(false);
  EXPECT_EQ(everywhere.verdict(0.5, 0.0),
            "broad");  // hurt, but it does not look; a role of form needs no proof
}

}  // namespace
}  // namespace headwise
