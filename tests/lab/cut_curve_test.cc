// The curve of a cut: every state is the model that cut_heads makes, counted, judged and drawn.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/cut/cut_curve.h"

#include <algorithm>
#include <filesystem>

#include "headwise/intent/training/evaluation.h"
#include "tests/lab/tiny_recognizer.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

using namespace test;

TEST(CutCurve, StatesAreTheCutModels) {
  const LabModel whole(lab_recognizer("gqa:heads=4,kv_heads=2,dim=3"));
  Session session({.threads = 1});
  HeadTrial trial(whole, lab_corpus(), 10, session);
  const std::vector<HeadName> order = {{0, 3}, {1, 0}, {0, 2}, {1, 1}};
  const std::vector<CutState> states =
      cut_curve(whole, trial, lab_corpus(), order, {.states = 3, .rounds = 1}, session);
  ASSERT_EQ(states.size(), 3u);
  HeadPlan plan({4, 4});
  for (std::size_t i = 0; i < states.size(); ++i) {
    const CutState& s = states[i];
    for (std::size_t k = i == 0 ? 2 : 2 * i - 2; k < 2 * i; ++k) plan.take_out(order[k]);
    EXPECT_EQ(s.heads, 8 - 2 * static_cast<Index>(i));
    EXPECT_EQ(s.parameters, whole.count_after(cut_heads(whole, plan)));
    EXPECT_EQ(s.loss, trial.loss_without(plan));
    const Recognizer small = whole.edited(cut_heads(whole, plan), "test");
    EXPECT_EQ(s.right, evaluate(small, lab_corpus(), session, {}).exact.value());
    EXPECT_GT(s.seconds, 0);
    EXPECT_GT(s.time, 0);
  }
  // Two key and two value heads of 3 columns in 2 layers, 4 bytes each. Behind (0, 3) and (0, 2) the second
  // of layer 0 goes; behind (1, 0) and (1, 1) the first of layer 1. With one head left of a group of two, and
  // two of the other, groups are uneven and none goes.
  EXPECT_EQ(states[0].kv_bytes, 2 * 2 * 2 * 3 * 4);
  EXPECT_EQ(states[2].kv_bytes, states[0].kv_bytes / 2);
  const std::string csv = curve_csv(states), page = curve_page(states, "small <b>");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  EXPECT_EQ(csv.find("nan"), csv.npos);
  for (const char* part :
       {"right answers", "parameters", "keys and values of a token", "time of a text", "<svg"})
    EXPECT_NE(page.find(part), page.npos) << part;
  EXPECT_EQ(page.find("small <b>"), page.npos);
  EXPECT_SAYS(cut_curve(whole, trial, lab_corpus(), order, {.states = 1}, session), "give 2 states");
}

TEST(CutCurve, AnEncoderHasNoLabelsAndLeavesNothingBehind) {
  const TinyBert bert;
  const LabModel whole(bert.folder.path());
  Session session({.threads = 1});
  const Corpus texts{.name = "t", .rows = {{"my card is lost", {}, {}, 0}, {"pay ?", {}, {}, 0}}};
  HeadTrial trial(whole, texts, 10, session);
  Folder folder;
  const std::vector<CutState> states = cut_curve(
      whole, trial, texts, {{1, 0}}, {.states = 6, .rounds = 1, .scratch = folder.at("way")}, session);
  ASSERT_EQ(states.size(), 2u) << "no more states than heads that go, and the whole model";
  EXPECT_EQ(states[0].loss, 0);
  EXPECT_EQ(states[1].loss, trial.loss_without([] {
    HeadPlan plan({2, 2});
    plan.take_out({1, 0});
    return plan;
  }()));
  EXPECT_LT(states[1].parameters, states[0].parameters);
  EXPECT_EQ(states[1].right, -1);
  EXPECT_NE(curve_svg(states).find("1 - cosine"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.at("way")));
  std::filesystem::create_directory(folder.at("own"));
  const CutCurveOptions taken{.states = 2, .rounds = 1, .scratch = folder.at("own")};
  EXPECT_SAYS(cut_curve(whole, trial, texts, {{1, 0}}, taken, session), "move it away");
  EXPECT_TRUE(std::filesystem::exists(folder.at("own"))) << "what lay there is not ours";
}

}  // namespace
}  // namespace headwise
