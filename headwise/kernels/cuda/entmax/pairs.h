// Entmax over the rows of a chunk: parameters and starts of both directions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunk/chunks.h"

namespace headwise::cuda::entmax {

struct EntmaxPairs {
  RunInputs in;
  chunk::ChunkGroup group;
  PerHead alpha;
  DType dtype;                      // of the planes that products read
  float* scores;                    // scale q.k; forward: becomes the logits
  void* weights;                    // w; backward: w gate, dropout applied
  float* lse;                       // [slot heads 64]: tau
  float* dp;                        // backward: dout . v
  void* ds;                         // gradient of scale q.k times scale
  float *dalpha_rows, *dsink_rows;  // [slot heads 64], or null
  void* dgate;
  DType dgate_dtype;
  Index dgate_step[3];
};

Status forward_pairs(const EntmaxPairs& p, cudaStream_t stream);
Status backward_pairs(const EntmaxPairs& p, cudaStream_t stream);

/// sums[h] += the rows of a group: [count heads 64], job by job, each in the same order.
Status add_rows(const float* rows, double* sums, int heads, int count, cudaStream_t stream);
Status write_heads(const double* sums, int heads, const AnyView& to, cudaStream_t stream);

}  // namespace headwise::cuda::entmax
