// What stands around the tiles of the Hopper gradients: rows made ready, sums gathered, rows cleared, sinks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/backward.h"

namespace headwise::cuda {

/// [batch rows heads dim] of 16-bit numbers, last step 1, rows on 16 bytes.
struct RowsOf16 {
  void* data = nullptr;
  Index step[3] = {};  // batch, row, head
};

/// The buffers of a run: writes lse, delta, clears dq and turns. `turn_rows`: rows that share a turn.
template <class T>
Status prepare_rows(const BackwardParams& params, int heads, int dim, int turn_rows, const RowsOf16& out,
                    const RowsOf16& dout, const float* lse, const Index (&lse_step)[3], cudaStream_t stream);

/// to = factor * (the sum of a group's parts, buffers of fragments, in order), rounded once. Rows of queries,
/// which have one part, or of keys.
struct Gather {
  const float* from = nullptr;  // [parts heads padded dim]
  int heads = 0, dim = 0;
  bool keys = false;
  float factor = 1;
  RowsOf16 to = {};
};
template <class T>
Status gather_rows(const BackwardParams& params, const Gather& what, cudaStream_t stream);

/// Every row of [batch rows heads dim] becomes 0.
Status clear_rows(const RowsOf16& to, Index batch, Index rows, Index heads, int dim, cudaStream_t stream);

/// dsinks[h] = - sum over rows of exp(sink - lse) delta, in one order.
Status sum_sinks(const BackwardParams& params, int heads, const PerHead& sinks, void* dsinks, DType dtype,
                 Index step, cudaStream_t stream);

}  // namespace headwise::cuda
