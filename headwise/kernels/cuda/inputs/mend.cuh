// Rows that a value of a closed key reached: a tile multiplies it by a weight of 0, and 0 x NaN is NaN.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/lost_rows.h"
#include "headwise/kernels/cuda/inputs/pair.cuh"

namespace headwise::cuda {

/// The numbers of a row of the output that are NaN, made anew by one warp from open keys alone. A value that
/// is not finite and stands in an open key keeps them NaN.
///
/// Row: begin, end: its keys; open(j), score(j) in exponents of 2, kept(j): the factor of dropout; value(j,
/// c); sink in exponents of 2; factor().
///
/// kEach: columns of a lane at a time.
template <int kEach, class T, class Row>
__device__ __forceinline__ void mend_row(T* out, Index step, int columns, const Row& row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int c0 = 0; c0 < columns; c0 += 32 * kEach) {
    bool lost[kEach], any = false;
    for (int n = 0; n < kEach; ++n) {
      const int c = c0 + 32 * n + lane;
      const float x = c < columns ? static_cast<float>(out[c * step]) : 0.f;
      lost[n] = x != x, any |= lost[n];
    }
    if (!__any_sync(~0u, any)) continue;
    float top = -INFINITY, sum = 0, x[kEach] = {};
    bool hope = true;
#pragma unroll 1
    for (int j0 = row.begin; j0 < row.end && hope; j0 += 32) {
      const int j = j0 + lane;
      bool open = j < row.end && row.open(j);
      const float s = open ? row.score(j) : -INFINITY;
      open = open && s != -INFINITY;
      const unsigned keys = __ballot_sync(~0u, open);
      if (keys == 0) continue;
      const float most = fmaxf(top, warp_most(s)), old = top == -INFINITY ? 0.f : exp2f(top - most);
      const float w = open ? exp2f(s - most) : 0.f;
      top = most, sum = sum * old + w;
      const float kept = open ? w * row.kept(j) : 0.f;
      for (int n = 0; n < kEach; ++n) x[n] *= old;
#pragma unroll 1
      for (unsigned rest = keys; rest != 0; rest &= rest - 1) {
        const int key = __ffs(static_cast<int>(rest)) - 1;
        const float weight = __shfl_sync(~0u, kept, key);
        for (int n = 0; n < kEach; ++n)
          if (lost[n]) x[n] = fmaf(weight, row.value(j0 + key, c0 + 32 * n + lane), x[n]);
      }
      hope = false;
      for (int n = 0; n < kEach; ++n) hope |= lost[n] && x[n] == x[n];
      hope = __any_sync(~0u, hope);
    }
    if (!hope) continue;
    sum = warp_sum(sum);
    const float higher = fmaxf(top, row.sink), weight = top == -INFINITY ? 0.f : exp2f(top - higher);
    if (row.sink > -INFINITY) sum = sum * weight + exp2f(row.sink - higher);
    const float factor = sum == 0.f ? 0.f : row.factor() * (weight / sum);
    for (int n = 0; n < kEach; ++n)
      if (lost[n]) out[(c0 + 32 * n + lane) * step] = static_cast<T>(factor == 0.f ? 0.f : x[n] * factor);
  }
}

/// A grid that finds nothing lost ends at once; else `each(row)` is called for rows below `rows`, a warp a
/// row, and the last block leaves the counters at zero.
template <class Each>
__device__ void mend_rows(const LostRows& lost, Index rows, const Each& each) {
  if (*static_cast<volatile int*>(lost.found) == 0) return;
  const Index warps = static_cast<Index>(gridDim.x) * (blockDim.x / 32);
  for (Index row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; row < rows;
       row += warps)
    each(row);
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(lost.done, 1) == static_cast<int>(gridDim.x) - 1)
    *lost.found = 0, *lost.done = 0;
}

}  // namespace headwise::cuda
