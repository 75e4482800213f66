// attention on CUDA tensors: checks, chooses among the GPU's kernels by problem and mask, says why not,
// starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/device.h"
#include "headwise/ops/attention.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The choice for one run: `kernel` is empty when every kernel refused.
struct CudaChoice {
  std::string kernel, numerics;
  std::vector<Refusal> refusals;  // of the kernels before it
};

/// Which kernel of "cuda/hopper,cuda/plain" (empty: all, best first) takes this run. Views without addresses
/// are fine: sizes, kinds and the mask decide.
CudaChoice choose_cuda(const AttentionProblem& problem, const AttentionArgs& args, Device device,
                       const std::string& kernels);

/// The problem of a run on CUDA tensors: statistics of rows are asked for where their views are given.
AttentionProblem cuda_problem_of(const AttentionArgs& args, const HeadSpec& heads = {});

/// Starts the run on `stream` (a cudaStream_t; null: the default stream) and returns without waiting. q, k,
/// v, out, lse, slopes, sinks, bias, relative, gate and probes lie on the device; scale, q_start, offsets,
/// sequence_ids and masks on the CPU: they are read before this returns and travel with the launch.
void attention_cuda(const AttentionArgs& args, Device device, void* stream, const std::string& kernels,
                    const HeadSpec& heads = {});

/// Names of the GPU's kernels, best first, whether or not they can run here.
std::span<const char* const> cuda_kernel_names();

}  // namespace headwise
#pragma GCC visibility pop
