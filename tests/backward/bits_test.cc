// The same gradients, bit by bit, whatever the repeats, threads, neighbours, layouts and old contents.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/support/backward_run.h"
#include "tests/support/setting/setting_pose.h"

namespace headwise::test {
namespace {

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRepeats = 20;
#else
constexpr int kRepeats = 200;
#endif

TEST(BackwardBits, R100_RepeatsWithSharedHeads) {
  each_backward_kernel([](const char* kernel) {
    FullBackward r({.name = "R100",
                    .batch = 3,
                    .q_tokens = 9,
                    .kv_tokens = 40,
                    .heads = 12,
                    .kv_heads = 4,
                    .head_dim = 8,
                    .value_dim = 8});
    r.forward();
    const Gradients first = run_backward(r.args, kernel, 3);
    for (int n = 0; n < kRepeats && !testing::Test::HasFailure(); ++n)
      expect_same_bits(first, run_backward(r.args, kernel, 3), "repeat " + std::to_string(n));
  });
}

TEST(BackwardBits, AnyNumberOfThreads) {
  each_backward_kernel([](const char* kernel) {
    for (const DType dtype : kNarrow) {
      FullBackward r(with_dtype({.name = "threads",
                                 .batch = 2,
                                 .q_tokens = 70,
                                 .kv_tokens = 130,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 24,
                                 .value_dim = 20},
                                dtype));
      r.forward();
      const Gradients one = run_backward(r.args, kernel, 1);
      for (const int threads : {2, 3, 5, 8, 16})
        expect_same_bits(one, run_backward(r.args, kernel, threads), std::to_string(threads) + " threads");
    }
  });
}

/// Entry `b` of axis 0 where a tensor has one entry a sequence.
AnyView of_sequence(const AnyView& v, Index b) { return v.given() && v.size[0] > 1 ? batch_of(v, b, 1) : v; }

TEST(BackwardBits, ASequenceAloneAndInABatch) {
  each_backward_kernel([](const char* kernel) {
    for (const DType dtype : kNarrow) {
      const Case c = with_dtype({.name = "batch",
                                 .batch = 3,
                                 .q_tokens = 37,
                                 .kv_tokens = 70,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 16,
                                 .value_dim = 12},
                                dtype);
      FullBackward r(c);
      Tensor bias = random_normal({3, 4, 37, 70}, DType::f32, 7), dbias = bias.clone();
      r.args.forward.inputs.bias = bias.view(), r.args.dbias = dbias.view();
      r.args.dscale = r.args.dslopes = r.args.drelative = r.args.dsinks = {};  // sums over sequences
      r.forward();
      const Gradients all = run_backward(r.args, kernel);
      for (Index b = 0; b < 3; ++b) {
        BackwardArgs one = r.args;
        for (AnyView* v : std::initializer_list<AnyView*>{
                 &one.forward.q, &one.forward.k, &one.forward.v, &one.forward.out, &one.forward.lse,
                 &one.forward.inputs.bias, &one.forward.inputs.gate, &one.forward.inputs.sequence_ids,
                 &one.dout, &one.dq, &one.dk, &one.dv, &one.dbias, &one.dgate})
          *v = of_sequence(*v, b);
        const Gradients alone = run_backward(one, kernel, 3);
        for (const auto& [name, tensor] : alone)
          EXPECT_TRUE(same_bits(tensor.view(), batch_of(all.at(name).view(), b, 1)))
              << "d" << name << " of " << b;
      }
    }
  });
}

TEST(BackwardBits, ASequenceAloneAndInARaggedBatch) {
  each_backward_kernel([](const char* kernel) {
    const std::vector<Index> q_lengths = {5, 40, 0, 33}, kv_lengths = {64, 41, 7, 1};
    const std::vector<Index> q_offsets = offsets_of(q_lengths), kv_offsets = offsets_of(kv_lengths);
    Tensor q_at = tensor_of(q_offsets), kv_at = tensor_of(kv_offsets), end = tensor_of({kStartEnd});
    const Mask mask = Mask::causal();
    BackwardRun r({.name = "ragged", .q_tokens = 78, .kv_tokens = 113, .heads = 4, .kv_heads = 2});
    r.args.forward.mask = mask.set(), r.args.forward.q_start = end.view();
    r.args.forward.q_offsets = q_at.view(), r.args.forward.kv_offsets = kv_at.view();
    r.forward();
    const Gradients all = run_backward(r.args, kernel);
    for (std::size_t b = 0; b < 4; ++b) {
      BackwardArgs one = r.args;
      one.forward.q_offsets = one.forward.kv_offsets = {};
      for (AnyView* v : std::initializer_list<AnyView*>{&one.forward.q, &one.forward.out, &one.dout, &one.dq})
        *v = tokens_of(*v, q_offsets[b], q_lengths[b]);
      for (AnyView* v : std::initializer_list<AnyView*>{&one.forward.k, &one.forward.v, &one.dk, &one.dv})
        *v = tokens_of(*v, kv_offsets[b], kv_lengths[b]);
      one.forward.lse.data = static_cast<float*>(one.forward.lse.data) + q_offsets[b];
      one.forward.lse.size[2] = q_lengths[b];
      const Gradients alone = run_backward(one, kernel);
      EXPECT_TRUE(same_bits(alone.at("q").view(), tokens_of(all.at("q").view(), q_offsets[b], q_lengths[b])))
          << b;
      for (const char* name : {"k", "v"})
        EXPECT_TRUE(
            same_bits(alone.at(name).view(), tokens_of(all.at(name).view(), kv_offsets[b], kv_lengths[b])))
            << "d" << name << " of " << b;
    }
  });
}

/// R054: steps of dout that differ from those of out; R055: q and k laid out differently; gradients anywhere.
TEST(BackwardBits, R054_R055_AnyLayoutOfAnyTensor) {
  each_backward_kernel([](const char* kernel) {
    for (const DType dtype : kNarrow) {
      BackwardRun r(with_dtype({.name = "layouts",
                                .batch = 2,
                                .q_tokens = 19,
                                .kv_tokens = 40,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .value_dim = 24},
                               dtype));
      r.forward();
      const Gradients plain = run_backward(r.args, kernel);
      const Placement layouts[] = {{.order = {0, 2, 1, 3}},
                                   {.order = {1, 0, 2, 3}},
                                   {.inner = 2, .gap = 3, .first = 1},
                                   {.order = {3, 1, 0, 2}}};
      BackwardArgs a = r.args;
      for (const Placement& how : layouts)
        for (AnyView* view : std::initializer_list<AnyView*>{&a.dout, &a.dq, &a.dk, &a.dv, &a.forward.q,
                                                             &a.forward.k, &a.forward.v, &a.forward.out}) {
          const AnyView before = *view;
          const Placed moved = place(before, how);
          *view = moved.view;
          expect_same_bits(plain, run_backward(a, kernel));
          *view = before;
        }
    }
  });
}

/// dq, dk and dv side by side in the rows of one buffer, as a packed projection wants them.
TEST(BackwardBits, GradientsPackedInOneBuffer) {
  each_backward_kernel([](const char* kernel) {
    BackwardRun r({.name = "packed", .batch = 2, .q_tokens = 21, .kv_tokens = 21, .heads = 4, .kv_heads = 2});
    r.forward();
    const Gradients apart = run_backward(r.args, kernel);
    Tensor packed(DType::f32, {2, 21, (4 + 2 + 2) * 8});
    Index column = 0;
    for (AnyView* v : std::initializer_list<AnyView*>{&r.args.dq, &r.args.dk, &r.args.dv}) {
      v->data = packed.values<float>().data() + column;
      v->step[1] = 64, v->step[0] = 21 * 64;
      column += v->size[2] * 8;
    }
    expect_same_bits(apart, run_backward(r.args, kernel));
  });
}

TEST(BackwardBits, OldContentsOfTheWorkspaceDoNotMatter) {
  FullBackward r(
      {.name = "workspace", .batch = 2, .q_tokens = 35, .kv_tokens = 70, .heads = 4, .kv_heads = 2});
  r.forward();
  for (const BackwardKernel& kernel : kernels_head_by_head()) {
    Context& ctx = context_of(kernel.name, 3);
    const BackwardPlan plan(backward_problem_of(r.args), ctx);
    Gradients first;
    for (const int byte : {0x00, 0xff, 0x7f}) {
      Buffer memory(plan.workspace_bytes());
      if (memory.size() > 0) std::memset(memory.data(), byte, memory.size());
      poison_gradients(r.args);
      plan.run(r.args, memory.span(), ctx.pool());
      if (first.empty())
        first = gradients_of(r.args);
      else
        expect_same_bits(first, gradients_of(r.args), std::string(kernel.name) + " " + std::to_string(byte));
    }
  }
}

/// Run, move every tensor and poison the old ones, run again.
TEST(BackwardBits, APlanStoresNoPointer) {
  each_backward_kernel([](const char* kernel) {
    FullBackward r({.name = "moved", .batch = 2, .q_tokens = 9, .kv_tokens = 20, .heads = 4, .kv_heads = 2});
    r.forward();
    Context& ctx = context_of(kernel);
    const BackwardPlan plan(backward_problem_of(r.args), ctx);
    plan.run(r.args, ctx);
    const Gradients first = gradients_of(r.args);
    BackwardArgs a = r.args;
    std::deque<Tensor> kept;
    const auto move = [&](AnyView& v) {
      if (!v.given()) return;
      kept.push_back(converted(v, v.dtype));
      if (is_float(v.dtype)) fill(v, kNan);
      v = kept.back().view();
    };
    each_gradient(a, [&](const char*, AnyView& input, AnyView& gradient) { move(input), move(gradient); });
    move(a.dout), move(a.forward.out), move(a.forward.lse);
    plan.run(a, ctx);
    expect_same_bits(first, gradients_of(a));
  });
}

}  // namespace
}  // namespace headwise::test
