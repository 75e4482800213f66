// A recogniser whose encoder runs on a device, by the double of the CUDA library (support/fake_cuda.cc):
// answers, learning, folders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
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

/// All that a training can ask of the device: labels, pooling, n-grams through a matrix, bf16.
TEST(DeviceRecognizer, EveryPartLearnsThereAsHere) {
  const auto run = [](Device device, int which, Session& session) {
    TrainingOptions o = short_training(device);
    RecognizerConfig c = small();
    if (which == 1) c.pooling = Pooling::mean, c.ngrams.columns = 8, c.ngrams.dropout = 0.2;
    if (which == 2) c.pooling = Pooling::first, o.multi_label = true, o.micro_batches = 2;
    if (which == 3) o.compute = DType::bf16;
    if (which == 4) c.pooling = Pooling::peak;
    const Corpus train = few("train", 0);
    return train_recognizer(from_scratch(c, train, o), train, few("dev", 32), o, session);
  };
  for (const int which : {0, 1, 2, 3, 4}) {
    Session session({.threads = 2});
    const TrainedRecognizer here = run(Device::cpu(), which, session), there = run(kThere, which, session);
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < here.model.params().all().size(); ++i) {
      const AnyView a = here.model.params().all()[i].value, b = there.model.params().all()[i].value;
      for (Index k = 0; k < a.count(); ++k, ++count)
        sum += std::pow(load_double(a.data, a.dtype, k) - load_double(b.data, b.dtype, k), 2);
    }
    EXPECT_LT(std::sqrt(sum / count), which == 3 ? 2e-3 : 3e-4) << which;
  }
}

TEST(DeviceRecognizer, StoppedThereItGoesOnWithTheSameBits) {
  Session session({.threads = 1});
  const auto run = [&](const std::string& folder, DType compute, double minutes) {
    TrainingOptions o = short_training(kThere);
    o.compute = compute, o.run_folder = folder, o.epochs = 4;
    const Corpus train = few("train", 0);
    Index epochs = 0;
    if (minutes > 0)
      o.each_epoch = [&](Index, const Recognizer&) {
        if (++epochs == 2) throw Error(ErrorKind::device, "stopped");
      };
    return train_recognizer(from_scratch(small(), train, o), train, few("dev", 32), o, session);
  };
  for (const DType compute : {DType::f32, DType::bf16}) {
    Folder folder;
    const TrainedRecognizer whole = run(folder.at("whole"), compute, 0);
    EXPECT_SAYS(run(folder.at("parts"), compute, 1), "stopped");
    const TrainedRecognizer parts = run(folder.at("parts"), compute, 0);
    for (std::size_t i = 0; i < whole.model.params().all().size(); ++i) {
      const Param &a = whole.model.params().all()[i], &b = parts.model.params().all()[i];
      EXPECT_EQ(std::memcmp(a.value.data, b.value.data, a.bytes()), 0) << a.name;
    }
  }
}

TEST(DeviceRecognizer, SettingsThatDoNotRunThereAreRefused) {
  Session session({.threads = 1});
  TrainingOptions o = short_training(kThere);
  o.compute = DType::bf16;
  const Corpus train = few("train", 0);
  RecognizerConfig peak = small();
  peak.pooling = Pooling::peak;
  EXPECT_SAYS(train_recognizer(from_scratch(peak, train, o), train, few("dev", 32), o, session),
              "train: the device is CUDA device 0, where this recogniser learns in f32: its pooling is peak");
  RecognizerConfig gates = small();
  gates.learn_gates = true;
  o.compute = DType::f32;
  EXPECT_SAYS(train_recognizer(from_scratch(gates, train, o), train, few("dev", 32), o, session),
              "recognizer: this model has learnt gates, which act on the CPU alone; run it there");
}

}  // namespace
}  // namespace headwise
