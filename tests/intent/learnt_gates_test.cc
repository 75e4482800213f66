// Learnt gates: their gradient is the slope of the loss with its price, and what they shut is what is cut.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <sstream>

#include "headwise/intent/training/learner.h"
#include "headwise/intent/training/training.h"
#include "headwise/lab/cut/cut.h"
#include "tests/lab/tiny_recognizer.h"

namespace headwise {
namespace {

using namespace test;

Recognizer gated_recognizer(DType dtype) {
  RecognizerConfig c = lab_recognizer("mha:heads=4,dim=3; mha:heads=2,dim=3").config();
  c.learn_gates = true, c.encoder.dropout = 0, c.pool_dropout = 0;
  Recognizer model(c, lab_vocabulary(), 3, dtype);
  stir(model.params(), 0.4);
  return model;
}

double& log_a(Recognizer& model, Index i) {
  return static_cast<double*>(model.params().find("gates.log_a").value().data)[i];
}

TEST(LearntGates, GradientIsTheSlopeOfLossAndPrice) {
  Recognizer model = gated_recognizer(DType::f64);
  model.params().make_grads();
  const Corpus rows = lab_corpus();
  TrainingOptions o;
  o.token_dropout = 0, o.gate_price = 0.3;
  Session session({.threads = 1});
  Learner learner(model, rows, o, session);
  const std::vector<Index> examples = {0, 1, 2, 3, 4};
  int moving = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const MicroBatch micro{.examples = examples, .seed = seed, .weight = 1};
    // Near 0 a draw is seldom clipped, so that most gates have a slope.
    for (Index i = 0; i < 8; ++i) log_a(model, i) = 0.1 * static_cast<double>(i) - 0.3;
    model.params().zero_grads();
    learner.learn(micro);
    const AnyView grad = model.params().find("gates.log_a").grad();
    for (const Index i : {0, 1, 2, 3, 4, 5}) {
      const double was = log_a(model, i), slope = load_double(grad.data, grad.dtype, i), step = 1e-3;
      log_a(model, i) = was + step;
      const double above = learner.learn(micro);
      log_a(model, i) = was - step;
      const double below = learner.learn(micro);
      log_a(model, i) = was;
      model.params().zero_grads();
      learner.learn(micro);
      EXPECT_NEAR(slope, (above - below) / (2 * step), 2e-3) << seed << " " << i;
      const double open = HardConcrete().p_open(was);
      moving += std::abs(slope - o.gate_price * open * (1 - open)) > 1e-3;
    }
    // Gates beyond the heads of the second layer take part in nothing.
    EXPECT_EQ(load_double(grad.data, grad.dtype, 6), 0);
  }
  EXPECT_GT(moving, 4) << "the loss itself must have a say";
}

TEST(LearntGates, WhatIsShutIsCutAndAnswersStay) {
  Recognizer model = gated_recognizer(DType::f32);
  auto* gates = static_cast<float*>(model.params().find("gates.log_a").value().data);
  const float by_head[] = {3, -1, -2, 0.5f, -4, -3, 0, 0};  // the second layer keeps its likeliest
  std::copy(by_head, by_head + 8, gates);
  EXPECT_EQ(model.gates()->shut(), (std::vector<std::vector<Index>>{{1, 2}, {0}}));
  Session session({.threads = 1});
  const std::vector<Prediction> before = model.predict(lab_texts(), session);
  Folder folder;
  model.save(folder.at("gated"));
  const LabModel whole(folder.at("gated"));  // gates come back from the folder
  const HeadPlan plan = shut_heads(whole);
  EXPECT_EQ(plan.left(), 3);
  const Recognizer small = whole.edited(cut_heads(whole, plan), "test");
  EXPECT_FALSE(small.config().learn_gates);
  EXPECT_LT(small.params().count(), model.params().count());
  const std::vector<Prediction> after = small.predict(lab_texts(), session);
  for (std::size_t i = 0; i < before.size(); ++i)
    for (std::size_t l = 0; l < before[i].probability.size(); ++l)
      EXPECT_NEAR(before[i].probability[l], after[i].probability[l], 2e-6);
  EXPECT_SAYS(shut_heads(LabModel(lab_recognizer("mha:heads=4,dim=3"))), "no learnt gates");
  EXPECT_SAYS(require_cuttable(LabModel(lab_recognizer("dcmha:heads=4")), "train"), "dcmha");
}

/// A stream that asks the trainer to stop at its first step.
struct StopAtOnce : std::stringbuf {
  std::streamsize xsputn(const char* s, std::streamsize n) override {
    const std::string_view said(s, static_cast<std::size_t>(n));
    if (!stopped && said.find("step") != std::string_view::npos) stopped = true, ::raise(SIGINT);
    return n;
  }
  bool stopped = false;
};

std::vector<float> all_values(const Recognizer& model) {
  std::vector<float> all;
  for (const Param& p : model.params().all()) {
    const auto* x = static_cast<const float*>(p.value.data);
    all.insert(all.end(), x, x + p.value.count());
  }
  return all;
}

TEST(LearntGates, AStoppedTrainingGoesOnToTheSameBits) {
  const Folder folder;
  Recognizer begun = gated_recognizer(DType::f32);
  Corpus rows = lab_corpus();
  for (int i = 0; i < 3; ++i) rows.rows.insert(rows.rows.end(), rows.rows.begin(), rows.rows.end());
  TrainingOptions o;
  o.epochs = 4, o.batch = 8, o.rate = 1e-2, o.gate_price = 0.05;
  Session session({.threads = 1});
  o.run_folder = folder.at("whole");
  TrainedRecognizer one = train_recognizer(from_recognizer(begun), rows, rows, o, session);
  o.run_folder = folder.at("cut");
  StopAtOnce buffer;
  std::ostream stop(&buffer);
  o.out = &stop;
  EXPECT_EQ(train_recognizer(from_recognizer(begun), rows, rows, o, session).ending, Ending::interrupted);
  o.out = nullptr;
  const TrainedRecognizer two = train_recognizer(from_recognizer(begun), rows, rows, o, session);
  EXPECT_EQ(two.ending, Ending::finished);
  EXPECT_EQ(all_values(one.model), all_values(two.model));
  ASSERT_TRUE(one.model.gates());
  const ConstView was = begun.params().find("gates.log_a").value(),
                  is = one.model.params().find("gates.log_a").value();
  EXPECT_NE(load_double(was.data, was.dtype, 0), load_double(is.data, is.dtype, 0)) << "gates are learnt";
}

}  // namespace
}  // namespace headwise
