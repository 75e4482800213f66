// A second look at the scores, with the lse known: top keys and column sums as their host code sees them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mma/forward.h"

namespace headwise::cuda::probe {

/// Keys of a row at most: two a lane of the warp that puts one into the row's list.
inline constexpr Index kMostTopKeys = 64;

struct LookParams {
  RunInputs in;            // lse lies in f32
  int q_tiles, key_tiles;  // tiles of 64 queries; of keys
  int stages;              // tiles of the other side in flight: 1 or 2. Bits do not depend on it
  bool terms, runs;        // as in MmaParams
  bool vector_q, vector_k;
  int top_k;  // 0: none
  Index* top_keys;
  float* top_weights;
  Index top_keys_step[4], top_weights_step[4];
  float* column_sums;  // or null
  Index column_step[3];
};

/// Keys in a tile.
int look_keys(DType dtype);
/// Bytes of shared memory a block takes.
int look_shared(DType dtype, int head_dim, int top_k, int stages);
/// Starts a launch for each of both that is asked.
Status second_look(const LookParams& params, DType dtype, int device, cudaStream_t stream);

}  // namespace headwise::cuda::probe
