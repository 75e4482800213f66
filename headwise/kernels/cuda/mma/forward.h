// Attention by mma.sync as its host code sees it: parameters, and the instances by number format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/kernels/cuda/inputs/lost_rows.h"
#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda::mma {

/// Threads of a block at most; a warp has 16 rows.
inline constexpr int kMmaThreads = 256;

struct MmaParams {
  RunInputs in;
  int rows, stages;     // queries of a block: 64 or 128; keys and values in flight: 1 or 2 tiles. Bits do not
                        // depend on them
  int q_tiles, chunks;  // tiles of queries; pieces of the value columns
  bool terms;           // scores need more than one positive scale
  bool runs;            // every mask is an `&` of terms that open one run of keys
  bool vector_q, vector_k, vector_v;  // rows can be copied 16 bytes at a time
  bool pairs_out;                     // two numbers of a row can be stored at once
  LostRows lost;                      // without `found`: every pair is open
};

/// Rows of a head whose chunks of 16 bytes can be copied whole.
inline bool by_chunks(const AnyView& v, const HeadLayout& layout, Index element) {
  const Index chunk = 16 / element;
  if (layout.row || v.step[3] != 1 || reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0) return false;
  for (int axis = 0; axis < 3; ++axis)
    if (v.size[axis] > 1 && v.step[axis] % chunk != 0) return false;
  return true;
}
/// Scores need more than one positive scale.
inline bool has_terms(const Terms& terms, const AnyView& scale) {
  for (Index h = 0; scale.given() && h < scale.size[0]; ++h)
    if (!(load_double(scale.data, scale.dtype, h * scale.step[0]) > 0)) return true;
  return terms.softcap || terms.bias || terms.alibi || terms.relative;
}
/// Every mask is an `&` of terms that open one run of keys.
inline bool opens_runs(const MaskSet& mask) {
  for (Index n = 0; n < mask.count; ++n)
    for (int i = 0; i < mask.views[n].count; ++i) {
      const MaskOp op = mask.views[n].steps[i].op;
      if (op != MaskOp::all && op != MaskOp::both && !mask_terms::is_interval(op)) return false;
    }
  return true;
}

/// Bytes of shared memory for a head_dim and `width` columns of values at a time.
template <class T>
int mma_shared(int head_dim, int width, int rows, int stages);
/// Columns of values at a time.
template <class T>
int mma_width(int value_dim);

/// Mends rows that values of closed keys reached; behind the forward on its stream.
Status mend(const RunInputs& f, DType dtype, const LostRows& lost, int processors, cudaStream_t stream);

template <class T>
Status mma_forward(const MmaParams& params, int width, int device, cudaStream_t stream);

}  // namespace headwise::cuda::mma
