// Cutting heads: the smaller model answers as the whole one does with these gates at 0; plans; rankings.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/cut/cut.h"

#include <cmath>
#include <filesystem>

#include "headwise/lab/cut/answers.h"
#include "headwise/lab/model/attention_cut.h"
#include "headwise/model/hf_bert.h"
#include "tests/lab/tiny_recognizer.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

using namespace test;
namespace fs = std::filesystem;

HeadPlan plan_of(const std::vector<Index>& heads, std::initializer_list<HeadName> cut) {
  HeadPlan plan(heads);
  for (const HeadName& h : cut) plan.take_out(h);
  return plan;
}

double difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j)
      most = std::max(most, std::abs(static_cast<double>(a[i][j]) - static_cast<double>(b[i][j])));
  return most;
}

/// The cut model, saved and loaded, against the whole one with gates at 0; and against the whole one, from
/// which it must differ.
/// `gone`: a layer of which no head stays, -1: none.
void expect_cut_as_gated(const std::string& heads, std::initializer_list<HeadName> cut,
                         Positions positions = Positions::learned, Index gone = -1) {
  SCOPED_TRACE(heads);
  Folder folder;
  lab_recognizer(heads, positions).save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  const HeadPlan plan = plan_of(whole.heads("test"), cut);
  const EditedModel edited = cut_heads(whole, plan);
  whole.save(edited, folder.at("small"), "test");
  const LabModel small(folder.at("small"));
  EXPECT_LT(small.params().count(), whole.params().count());
  EXPECT_EQ(small.params().count(), whole.count_after(edited));
  for (Index i = 0; i < small.layers(); ++i)
    EXPECT_EQ(small.heads("test")[static_cast<std::size_t>(i)], i == gone ? 1 : plan.left(i));
  Session session({.threads = 1});
  HeadTrial large(whole, lab_corpus(), 10, session), less(small, lab_corpus(), 10, session);
  Tensor gates = LabModel::gates_of(plan);
  EXPECT_LT(difference(large.answers(gates.view()), less.answers()), 2e-6);
  EXPECT_GT(difference(large.answers(), less.answers()), 1e-4);
  EXPECT_NEAR(large.loss_without(plan), less.loss(), 1e-5);
}

TEST(Cut, EveryKindThatCanBeCutAnswersAsWithGatesAtZero) {
  const std::initializer_list<HeadName> some = {{0, 1}, {1, 0}, {1, 3}};
  for (const char* heads : {"mha:heads=4,dim=3",
                            "gqa:heads=4,kv_heads=2,dim=3",
                            "gqa:heads=4,kv_heads=1,dim=3",
                            "mha:heads=4,dim=3+gated:source=input,act=silu",
                            "gated:heads=4,dim=3,grain=head",
                            "gated:heads=4,kv_heads=2,dim=3,bias=true",
                            "entmax:heads=4,dim=3,learned=true",
                            "entmax:heads=4,kv_heads=2,dim=3",
                            "knocking:heads=4,dim=3",
                            "knocking:heads=4,kv_heads=2,dim=3,values=mlp",
                            "differential:heads=4,dim=3",
                            "differential:heads=4,kv_heads=2,dim=3",
                            "differential:heads=4,kv_heads=1,dim=3",
                            "differential:heads=4,dim=3+entmax:learned=true",
                            "collaborative:heads=4,dim=3,shared=7",
                            "talking:heads=4,dim=3",
                            "talking:heads=3,key_heads=2,value_heads=4,dim=3",
                            "gqa:heads=4,kv_heads=2,dim=3+gated:source=input,grain=head",
                            "mha:heads=4,dim=3,value_dim=5",
                            "gqa:heads=4,kv_heads=2,dim=3,value_dim=2"})
    expect_cut_as_gated(heads, some);
  expect_cut_as_gated("gqa:heads=4,kv_heads=2,dim=4", {{0, 2}, {0, 3}}, Positions::rope);
}

TEST(Cut, UnequalGroupsRepeatAKeyHead) {
  Folder folder;
  lab_recognizer("gqa:heads=6,kv_heads=2,dim=2").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  const EditedModel edited = cut_heads(whole, plan_of({6, 6}, {{0, 5}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(edited.heads, "gqa:heads=5,kv_heads=5,dim=2; gqa:heads=3,kv_heads=1,dim=2");
}

TEST(Cut, KindsWhoseHeadsHangTogetherAreRefused) {
  for (const auto& [heads, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {"dcmha:heads=4,dim=3", "every pair of tokens mixes"},
           {"moh:heads=4,shared=2,k=1,dim=3", "routers share one softmax"},
           {"reach:heads=4,dim=3", "how far a head sees goes by its number"},
           {"segment:heads=4,dim=3", "which heads stop goes by their number"},
           {"mha:heads=4,dim=3+reach", "how far a head sees goes by its number"},
           {"overlapped:heads=4,dim=3", "columns of its neighbours"}}) {
    Folder folder;
    lab_recognizer(heads).save(folder.at("whole"));
    const LabModel whole(folder.at("whole"));
    EXPECT_SAYS(cut_heads(whole, plan_of({4, 4}, {{0, 1}})), words);
  }
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3", Positions::alibi).save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  EXPECT_SAYS(cut_heads(whole, plan_of({4, 4}, {{0, 1}})), "alibi");
  lab_recognizer("gated:heads=4,dim=3,source=heads").save(folder.at("joined"));
  const LabModel joined(folder.at("joined"));
  EXPECT_SAYS(joined.heads("test"), "none stands alone");
}

TEST(Cut, ACutModelIsCutAgainAndTheSourceStays) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("whole"));
  const std::string before = content_of(folder.at("whole") + "/model.safetensors");
  const LabModel whole(folder.at("whole"));
  whole.save(cut_heads(whole, plan_of({4, 4}, {{0, 1}, {1, 2}, {1, 3}})), folder.at("once"), "test");
  const LabModel once(folder.at("once"));
  EXPECT_EQ(once.recognizer().config().encoder.heads, "mha:heads=3,dim=3; mha:heads=2,dim=3");
  once.save(cut_heads(once, plan_of({3, 2}, {{0, 0}, {1, 0}})), folder.at("twice"), "test");
  const LabModel twice(folder.at("twice"));
  Session session({.threads = 1});
  HeadTrial large(whole, lab_corpus(), 10, session), less(twice, lab_corpus(), 10, session);
  const HeadPlan both = plan_of({4, 4}, {{0, 0}, {0, 1}, {1, 0}, {1, 2}, {1, 3}});
  EXPECT_NEAR(large.loss_without(both), less.loss(), 1e-5);
  EXPECT_SAYS(whole.save(cut_heads(whole, plan_of({4, 4}, {{0, 1}})), folder.at("whole"), "test"),
              "never changed");
  EXPECT_EQ(content_of(folder.at("whole") + "/model.safetensors"), before);
}

TEST(Cut, AnEncoderIsCutWithPrunedHeadsInItsConfig) {
  const TinyBert bert;
  const LabModel whole(bert.folder.path());
  Folder folder;
  const HeadPlan plan = plan_of({2, 2}, {{1, 0}});
  whole.save(cut_heads(whole, plan), folder.at("small"), "test");
  const std::string config = content_of(folder.at("small") + "/config.json");
  EXPECT_NE(config.find("\"pruned_heads\": {\"1\": [0]}"), std::string::npos) << config;
  const LabModel small(folder.at("small"));
  EXPECT_EQ(small.transformer().config().heads, "mha:heads=2,dim=4; mha:heads=1,dim=4");
  Session session({.threads = 1});
  const Corpus texts{.name = "t", .rows = {{"my card is lost", {}, {}, 0}, {"pay ?", {}, {}, 0}}};
  HeadTrial large(whole, texts, 10, session), less(small, texts, 10, session);
  EXPECT_LT(difference(large.answers(LabModel::gates_of(plan).view()), less.answers()), 2e-6);
  EXPECT_EQ(large.loss(), 0);
  EXPECT_GT(large.loss_without(plan), 1e-6);
}

TEST(Cut, AWholeLayerGoesAndItsResidualPathStays) {
  for (const char* heads :
       {"mha:heads=4,dim=3", "gqa:heads=4,kv_heads=2,dim=3,value_dim=5", "talking:heads=4,dim=3",
        "mha:heads=4,dim=3+gated:source=input,act=silu", "dcmha:heads=4,dim=3"})
    expect_cut_as_gated(heads, {{1, 0}, {1, 1}, {1, 2}, {1, 3}}, Positions::learned, 1);
  expect_cut_as_gated("mha:heads=4,dim=4", {{0, 0}, {0, 1}, {0, 2}, {0, 3}}, Positions::rope, 0);
  const TinyBert bert;
  const LabModel whole(bert.folder.path());
  Folder folder;
  const HeadPlan plan = plan_of({2, 2}, {{0, 0}, {0, 1}});
  whole.save(cut_heads(whole, plan), folder.at("small"), "test");
  const LabModel small(folder.at("small"));
  EXPECT_EQ(small.transformer().config().heads, "mha:heads=1,dim=1; mha:heads=2,dim=4");
  Session session({.threads = 1});
  const Corpus texts{.name = "t", .rows = {{"my card is lost", {}, {}, 0}}};
  HeadTrial large(whole, texts, 10, session), less(small, texts, 10, session);
  EXPECT_LT(difference(large.answers(LabModel::gates_of(plan).view()), less.answers()), 2e-6);
  HeadTrial trial(whole, texts, 10, session);
  EXPECT_EQ(rank_heads(trial, {.rank = HeadRank::off, .least_in_layer = 0}, 10).size(), 3u);
}

TEST(Cut, PlansOfOtherModelsAreRefused) {
  const std::vector<Index> heads = {4, 3};
  const HeadPlan plan = plan_of(heads, {{0, 1}, {0, 3}, {1, 2}});
  EXPECT_EQ(plan_text(parse_plan(plan_text(plan), "p", heads)), plan_text(plan));
  EXPECT_EQ(plan.left(), 4);
  EXPECT_SAYS(parse_plan(R"({"heads": [4, 4], "cut": {}})", "p", heads), "make a plan for this model");
  EXPECT_SAYS(parse_plan(R"({"heads": [4, 3], "cut": {"1": [3]}})", "p", heads), "name heads 0 to 2");
  EXPECT_SAYS(parse_plan(R"({"heads": [4, 3], "cut": {"2": [0]}})", "p", heads), "no layer");
  EXPECT_SAYS(parse_plan(R"({"heads": [4, 3], "cut": {"0": [0, 1, 2, 3], "1": [0, 1, 2]}})", "p", heads),
              "no layer would keep a head");
  EXPECT_SAYS(parse_plan(R"({"heads": [4, 3], "cut": {"0": [1, 1]}})", "p", heads), "each once");
}

/// Michel's score is the slope of the loss in a gate: held against a difference quotient, sum by sum.
TEST(Cut, MichelsScoreIsTheSlopeOfTheLoss) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  Session session({.threads = 1});
  Corpus one = lab_corpus();
  one.rows.resize(1);
  HeadTrial trial(whole, one, 10, session);
  const auto score = trial.michel(MichelSum::text, false), batch = trial.michel(MichelSum::batch, false),
             token = trial.michel(MichelSum::token, false), unit = trial.michel(MichelSum::text, true);
  double length = 0;
  for (Index h = 0; h < 4; ++h) {
    const auto at = static_cast<std::size_t>(h);
    const auto loss_at = [&](float gate) {
      Tensor gates = LabModel::gates_of(HeadPlan(trial.heads()));
      gates.values<float>()[4 + at] = gate;
      return trial.loss(gates.view());
    };
    EXPECT_NEAR(score[1][at], std::abs(loss_at(1.01f) - loss_at(0.99f)) / 0.02, 2e-3);
    EXPECT_EQ(score[1][at], batch[1][at]);  // of one text the batch is the text
    EXPECT_GE(token[1][at], score[1][at]);
    length += unit[1][at] * unit[1][at];
  }
  EXPECT_NEAR(length, 1, 1e-9);
}

TEST(Cut, RankingsKeepAHeadInEveryLayerAndGreedyIsNoWorse) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  Session session({.threads = 1});
  HeadTrial trial(whole, lab_corpus(), 10, session);
  for (const HeadRank rank : {HeadRank::michel, HeadRank::off, HeadRank::greedy}) {
    const std::vector<HeadName> order = rank_heads(trial, {.rank = rank}, 100);
    EXPECT_EQ(order.size(), 6u);
    const ChosenCut cut = choose_cut(trial, order, 2, 0);
    EXPECT_EQ(cut.plan.left(), 2);
    EXPECT_EQ(cut.curve.size(), 7u);
    EXPECT_EQ(cut.loss_after, trial.loss_without(cut.plan));
  }
  // The first head that greedy takes out is the one without which the loss is least.
  const HeadName first = rank_heads(trial, {.rank = HeadRank::greedy}, 1)[0];
  for (Index layer = 0; layer < 2; ++layer)
    for (Index h = 0; h < 4; ++h)
      EXPECT_LE(trial.loss_without(plan_of({4, 4}, {first})),
                trial.loss_without(plan_of({4, 4}, {{layer, h}})));
  const ChosenCut none = choose_cut(trial, rank_heads(trial, {.rank = HeadRank::off}, 100), 0, 0);
  EXPECT_LE(none.loss_after, none.loss_before * (1 + 1e-12));
  EXPECT_SAYS(choose_cut(trial, rank_heads(trial, {}, 100), 1, 0), "can keep 2 to 8");
}

/// A pair of a differential head goes from both of its maps; heads that mix their scores have no pair alone.
TEST(Cut, PairsOfDifferentialHeadsGoFromBothMaps) {
  Folder folder;
  lab_recognizer("differential:heads=2,dim=3").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  Session session({.threads = 1});
  const Encoding read = whole.tokenizer().encode(lab_texts()[0], {.around = true});
  const auto n = static_cast<Index>(read.ids.size());
  const HeadPair gone = {{0, 1}, AttentionPart::own, 2, 3};
  const Tensor bias = knocked_out(whole, std::span(&gone, 1), n);
  const auto taps_with = [&](const InputView& score_bias) {
    session.memory.reset();
    Taps taps;
    Call call{.ctx = session.ctx, .memory = session.memory};
    call.taps = &taps, call.score_bias = score_bias;
    TextBatch batch;
    whole.recognizer().add_to(batch, read);
    whole.recognizer().forward(batch, call, nullptr);
    return taps.all[0];
  };
  const Tap before = taps_with({}), after = taps_with(bias.view());
  ASSERT_EQ(before.heads, 4);
  for (Index map = 0; map < 4; ++map)
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < n; ++j) {
        const bool row = map >= 2 && i == 2;
        const double left = row ? 1 - static_cast<double>(before.at(map, i, 3)) : 1;
        EXPECT_NEAR(after.at(map, i, j), row && j == 3 ? 0 : before.at(map, i, j) / left, 1e-6);
      }
  EXPECT_NE(answers_with(whole, std::span(lab_texts()).first(1), {{}, {}, {gone}}, session),
            answers_with(whole, std::span(lab_texts()).first(1), {}, session));
  lab_recognizer("talking:heads=4,dim=3").save(folder.at("mixed"));
  EXPECT_SAYS(knocked_out(LabModel(folder.at("mixed")), std::span(&gone, 1), n), "share scores");
}

TEST(Cut, InterventionsChangeOneHeadAlone) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  Session session({.threads = 1});
  HeadTrial trial(whole, lab_corpus(), 10, session);
  const auto loss = [&](Intervention v) {
    v.head = {1, 2};
    const std::vector<Intervention> all = {v};
    const HeadEdit edit = edit_of(whole, all);
    return trial.loss({}, &edit);
  };
  const double as_it_is = trial.loss();
  EXPECT_EQ(loss({.kind = Intervention::Kind::off}), trial.loss_without(plan_of({4, 4}, {{1, 2}})));
  EXPECT_EQ(loss({.kind = Intervention::Kind::scaled, .factor = 1}), as_it_is);
  EXPECT_NE(loss({.kind = Intervention::Kind::scaled, .factor = 0.5}), as_it_is);
  const auto noised = [&](std::uint64_t seed) {
    return loss({.kind = Intervention::Kind::noised, .factor = 1, .seed = seed});
  };
  EXPECT_EQ(noised(1), noised(1));
  EXPECT_NE(noised(1), noised(2));
  EXPECT_NE(loss({.kind = Intervention::Kind::mean}), as_it_is);
  // Patched with its own rows a head stays what it is.
  std::vector<float> rows;
  const HeadEdit look = [&](Index block, const InputView& y) {
    for (Index r = 0; block == 1 && r < y.size[0]; ++r)
      for (Index i = 0; i < 3; ++i)
        rows.push_back(static_cast<float>(load_double(y.data, y.dtype, r * y.size[1] + 6 + i)));
  };
  trial.loss({}, &look);
  EXPECT_EQ(loss({.kind = Intervention::Kind::patched, .rows = rows.data()}), as_it_is);
  const std::vector<Intervention> wrong = {{.head = {1, 4}}};
  EXPECT_SAYS(edit_of(whole, wrong), "it has 4 heads");
}

}  // namespace
}  // namespace headwise
