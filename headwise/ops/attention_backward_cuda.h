// attention_backward on CUDA tensors: checks, chooses among the GPU's kernels for gradients, says why not,
// starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/ops/attention_backward.h"
#include "headwise/ops/attention_cuda.h"

#pragma GCC visibility push(default)
namespace headwise {

/// As choose_cuda. Of an empty list `cuda/unordered` is no part: its bits differ from run to run.
CudaChoice choose_cuda(const BackwardProblem& problem, const BackwardArgs& args, Device device,
                       const std::string& kernels);

/// Starts the run on `stream` and returns without waiting. Gradients and dout lie on the device beside what
/// attention_cuda has there; out and lse are what the forward wrote.
void attention_backward_cuda(const BackwardArgs& args, Device device, void* stream,
                             const std::string& kernels, const HeadSpec& heads = {});

/// Names of the GPU's kernels for gradients, best first, the last one by name alone.
std::span<const char* const> cuda_backward_kernel_names();

}  // namespace headwise
#pragma GCC visibility pop
