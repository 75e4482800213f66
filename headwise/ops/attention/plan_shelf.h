// PlanShelf: plans made once and found again by their problem, so that a step of many layers plans nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/ops/attention/backward.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Belongs to one caller at a time, like the Context whose threads and kernels its plans are for.
class PlanShelf {
 public:
  const AttentionPlan& forward(const AttentionProblem& problem, const Context& ctx);
  const BackwardPlan& backward(const BackwardProblem& problem, const Context& ctx);

 private:
  template <class Plan, class Problem>
  const Plan& found(std::vector<Plan>& plans, const Problem& problem, const Context& ctx);
  int threads_ = 0;
  std::string kernels_;
  std::vector<AttentionPlan> forward_;
  std::vector<BackwardPlan> backward_;
};

}  // namespace headwise
#pragma GCC visibility pop
