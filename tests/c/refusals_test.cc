// Every C entry refuses null in words, catches a failing allocation wherever it strikes, and reads tensors as
// DLPack does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "headwise/base/version.h"
#include "headwise/c/headwise.h"
#include "tests/support/count_allocations.h"

namespace {

/// q, k, v, out of [1 tokens 2 4] with small numbers in them.
struct Call {
  static constexpr int64_t kTokens = 5;
  int64_t shape[4] = {1, kTokens, 2, 4};
  std::vector<float> q, k, v, out;
  hw_tensor tq, tk, tv, to;
  hw_attention_args args{};

  Call()
      : q(numbers(1)),
        k(numbers(2)),
        v(numbers(3)),
        out(numbers(4)),
        tq(of(q)),
        tk(of(k)),
        tv(of(v)),
        to(of(out)) {
    args.struct_size = sizeof args;
    args.q = &tq, args.k = &tk, args.v = &tv, args.out = &to;
  }
  static std::vector<float> numbers(int seed) {
    std::vector<float> x(kTokens * 8);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(seed)));
    return x;
  }
  hw_tensor of(std::vector<float>& x) {
    hw_tensor t{};
    t.data = x.data();
    t.device = {HW_DEVICE_CPU, 0};
    t.ndim = 4;
    t.dtype = {HW_FLOAT, 32, 1};
    t.shape = shape;
    return t;
  }
};

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

std::string last() { return hw_last_error(); }

TEST(CApi, VersionAgrees) { EXPECT_STREQ(hw_version(), headwise::kVersion); }

TEST(CApi, NullIsRefusedInWordsEverywhere) {
  const ContextHolder holder;
  hw_mask* mask = nullptr;
  int32_t number = 0;
  size_t bytes = 0;
  const char* name = nullptr;
  ASSERT_EQ(hw_mask_causal(&mask), HW_OK);
  hw_attention_problem problem{};
  problem.struct_size = sizeof problem;
  Call call;
  const auto refused = [](hw_status status, const char* sentence) {
    EXPECT_EQ(status, HW_BAD_ARGUMENT) << sentence;
    EXPECT_EQ(last(), sentence);
  };
  refused(hw_context_create(nullptr, nullptr), "hw_context_create: context is NULL; give a valid pointer");
  refused(hw_context_threads(nullptr, &number), "hw_context_threads: context is NULL; give a valid pointer");
  refused(hw_context_threads(holder.context, nullptr),
          "hw_context_threads: threads is NULL; give a valid pointer");
  refused(hw_context_after_fork(nullptr), "hw_context_after_fork: context is NULL; give a valid pointer");
  refused(hw_mask_parse(nullptr, &mask), "hw_mask_parse: text is NULL; give a valid pointer");
  refused(hw_mask_parse("all", nullptr), "hw_mask_parse: mask is NULL; give a valid pointer");
  refused(hw_mask_all(nullptr), "hw_mask_all: mask is NULL; give a valid pointer");
  refused(hw_mask_lengths(nullptr, 2, &mask), "hw_mask_lengths: lengths is NULL; give a valid pointer");
  refused(hw_mask_documents(nullptr, 2, &mask), "hw_mask_documents: offsets is NULL; give a valid pointer");
  refused(hw_mask_blocks(1, 1, nullptr, 2, nullptr, 0, &mask),
          "hw_mask_blocks: rows is NULL; give a valid pointer");
  refused(hw_mask_global(nullptr, 1, &mask), "hw_mask_global: positions is NULL; give a valid pointer");
  refused(hw_mask_dense(nullptr, &mask), "hw_mask_dense: open is NULL; give a valid pointer");
  refused(hw_mask_from_blocked(nullptr, &mask),
          "hw_mask_from_blocked: blocked is NULL; give a valid pointer");
  refused(hw_mask_per_head(nullptr, 1, &mask), "hw_mask_per_head: masks is NULL; give a valid pointer");
  const hw_mask* holed[] = {mask, nullptr};
  hw_mask* none = nullptr;
  refused(hw_mask_per_head(holed, 2, &none),
          "hw_mask_per_head: masks[1] is NULL; give one mask for each of the 2 heads");
  refused(hw_mask_or(mask, nullptr, &none), "hw_mask_or: b is NULL; give a valid pointer");
  refused(hw_mask_may_attend(nullptr, 0, 0, nullptr, &number),
          "hw_mask_may_attend: mask is NULL; give a valid pointer");
  refused(hw_mask_may_attend(mask, 0, 0, nullptr, nullptr),
          "hw_mask_may_attend: open is NULL; give a valid pointer");
  refused(hw_mask_text(nullptr, nullptr, 0, &bytes), "hw_mask_text: mask is NULL; give a valid pointer");
  refused(hw_mask_text(mask, nullptr, 9, &bytes), "hw_mask_text: buffer is NULL; give a valid pointer");
  refused(hw_mask_text(mask, nullptr, 0, nullptr),
          "hw_mask_text: length (with capacity 0) is NULL; give a valid pointer");
  refused(hw_attention_problem_of(nullptr, &problem),
          "hw_attention_problem_of: args is NULL; give a valid pointer");
  refused(hw_attention_problem_of(&call.args, nullptr),
          "hw_attention_problem_of: problem is NULL; give a valid pointer");
  hw_attention_plan* plan = nullptr;
  refused(hw_attention_plan_create(nullptr, &problem, &plan),
          "hw_attention_plan_create: context is NULL; give a valid pointer");
  refused(hw_attention_plan_create(holder.context, nullptr, &plan),
          "hw_attention_plan_create: problem is NULL; give a valid pointer");
  refused(hw_attention_plan_create(holder.context, &problem, nullptr),
          "hw_attention_plan_create: plan is NULL; give a valid pointer");
  refused(hw_attention_plan_workspace_bytes(nullptr, &bytes),
          "hw_attention_plan_workspace_bytes: plan is NULL; give a valid pointer");
  refused(hw_attention_plan_kernel(nullptr, &name),
          "hw_attention_plan_kernel: plan is NULL; give a valid pointer");
  refused(hw_attention_plan_numerics(nullptr, nullptr, 0, &bytes),
          "hw_attention_plan_numerics: plan is NULL; give a valid pointer");
  refused(hw_attention_plan_explain(nullptr, nullptr, 0, &bytes),
          "hw_attention_plan_explain: plan is NULL; give a valid pointer");
  refused(hw_attention_run(nullptr, holder.context, &call.args, nullptr, 0),
          "hw_attention_run: plan is NULL; give a valid pointer");
  hw_context_destroy(nullptr);
  hw_mask_destroy(nullptr);
  hw_attention_plan_destroy(nullptr);
  hw_mask_destroy(mask);
}

/// A size that ends inside a pointer gave half of it: 20 sizes crashed.
TEST(CApi, EverySizeOfAStructIsReadOrRefused) {
  const ContextHolder holder;
  for (std::uint32_t size = 0; size <= sizeof(hw_attention_args) + 64; ++size) {
    Call call;
    // Behind the caller's struct lies something else.
    std::vector<unsigned char> memory(sizeof(hw_attention_args) + 64,
                                      size < sizeof(hw_attention_args) ? 0xa5 : 0);
    std::memcpy(memory.data(), &call.args, std::min<std::size_t>(size, sizeof call.args));
    std::memcpy(memory.data(), &size, sizeof size);
    const auto* args = reinterpret_cast<const hw_attention_args*>(memory.data());
    const hw_status status = hw_attention(holder.context, args);
    const bool whole = size >= 4 && size % alignof(hw_attention_args) == 0;
    if (!whole) {
      EXPECT_EQ(last().find("hw_attention: args.struct_size is " + std::to_string(size)), 0u) << last();
    } else if (size >= sizeof(hw_attention_args)) {
      EXPECT_EQ(status, HW_OK) << size << last();
    }
  }
}

/// Two threads on one context wrote into one workspace: the second is told.
TEST(CApi, AContextAtWorkSaysSo) {
  const ContextHolder holder;
  std::atomic<bool> end{false};
  std::atomic<int> refused{0}, other{0};
  const auto work = [&] {
    Call call;
    while (!end) {
      const hw_status status = hw_attention(holder.context, &call.args);
      if (status == HW_OK) continue;
      const bool busy =
          status == HW_BAD_ARGUMENT &&
          last() ==
              "hw_attention: the context is at work in another thread; give each thread a context "
              "of its own";
      busy ? ++refused : ++other;
    }
  };
  std::thread a(work), b(work);
  for (int i = 0; i < 60000 && refused == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end = true;
  a.join(), b.join();
  EXPECT_GT(refused, 0);
  EXPECT_EQ(other, 0);
  Call call;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_OK) << "it is free again";
}

TEST(CApi, NullTensorsOfACacheAreRefusedByName) {
  const ContextHolder holder;
  Call call;
  const hw_tensor* x = &call.tq;
  hw_packed_keys packed{};
  packed.struct_size = sizeof packed;
  ASSERT_EQ(hw_packed_keys_describe({HW_FLOAT, 32, 1}, 2, 4, 8, &packed), HW_OK);
  const auto refused = [](hw_status status, const std::string& what) {
    EXPECT_EQ(status, HW_BAD_ARGUMENT) << what;
    EXPECT_EQ(last(), what + " is NULL; give a valid pointer");
  };
  refused(hw_pack_keys(holder.context, nullptr, x, &packed), "hw_pack_keys: k");
  refused(hw_pack_keys(holder.context, x, nullptr, &packed), "hw_pack_keys: buffer");
  refused(hw_append_keys(holder.context, nullptr, x, nullptr, &packed), "hw_append_keys: k");
  refused(hw_append_keys(holder.context, x, nullptr, nullptr, &packed), "hw_append_keys: buffer");
  refused(hw_unpack_keys(holder.context, nullptr, &packed, x), "hw_unpack_keys: buffer");
  refused(hw_unpack_keys(holder.context, x, &packed, nullptr), "hw_unpack_keys: k");
  refused(hw_quantize_kv(holder.context, nullptr, x, x), "hw_quantize_kv: x");
  refused(hw_quantize_kv(holder.context, x, nullptr, x), "hw_quantize_kv: out");
  refused(hw_quantize_kv(holder.context, x, x, nullptr), "hw_quantize_kv: scale");
  refused(hw_pack_keys(holder.context, x, x, nullptr), "hw_pack_keys: packed");
}

TEST(CApi, AFailingAllocationIsAStatusWhereverItStrikes) {
  Call call;
  int failures = 0;
  for (std::uint64_t n = 1;; ++n) {
    hw_context* context = nullptr;
    hw_mask* mask = nullptr;
    hw_context_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;
    options.kernels = "cpu/online,ref";
    headwise::test::fail_allocation(n);
    const hw_status made = hw_context_create(&options, &context);
    const hw_status parsed = hw_mask_parse("per_head(causal & window(3, 1); all | lengths(4))", &mask);
    call.args.mask = mask;
    const hw_status ran = made == HW_OK && parsed == HW_OK ? hw_attention(context, &call.args) : HW_OK;
    headwise::test::fail_allocation(0);
    for (const hw_status status : {made, parsed, ran}) {
      if (status == HW_OK) continue;
      ++failures;
      ASSERT_EQ(status, HW_OUT_OF_MEMORY) << "allocation " << n << ": " << last();
      ASSERT_FALSE(last().empty());
    }
    const bool done = made == HW_OK && parsed == HW_OK && ran == HW_OK;
    hw_mask_destroy(mask);
    hw_context_destroy(context);
    if (done) break;
    ASSERT_LT(n, 1000u);
  }
  EXPECT_GT(failures, 5);
}

TEST(CApi, RunOnCallersMemoryAllocatesNothing) {
  const ContextHolder holder;
  Call call;
  hw_attention_problem problem{};
  problem.struct_size = sizeof problem;
  ASSERT_EQ(hw_attention_problem_of(&call.args, &problem), HW_OK);
  hw_attention_plan* plan = nullptr;
  ASSERT_EQ(hw_attention_plan_create(holder.context, &problem, &plan), HW_OK);
  const char* kernel = nullptr;
  ASSERT_EQ(hw_attention_plan_kernel(plan, &kernel), HW_OK);
  ASSERT_STREQ(kernel, "cpu/decode");
  size_t bytes = 0;
  ASSERT_EQ(hw_attention_plan_workspace_bytes(plan, &bytes), HW_OK);
  std::vector<std::byte> memory(bytes);
  const std::uint64_t before = headwise::test::allocations();
  const hw_status status = hw_attention_run(plan, holder.context, &call.args, memory.data(), memory.size());
  const std::uint64_t after = headwise::test::allocations();
  EXPECT_EQ(status, HW_OK) << last();
  EXPECT_EQ(after, before);
  hw_attention_plan_destroy(plan);
}

TEST(CApi, TensorsAreReadAsDlpackSays) {
  const ContextHolder holder;
  Call call;
  ASSERT_EQ(hw_attention(holder.context, &call.args), HW_OK);
  const std::vector<float> packed = call.out;

  // Explicit strides and a byte offset into a larger buffer name the same numbers.
  std::vector<float> wide(3 + Call::kTokens * 16, NAN);
  for (std::size_t t = 0; t < Call::kTokens; ++t)
    for (std::size_t i = 0; i < 8; ++i) wide[3 + t * 16 + i] = call.k[t * 8 + i];
  const int64_t strides[] = {-5, 16, 4, 1};  // the first axis has one element: its stride says nothing
  call.tk.data = wide.data();
  call.tk.byte_offset = 3 * sizeof(float);
  call.tk.strides = strides;
  ASSERT_EQ(hw_attention(holder.context, &call.args), HW_OK) << last();
  EXPECT_EQ(call.out, packed);

  const int64_t backwards[] = {40, -8, 4, 1};
  call.tk.strides = backwards;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_ARGUMENT);
  EXPECT_EQ(last(),
            "hw_attention: k has stride -8 on axis 1; strides are 0 or more: copy the tensor in ascending "
            "order first");
  call.tk.strides = strides;
  call.tk.byte_offset = 2;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_ARGUMENT);
  EXPECT_EQ(last(),
            "hw_attention: k begins at an address that is no multiple of 4, the size of f32; align it");
  call.tk.byte_offset = 12;
  call.tk.data = nullptr;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_ARGUMENT);
  EXPECT_EQ(last(), "hw_attention: k has 40 elements but its data is NULL; point it at them");
  call.tk.data = wide.data();
  call.tk.ndim = 5;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_SHAPE);
  EXPECT_EQ(last(), "hw_attention: k has 5 axes; 0 to 4 are possible");
  call.tk.ndim = 4;
  call.tk.dtype.lanes = 4;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_DTYPE);
  call.tk.dtype = {HW_FLOAT, 32, 1};
  call.tk.device.device_type = 2;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_ARGUMENT);
  EXPECT_EQ(last(), "attention: q lies on the CPU but k on CUDA device 0; bring them together");
  call.tk.device.device_type = 10;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_BAD_DTYPE);
  EXPECT_EQ(
      last(),
      "hw_attention: k is on device type 10; it may lie on the CPU (type 1) or on a CUDA device (type 2): "
      "copy it there first");
  call.tk.device.device_type = HW_DEVICE_CPU;

  // A scale of rank 0 is one number.
  float scale = 0.5f;
  hw_tensor ts = call.tq;
  ts.data = &scale, ts.ndim = 0, ts.shape = nullptr;
  call.args.scale = &ts;
  EXPECT_EQ(hw_attention(holder.context, &call.args), HW_OK) << last();
}

TEST(CApi, StructsGrowAtTheirEnd) {
  const ContextHolder holder;
  hw_attention_problem problem{};
  problem.dtype = {HW_FLOAT, 32, 1};
  problem.batch = 1, problem.q_tokens = problem.kv_tokens = 4, problem.heads = 2, problem.head_dim = 8;
  hw_attention_plan* plan = nullptr;
  // A first version that ended before the probes and layouts.
  problem.struct_size = offsetof(hw_attention_problem, probe_top_k);
  problem.probe_top_k = -7;  // beyond the caller's struct: not read
  EXPECT_EQ(hw_attention_plan_create(holder.context, &problem, &plan), HW_OK) << last();
  hw_attention_plan_destroy(plan);
  plan = nullptr;
  for (const uint32_t size : {0u, 3u, 1u << 20}) {
    problem.struct_size = size;
    EXPECT_EQ(hw_attention_plan_create(holder.context, &problem, &plan), HW_BAD_ARGUMENT) << size;
    EXPECT_EQ(last(), "hw_attention_plan_create: problem.struct_size is " + std::to_string(size) +
                          "; set it to sizeof of the struct (" + std::to_string(sizeof problem) +
                          " bytes in this version)");
  }
  EXPECT_EQ(plan, nullptr);
}

TEST(CApi, WrongValuesInAProblem) {
  const ContextHolder holder;
  hw_attention_problem good{};
  good.struct_size = sizeof good;
  good.dtype = {HW_FLOAT, 32, 1};
  good.batch = 1, good.q_tokens = good.kv_tokens = 4, good.heads = 6, good.head_dim = 8;
  hw_attention_plan* plan = nullptr;
  const auto refused = [&](const hw_attention_problem& p, hw_status status, const std::string& sentence) {
    EXPECT_EQ(hw_attention_plan_create(holder.context, &p, &plan), status);
    EXPECT_EQ(last(), sentence);
    EXPECT_EQ(plan, nullptr);
  };
  auto p = good;
  p.kv_heads = 4;
  refused(p, HW_BAD_SHAPE, "hw_attention_plan_create: heads (6) must be a multiple of kv_heads (4)");
  p = good;
  p.terms = 256;
  refused(p, HW_BAD_ARGUMENT, "hw_attention_plan_create: terms is 256; join HW_TERM_* by |");
  p = good;
  p.probe = 4;
  refused(p, HW_BAD_ARGUMENT, "hw_attention_plan_create: probe is 4; join HW_PROBE_* by |");
  p = good;
  p.probe_scores = 5;
  refused(p, HW_BAD_ARGUMENT, "hw_attention_plan_create: probe_scores is 5; give one of HW_SCORES_*");
  p = good;
  p.q_layout = {6, 8, 1, 8, 0, 48};
  refused(p, HW_BAD_ARGUMENT,
          "hw_attention_plan_create: q_layout, k_layout and v_layout have 6, 0 and 0 heads; give all three "
          "or leave all three "
          "at 0");
  p = good;
  p.kv_type = 3;
  refused(p, HW_BAD_ARGUMENT, "hw_attention_plan_create: kv_type is 3; give one of HW_KV_*");
  p = good;
  p.dtype = {};
  refused(p, HW_BAD_DTYPE,
          "hw_attention_plan_create: problem has dtype code 0, bits 0, lanes 0; use f32, bf16, f16, f64, "
          "i32, i64, u8, i8, e4m3 or bool "
          "with one lane");
}

TEST(CApi, StrictKernelListNamesEveryRefusal) {
  hw_context_options options{};
  options.struct_size = sizeof options;
  options.threads = 1;
  options.kernels = "cpu/online";
  hw_context* context = nullptr;
  ASSERT_EQ(hw_context_create(&options, &context), HW_OK);
  hw_attention_problem p{};
  p.struct_size = sizeof p;
  p.dtype = {HW_FLOAT, 64, 1};
  p.batch = 1, p.q_tokens = p.kv_tokens = 4, p.heads = 2, p.head_dim = 8;
  hw_attention_plan* plan = nullptr;
  EXPECT_EQ(hw_attention_plan_create(context, &p, &plan), HW_UNSUPPORTED);
  EXPECT_NE(last().find("cpu/online: "), std::string::npos) << last();
  hw_context_destroy(context);
}

TEST(CApi, TheSentenceBelongsToItsThread) {
  EXPECT_EQ(hw_mask_window(-1, 0, nullptr), HW_BAD_ARGUMENT);
  const std::string mine = last();
  std::string theirs = "unset";
  std::thread([&] { theirs = last(); }).join();
  EXPECT_EQ(theirs, "");
  EXPECT_EQ(last(), mine);
}

TEST(CApi, ExplainSaysTheSameTwice) {
  const ContextHolder holder;
  Call call;
  hw_attention_problem problem{};
  problem.struct_size = sizeof problem;
  ASSERT_EQ(hw_attention_problem_of(&call.args, &problem), HW_OK);
  hw_attention_plan* plan = nullptr;
  ASSERT_EQ(hw_attention_plan_create(holder.context, &problem, &plan), HW_OK);
  size_t length = 0, again = 0;
  ASSERT_EQ(hw_attention_plan_explain(plan, nullptr, 0, &length), HW_OK);
  std::string text(length + 1, 'x');
  ASSERT_EQ(hw_attention_plan_explain(plan, text.data(), text.size(), &again), HW_OK);
  EXPECT_EQ(again, length);
  EXPECT_EQ(text[length], '\0');
  EXPECT_NE(text.find("cpu/online"), std::string::npos);
  hw_attention_plan_destroy(plan);
}

}  // namespace
