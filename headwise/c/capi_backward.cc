// Gradients of attention in the C interface.
#include "headwise/base/context.h"
#include "headwise/c/convert.h"
#include "headwise/c/plan_calls.h"
#include "headwise/c/term_fields.h"
#include "headwise/ops/explain/explain.h"

namespace {

using namespace headwise;  // the C names live outside of it
using headwise::c::guarded;
using headwise::c::require_given;
using headwise::c::sized_copy;

void* stream_of(const hw_backward_args* given, const char* entry) {
  const hw_backward_args a = sized_copy(given, entry, "args");
  require_given(a.forward, entry, "args.forward");
  return sized_copy(a.forward, entry, "args.forward").stream;
}

BackwardArgs backward_args_from(const hw_backward_args* given, const char* entry) {
  const hw_backward_args a = sized_copy(given, entry, "args");
  require_given(a.forward, entry, "args.forward");
  const auto view = [&](const hw_tensor* t, const char* what) { return c::view_anywhere(t, entry, what); };
  BackwardArgs r;
  r.forward = c::args_from(a.forward, entry);
  r.dout = view(a.dout, "dout");
  r.dq = view(a.dq, "dq"), r.dk = view(a.dk, "dk"), r.dv = view(a.dv, "dv");
  c::each_term([&](const ScoreTerm& t, const c::TermField& f) {
    if (t.gradient != nullptr) r.*t.gradient = view(a.*f.gradient, t.gradient_name);
  });
  return r;
}

BackwardProblem backward_problem_from(const hw_backward_problem* given, const char* entry) {
  const hw_backward_problem p = sized_copy(given, entry, "problem");
  require_given(p.forward, entry, "problem.forward");
  BackwardProblem r;
  r.forward = c::problem_from(sized_copy(p.forward, entry, "problem.forward"), entry);
  std::uint32_t unknown = p.gradients;
  c::each_gradient_bit([&](std::uint32_t bit, bool GradientSpec::*flag) {
    r.wants.*flag = (p.gradients & bit) != 0;
    unknown &= ~bit;
  });
  require(unknown == 0, ErrorKind::bad_argument, entry, "gradients is ", p.gradients,
          "; join HW_GRAD_* by |");
  return r;
}

}  // namespace

hw_status hw_backward_problem_of(const hw_backward_args* args, hw_backward_problem* problem) {
  const char* entry = "hw_backward_problem_of";
  return guarded(entry, [&] {
    hw_backward_problem p = sized_copy(problem, entry, "problem");
    require_given(p.forward, entry, "problem.forward");
    hw_attention_problem forward = sized_copy(p.forward, entry, "problem.forward");
    const HeadSpec heads = c::heads_to_keep(forward, entry);
    const BackwardProblem r = backward_problem_of(backward_args_from(args, entry), heads);
    p.gradients = 0;
    c::each_gradient_bit([&](std::uint32_t bit, bool GradientSpec::*flag) {
      if (r.wants.*flag) p.gradients |= bit;
    });
    c::fill(forward, r.forward);
    c::write_back(p.forward, forward);
    c::write_back(problem, p);
  });
}

hw_status hw_backward_plan_create(const hw_context* context, const hw_backward_problem* problem,
                                  hw_backward_plan** plan) {
  const char* entry = "hw_backward_plan_create";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(plan, entry, "plan");
    *plan = new hw_backward_plan{{BackwardPlan(backward_problem_from(problem, entry), context->context)}};
  });
}
void hw_backward_plan_destroy(hw_backward_plan* plan) { delete plan; }
hw_status hw_backward_plan_workspace_bytes(const hw_backward_plan* plan, size_t* bytes) {
  return c::plan_workspace_bytes(plan, bytes, "hw_backward_plan_workspace_bytes");
}
hw_status hw_backward_plan_kernel(const hw_backward_plan* plan, const char** name) {
  return c::plan_kernel(plan, name, "hw_backward_plan_kernel");
}
hw_status hw_backward_plan_numerics(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                    size_t* length) {
  return c::plan_numerics(plan, buffer, capacity, length, "hw_backward_plan_numerics");
}
hw_status hw_backward_plan_refusals(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                    size_t* length) {
  return c::plan_refusals(plan, buffer, capacity, length, "hw_backward_plan_refusals");
}
hw_status hw_backward_plan_explain(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                   size_t* length) {
  return c::plan_explain(plan, buffer, capacity, length, "hw_backward_plan_explain");
}

hw_status hw_backward_run(const hw_backward_plan* plan, hw_context* context, const hw_backward_args* args,
                          void* workspace, size_t workspace_bytes) {
  const char* entry = "hw_backward_run";
  return c::plan_run(plan, context, workspace, workspace_bytes, entry, [&] {
    context->context.set_stream(stream_of(args, entry));
    return backward_args_from(args, entry);
  });
}

hw_status hw_attention_backward(hw_context* context, const hw_backward_args* args) {
  const char* entry = "hw_attention_backward";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    const ContextUse use(context, entry);
    (*use).set_stream(stream_of(args, entry));
    attention_backward(backward_args_from(args, entry), *use);
  });
}
