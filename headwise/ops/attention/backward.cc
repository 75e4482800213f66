#include "headwise/ops/attention/backward.h"

#include <utility>

#include "headwise/base/context.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/checks/backward.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/attention/run_facts.h"

namespace headwise {
namespace {

Choice<BackwardKernel, BackwardProblem> choice(const BackwardProblem& p) {
  return {kBackwardOp, backward_kernels(), p.forward.device};
}

}  // namespace

BackwardPlan::BackwardPlan(const BackwardProblem& problem, const Context& ctx)
    : BackwardPlan({in_context(problem.forward, ctx, "attention_backward"), problem.wants}, ctx.threads(),
                   ctx.kernels()) {}

BackwardPlan::BackwardPlan(const BackwardProblem& problem, int threads, std::string kernels)
    : problem_(problem), threads_(threads), kernels_(std::move(kernels)) {
  check_backward_problem(problem_);
  kernel_ = &choice(problem_).first(kernels_, problem_);
  workspace_bytes_ = with_room_to_align(kernel_->workspace_bytes(problem_, threads_));
}

std::vector<Refusal> BackwardPlan::refusals() const {
  return choice(problem_).before(kernel_, kernels_, problem_);
}

void BackwardPlan::run(const BackwardArgs& args, Context& ctx) const {
  if (kernel_->start) return start(args, ctx.stream());
  const std::size_t bytes = ctx.threads() == threads_
                                ? workspace_bytes_
                                : with_room_to_align(kernel_->workspace_bytes(problem_, ctx.threads()));
  run(args, ctx.workspace(bytes), ctx.pool());
}

void BackwardPlan::start(const BackwardArgs& args, void* stream) const {
  const BackwardArgs checked = check_backward_args(problem_, args);
  require_planned(kBackwardOp, problem_.forward.run, run_facts(problem_, args));
  require_started(kBackwardOp, problem_.forward.device, kernel_->start(problem_, checked, stream));
}

void BackwardPlan::run(const BackwardArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const {
  refuse_workspace(kBackwardOp, problem_.forward.device);
  const BackwardArgs checked = check_backward_args(problem_, args);
  const bool planned = pool.threads() == threads_;
  const std::size_t needed =
      planned ? workspace_bytes_ : with_room_to_align(kernel_->workspace_bytes(problem_, pool.threads()));
  const std::span<std::byte> memory = aligned_part(kBackwardOp, workspace, needed, planned);
  const Status status = kernel_->run(problem_, checked, memory, pool);
  require(status == Status::ok, ErrorKind::out_of_memory, kBackwardOp, "kernel ", kernel_->name,
          " found no memory for the sums of its gradients; use smaller sizes or fewer gradients at a time");
}

BackwardProblem backward_problem_of(const BackwardArgs& args, const HeadSpec& heads) {
  refuse_probes(args.forward.probe);
  BackwardProblem p;
  p.forward = problem_in(kBackwardOp, args.forward, {}, heads);
  for (const Gradient& g : kGradients) p.wants.*g.wanted = (args.*g.view).given();
  p.forward.run = run_facts(p, args);
  return p;
}

void attention_backward(const BackwardArgs& args, Context& ctx, const HeadSpec& heads) {
  require_device(kBackwardOp, args.forward.q, ctx);
  const BackwardProblem problem = backward_problem_of(args, heads);
  if (!problem.forward.device.is_cpu()) check_backward_places(problem, args);
  BackwardPlan(problem, ctx).run(args, ctx);
}

}  // namespace headwise
