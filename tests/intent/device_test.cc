// A recogniser whose encoder runs on a device, by the double of the CUDA library (support/fake_cuda.cc):
// answers, learning, folders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "headwise/intent/training/training.h"
#include "headwise/text/text_encoder.h"
#include "tests/intent/support.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

using namespace test;
constexpr Device kThere = Device::cuda(0);

TrainingOptions short_training(Device device) {
  TrainingOptions o;
  o.epochs = 2, o.batch = 16, o.pieces = 120, o.seed = 3, o.device = device;
  return o;
}
RecognizerConfig small() {
  RecognizerConfig c;
  c.encoder.model_dim = 16, c.encoder.feed_dim = 24, c.encoder.depth = 1, c.encoder.max_tokens = 64;
  c.encoder.heads = "mha:heads=2+gated:source=input,act=silu";
  c.ngrams.buckets = 100;
  c.chunk_tokens = 32, c.chunk_overlap = 8;
  return c;
}
Corpus few(const char* name, Index first) {
  Corpus c{.name = name, .rows = {}};
  const std::string words[] = {"card", "loan", "rate", "fee", "pay", "my", "the", "new"};
  for (Index i = first; i < first + 32; ++i) {
    const std::string text = words[static_cast<std::size_t>(i % 8)] + " " +
                             words[static_cast<std::size_t>(i / 3 % 8)] + (i % 2 ? " where" : " how");
    c.rows.push_back({text, {i % 2 ? "place" : "way"}, {}, i});
  }
  return c;
}

TrainedRecognizer learnt_on(Device device, Session& session) {
  const TrainingOptions o = short_training(device);
  const Corpus train = few("train", 0);
  return train_recognizer(from_scratch(small(), train, o), train, few("dev", 32), o, session);
}

TEST(DeviceRecognizer, AnswersAreTheCpusToTheLastDigits) {
  Session session({.threads = 1});
  TrainedRecognizer made = learnt_on(Device::cpu(), session);
  const std::vector<std::string> texts = {"card loan where", "", "the new fee how my rate", "pay"};
  const std::vector<Prediction> here = made.model.predict(texts, session);
  made.model.to(kThere, session.ctx);
  EXPECT_EQ(made.model.device(), kThere);
  const std::vector<Prediction> there = made.model.predict(texts, session);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(here[i].labels, there[i].labels);
    for (std::size_t l = 0; l < 2; ++l) EXPECT_NEAR(here[i].probability[l], there[i].probability[l], 1e-5);
  }
  Folder folder;
  made.model.save(folder.at("model"));  // parameters stay on the CPU
  Recognizer again = Recognizer::load(folder.at("model"));
  EXPECT_EQ(again.predict(texts, session)[0].probability, here[0].probability);
  made.model.to(Device::cpu(), session.ctx);
  EXPECT_EQ(made.model.predict(texts, session)[0].probability, here[0].probability);
}

TEST(DeviceRecognizer, LearnsThereWhatItLearnsHere) {
  Session session({.threads = 1});
  const TrainedRecognizer here = learnt_on(Device::cpu(), session), there = learnt_on(kThere, session);
  EXPECT_TRUE(there.model.device().is_cpu());
  EXPECT_EQ(here.step, there.step);
  std::vector<std::string> texts;
  for (const Utterance& row : few("dev", 32).rows) texts.push_back(row.text);
  const std::vector<Prediction> a = here.model.predict(texts, session),
                                b = there.model.predict(texts, session);
  for (std::size_t i = 0; i < texts.size(); ++i)
    for (std::size_t l = 0; l < 2; ++l)
      EXPECT_NEAR(a[i].probability[l], b[i].probability[l], 1e-2) << texts[i];
}

TEST(DeviceRecognizer, VectorsOfTextsAreTheCpus) {
  const TinyBert tiny;
  TextEncoder encoder(tiny.folder.path());
  Context ctx({.threads = 1});
  StepMemory memory;
  const std::vector<std::string> texts = {"my card is lost ?", "", "pay"};
  Tensor here = encoder.embed(texts, ctx, memory);
  encoder.to(kThere, ctx);
  EXPECT_EQ(encoder.device(), kThere);
  Tensor there = encoder.embed(texts, ctx, memory);
  for (std::size_t i = 0; i < here.values<float>().size(); ++i)
    EXPECT_NEAR(here.values<float>()[i], there.values<float>()[i], 2e-6);
  encoder.to(Device::cpu(), ctx);
  Tensor again = encoder.embed(texts, ctx, memory);
  EXPECT_TRUE(std::ranges::equal(here.values<float>(), again.values<float>()));
}

TEST(DeviceRecognizer, SettingsThatDoNotRunThereAreRefused) {
  Session session({.threads = 1});
  TrainingOptions o = short_training(kThere);
  o.compute = DType::bf16;
  const Corpus train = few("train", 0);
  EXPECT_SAYS(train_recognizer(from_scratch(small(), train, o), train, few("dev", 32), o, session),
              "train: the device is CUDA device 0, where a recogniser learns in f32 and on one rank");
  RecognizerConfig gates = small();
  gates.learn_gates = true;
  o.compute = DType::f32;
  EXPECT_SAYS(train_recognizer(from_scratch(gates, train, o), train, few("dev", 32), o, session),
              "recognizer: this model has learnt gates, which act on the CPU alone; run it there");
}

}  // namespace
}  // namespace headwise
