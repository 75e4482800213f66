// PlanShelf: plans made once and found again by their problem, so that a step of many layers plans nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/ops/attention/backward.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Belongs to one caller at a time, like the Context whose threads and kernels its plans are for.
class PlanShelf {
 public:
  const AttentionPlan& forward(const AttentionProblem& problem, const Context& ctx) {
    return found(forward_, problem, ctx);
  }
  const BackwardPlan& backward(const BackwardProblem& problem, const Context& ctx) {
    return found(backward_, problem, ctx);
  }

 private:
  /// Shapes may differ from step to step without end: a full shelf is emptied.
  static constexpr std::size_t kMost = 64;

  template <class Plan, class Problem>
  const Plan& found(std::vector<Plan>& plans, const Problem& problem, const Context& ctx) {
    if (threads_ != ctx.threads() || kernels_ != ctx.kernels())
      forward_.clear(), backward_.clear(), threads_ = ctx.threads(), kernels_ = ctx.kernels();
    for (const Plan& plan : plans)
      if (plan.problem() == problem) return plan;
    if (plans.size() == kMost) plans.clear();
    return plans.emplace_back(problem, ctx);
  }
  int threads_ = 0;
  std::string kernels_;
  std::vector<AttentionPlan> forward_;
  std::vector<BackwardPlan> backward_;
};

}  // namespace headwise
#pragma GCC visibility pop
