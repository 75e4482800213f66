// Contexts, plans and attention of the C interface.
#include <new>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/c/convert.h"
#include "headwise/c/plan_calls.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/explain/explain.h"

namespace {

using namespace headwise;  // the C names live outside of it
using headwise::c::args_from;
using headwise::c::guarded;
using headwise::c::require_given;
using headwise::c::sized_copy;

}  // namespace

const char* hw_version(void) { return kVersion; }

const char* hw_status_name(hw_status status) {
  switch (status) {
    case HW_OK: return "ok";
    case HW_BAD_SHAPE: return "bad_shape";
    case HW_BAD_DTYPE: return "bad_dtype";
    case HW_BAD_ARGUMENT: return "bad_argument";
    case HW_UNSUPPORTED: return "unsupported";
    case HW_OUT_OF_WORKSPACE: return "out_of_workspace";
    case HW_OUT_OF_MEMORY: return "out_of_memory";
    case HW_INTERNAL: return "internal";
    case HW_DEVICE_FAILED: return "device_failed";
    default: return "unknown";
  }
}

hw_status hw_context_create(const hw_context_options* options, hw_context** context) {
  const char* entry = "hw_context_create";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    ContextOptions o;
    if (options != nullptr) {
      const hw_context_options given = sized_copy(options, entry, "options");
      o.threads = given.threads;
      if (given.kernels != nullptr) o.kernels = given.kernels;
      if (given.device.device_type != 0) o.device = c::device_from(given.device, entry, "the context");
    }
    *context = new hw_context(Context(std::move(o)));
  });
}
void hw_context_destroy(hw_context* context) { delete context; }
hw_status hw_context_threads(const hw_context* context, int32_t* threads) {
  return guarded("hw_context_threads", [&] {
    require_given(context, "hw_context_threads", "context");
    require_given(threads, "hw_context_threads", "threads");
    *threads = context->context.threads();
  });
}
hw_status hw_context_after_fork(hw_context* context) {
  return guarded("hw_context_after_fork", [&] {
    require_given(context, "hw_context_after_fork", "context");
    context->busy.store(false);  // the thread that was at work is not in the child
    context->context.pool().after_fork();
  });
}

hw_status hw_attention_problem_of(const hw_attention_args* args, hw_attention_problem* problem) {
  const char* entry = "hw_attention_problem_of";
  return guarded(entry, [&] {
    hw_attention_problem p = sized_copy(problem, entry, "problem");
    const HeadSpec heads = c::heads_to_keep(p, entry);
    const AttentionArgs views = args_from(args, entry);
    ProbeSpec probe = c::probe_from(p, entry);
    if (!probe.any()) c::fill(p, probe = probe_of(views.probe));
    c::fill(p, problem_of(views, probe, heads));
    c::write_back(problem, p);
  });
}

hw_status hw_attention_plan_create(const hw_context* context, const hw_attention_problem* problem,
                                   hw_attention_plan** plan) {
  const char* entry = "hw_attention_plan_create";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(plan, entry, "plan");
    const hw_attention_problem p = sized_copy(problem, entry, "problem");
    *plan = new hw_attention_plan{{AttentionPlan(c::problem_from(p, entry), context->context)}};
  });
}
void hw_attention_plan_destroy(hw_attention_plan* plan) { delete plan; }
hw_status hw_attention_plan_workspace_bytes(const hw_attention_plan* plan, size_t* bytes) {
  return c::plan_workspace_bytes(plan, bytes, "hw_attention_plan_workspace_bytes");
}
hw_status hw_attention_plan_kernel(const hw_attention_plan* plan, const char** name) {
  return c::plan_kernel(plan, name, "hw_attention_plan_kernel");
}
hw_status hw_attention_plan_numerics(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                     size_t* length) {
  return c::plan_numerics(plan, buffer, capacity, length, "hw_attention_plan_numerics");
}
hw_status hw_attention_plan_refusals(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                     size_t* length) {
  return c::plan_refusals(plan, buffer, capacity, length, "hw_attention_plan_refusals");
}
hw_status hw_attention_plan_explain(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                    size_t* length) {
  return c::plan_explain(plan, buffer, capacity, length, "hw_attention_plan_explain");
}

hw_status hw_attention_run(const hw_attention_plan* plan, hw_context* context, const hw_attention_args* args,
                           void* workspace, size_t workspace_bytes) {
  const char* entry = "hw_attention_run";
  return c::plan_run(plan, context, workspace, workspace_bytes, entry, [&] {
    context->context.set_stream(sized_copy(args, entry, "args").stream);
    return args_from(args, entry);
  });
}

hw_status hw_attention(hw_context* context, const hw_attention_args* args) {
  const char* entry = "hw_attention";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    const hw_attention_args given = sized_copy(args, entry, "args");
    const AttentionArgs views = args_from(args, entry);
    require(!views.probe.scores.given(), ErrorKind::bad_argument, entry,
            "probe scores are given, but their stage belongs to a plan; use hw_attention_problem_of, "
            "hw_attention_plan_create and hw_attention_run");
    const ContextUse use(context, entry);
    (*use).set_stream(given.stream);
    attention(views, *use, probe_of(views.probe));
  });
}

hw_status hw_cuda_devices(char* buffer, size_t capacity, size_t* length) {
  return guarded("hw_cuda_devices",
                 [&] { c::copy_text(cuda_words(), buffer, capacity, length, "hw_cuda_devices"); });
}
