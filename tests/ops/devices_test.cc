// One front door: the device of the tensors decides. Without a GPU every kernel for CUDA tensors refuses in
// words, mixing devices is an error that names both, and choices depend on nothing but the problem.
#include <gtest/gtest.h>

#include "headwise/base/context.h"
#include "headwise/kernels/cuda/inputs/copies.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/attention/run_facts.h"
#include "headwise/ops/explain/explain.h"
#include "headwise/ops/norm/norm.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

constexpr Device kGpu = Device::cuda(0);

AttentionProblem small_problem() {
  AttentionProblem p;
  p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(2, 64);
  p.dtype = DType::bf16;
  p.batch = 1, p.q_tokens = p.kv_tokens = 128;
  p.device = kGpu;
  return p;
}
BackwardProblem small_gradients() {
  BackwardProblem p;
  p.forward = small_problem();
  p.forward.lse = true;
  p.wants.q = true;
  return p;
}

/// Views as a GPU's tensors have them: addresses that nothing here may read.
struct There {
  alignas(64) std::byte memory[1024];
  AttentionArgs args;
  explicit There(Index tokens = 128) {
    const auto view = [&](int n) {
      return AnyView::packed(memory + 64 * n, DType::bf16, {1, tokens, 2, 64}).on(kGpu);
    };
    args.q = view(0), args.k = view(1), args.v = view(2), args.out = view(3);
  }
};

std::string every_refusal(std::span<const AttentionKernel> kernels, const std::string& why) {
  std::string all =
      "attention: every kernel for CUDA device 0 refused; copy the tensors to the CPU for the rest";
  for (const AttentionKernel& kernel : kernels)
    if (!kernel.by_name) all += "\n  " + std::string(kernel.name) + ": " + why;
  return all;
}
template <class F>
std::string unsupported(F&& f) {
  return sentence_of(ErrorKind::unsupported, f);
}

TEST(Devices, AViewKnowsItsDeviceInOneByte) {
  AnyView v;
  EXPECT_TRUE(v.on_cpu());
  EXPECT_EQ(v.where(), Device::cpu());
  v = v.on(Device::cuda(3));
  EXPECT_FALSE(v.on_cpu());
  EXPECT_EQ(v.where(), Device::cuda(3));
  EXPECT_EQ(v.on(Device::cpu()).where(), Device::cpu());
  EXPECT_EQ(Device::of_byte(Device::cuda(Device::kMostIndex).byte()), Device::cuda(127));
}

TEST(Devices, KernelsOfADeviceStandTogetherAndNamesStandOnce) {
  const auto names = [](auto kernels) {
    std::string all;
    for (const auto& kernel : kernels) all += (all.empty() ? "" : ", ") + std::string(kernel.name);
    return all;
  };
  EXPECT_EQ(
      names(attention_kernels(Device::Kind::cuda)),
      "cuda/ragged, cuda/decode, cuda/hopper, cuda/mma, cuda/probes, cuda/rows, cuda/mixed, cuda/entmax, "
      "cuda/plain, cuda/phase");
  EXPECT_EQ(names(backward_kernels(Device::Kind::cuda)),
            "cuda/hopper_backward, cuda/mma_backward, cuda/mixed_backward, cuda/entmax_backward, "
            "cuda/plain_backward, cuda/unordered");
  const std::size_t cpu = attention_kernels(Device::Kind::cpu).size(),
                    cuda = attention_kernels(Device::Kind::cuda).size();
  EXPECT_EQ(cpu + cuda, attention_kernels().size());
  EXPECT_EQ(backward_kernels(Device::Kind::cpu).size() + backward_kernels(Device::Kind::cuda).size(),
            backward_kernels().size());
  // What runs by name alone: the phase's bits cost speed, the unordered ones differ from run to run.
  EXPECT_TRUE(attention_kernels(Device::Kind::cuda).back().by_name);
  EXPECT_TRUE(backward_kernels(Device::Kind::cuda).back().by_name);
}

TEST(Devices, WithoutADeviceEveryKernelSaysWhy) {
  if (cuda_backend().devices > 0) GTEST_SKIP() << "there is a device here: tests/gpu/check.py asks it";
  const std::string why = cuda_backend().why;
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(cuda_words(), "none: " + why);
  const std::string all = every_refusal(attention_kernels(Device::Kind::cuda), why);
  EXPECT_EQ(unsupported([] { AttentionPlan(small_problem(), 1, ""); }), all);
  EXPECT_EQ(unsupported([] { AttentionPlan(small_problem(), 1, "cuda/phase"); }),
            "attention: every kernel for CUDA device 0 refused; copy the tensors to the CPU for the rest\n  "
            "cuda/phase: " +
                why);
  EXPECT_EQ(unsupported([] { BackwardPlan(small_gradients(), 1, "cuda/hopper,cuda/unordered"); }),
            "attention_backward: every kernel for CUDA device 0 refused; copy the tensors to the CPU for the "
            "rest\n  cuda/unordered: " +
                why);
  // Tensors decide, and so does a context.
  There t;
  Context any({.threads = 1}), gpu({.threads = 1, .device = kGpu});
  EXPECT_EQ(unsupported([&] { attention(t.args, any); }), all);
  EXPECT_EQ(unsupported([&] { attention(t.args, gpu); }), all);
  AttentionProblem by_hand = small_problem();
  by_hand.device = {};
  EXPECT_EQ(unsupported([&] { AttentionPlan(by_hand, gpu); }), all);
  EXPECT_STREQ(AttentionPlan(by_hand, any).kernel(), "cpu/online");
}

TEST(Devices, WhatOnlyTheCpuReadsIsRefusedByEveryKernel) {
  AttentionProblem packed = small_problem();
  packed.keys = KeyForm::packed;
  EXPECT_EQ(unsupported([&] { AttentionPlan(packed, 1, ""); }),
            every_refusal(attention_kernels(Device::Kind::cuda),
                          "keys are packed, which is read on the CPU only; give plain ones"));
  AttentionProblem scores = small_problem();
  scores.probe.scores = ScoreStage::weights;
  EXPECT_EQ(unsupported([&] { AttentionPlan(scores, 1, ""); }),
            every_refusal(attention_kernels(Device::Kind::cuda),
                          "scores of every pair come from ref, which runs on the CPU only; copy q, k and v "
                          "there, or ask for picked rows"));
}

TEST(Devices, ListsOfKernels) {
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [] { AttentionPlan(small_problem(), 1, "cuda/fastest"); }),
      "attention: there is no kernel \"cuda/fastest\" for CUDA tensors; there are: cuda/ragged, cuda/decode, "
      "cuda/hopper, cuda/mma, cuda/probes, cuda/rows, cuda/mixed, cuda/entmax, cuda/plain, cuda/phase");
  EXPECT_EQ(unsupported([] { AttentionPlan(small_problem(), 1, "cpu/online,ref"); }),
            "attention: the tensors are on a CUDA device but the list \"cpu/online,ref\" allows no kernel "
            "for it; add cuda/plain, or copy the tensors to the CPU");
  // One list serves both directions; it must hold a kernel of this one.
  EXPECT_EQ(unsupported([] { BackwardPlan(small_gradients(), 1, "cuda/hopper"); }),
            "attention_backward: the tensors are on a CUDA device but the list \"cuda/hopper\" allows no "
            "kernel for it; add cuda/plain_backward, or copy the tensors to the CPU");
}

TEST(Devices, MixingThemNamesBothAndTheTensors) {
  There t;
  float number = 1;
  Context any({.threads = 1}), cpu({.threads = 1, .device = Device::cpu()}),
      other({.threads = 1, .device = Device::cuda(1)});
  const auto said = [&](Context& ctx, const AttentionArgs& args) {
    return sentence_of(ErrorKind::bad_argument, [&] { attention(args, ctx); });
  };
  EXPECT_EQ(said(cpu, t.args),
            "attention: q lies on CUDA device 0 but the context is for the CPU; bring them together");
  EXPECT_EQ(said(other, t.args),
            "attention: q lies on CUDA device 0 but the context is for CUDA device 1; bring them together");
  // Places are checked before anything is read: here by the plan of a problem on the CPU.
  AttentionArgs here = t.args;
  for (AnyView* v : std::initializer_list<AnyView*>{&here.q, &here.k, &here.v, &here.out})
    *v = v->on(Device::cpu());
  const auto mixed = [&](auto view) {
    AttentionArgs args = here;
    args.*view = (args.*view).on(Device::cuda(2));
    return said(any, args);
  };
  EXPECT_EQ(mixed(&AttentionArgs::k),
            "attention: q lies on the CPU but k on CUDA device 2; bring them together");
  EXPECT_EQ(mixed(&AttentionArgs::out),
            "attention: q lies on the CPU but out on CUDA device 2; bring them together");
  AttentionArgs far = t.args;
  far.v = far.v.on(Device::cpu());
  EXPECT_EQ(said(any, far), "attention: q lies on CUDA device 0 but v on the CPU; bring them together");
  AttentionArgs scaled = here;
  scaled.inputs.scale = AnyView::packed(&number, DType::f32, {1}).on(kGpu);
  EXPECT_EQ(said(any, scaled),
            "attention: scale lies on CUDA device 0 but is used on the CPU; copy it there");
  AttentionArgs ragged = t.args;
  ragged.q_offsets = ragged.kv_offsets = AnyView::packed(&number, DType::i64, {2}).on(kGpu);
  EXPECT_EQ(said(any, ragged),
            "attention: q_offsets lies on CUDA device 0 but is used on the CPU; copy it there");
  const AttentionPlan plan(problem_of(here), any);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { plan.run(t.args, any); }),
            "attention: q lies on CUDA device 0 but the plan is for the CPU; plan for these tensors");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { rms_norm(t.args.q, {}, here.out, {}, any); }),
            "rms_norm: x lies on CUDA device 0 but out on the CPU; bring them together");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Context({.device = Device::cuda(128)}); }),
            "context: the device's number is 128; it runs from 0 to 127");
}

TEST(Devices, GradientsLieBesideQ) {
  There t;
  Context ctx({.threads = 1});
  BackwardArgs args;
  args.forward = t.args;
  for (AnyView* v :
       std::initializer_list<AnyView*>{&args.forward.q, &args.forward.k, &args.forward.v, &args.forward.out})
    *v = v->on(Device::cpu());
  float lse[256];
  args.forward.lse = AnyView::packed(lse, DType::f32, {1, 2, 128});
  args.dout = args.forward.out.on(kGpu), args.dq = args.forward.q;
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { attention_backward(args, ctx); }),
            "attention_backward: q lies on the CPU but dout on CUDA device 0; bring them together");
  args.dout = args.forward.out, args.dq = args.forward.q.on(Device::cuda(1));
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { attention_backward(args, ctx); }),
            "attention_backward: q lies on the CPU but dq on CUDA device 1; bring them together");
}

TEST(RunFactsTest, AProblemOfTheCpuKeepsNone) {
  There t;
  for (AnyView* v : std::initializer_list<AnyView*>{&t.args.q, &t.args.k, &t.args.v, &t.args.out})
    *v = v->on(Device::cpu());
  const Mask mask = Mask::causal();
  t.args.mask = mask.set();
  EXPECT_EQ(problem_of(t.args).run, RunFacts{});
}

TEST(RunFactsTest, TheKeyOfAPlanHoldsWhatKernelsChooseBy) {
  There t;
  const AttentionProblem plain = problem_of(t.args);
  EXPECT_EQ(plain.device, kGpu);
  EXPECT_EQ(plain.run, RunFacts{});
  // The same kind of run at other addresses is the same problem: a kept plan serves it.
  There other;
  EXPECT_EQ(problem_of(other.args), plain);

  const auto with = [&](auto&& change) {
    AttentionArgs args = t.args;
    change(args);
    return problem_of(args).run;
  };
  double scale = 2, none = 0, huge = 1e5;
  const auto scaled = [&](double& x) {
    return with([&](AttentionArgs& a) { a.inputs.scale = AnyView::packed(&x, DType::f64, {1}); });
  };
  EXPECT_EQ(scaled(scale).scales, 1);
  EXPECT_FALSE(scaled(scale).no_positive_scale || scaled(scale).large_scale);
  EXPECT_TRUE(scaled(none).no_positive_scale);
  EXPECT_TRUE(scaled(huge).large_scale);
  EXPECT_EQ(scaled(scale), scaled(scale = 3)) << "the number itself chooses nothing";

  Index start = Index{1} << 40;
  EXPECT_TRUE(with([&](AttentionArgs& a) { a.q_start = AnyView::packed(&start, DType::i64, {1}); }).far);
  start = 7;
  EXPECT_FALSE(with([&](AttentionArgs& a) { a.q_start = AnyView::packed(&start, DType::i64, {1}); }).far);

  using cuda::CopyNeed;
  const auto need = [](const RunFacts& f, RunFacts::View v) { return static_cast<CopyNeed>(f.unfit[v]); };
  EXPECT_EQ(
      need(with([](AttentionArgs& a) { a.k.data = static_cast<std::byte*>(a.k.data) + 2; }), RunFacts::k),
      CopyNeed::address);
  EXPECT_EQ(need(with([](AttentionArgs& a) { a.q.step[1] = 129; }), RunFacts::q), CopyNeed::steps);
  EXPECT_EQ(need(with([](AttentionArgs& a) { a.out.step[3] = 2; }), RunFacts::out), CopyNeed::last_step);
}

TEST(RunFactsTest, MasksAreReadAsTheirShape) {
  There t;
  const auto read = [&](const char* words) {
    const Mask mask = parse_mask(words);
    t.args.mask = mask.set();
    return problem_of(t.args).run;
  };
  EXPECT_EQ(read("causal").mask, 0);
  EXPECT_EQ(read("causal"), read("window(100, 3)")) << "two bands are one kind";
  EXPECT_EQ(cuda::words_of(static_cast<cuda::BandForm>(read("causal | prefix(3)").mask)),
            std::string("an | of masks is no single band of keys"));
  EXPECT_EQ(read("documents(0, 50, 128)").pieces, 4);
  EXPECT_TRUE(read("documents(0, 50, 128)").apart);
  const RunFacts blocks = read("blocks(64, 32; 0, 1, 2; 0, 1)");
  EXPECT_EQ(blocks.block_rows, 2);
  EXPECT_EQ(blocks.block_keys, 32);
  EXPECT_FALSE(blocks.apart);
  EXPECT_TRUE(read("lengths(100)").apart);
}

TEST(RunFactsTest, GradientsCountPaddedRows) {
  There t;
  BackwardArgs args;
  args.forward = t.args;
  args.forward.q.size[1] = 100;
  BackwardProblem p = small_gradients();
  p.forward.q_tokens = 100;
  const RunFacts f = run_facts(p, args);
  EXPECT_EQ(f.padded_q, 128);
  EXPECT_EQ(f.padded_kv, 128);
}

TEST(RunFactsTest, ARunOfAnotherKindIsNotWhatWasPlanned) {
  RunFacts planned, run;
  require_planned("attention", planned, run);
  run.scales = 2;
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { require_planned("attention", planned, run); }),
            "attention: the run's scale is of another kind than the plan was made for, and kernels differ by "
            "it; plan with this run's arguments");
  run = {};
  run.unfit[RunFacts::dq] = 1;
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { require_planned("attention_backward", planned, run); }),
      "attention_backward: the address or steps of dq are of another kind than those the plan was made "
      "for, and kernels differ by them; plan with this run's tensors");
}

}  // namespace
}  // namespace headwise
