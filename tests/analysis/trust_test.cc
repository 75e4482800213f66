// Trust, drift and suggestions: figures against their definitions.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/analysis/report/trust.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "headwise/analysis/report/drift.h"
#include "headwise/analysis/report/report_answers.h"
#include "headwise/intent/training/suggest.h"

namespace headwise {
namespace {

Recognizer small(bool multi_label = false) {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c), pieces.push_back(std::string("##") + c);
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 8, c.encoder.depth = 1, c.encoder.heads = "mha:heads=2,dim=4";
  c.labels = {"x", "y", "z"}, c.multi_label = multi_label, c.ngrams.buckets = 0;
  return {c, Vocabulary(pieces), 3};
}

TEST(Trust, ErrorAndCoverageByHand) {
  // Two in [0.9, 1]: mean 0.95, one right. Two in [0.6, 0.7): mean 0.65, both right. One of 1.0 is in the
  // last.
  const std::vector<Trusted> all = {{0.9, true}, {1.0, false}, {0.62, true}, {0.68, true}};
  const Trust t = trust_of(all);
  EXPECT_NEAR(t.error, 0.5 * std::abs(0.5 - 0.95) + 0.5 * std::abs(1 - 0.65), 1e-12);
  EXPECT_EQ(t.bins[9].answers, 2);
  EXPECT_EQ(t.bins[6].right, 2);
  const Coverage c = covered(all, 0.8);
  EXPECT_EQ(c.answered, 2);
  EXPECT_EQ(c.share(), 0.5);
  EXPECT_EQ(c.accuracy(), 0.5);
  ASSERT_FALSE(t.curve.empty());
  EXPECT_EQ(t.curve.back(), (std::pair{1.0, 0.75}));
  EXPECT_EQ(t.curve.front(), (std::pair{0.25, 0.0}));  // the surest is wrong
  EXPECT_EQ(covered({}, 0.5).share(), 0);
  EXPECT_EQ(trust_of({}).error, 0);
}

TEST(Trust, ATableWiderThanAPhoneScrollsInItsCard) {
  const std::string section = trust_section(std::vector<Trusted>{{}, {}}, ReportWords("en"));
  const std::size_t table = section.find("<table");
  ASSERT_NE(table, std::string::npos);
  EXPECT_EQ(section.rfind("<div class=\"card wide\"", table), section.rfind("<div class", table));
}

TEST(Drift, NamesWhatMoved) {
  const Recognizer r = small();
  Session session({.threads = 1});
  std::vector<std::string> before(40, "pay a"), now(40, "pay a");
  for (std::size_t i = 0; i < 20; ++i) now[i] = "Refund a";
  const Drift d = drift_between(r, before, now, session);
  ASSERT_EQ(d.words.size(), 2u);  // "a" stands everywhere
  std::set<std::string> names;
  for (const Moved& m : d.words) {
    names.insert(m.name);
    // 0 of 40 and 20 of 40: s = 1 / 4, z = 0.5 / sqrt(3 / 16 / 20)
    EXPECT_NEAR(std::abs(m.z), 0.5 / std::sqrt(3.0 / 16 / 20), 1e-9);
  }
  EXPECT_EQ(names, (std::set<std::string>{"pay", "refund"}));
  Index given = 0;
  for (const Moved& m : d.labels) given += m.before;
  EXPECT_EQ(given, 40);
  EXPECT_NE(print(d).find("word refund: 0.0 % -> 50.0 %"), std::string::npos) << print(d);
  EXPECT_NE(print(drift_between(r, before, before, session)).find("no word moved"), std::string::npos);
}

TEST(Suggest, DoubtfulOnesThatAreNotAlike) {
  const Recognizer r = small();
  Session session({.threads = 1});
  const std::vector<std::string> texts = {"pay a", "b c d", "PAY  a", "q q", "zz", "m n o p"};
  const std::vector<Suggestion> all = suggest_rows(r, texts, 100, session);
  ASSERT_EQ(all.size(), 5u);  // two are equal but for case and space
  double most = 0;
  for (const Suggestion& s : all) most = std::max(most, s.doubt);
  EXPECT_EQ(all[0].doubt, most);
  // The next has the largest product of doubt and distance from the first.
  const auto hellinger = [](const Prediction& a, const Prediction& b) {
    double both = 0;
    for (std::size_t i = 0; i < a.probability.size(); ++i)
      both += std::sqrt(static_cast<double>(a.probability[i]) * static_cast<double>(b.probability[i]));
    return std::sqrt(std::max(0.0, 1 - both));
  };
  std::size_t best = 1;
  for (std::size_t i = 2; i < all.size(); ++i)
    if (all[i].doubt * hellinger(all[i].prediction, all[0].prediction) >
        all[best].doubt * hellinger(all[best].prediction, all[0].prediction))
      best = i;
  EXPECT_EQ(best, 1u);
  const std::vector<Suggestion> two = suggest_rows(r, texts, 2, session);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].text, all[1].text);
}

TEST(Answers, ConfusionsNamePairs) {
  Recognizer r = small(true);
  Session session({.threads = 1});
  const Prediction p = r.predict("pay a", session);
  const Index best = std::max_element(p.probability.begin(), p.probability.end()) - p.probability.begin();
  const std::string given = r.config().labels[static_cast<std::size_t>(best)], other = best == 0 ? "y" : "x";
  r.set_thresholds(0.99, 0);  // the best one alone
  Corpus corpus{.name = "made up", .rows = {{"pay a", {given, other}, {}, 1}, {"pay a", {"oos"}, {}, 2}}};
  const Answers missed = judge_answers(r, corpus, session);
  const Index wanted = other == "x" ? 0 : 1;
  EXPECT_EQ(missed.counts.at({wanted, best}), 1);  // missed beside the one that was given
  EXPECT_EQ(missed.labels.back().name, "out of scope");
  EXPECT_EQ(missed.counts.at({3, best}), 1);  // an out-of-scope text that got a label
  const std::string note =
      missed_note(r, corpus.rows[0], missed.given[0], {false, ReportWords("en")}, session);
  EXPECT_NE(note.find("<b>" + other + "</b> was missed: it has "), std::string::npos) << note;
  EXPECT_NE(note.find("would need 99.0 %"), std::string::npos) << note;
  EXPECT_EQ(trusted_answers(missed).size(), 2u);
  r.set_thresholds(0.99, 0.9999);  // everything is refused: the second row is right
  const Answers refused = judge_answers(r, corpus, session);
  EXPECT_EQ(refused.right, 1);
  EXPECT_EQ(refused.counts.at({wanted, 3}), 1);
  EXPECT_TRUE(trusted_answers(refused).empty());
}

}  // namespace
}  // namespace headwise
