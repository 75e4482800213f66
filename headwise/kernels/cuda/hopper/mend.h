// What stands behind a masked run on Hopper: rows that values of closed keys reached.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"
#include "headwise/kernels/cuda/inputs/lost_rows.h"

namespace headwise::cuda::hopper {

/// A run, and its tensors as memory has them: [batch or page, row, head], columns side by side.
struct MendParams {
  ForwardParams p;
  LostRows lost;
  const void *q, *k, *v;
  Index q_step[3], k_step[3], v_step[3];
  Index page_count;
  int page_size, head_dim, value_dim;
};

/// Tiles cut by a mask multiply values of closed keys by weights of 0. NaN that comes of it is mended behind
/// them.
MendParams mend_params(const AttentionProblem& p, const AttentionArgs& a, const ForwardParams& f,
                       const LostRows& lost);

Status mend(const MendParams& params, DType dtype, int processors, cudaStream_t stream);

}  // namespace headwise::cuda::hopper
