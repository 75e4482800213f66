// What heads cost, where it can be counted by hand.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "headwise/heads/cost.h"

namespace headwise::test {
namespace {

HeadCost cost(std::string_view head) {
  constexpr Place kPlace{2, 4, 64};
  ParamSet params;
  const AnyHead made = make_head(head, params, kPlace);
  return cost_of(made, params, {.batch = 1, .q_tokens = 10, .kv_tokens = 20}, kPlace);
}

TEST(HeadCost, IsWhatTheFormulasSay) {
  const HeadCost mha = cost("mha:heads=8");
  EXPECT_EQ(mha.parameters, 4 * 64 * 64);
  EXPECT_EQ(mha.attention_flops, 2.0 * 10 * 20 * (8 + 8) * 8);
  EXPECT_EQ(mha.own_flops, 0);
  EXPECT_EQ(mha.cache_bytes, 2 * 64 * 4);
  const HeadCost gqa = cost("gqa:heads=8,kv_heads=2");
  EXPECT_EQ(gqa.parameters, 2 * 64 * 64 + 2 * 16 * 64);
  EXPECT_EQ(gqa.cache_bytes, 2 * 16 * 4);
  const HeadCost gated = cost("gqa:heads=8,kv_heads=2+gated");
  EXPECT_EQ(gated.parameters, gqa.parameters + 64 * 64);
  EXPECT_EQ(gated.own_flops, 2.0 * 10 * 64 * 64);
  EXPECT_EQ(cost("gated:heads=8,source=heads").parameters, 3 * 64 * 64 + 2 * 64 * 64);
  EXPECT_EQ(cost("overlapped:heads=8").attention_flops, 2.0 * 10 * 20 * (12 + 12) * 8);  // rim 2 at layer 2
  EXPECT_EQ(cost("knocking:heads=8").own_flops, 2.0 * (10 + 20 + 20) * 8 * 8 * 8);
  const HeadCost shared = cost("collaborative:heads=8,shared=20");
  EXPECT_EQ(shared.cache_bytes, (20 + 64) * 4);
  EXPECT_EQ(shared.attention_flops, 2.0 * 10 * 20 * (20 + 8) * 8);
}

}  // namespace
}  // namespace headwise::test
