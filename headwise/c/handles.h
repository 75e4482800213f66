// What the opaque C handles hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "headwise/base/context.h"
#include "headwise/c/headwise.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/explain/roofline.h"

struct hw_context {
  explicit hw_context(headwise::Context c) : context(std::move(c)) {}
  headwise::Context context;
  std::atomic<bool> busy{false};
};

/// Holds a context for one call: a second thread is told, and changes nothing.
class ContextUse {
 public:
  ContextUse(hw_context* context, const char* entry) : context_(*context) {
    headwise::require(!context_.busy.exchange(true), headwise::ErrorKind::bad_argument, entry,
                      "the context is at work in another thread; give each thread a context of its own");
  }
  ContextUse(const ContextUse&) = delete;
  ContextUse& operator=(const ContextUse&) = delete;
  ~ContextUse() { context_.busy.store(false); }
  headwise::Context& operator*() const { return context_.context; }

 private:
  hw_context& context_;
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
