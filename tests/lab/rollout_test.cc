// Rollout and flow: the worked example of two layers, layers that change nothing, and a flow by hand.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/depth/rollout.h"

#include "tests/intent/support.h"

namespace headwise {
namespace {

TEST(Rollout, TwoLayersByHand) {
  const float first[] = {1, 0, 0.5f, 0.5f}, second[] = {0.2f, 0.8f, 0, 1};
  const std::vector<SmallMatrix> layers = {with_residual(first, 1, 2), with_residual(second, 1, 2)};
  const SmallMatrix all = rolled_out(layers);
  const double wanted[] = {0.7, 0.3, 0.25, 0.75};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(all.values[i], wanted[i], 1e-7);
  const std::vector<double> flow = flow_from(layers, 0);  // 0.85 and 0.40 before their sum becomes 1
  EXPECT_NEAR(flow[0], 0.68, 1e-7);
  EXPECT_NEAR(flow[1], 0.32, 1e-7);
  // Through one layer both are its row.
  const std::vector<double> one = flow_from({layers[0]}, 1);
  EXPECT_NEAR(one[0], 0.25, 1e-12);
  EXPECT_NEAR(one[1], 0.75, 1e-12);
}

TEST(Rollout, IdentityStaysAndHeadsAreAveraged) {
  const float same[] = {1, 0, 0, 1}, swapped[] = {0, 1, 1, 0};
  const SmallMatrix identity = with_residual(same, 1, 2);
  EXPECT_EQ(rolled_out({identity, identity, identity}).values, (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(flow_from({identity, identity}, 1), (std::vector<double>{0, 1}));
  const float both[] = {1, 0, 0, 1, 0, 1, 1, 0};
  EXPECT_EQ(with_residual(both, 2, 2).values, (std::vector<double>{0.75, 0.25, 0.25, 0.75}));
  EXPECT_EQ(with_residual(swapped, 1, 2).values, (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
}

TEST(Rollout, FlowIsBoundByEveryEdge) {
  SmallMatrix top(2, 2), bottom(2, 2);
  top.at(0, 0) = 1, top.at(0, 1) = 1, bottom.at(0, 0) = 0.25, bottom.at(1, 0) = 0.5;
  const std::vector<double> flow = flow_from({bottom, top}, 0);
  EXPECT_NEAR(flow[0], 1, 1e-12);  // 0.75 to token 0, nothing to token 1
  EXPECT_EQ(flow[1], 0);
  EXPECT_SAYS(flow_from({bottom, top}, 2), "outside a text of 2 tokens");
}

}  // namespace
}  // namespace headwise
