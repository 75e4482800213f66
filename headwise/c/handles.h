// What the opaque C handles hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <optional>

#include "headwise/base/context.h"
#include "headwise/c/headwise.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention_backward.h"
#include "headwise/ops/roofline.h"

struct hw_context {
  headwise::Context context;
};
struct hw_mask {
  headwise::Mask mask;
};
/// A plan and its explanation's roofline.
template <class Plan>
struct hw_plan_of {
  Plan plan;
  // Measured once: a text asked for twice, its length first, must not change in between.
  mutable std::mutex measuring = {};
  mutable std::optional<headwise::Roofline> roofline = {};
};
struct hw_attention_plan : hw_plan_of<headwise::AttentionPlan> {};
struct hw_backward_plan : hw_plan_of<headwise::BackwardPlan> {};
