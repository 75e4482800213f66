// dq, dk and dv out of planes of halves by wgmma: all three in one launch, heads one after another.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include "headwise/kernels/cuda/chunk/chunks.h"

namespace headwise::cuda::chunk {

/// Up to 64 columns a head, each head its own slot, 16-byte steps and addresses. What is not asked for is
/// null.
struct ChunkProducts {
  ChunkGroup group;
  CUtensorMap ds_map, w_map;
  HeadsView q, k, dout, dq, dk, dv;
  int q_heads, v_heads, first_sequence, kv_tokens;
  float *dk_sums, *dv_sums;  // [batch kv_tokens heads dim], from group to group
};
template <class T>
Status chunk_products(const ChunkProducts& p, int sequences, int device, cudaStream_t stream);

}  // namespace headwise::cuda::chunk
