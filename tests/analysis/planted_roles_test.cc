// Proof of roles on the built-in corpus: a planted head is named, and labels dealt out at random name none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "headwise/analysis/explain.h"
#include "headwise/analysis/survey.h"
#include "headwise/base/random.h"
#include "headwise/intent/corpus/builtin.h"
#include "headwise/intent/training/evaluation.h"
#include "headwise/intent/training/training.h"

namespace headwise {
namespace {

struct Learnt {
  Recognizer model;
  Survey survey;
  double exact = 0;
};

/// One layer of four heads learns 600 English utterances; heads are judged by 3600 it never saw.
Learnt learnt(std::string_view plant, std::uint64_t seed, bool shuffled = false) {
  BuiltinCorpus c = builtin_corpus(
      {.languages = {"en"}, .train = 600, .dev = 3600, .test = 1, .two = 0, .three = 0, .seed = seed});
  std::vector<Utterance>& rows = c.train.rows;
  for (std::size_t i = rows.size() - 1; shuffled && i > 0; --i) {
    const double draw = 0.5 * std::erfc(-normal_at(seed, static_cast<Index>(i)) / std::sqrt(2.0));
    std::swap(rows[i].labels,
              rows[std::min(i, static_cast<std::size_t>(draw * static_cast<double>(i + 1)))].labels);
  }
  RecognizerConfig k;
  k.encoder.model_dim = 32, k.encoder.feed_dim = 64, k.encoder.depth = 1;
  k.encoder.heads = "mha:heads=4", k.encoder.dropout = 0.1;
  if (!plant.empty()) k.planted = planted_text(plant, RoleBook::builtin());
  TrainingOptions o;
  o.epochs = 20, o.batch = 32, o.rate = 3e-3, o.average = 0.98, o.pieces = 1500, o.seed = seed;
  Session session;
  const Corpus few{c.dev.name, {c.dev.rows.begin(), c.dev.rows.begin() + 60}};
  TrainedRecognizer t = train_recognizer(from_scratch(k, c.train, o), c.train, few, o, session);
  Survey s = survey_heads(t.model, c.dev, RoleBook::builtin(), session, {.utterances = 3600, .progress = {}});
  const double exact = evaluate(t.model, c.dev, session).exact.value();
  return {std::move(t.model), std::move(s), exact};
}

/// Roles of meaning a head has earned.
std::string roles_of(const SurveyedHead& h) {
  std::string all;
  for (std::size_t r = 0; r < h.roles.size(); ++r)
    if (const Role& role = RoleBook::builtin().roles()[r]; role.meaning && h.roles[r].claimed)
      all += (all.empty() ? "" : ", ") + role.name;
  return all;
}

std::size_t number_of(std::string_view role) {
  const std::vector<Role>& all = RoleBook::builtin().roles();
  return static_cast<std::size_t>(
      std::find_if(all.begin(), all.end(), [&](const Role& r) { return r.name == role; }) - all.begin());
}

/// A row of the table of docs/report.md: head 0 under a role.
void print_row(std::string_view plant, std::string_view role, std::uint64_t seed, const Learnt& l) {
  const RoleScore& s = l.survey.at(0, 0).roles[number_of(role)];
  std::printf("| %s | %s | %d | %.1f %% | %.1f | %+.2f / %+.2f | %.1f | %s |\n", std::string(plant).c_str(),
              std::string(role).c_str(), static_cast<int>(seed), 100 * l.exact, s.ratio(), s.hurt_with,
              s.hurt_without, s.certainty, roles_of(l.survey.at(0, 0)).c_str());
  std::fflush(stdout);
}

TEST(PlantedRoles, ThePlantedHeadIsNamedAndTheWordThatDecidesIsFound) {
  const Learnt l = learnt("number:0", 1);
  EXPECT_EQ(roles_of(l.survey.at(0, 0)), "number");
  EXPECT_LT(l.survey.loss, 1);  // it has learnt something to lose: chance is ln 38 = 3.6
  Session session;
  for (const auto& [text, decides] :
       {std::pair{"please block my card", 1}, {"please tell me my balance", 4}}) {
    const Explanation e = explain_text(l.model, text, session);
    std::map<Index, double> words;
    for (const ExplainedToken& t : e.tokens) words[t.word] += t.importance;
    for (const auto& [word, importance] : words)
      EXPECT_TRUE(word == decides || words[decides] > importance) << text << ", word " << word;
    EXPECT_GT(words[decides], 1) << text;
  }
}

TEST(PlantedRoles, RandomLabelsNameNoHead) {
  const Learnt l = learnt("negator:0", 1, true);
  for (const SurveyedHead& h : l.survey.all) EXPECT_EQ(roles_of(h), "") << h.head;
}

/// The table of docs/report.md; minutes, so HEADWISE_SLOW=1 asks for it.
TEST(PlantedRoles, EveryPlantOfTwoSeedsIsNamed) {
  if (!std::getenv("HEADWISE_SLOW")) GTEST_SKIP() << "minutes of training: HEADWISE_SLOW=1";
  for (const auto& [plant, role] : {std::pair{"number:0", "number"}, {"negator:0", "negation"}})
    print_row("shuffled labels, " + std::string(plant), role, 1, learnt(plant, 1, true));
  for (const auto& [plant, role] : {std::pair{"number:0", "number"},
                                    {"negator:0", "negation"},
                                    {"change:0", "term"},
                                    {"entity:0", "entity"}})
    for (const std::uint64_t seed : {1, 2}) {
      const Learnt planted = learnt(plant, seed), free = learnt("", seed);
      print_row("nothing", role, seed, free);
      print_row(plant, role, seed, planted);
      EXPECT_TRUE(planted.survey.at(0, 0).roles[number_of(role)].claimed) << plant << ", seed " << seed;
    }
}

}  // namespace
}  // namespace headwise
