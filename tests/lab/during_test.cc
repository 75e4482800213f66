// Surveys over epochs: the CSV is the memory, a training that goes on takes it up, and its bits stay.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/during/epoch_survey.h"

#include <cstring>

#include "headwise/intent/training/training.h"
#include "headwise/model/file.h"
#include "tests/lab/tiny_recognizer.h"

namespace headwise {
namespace {

using namespace test;

TEST(During, TheCsvIsTheMemory) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("m"));
  const HeadSurvey s = survey_model(folder.at("m"), lab_texts(), 1, {.apart = 3});
  SurveyHistory history;
  for (const Index epoch : {1, 2, 3}) history.add(epoch, s);
  EXPECT_EQ(history.epochs(), (std::vector<Index>{1, 2, 3}));
  ASSERT_EQ(history.moments().size(), 24u);
  const SurveyHistory read(history.csv(), "h");
  EXPECT_EQ(read.csv(), history.csv());
  EXPECT_EQ(read.json(), history.json());
  EXPECT_EQ(read.moments()[9].layer, 0);
  EXPECT_EQ(read.moments()[9].head, 1);
  EXPECT_NEAR(read.moments()[9].figures[figure_at("entropy")], s.heads[1].figures[figure_at("entropy")].value,
              1e-8);
  EXPECT_GT(read.moments()[9].figures.back(), 0);  // apart
  // A training that went back to its checkpoint after epoch 1 sees epoch 2 again.
  history.add(2, s);
  EXPECT_EQ(history.epochs(), (std::vector<Index>{1, 2}));
  const std::string page = history.page("m <b>", "t");
  EXPECT_NE(page.find("entropy over epochs"), std::string::npos);
  EXPECT_EQ(page.find("m <b>"), std::string::npos);
  EXPECT_SAYS(SurveyHistory("epoch,layer\n1,2\n", "h"), "h: line 1");
  std::string torn = history.csv();
  torn.resize(torn.size() - 30);
  EXPECT_SAYS(SurveyHistory(torn, "h"), "delete the file");
}

TEST(During, ATrainingKeepsItsBitsAndOneThatGoesOnItsHistory) {
  Folder folder;
  const Corpus corpus = lab_corpus();
  RecognizerConfig config = lab_recognizer("mha:heads=2,dim=4").config();
  config.labels.clear();
  TrainingOptions o{.epochs = 2, .batch = 2, .pieces = 40};
  const Start start = from_scratch(config, corpus, o);
  Session session({.threads = 1});
  const TrainedRecognizer plain = train_recognizer(start, corpus, corpus, o, session);
  std::filesystem::create_directories(folder.at("run"));
  EpochSurvey survey(folder.at("run"), lab_texts(), {"m", "t"}, 1);
  o.each_epoch = [&](Index epoch, const Recognizer& model) { survey.look(epoch, model); };
  const TrainedRecognizer looked = train_recognizer(start, corpus, corpus, o, session);
  for (std::size_t i = 0; i < plain.model.params().all().size(); ++i) {
    const Param &a = plain.model.params().all()[i], &b = looked.model.params().all()[i];
    EXPECT_EQ(0, std::memcmp(a.value.data, b.value.data, static_cast<std::size_t>(a.bytes()))) << a.name;
  }
  ASSERT_EQ(survey.files().size(), 3u);
  EpochSurvey later(folder.at("run"), lab_texts(), {"m", "t"}, 1);
  EXPECT_EQ(later.files()[0].content, survey.files()[0].content);
  later.look(3, looked.model);
  const SurveyHistory all(read_text(folder.at("run") + "/during.csv", Index{1} << 20, "test"), "h");
  EXPECT_EQ(all.epochs(), (std::vector<Index>{1, 2, 3}));
  // The first two epochs are of weights that still moved; the third is epoch 2 or the better one before it.
  EXPECT_NE(all.moments()[0].figures, all.moments()[4].figures);
  EXPECT_FALSE(std::filesystem::exists(folder.at("run") + "/surveyed"));
}

}  // namespace
}  // namespace headwise
