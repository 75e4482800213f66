// The number a relative table has for one pair, read by one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/per_head.cuh"
#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda {

/// T5's number of key j seen from the query at position q.
template <class W = float>
__device__ __forceinline__ W relative_number(const RunInputs& f, Index h, Index q, Index j) {
  const Index distance = q < j ? j - q : q - j;
  const Index at = (q < j ? f.bucket_count : 0) + min_of(distance, f.bucket_count - 1);
  return load_number<W>(f.relative, f.relative_dtype,
                        f.buckets[at] * f.relative_step[0] + h * f.relative_step[1]);
}

}  // namespace headwise::cuda
