// What stands around the tiles of the Hopper gradients: rows made ready, sums gathered, rows cleared, sinks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/backward.h"

namespace headwise::cuda::hopper::backward {

/// [batch rows heads dim] of 16-bit numbers, last step 1, rows on 16 bytes.
struct RowsOf16 {
  void* data = nullptr;
  Index step[3] = {};  // batch, row, head
};

/// The buffers of a run: writes lse, delta, clears dq and turns.
struct Prepare {
  int heads = 0;
  int width = 0, value_dim = 0;  // of the instance; of out and dout
  int turn_rows = 0;             // rows that share a turn
  RowsOf16 out = {}, dout = {};
  const float* lse = nullptr;
  Index lse_step[3] = {};
};
template <class T>
Status prepare_rows(const BackwardParams& params, const Prepare& what, cudaStream_t stream);

/// to = factor * (the sum of a group's parts, buffers of fragments, in order), rounded once. Rows of queries,
/// which have one part, or of keys.
struct Gather {
  const float* from = nullptr;  // [parts heads padded width]
  int heads = 0, width = 0, dim = 0;
  bool keys = false;
  float factor = 1;
  RowsOf16 to = {};
};
template <class T>
Status gather_rows(const BackwardParams& params, const Gather& what, cudaStream_t stream);

/// Every row of [batch rows heads dim] becomes 0.
Status clear_rows(const RowsOf16& to, Index batch, Index rows, Index heads, int dim, cudaStream_t stream);

/// dsinks[h] = - sum over rows of exp(sink - lse) delta, in one order.
struct SinkSums {
  int heads;
  PerHead sinks;
  void* to;  // dsinks
  DType dtype;
  Index step;
};
Status sum_sinks(const BackwardParams& params, const SinkSums& sums, cudaStream_t stream);

/// dbias = sums of the gradients of scores, [sequences heads q kv] of 16-bit numbers, over the axes along
/// which it has one number, in one order. Sequences may come in several calls, from first to last.
struct BiasSums {
  const void* from = nullptr;
  int size[4] = {};    // of from
  Index row = 0;       // numbers in a row of from
  void* to = nullptr;  // dbias
  DType dtype = DType::f32;
  float factor = 1;  // of the last call's sums
  Index to_size[4] = {}, to_step[4] = {};
  Index sequence = 0;     // of the first of this call
  float* sums = nullptr;  // what calls before have added, where they meet; or null
  bool begins = true, ends = true;
};
template <class T>
Status sum_bias(const BiasSums& what, cudaStream_t stream);

}  // namespace headwise::cuda::hopper::backward
