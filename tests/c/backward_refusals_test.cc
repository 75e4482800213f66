// C entries of gradients, rope and norms: null refused in words, allocations that fail, values out of range.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "headwise/c/headwise.h"
#include "tests/support/count_allocations.h"
#include "tests/support/gradient_names.h"

namespace {

std::string last() { return hw_last_error(); }

struct ContextHolder {
  hw_context* context = nullptr;
  ContextHolder() {
    hw_context_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;
    if (hw_context_create(&options, &context) != HW_OK) std::abort();
  }
  ~ContextHolder() { hw_context_destroy(context); }
};

/// q, k, v, out, dout, dq, dk, dv of [1 5 2 4] with small numbers in them, and an lse.
struct Call {
  int64_t shape[4] = {1, 5, 2, 4}, lse_shape[3] = {1, 2, 5};
  std::vector<float> numbers = std::vector<float>(8 * 40 + 10);
  hw_tensor t[8], lse;
  hw_attention_args forward{};
  hw_backward_args args{};

  Call() {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i * 7 + 1));
    for (std::size_t i = 0; i < 8; ++i) t[i] = of(numbers.data() + i * 40, shape, 4);
    lse = of(numbers.data() + 320, lse_shape, 3);
    forward.struct_size = sizeof forward;
    forward.q = &t[0], forward.k = &t[1], forward.v = &t[2], forward.out = &t[3], forward.lse = &lse;
    args.struct_size = sizeof args;
    args.forward = &forward, args.dout = &t[4], args.dq = &t[5], args.dk = &t[6], args.dv = &t[7];
  }
  static hw_tensor of(float* data, const int64_t* shape, int32_t ndim) {
    hw_tensor tensor{};
    tensor.data = data;
    tensor.device = {HW_DEVICE_CPU, 0};
    tensor.ndim = ndim;
    tensor.dtype = {HW_FLOAT, 32, 1};
    tensor.shape = shape;
    return tensor;
  }
};

void refused(hw_status status, const std::string& sentence) {
  EXPECT_EQ(status, HW_BAD_ARGUMENT) << sentence;
  EXPECT_EQ(last(), sentence);
}

TEST(CBackward, NullIsRefusedInWordsEverywhere) {
  const ContextHolder holder;
  Call call;
  hw_attention_problem forward{};
  forward.struct_size = sizeof forward;
  hw_backward_problem problem{};
  problem.struct_size = sizeof problem;
  hw_backward_plan* plan = nullptr;
  size_t bytes = 0;
  const char* name = nullptr;
  const std::string rest = " is NULL; give a valid pointer";
  refused(hw_attention_backward(nullptr, &call.args), "hw_attention_backward: context" + rest);
  refused(hw_attention_backward(holder.context, nullptr), "hw_attention_backward: args" + rest);
  refused(hw_backward_problem_of(nullptr, &problem), "hw_backward_problem_of: problem.forward" + rest);
  problem.forward = &forward;
  refused(hw_backward_problem_of(nullptr, &problem), "hw_backward_problem_of: args" + rest);
  refused(hw_backward_problem_of(&call.args, nullptr), "hw_backward_problem_of: problem" + rest);
  refused(hw_backward_plan_create(nullptr, &problem, &plan), "hw_backward_plan_create: context" + rest);
  refused(hw_backward_plan_create(holder.context, nullptr, &plan), "hw_backward_plan_create: problem" + rest);
  refused(hw_backward_plan_create(holder.context, &problem, nullptr), "hw_backward_plan_create: plan" + rest);
  refused(hw_backward_plan_workspace_bytes(nullptr, &bytes), "hw_backward_plan_workspace_bytes: plan" + rest);
  refused(hw_backward_plan_kernel(nullptr, &name), "hw_backward_plan_kernel: plan" + rest);
  refused(hw_backward_plan_numerics(nullptr, nullptr, 0, &bytes), "hw_backward_plan_numerics: plan" + rest);
  refused(hw_backward_plan_explain(nullptr, nullptr, 0, &bytes), "hw_backward_plan_explain: plan" + rest);
  refused(hw_backward_run(nullptr, holder.context, &call.args, nullptr, 0), "hw_backward_run: plan" + rest);
  call.args.forward = nullptr;
  refused(hw_attention_backward(holder.context, &call.args), "hw_attention_backward: args.forward" + rest);

  hw_tensor* x = &call.t[0];
  hw_norm_backward_args norm{};
  norm.struct_size = sizeof norm;
  refused(hw_rope(nullptr, nullptr, x, nullptr, 0, x), "hw_rope: context" + rest);
  refused(hw_rope(holder.context, nullptr, nullptr, nullptr, 0, x), "hw_rope: x" + rest);
  refused(hw_rope(holder.context, nullptr, x, nullptr, 0, nullptr), "hw_rope: out" + rest);
  refused(hw_rope_backward(holder.context, nullptr, nullptr, nullptr, 0, x), "hw_rope_backward: dout" + rest);
  refused(hw_rope_backward(holder.context, nullptr, x, nullptr, 0, nullptr), "hw_rope_backward: dx" + rest);
  refused(hw_rms_norm(holder.context, nullptr, nullptr, nullptr, x), "hw_rms_norm: x" + rest);
  refused(hw_l2_norm(holder.context, nullptr, x, nullptr, nullptr), "hw_l2_norm: out" + rest);
  refused(hw_rms_norm_backward(nullptr, nullptr, &norm), "hw_rms_norm_backward: context" + rest);
  refused(hw_l2_norm_backward(holder.context, nullptr, nullptr), "hw_l2_norm_backward: args" + rest);
  refused(hw_l2_norm_backward(holder.context, nullptr, &norm), "hw_l2_norm_backward: args.x" + rest);
  norm.x = x;
  refused(hw_rms_norm_backward(holder.context, nullptr, &norm), "hw_rms_norm_backward: args.dout" + rest);
}

TEST(CBackward, AFailingAllocationIsAStatusWhereverItStrikes) {
  Call call;
  const ContextHolder holder;
  ASSERT_EQ(hw_attention(holder.context, &call.forward), HW_OK);
  int failures = 0;
  for (std::uint64_t n = 1;; ++n) {
    hw_context* context = nullptr;
    ASSERT_EQ(hw_context_create(nullptr, &context), HW_OK);
    headwise::test::fail_allocation(n);
    const hw_status ran = hw_attention_backward(context, &call.args);
    const hw_status turned = hw_rope(context, nullptr, &call.t[5], nullptr, 3, &call.t[5]);
    headwise::test::fail_allocation(0);
    hw_context_destroy(context);
    for (const hw_status status : {ran, turned})
      if (status != HW_OK) {
        ++failures;
        ASSERT_EQ(status, HW_OUT_OF_MEMORY) << "allocation " << n << ": " << last();
      }
    if (ran == HW_OK && turned == HW_OK) break;
    ASSERT_LT(n, 1000u);
  }
  EXPECT_GT(failures, 0);
}

TEST(CBackward, WrongValues) {
  const ContextHolder holder;
  Call call;
  hw_attention_problem forward{};
  forward.struct_size = sizeof forward;
  hw_backward_problem problem{};
  problem.struct_size = sizeof problem;
  problem.forward = &forward;
  ASSERT_EQ(hw_backward_problem_of(&call.args, &problem), HW_OK) << last();
  EXPECT_EQ(problem.gradients, static_cast<uint32_t>(HW_GRAD_Q | HW_GRAD_K | HW_GRAD_V));
  hw_backward_plan* plan = nullptr;
  problem.gradients = 1u << 31;
  refused(hw_backward_plan_create(holder.context, &problem, &plan),
          "hw_backward_plan_create: gradients is 2147483648; join HW_GRAD_* by |");
  problem.gradients = 0;
  refused(
      hw_backward_plan_create(holder.context, &problem, &plan),
      "attention_backward: no gradient is asked; give at least one of " + headwise::test::gradient_names());
  problem.gradients = HW_GRAD_Q;
  forward.probe = HW_PROBE_ROWS;
  refused(hw_backward_plan_create(holder.context, &problem, &plan),
          "attention_backward: the problem asks for probes, but probes have no gradient; plan without them");
  EXPECT_EQ(plan, nullptr);
  call.t[5].dtype = {HW_INT, 32, 1};
  EXPECT_EQ(hw_attention_backward(holder.context, &call.args), HW_BAD_DTYPE);
  EXPECT_EQ(
      last(),
      "attention_backward: dq is i32 [1 5 2 4] but f32 [1 5 2 4] is needed, [batch q_tokens heads head_dim]");

  hw_rope_options rope{};
  rope.struct_size = sizeof rope;
  hw_tensor *x = &call.t[0], *out = &call.t[6];
  int64_t where[5] = {}, places_shape[] = {5};
  hw_tensor places = Call::of(call.numbers.data(), places_shape, 1);
  places.data = where, places.dtype = {HW_INT, 64, 1};
  EXPECT_EQ(hw_rope(holder.context, &rope, x, &places, 0, out), HW_OK) << last();
  refused(hw_rope(holder.context, &rope, x, &places, 3, out),
          "hw_rope: positions are given and start is 3; give one of them, the other NULL or 0");
  rope.kind = 2;
  refused(hw_rope(holder.context, &rope, x, nullptr, 0, out),
          "hw_rope: kind is 2; give HW_ROPE_HALF or HW_ROPE_INTERLEAVED");
  rope.kind = 0, rope.scaling = 5;
  refused(hw_rope_backward(holder.context, &rope, x, nullptr, 0, out),
          "hw_rope_backward: scaling is 5; give one of HW_ROPE_SCALING_*");
  rope.scaling = 0, rope.rotary_dim = -2;
  refused(hw_rope(holder.context, &rope, x, nullptr, 0, out),
          "hw_rope: rotary_dim is -2; give 2 to head_dim, 0 for the whole head, or HW_NONE");
  rope.rotary_dim = 0, rope.reserved = 1;
  refused(hw_rope(holder.context, &rope, x, nullptr, 0, out), "hw_rope: reserved is 1; leave it at 0");
  hw_norm_options norm{};
  norm.struct_size = sizeof norm;
  norm.one_plus = 1;
  refused(hw_l2_norm(holder.context, &norm, x, nullptr, out),
          "hw_l2_norm: one_plus is 1, but an L2 norm has no such form; leave it at 0");
  norm.eps = -2;
  refused(hw_rms_norm(holder.context, &norm, x, nullptr, out),
          "rms_norm: eps is -2; give a finite number from 0 up");
}

TEST(CBackward, ExplainSaysTheSameTwice) {
  const ContextHolder holder;
  Call call;
  hw_attention_problem forward{};
  forward.struct_size = sizeof forward;
  hw_backward_problem problem{};
  problem.struct_size = sizeof problem, problem.forward = &forward;
  ASSERT_EQ(hw_backward_problem_of(&call.args, &problem), HW_OK);
  hw_backward_plan* plan = nullptr;
  ASSERT_EQ(hw_backward_plan_create(holder.context, &problem, &plan), HW_OK) << last();
  size_t length = 0, again = 0;
  ASSERT_EQ(hw_backward_plan_explain(plan, nullptr, 0, &length), HW_OK);
  std::string text(length + 1, 'x');
  ASSERT_EQ(hw_backward_plan_explain(plan, text.data(), text.size(), &again), HW_OK);
  EXPECT_EQ(again, length);
  EXPECT_NE(text.find("gradients   q, k, v"), std::string::npos) << text;
  hw_backward_plan_destroy(plan);
}

}  // namespace
