// CUDA tensors without a GPU, or without the library: every kernel refuses in words, nothing else changes.
#include "headwise/ops/attention_cuda.h"

#include <gtest/gtest.h>

#include "headwise/base/context.h"
#include "headwise/ops/attention_backward_cuda.h"
#include "headwise/ops/backend_cuda.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

AttentionProblem small_problem() {
  AttentionProblem p;
  p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(2, 64);
  p.dtype = DType::bf16;
  p.batch = 1, p.q_tokens = p.kv_tokens = 128;
  return p;
}

TEST(AttentionCuda, WithoutADeviceEveryKernelSaysWhy) {
  if (cuda_backend().devices > 0) GTEST_SKIP() << "there is a device here: tests/gpu/check.py asks it";
  const CudaChoice choice = choose_cuda(small_problem(), {}, Device::cuda(0), "");
  EXPECT_TRUE(choice.kernel.empty());
  ASSERT_EQ(choice.refusals.size(), cuda_kernel_names().size() - 1);  // cuda/phase runs by name alone
  for (const Refusal& r : choice.refusals) EXPECT_EQ(r.why, cuda_backend().why);
  const CudaChoice named = choose_cuda(small_problem(), {}, Device::cuda(0), "cuda/phase");
  ASSERT_EQ(named.refusals.size(), 1u);
  EXPECT_EQ(named.refusals[0].kernel, "cuda/phase");
  EXPECT_EQ(cuda_words(), "none: " + cuda_backend().why);
  EXPECT_FALSE(cuda_backend().why.empty());
}

TEST(AttentionCuda, WhatOnlyTheCpuReadsIsRefusedByEveryKernel) {
  AttentionProblem packed = small_problem();
  packed.keys = KeyForm::packed;
  const CudaChoice choice = choose_cuda(packed, {}, Device::cuda(0), "");
  EXPECT_TRUE(choice.kernel.empty());
  ASSERT_EQ(choice.refusals.size(), cuda_kernel_names().size() - 1);
  for (const Refusal& r : choice.refusals)
    EXPECT_EQ(r.why, "keys are packed, which is read on the CPU only; give plain ones");
}

TEST(AttentionCuda, EveryScoreIsRefusedInWordsOfItsOwn) {
  AttentionArgs args;
  args.probe.scores = AnyView::packed(&args, DType::f32, {1, 1, 1, 1});
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { cuda_problem_of(args); }),
            "attention: scores of every pair come from the reference kernel, which runs on the CPU only; "
            "copy q, k and v there, or ask for picked rows");
}

TEST(AttentionCuda, ListsOfKernels) {
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument,
                  [] { choose_cuda(small_problem(), {}, Device::cuda(0), "cuda/fastest"); }),
      "attention: there is no kernel \"cuda/fastest\" for CUDA tensors; there are: cuda/decode, cuda/hopper, "
      "cuda/mma, cuda/probes, cuda/rows, cuda/mixed, cuda/entmax, cuda/plain, cuda/phase");
  EXPECT_EQ(sentence_of(ErrorKind::unsupported,
                        [] { choose_cuda(small_problem(), {}, Device::cuda(0), "cpu/online,ref"); }),
            "attention: the tensors are on a CUDA device but the list \"cpu/online,ref\" allows no kernel "
            "for it; add "
            "cuda/plain, or copy the tensors to the CPU");
}

TEST(AttentionCuda, GradientsHaveKernelsOfTheirOwn) {
  BackwardProblem p;
  p.forward = small_problem();
  p.forward.lse = true;
  p.wants.q = true;
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { choose_cuda(p, {}, Device::cuda(0), "cuda/fastest"); }),
      "attention_backward: there is no kernel \"cuda/fastest\" for CUDA tensors; there are: "
      "cuda/hopper_backward, cuda/mma_backward, cuda/mixed_backward, cuda/entmax_backward, "
      "cuda/plain_backward, cuda/unordered");
  // One list serves both directions; it must hold a kernel of this one.
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { choose_cuda(p, {}, Device::cuda(0), "cuda/hopper"); }),
            "attention_backward: the tensors are on a CUDA device but the list \"cuda/hopper\" allows no "
            "kernel for it; add cuda/plain_backward, or copy the tensors to the CPU");
  if (cuda_backend().devices > 0) GTEST_SKIP() << "there is a device here: tests/gpu/check.py asks it";
  // What differs from run to run is no default.
  EXPECT_EQ(choose_cuda(p, {}, Device::cuda(0), "").refusals.size(), cuda_backward_kernel_names().size() - 1);
  EXPECT_EQ(choose_cuda(p, {}, Device::cuda(0), "cuda/hopper,cuda/unordered").refusals.size(), 1u);
}

}  // namespace
}  // namespace headwise
