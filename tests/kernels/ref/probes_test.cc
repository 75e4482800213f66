// ref's probes: definitions by worked numbers, empty rows, sinks, ties, score stages, ragged places.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "headwise/ops/attention/attention.h"

#include "headwise/base/context.h"
#include "tests/support/bits.h"
#include "tests/support/case.h"
#include "tests/support/random_rows.h"

namespace headwise::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Two queries at positions 2 and 3, four keys; the weights are given by a bias of their logarithms over q =
/// 0.
struct Probed {
  Tensor q{DType::f64, {1, 2, 1, 1}}, k{DType::f64, {1, 4, 1, 1}}, v{DType::f64, {1, 4, 1, 1}},
      out{DType::f64, {1, 2, 1, 1}};
  Tensor bias{DType::f64, {1, 1, 2, 4}}, sink{DType::f64, {1}}, start = tensor_of(std::vector<Index>{2});
  Tensor entropy{DType::f64, {1, 1, 2}}, top{DType::f64, {1, 1, 2}}, square{DType::f64, {1, 1, 2}},
      distance{DType::f64, {1, 1, 2}}, mass{DType::f64, {1, 1, 2}}, position{DType::i64, {1, 1, 2}};
  Tensor keys{DType::i64, {1, 1, 2, 3}}, weights{DType::f64, {1, 1, 2, 3}}, class_of{DType::i32, {1, 4}},
      class_mass{DType::f64, {1, 1, 2, 2}}, columns{DType::f64, {1, 1, 4}}, picks{DType::i64, {2, 3}},
      picked{DType::f64, {2, 4}};
  AttentionArgs args;
  ProbeSpec spec{.rows = true, .top_k = 3, .classes = 2, .columns = true, .picked = 2};
  Context ctx{{.threads = 2, .kernels = "ref"}};

  Probed(std::initializer_list<double> first, std::initializer_list<double> second) {
    std::size_t n = 0;
    for (double w : first) bias.values<double>()[n++] = std::log(w);
    for (double w : second) bias.values<double>()[n++] = std::log(w);
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    args.inputs.bias = bias.view(), args.q_start = start.view();
    args.probe = {.entropy = entropy.view(),
                  .top_weight = top.view(),
                  .second_moment = square.view(),
                  .mean_distance = distance.view(),
                  .sink_mass = mass.view(),
                  .top_position = position.view(),
                  .top_keys = keys.view(),
                  .top_weights = weights.view(),
                  .class_of = class_of.view(),
                  .class_mass = class_mass.view(),
                  .column_sums = columns.view(),
                  .picks = picks.view(),
                  .picked_weights = picked.view()};
    class_of.values<std::int32_t>()[1] = 1,
    class_of.values<std::int32_t>()[3] = 7;  // 7 is no class: counted nowhere
    picks.values<std::int64_t>()[2] = 1;     // rows (0, 0, 1) and (0, 0, 0)
  }
  void run() { attention(args, ctx, spec); }
};

TEST(RefProbes, WorkedNumbers) {
  Probed p({0.5, 0.25, 0.125, 0.125}, {0.25, 0.25, 0.25, 0.25});
  p.run();
  EXPECT_NEAR(p.entropy.values<double>()[0], 1.75 * std::log(2.0), 1e-15);
  EXPECT_NEAR(p.entropy.values<double>()[1], std::log(4.0), 1e-15);
  EXPECT_NEAR(p.top.values<double>()[0], 0.5, 1e-15);
  EXPECT_EQ(p.position.values<std::int64_t>()[0], 0);
  EXPECT_EQ(p.position.values<std::int64_t>()[1], 0) << "ties go to the lowest key";
  EXPECT_NEAR(p.square.values<double>()[0], 0.25 + 0.0625 + 2 * 0.015625, 1e-15);
  EXPECT_NEAR(p.distance.values<double>()[0], 0.5 * 2 + 0.25 * 1 + 0.125 * 1, 1e-15);
  EXPECT_NEAR(p.distance.values<double>()[1], 0.25 * (3 + 2 + 1), 1e-15);
  EXPECT_EQ(p.mass.values<double>()[0], 0);
  const std::vector<Index> want_keys = {0, 1, 2, 0, 1, 2};
  for (std::size_t n = 0; n < 6; ++n) EXPECT_EQ(p.keys.values<std::int64_t>()[n], want_keys[n]) << n;
  EXPECT_NEAR(p.weights.values<double>()[2], 0.125, 1e-15);
  EXPECT_NEAR(p.class_mass.values<double>()[0], 0.625, 1e-15);
  EXPECT_NEAR(p.class_mass.values<double>()[1], 0.25, 1e-15);
  EXPECT_NEAR(p.columns.values<double>()[0], 0.75, 1e-15);
  EXPECT_NEAR(p.columns.values<double>()[3], 0.375, 1e-15);
  EXPECT_NEAR(p.picked.values<double>()[0], 0.25, 1e-15);
  EXPECT_NEAR(p.picked.values<double>()[4], 0.5, 1e-15);
}

TEST(RefProbes, SinkIsOneOutcomeAndNothingIsRenormalized) {
  Probed p({0.5, 0.5, 0, 0}, {1, 1, 1, 1});
  p.args.inputs.sinks = p.sink.view();  // logit 0: as much as both keys of the first row together
  p.run();
  EXPECT_NEAR(p.mass.values<double>()[0], 0.5, 1e-15);
  EXPECT_NEAR(p.entropy.values<double>()[0], 0.5 * std::log(2.0) + 0.5 * std::log(4.0), 1e-15);
  EXPECT_NEAR(p.top.values<double>()[0], 0.25, 1e-15);
  EXPECT_NEAR(p.distance.values<double>()[0], 0.25 * (2 + 1), 1e-15);
  EXPECT_EQ(p.keys.values<std::int64_t>()[2], -1) << "a logit of -inf is no open key";
  EXPECT_EQ(p.weights.values<double>()[2], 0);
}

TEST(RefProbes, RowStatisticsThatAreNotGivenAreLeftOut) {
  Probed all({0.5, 0.25, 0.125, 0.125}, {0.25, 0.5, 0.125, 0.125});
  all.run();
  const auto views = {&ProbeOut::entropy,       &ProbeOut::top_weight, &ProbeOut::second_moment,
                      &ProbeOut::mean_distance, &ProbeOut::sink_mass,  &ProbeOut::top_position};
  for (const auto one : views)
    for (const auto other : views) {
      Probed some({0.5, 0.25, 0.125, 0.125}, {0.25, 0.5, 0.125, 0.125});
      some.spec = {.rows = true};
      ProbeOut given;
      given.*one = some.args.probe.*one, given.*other = some.args.probe.*other;
      some.args.probe = given;
      some.run();
      for (const auto view : {one, other}) EXPECT_TRUE(same_bits(given.*view, all.args.probe.*view));
    }
}

TEST(RefProbes, EmptyRows) {
  for (const bool with_sink : {false, true}) {
    Probed p({1, 1, 1, 1}, {1, 1, 1, 1});
    const MaskView none = MaskView::prefix(0);
    p.args.mask = {&none, 1};
    if (with_sink) p.args.inputs.sinks = p.sink.view();
    for (Tensor* t : {&p.entropy, &p.top, &p.square, &p.distance, &p.mass, &p.position, &p.keys, &p.weights,
                      &p.class_mass, &p.columns, &p.picked})
      poison(*t);
    p.run();
    for (const Tensor* t :
         {&p.entropy, &p.top, &p.square, &p.distance, &p.weights, &p.class_mass, &p.columns, &p.picked})
      for (double x : t->values<double>()) EXPECT_EQ(x, 0);
    for (double x : p.mass.values<double>()) EXPECT_EQ(x, with_sink ? 1 : 0);
    for (Index n : p.position.values<std::int64_t>()) EXPECT_EQ(n, -1);
    for (Index n : p.keys.values<std::int64_t>()) EXPECT_EQ(n, -1);
  }
}

TEST(RefProbes, DropoutAndGateDoNotReachProbes) {
  Probed plain({0.5, 0.25, 0.125, 0.125}, {1, 2, 3, 4}), dropped({0.5, 0.25, 0.125, 0.125}, {1, 2, 3, 4});
  Tensor gate(DType::f64, {1, 2, 1});
  dropped.args.inputs.dropout = 0.75;
  dropped.args.inputs.gate = gate.view();
  plain.run();
  dropped.run();
  EXPECT_TRUE(same_bits(plain.entropy, dropped.entropy));
  EXPECT_TRUE(same_bits(plain.weights, dropped.weights));
  EXPECT_TRUE(same_bits(plain.columns, dropped.columns));
}

TEST(RefProbes, ScoreStages) {
  CaseRun r(
      {.name = "stages", .q_tokens = 2, .kv_tokens = 3, .head_dim = 1, .value_dim = 1, .dtype = DType::f64});
  const double logits[] = {1, 2, -1};
  for (std::size_t n = 0; n < 2; ++n) r.q.values<double>()[n] = 1;
  for (std::size_t n = 0; n < 3; ++n) r.k.values<double>()[n] = logits[n];
  Tensor bias(DType::f64, {1, 1, 1, 1}), scores(DType::f64, {1, 1, 2, 3}), scale(DType::f64, {1});
  bias.values<double>()[0] = 0.5, scale.values<double>()[0] = 2;
  const MaskView causal = MaskView::causal();
  r.args.mask = {&causal, 1};
  r.args.inputs.scale = scale.view(), r.args.inputs.bias = bias.view(), r.args.inputs.softcap = 3;
  r.args.probe.scores = scores.view();
  Context ctx({.threads = 1, .kernels = "ref"});
  const auto stage = [&](ScoreStage s) {
    poison(scores);
    attention(r.args, ctx, {.scores = s});
    return scores.values<double>();
  };
  const double capped[] = {3 * std::tanh(2.0 / 3), 3 * std::tanh(4.0 / 3)};
  EXPECT_EQ(stage(ScoreStage::scaled)[0], 2);
  EXPECT_EQ(stage(ScoreStage::scaled)[1], -kInf);
  EXPECT_EQ(stage(ScoreStage::scaled)[4], 4);
  EXPECT_NEAR(stage(ScoreStage::softcapped)[4], capped[1], 1e-15);
  EXPECT_NEAR(stage(ScoreStage::biased)[3], capped[0] + 0.5, 1e-15);
  EXPECT_NEAR(stage(ScoreStage::weights)[4], 1 / (1 + std::exp(capped[0] - capped[1])), 1e-15);
  EXPECT_EQ(stage(ScoreStage::weights)[5], 0);
}

TEST(RefProbes, RaggedPlaces) {
  CaseRun r(
      {.name = "ragged", .q_tokens = 3, .kv_tokens = 5, .heads = 2, .kv_heads = 2, .dtype = DType::f64});
  Tensor qo = tensor_of(std::vector<Index>{0, 1, 3}), ko = tensor_of(std::vector<Index>{0, 3, 5});
  Tensor columns(DType::f64, {1, 2, 5}), scores(DType::f64, {2, 2, 2, 3}), picks(DType::i64, {1, 3}),
      picked(DType::f64, {1, 3});
  r.args.q_offsets = qo.view(), r.args.kv_offsets = ko.view();
  r.args.probe.column_sums = columns.view(), r.args.probe.scores = scores.view();
  r.args.probe.picks = picks.view(), r.args.probe.picked_weights = picked.view();
  picks.values<std::int64_t>()[0] = 1, picks.values<std::int64_t>()[1] = 1,
  picks.values<std::int64_t>()[2] = 1;
  for (Tensor* t : {&columns, &scores, &picked}) poison(*t);
  Context ctx({.threads = 2, .kernels = "ref"});
  attention(r.args, ctx, {.columns = true, .picked = 1, .scores = ScoreStage::weights});
  const auto w = scores.values<double>();
  const auto at = [&](std::size_t b, std::size_t h, std::size_t i, std::size_t j) {
    return w[((b * 2 + h) * 2 + i) * 3 + j];
  };
  EXPECT_NEAR(at(0, 0, 0, 0) + at(0, 0, 0, 1) + at(0, 0, 0, 2), 1, 1e-15);
  EXPECT_EQ(at(0, 0, 1, 0), 0) << "sequence 0 has one query";
  EXPECT_EQ(at(1, 0, 0, 2), 0) << "sequence 1 has two keys";
  for (std::size_t h = 0; h < 2; ++h) {
    EXPECT_EQ(columns.values<double>()[h * 5 + 2], at(0, h, 0, 2));
    EXPECT_NEAR(columns.values<double>()[h * 5 + 4], at(1, h, 0, 1) + at(1, h, 1, 1), 1e-15);
  }
  EXPECT_EQ(picked.values<double>()[0], at(1, 1, 1, 0));
  EXPECT_EQ(picked.values<double>()[2], 0);
}

}  // namespace
}  // namespace headwise::test
