// Proof of roles on the built-in corpus: a planted head is named, and labels dealt out at random name none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "headwise/analysis/survey.h"
#include "headwise/base/random.h"
#include "headwise/intent/builtin.h"
#include "headwise/intent/training.h"

namespace headwise {
namespace {

/// One layer of four heads learns 600 English utterances; heads are judged by 2400 it never saw.
Survey learnt(std::string_view plant, bool shuffled, std::uint64_t seed) {
  BuiltinCorpus c = builtin_corpus(
      {.languages = {"en"}, .train = 600, .dev = 2400, .test = 1, .two = 0, .three = 0, .seed = seed});
  std::vector<Utterance>& rows = c.train.rows;
  for (std::size_t i = rows.size() - 1; shuffled && i > 0; --i) {
    const double draw = 0.5 * std::erfc(-normal_at(seed, static_cast<Index>(i)) / std::sqrt(2.0));
    std::swap(rows[i].labels,
              rows[std::min(i, static_cast<std::size_t>(draw * static_cast<double>(i + 1)))].labels);
  }
  RecognizerConfig k;
  k.encoder.model_dim = 32, k.encoder.feed_dim = 64, k.encoder.depth = 1;
  k.encoder.heads = "mha:heads=4", k.encoder.dropout = 0.1;
  k.planted = planted_text(plant, RoleBook::builtin());
  TrainingOptions o;
  o.epochs = 20, o.batch = 32, o.rate = 3e-3, o.average = 0.98, o.pieces = 1500, o.seed = seed;
  Session session;
  const Corpus few{c.dev.name, {c.dev.rows.begin(), c.dev.rows.begin() + 60}};
  const TrainedRecognizer t = train_recognizer(from_scratch(k, c.train, o), c.train, few, o, session);
  return survey_heads(t.model, c.dev, RoleBook::builtin(), session, {.utterances = 2400, .progress = {}});
}

std::string role_of(const SurveyedHead& h) {
  return h.role < 0 ? "" : RoleBook::builtin().roles()[static_cast<std::size_t>(h.role)].name;
}

TEST(PlantedRoles, ThePlantedHeadIsNamed) {
  const Survey s = learnt("negator:0", false, 1);
  EXPECT_EQ(role_of(s.at(0, 0)), "negation");
  EXPECT_LT(s.loss, 0.6);  // it has learnt something to lose: chance is ln 30 = 3.4
}

TEST(PlantedRoles, RandomLabelsNameNoHead) {
  const Survey s = learnt("negator:0", true, 1);
  for (const SurveyedHead& h : s.all)
    for (std::size_t r = 0; r < h.roles.size(); ++r)
      EXPECT_FALSE(RoleBook::builtin().roles()[r].meaning && h.roles[r].claimed)
          << "head " << h.head << ", " << RoleBook::builtin().roles()[r].name;
}

}  // namespace
}  // namespace headwise
