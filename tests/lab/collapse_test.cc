// Rank collapse: its norm by hand, parts left out of blocks, and rows that become one without residual paths.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/depth/collapse.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "headwise/lab/survey/head_survey.h"
#include "tests/lab/tiny_recognizer.h"

namespace headwise {
namespace {

using namespace test;

TEST(Collapse, SpreadByHand) {
  float rows[] = {1, 2, 3, 4};
  // The mean is (2, 3): what is left are ones. |rest| = sqrt(2 * 2), |X| = sqrt(6 * 7).
  EXPECT_NEAR(spread_of(AnyView::packed(rows, DType::f32, {2, 2})), 2 / std::sqrt(42.0), 1e-12);
  float same[] = {1, 2, 1, 2};
  EXPECT_EQ(spread_of(AnyView::packed(same, DType::f32, {2, 2})), 0);
  rows[1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(spread_of(AnyView::packed(rows, DType::f32, {2, 2}))));
}

/// Rows behind the last block of a text.
std::vector<float> last_rows(const LabModel& model, Session& session, BlockParts parts) {
  std::vector<float> all;
  const Encoding text = model.tokenizer().encode(lab_texts()[4], {.around = true});
  Index seen = 0;
  model.run_parts(text, session, parts, [&](Index behind, const AnyView& rows) {
    EXPECT_EQ(behind, seen++);
    const auto* x = static_cast<const float*>(rows.data);
    all.assign(x, x + rows.count());
  });
  EXPECT_EQ(seen, model.layers() + 1);
  return all;
}

TEST(Collapse, EveryPartThatIsLeftOutIsSeen) {
  const LabModel model(lab_recognizer("mha:heads=4,dim=3"));
  Session session({.threads = 1});
  const std::vector<float> whole = last_rows(model, session, {});
  for (const BlockParts parts :
       {BlockParts{.residual = false}, BlockParts{.feed = false}, BlockParts{.norms = false}}) {
    const std::vector<float> other = last_rows(model, session, parts);
    ASSERT_EQ(other.size(), whole.size());
    EXPECT_NE(0, std::memcmp(other.data(), whole.data(), whole.size() * sizeof(float)));
  }
  // A forward with all parts has its bits also behind one without.
  EXPECT_EQ(0, std::memcmp(last_rows(model, session, {}).data(), whole.data(), whole.size() * sizeof(float)));
}

TEST(Collapse, BlocksWithoutPartsRefuseToSave) {
  ParamSet params;
  const Block block(params, "b", {.heads = "mha:heads=2,dim=4", .model_dim = 8, .feed_dim = 8});
  Session session({.threads = 1});
  Tensor x(DType::f32, {3, 8});
  Call call{.ctx = session.ctx, .memory = session.memory, .sequences = {.batch = 1, .tokens = 3}};
  call.parts.feed = false;
  Block::Saved saved;
  EXPECT_SAYS(block.forward(x.view(), call, &saved), "parts are left out");
}

TEST(Collapse, SurveyHasEveryWayAndNoneWhereNoTextWasAskedFor) {
  Folder folder;
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("m"));
  const HeadSurvey s = survey_model(folder.at("m"), lab_texts(), 1, {.apart = 0});
  for (const CollapseWay& way : kCollapseWays)
    for (const FigureValue& v : s.depth[depth_figure_at(way.figure)]) {
      EXPECT_GT(v.value, 0) << way.figure;
      EXPECT_LT(v.value, 2) << way.figure;
      EXPECT_GT(v.shuffled, 0) << way.figure;
    }
  EXPECT_NE(survey_page(s, "m", "texts").find("Rank collapse"), std::string::npos);
  const HeadSurvey none = survey_model(folder.at("m"), lab_texts(), 1, {.apart = 0, .collapse = 0});
  EXPECT_NE(survey_json(none).find("\"spread_whole\": [[null, 0, null, 0]"), std::string::npos);
  EXPECT_EQ(survey_page(none, "m", "texts").find("Rank collapse"), std::string::npos);
}

}  // namespace
}  // namespace headwise
