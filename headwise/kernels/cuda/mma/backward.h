// Gradients by mma.sync as their host code sees them: parameters, and the instances by number format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/backward_inputs.h"
#include "headwise/kernels/cuda/mma/forward.h"

namespace headwise::cuda::mma {

struct MmaBackwardParams {
  BackwardInputs in;
  Index kv_tokens;
  bool runs;                                       // as in MmaParams
  bool simple;                                     // runs, and scores have one scale and no more; no dropout
  bool vector_q, vector_k, vector_v, vector_dout;  // rows can be copied 16 bytes at a time
};

/// The widest head there are instances for; columns are filled up to a width of 128 or 256.
template <class T>
constexpr int mma_backward_widest() {
  return sizeof(T) == 4 ? 128 : 256;
}
template <class T>
int mma_backward_shared(int width);

/// Starts a launch for each of dq (and dgate), dk, dv that is asked.
template <class T>
Status mma_backward(const MmaBackwardParams& params, int width, int device, cudaStream_t stream);

}  // namespace headwise::cuda::mma
