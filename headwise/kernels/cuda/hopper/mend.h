// What stands behind a masked run on Hopper: rows that values of closed keys reached.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"
#include "headwise/kernels/cuda/inputs/lost_rows.h"

namespace headwise::cuda::hopper {

struct MendParams {
  ForwardParams p;
  LostRows lost;
};

HopperTensors tensors_of(const AttentionProblem& p, const AttentionArgs& a);

/// Behind a run that found NaN in its output: numbers that values of closed keys made so, anew.
Status mend(const MendParams& params, DType dtype, int processors, cudaStream_t stream);

}  // namespace headwise::cuda::hopper
