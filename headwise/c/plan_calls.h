// What the plans of every op answer alike: workspace, kernel, numerics, explanation, run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/c/guard.h"
#include "headwise/c/handles.h"
#include "headwise/ops/explain/explain.h"

namespace headwise::c {

inline Device device_of(const AttentionProblem& p) { return p.device; }
inline Device device_of(const BackwardProblem& p) { return p.forward.device; }

template <class Plan>
hw_status plan_workspace_bytes(const hw_plan_of<Plan>* plan, size_t* bytes, const char* entry) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    require_given(bytes, entry, "bytes");
    *bytes = plan->plan.workspace_bytes();
  });
}

template <class Plan>
hw_status plan_kernel(const hw_plan_of<Plan>* plan, const char** name, const char* entry) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    require_given(name, entry, "name");
    *name = plan->plan.kernel();
  });
}

template <class Plan>
hw_status plan_numerics(const hw_plan_of<Plan>* plan, char* buffer, size_t capacity, size_t* length,
                        const char* entry) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    copy_text(plan->plan.numerics(), buffer, capacity, length, entry);
  });
}

template <class Plan>
hw_status plan_refusals(const hw_plan_of<Plan>* plan, char* buffer, size_t capacity, size_t* length,
                        const char* entry) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    std::string lines;
    for (const Refusal& r : plan->plan.refusals()) lines += text(r.kernel, ": ", r.why, "\n");
    copy_text(lines, buffer, capacity, length, entry);
  });
}

template <class Plan>
hw_status plan_explain(const hw_plan_of<Plan>* plan, char* buffer, size_t capacity, size_t* length,
                       const char* entry) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    const std::lock_guard lock(plan->measuring);
    const bool here = device_of(plan->plan.problem()).is_cpu();
    if (here && !plan->roofline) plan->roofline = measure_roofline(plan->plan.threads());
    copy_text(explain(plan->plan, {.roofline = here ? &*plan->roofline : nullptr}), buffer, capacity, length,
              entry);
  });
}

/// `views_of()` reads the caller's tensors, and sets the context's stream, once the handles are known to be
/// there.
template <class Plan, class ViewsOf>
hw_status plan_run(const hw_plan_of<Plan>* plan, hw_context* context, void* workspace, size_t workspace_bytes,
                   const char* entry, ViewsOf&& views_of) {
  return guarded(entry, [&] {
    require_given(plan, entry, "plan");
    require_given(context, entry, "context");
    const ContextUse use(context, entry);
    const auto views = views_of();
    if (workspace == nullptr) {
      require(workspace_bytes == 0, ErrorKind::bad_argument, entry,
              "workspace is NULL but workspace_bytes is ", workspace_bytes,
              "; give the memory, or 0 for the context's own");
      return plan->plan.run(views, *use);
    }
    plan->plan.run(views, {static_cast<std::byte*>(workspace), workspace_bytes}, (*use).pool());
  });
}

}  // namespace headwise::c
