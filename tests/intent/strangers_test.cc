// Strangers: which everyday texts are taken, when, and what learning them does to texts of another subject.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/training/scope/strangers.h"

#include <set>

#include "headwise/intent/corpus/builtin.h"
#include "headwise/intent/corpus/report.h"
#include "tests/intent/support.h"

namespace headwise {
namespace {

using namespace test;

void add(Corpus& to, std::string words, std::vector<std::string> labels) {
  to.rows.push_back({.text = std::move(words), .labels = std::move(labels), .extra = {}, .line = 0});
}

/// Two subjects in words of their own, and `more` rows of a third.
Corpus toy(Index rows, const char* more = nullptr) {
  const char* things[] = {"card", "loan", "rate", "fee", "account", "branch"};
  Corpus c{.name = "toy", .rows = {}};
  for (Index i = 0; i < rows; ++i)
    add(c, text("please ", i % 2 ? "block" : "raise", " ", things[i % 6], " number ", i % 11),
        {i % 2 ? "block" : "raise"});
  for (Index i = 0; more && i < 4; ++i) add(c, text(more, i), {"other"});
  return c;
}

std::vector<std::string> texts_of(const Corpus& c, std::string_view label) {
  std::vector<std::string> texts;
  for (const Utterance& row : c.rows)
    if (row.labels == std::vector<std::string>{std::string(label)}) texts.push_back(row.text);
  return texts;
}

TEST(Strangers, EverydayTextsAreManyInBothLanguages) {
  for (const std::vector<std::string>& languages :
       {std::vector<std::string>{"en"}, std::vector<std::string>{"zh"},
        std::vector<std::string>{"en", "zh"}}) {
    const BuiltinCorpus c =
        builtin_corpus({.languages = languages, .train = 300, .dev = 0, .test = 60, .two = 0, .three = 0},
                       everyday_grammar());
    std::set<std::string> keys;
    for (const Corpus* part : {&c.train, &c.test})
      for (const Utterance& row : part->rows) keys.insert(text_key(row.text));
    EXPECT_EQ(keys.size(), 360u);
  }
}

TEST(Strangers, AreTakenWhereDevIsSmallAndNothingSaysWhatIsUnknown) {
  Corpus train = toy(200), dev = toy(12);
  TrainingOptions o;
  add_strangers(train, dev, false, o);
  const auto learnt = texts_of(train, "oos"), judged = texts_of(dev, "oos");
  EXPECT_GT(learnt.size(), 60u);
  EXPECT_LE(learnt.size(), 100u);
  EXPECT_GT(judged.size(), 30u);
  EXPECT_TRUE(o.learn_out_of_scope);
  EXPECT_NE(o.about_scope.find(text(learnt.size(), " everyday texts")), o.about_scope.npos) << o.about_scope;
  for (const std::string& one : judged) EXPECT_EQ(std::count(learnt.begin(), learnt.end(), one), 0) << one;
}

TEST(Strangers, AreLeftOutWhereDataSayMore) {
  const auto added = [](Corpus train, Corpus dev, TrainingOptions o, bool cuts = false) {
    const std::size_t before = train.rows.size() + dev.rows.size();
    add_strangers(train, dev, cuts, o);
    EXPECT_EQ(o.learn_out_of_scope, train.rows.size() + dev.rows.size() > before);
    return train.rows.size() + dev.rows.size() - before;
  };
  EXPECT_GT(added(toy(200), toy(12), {}), 0u);
  EXPECT_EQ(added(toy(200), toy(60), {}), 0u) << "dev can choose";
  EXPECT_EQ(added(toy(99), toy(12), {}), 0u) << "too few rows to learn from";
  EXPECT_EQ(added(toy(200), toy(12), {}, true), 0u) << "texts are cut";
  EXPECT_EQ(added(toy(200), toy(12), {.may_lose = 0}), 0u) << "nothing is to be refused";
  EXPECT_EQ(added(toy(200), toy(12), {.strangers = "none"}), 0u);
  EXPECT_GT(added(toy(50), toy(60), {.strangers = "built-in"}), 0u) << "asked for";
  Corpus known = toy(200);
  add(known, "what is love", {"oos"});
  EXPECT_EQ(added(known, toy(12), {}), 0u) << "rows say what is unknown";
  Corpus unlabelled = toy(200);
  add(unlabelled, "what is love", {});
  EXPECT_EQ(added(unlabelled, toy(12), {}), 0u) << "a row without a label says it too";
  EXPECT_EQ(added(toy(200), unlabelled, {}), 0u);
  EXPECT_SAYS(added(toy(200), toy(12), {.strangers = "built-in"}, true), "leave out one");
  EXPECT_SAYS(added(toy(200), toy(12), {.strangers = "some"}), "give auto, none or built-in");
}

TEST(Strangers, AreNotOfASubjectOfTheData) {
  Corpus train = toy(200), dev = toy(12);
  for (const char* greeting : {"hello", "hi", "good morning", "good evening", "你好"})
    add(train, greeting, {"greeting"});
  TrainingOptions o;
  o.strangers = "built-in";
  add_strangers(train, dev, false, o);
  const auto learnt = texts_of(train, "oos");
  EXPECT_GT(learnt.size(), 40u);
  for (const std::string& one : learnt)
    for (const char* greeting : {"hello", "hi", "good morning"}) EXPECT_NE(one, greeting);
  // Rows in Chinese bring strangers in Chinese.
  Corpus chinese{.name = "zh", .rows = {}}, few{.name = "zh dev", .rows = {}};
  for (Index i = 0; i < 120; ++i)
    add(chinese, text(i % 2 ? "冻结银行卡" : "提高额度", i), {i % 2 ? "block" : "raise"});
  add(few, "冻结银行卡", {"block"});
  add_strangers(chinese, few, false, o);
  const auto strangers = texts_of(chinese, "oos");
  EXPECT_GT(strangers.size(), 40u);
  EXPECT_EQ(std::count_if(strangers.begin(), strangers.end(),
                          [](const std::string& s) { return s.find("weather") != s.npos; }),
            0);
}

/// A softmax over two labels is pulled to 1/2 each, probabilities of several labels to 0.
TEST(Strangers, WhatIsLearntOfNoLabelHasNoLabel) {
  for (const bool several : {false, true}) {
    Corpus train = toy(120);
    const Corpus dev = toy(12);
    for (Index i = 0; i < 60; ++i) add(train, text("striped zebras run ", i % 7, " miles"), {"oos"});
    TrainingOptions o;
    o.epochs = 16, o.batch = 16, o.rate = 1e-2, o.average = 0.9, o.pieces = 200, o.label_smoothing = 0;
    o.multi_label = several;
    RecognizerConfig c;
    c.encoder.model_dim = 16, c.encoder.feed_dim = 32, c.encoder.depth = 1, c.encoder.max_tokens = 64;
    c.encoder.heads = "mha:heads=2,dim=8", c.ngrams.buckets = 0, c.chunk_tokens = 64, c.chunk_overlap = 8;
    Session session({.threads = 1});
    for (const bool learnt : {false, true}) {
      o.learn_out_of_scope = learnt;
      const TrainedRecognizer made = train_recognizer(from_scratch(c, train, o), train, dev, o, session);
      const std::vector<std::string> asked = {"striped zebras run 3 miles", "please block card number 3"};
      std::vector<double> surest;
      for (const Prediction& p : made.model.predict(asked, session))
        surest.push_back(static_cast<double>(*std::max_element(p.probability.begin(), p.probability.end())));
      const double stranger = several ? 0.1 : 0.6;
      EXPECT_EQ(surest[0] < stranger, learnt) << several << ' ' << surest[0];
      EXPECT_GT(surest[1], 0.9) << several << ' ' << learnt;
    }
  }
}

}  // namespace
}  // namespace headwise
