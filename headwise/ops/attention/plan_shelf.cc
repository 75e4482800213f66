// PlanShelf: where plans are found again, or made.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/attention/plan_shelf.h"

#include "headwise/base/context.h"

namespace headwise {
namespace {

/// Shapes may differ from step to step without end: a full shelf is emptied.
constexpr std::size_t kMost = 64;

}  // namespace

template <class Plan, class Problem>
const Plan& PlanShelf::found(std::vector<Plan>& plans, const Problem& problem, const Context& ctx) {
  if (threads_ != ctx.threads() || kernels_ != ctx.kernels())
    forward_.clear(), backward_.clear(), threads_ = ctx.threads(), kernels_ = ctx.kernels();
  for (const Plan& plan : plans)
    if (plan.problem() == problem) return plan;
  if (plans.size() == kMost) plans.clear();
  return plans.emplace_back(problem, ctx);
}

const AttentionPlan& PlanShelf::forward(const AttentionProblem& problem, const Context& ctx) {
  return found(forward_, problem, ctx);
}
const BackwardPlan& PlanShelf::backward(const BackwardProblem& problem, const Context& ctx) {
  return found(backward_, problem, ctx);
}

}  // namespace headwise
