// RowSums: what the statistics of rows need beside the softmax, kept along the tiles of the Hopper forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_forward.h"
#include "headwise/kernels/cuda/ptx.cuh"

namespace headwise::cuda {

/// Of a thread's two rows. Scores times `unit` are exponents of 2; sums are relative to the row's reference,
/// a quarter of the row's columns each until finish().
struct RowSums {
  float exponents[2], squares[2], distances[2], best[2];
  int best_key[2];

  /// A tile's maxima: where one is the row's highest so far, its key, the smallest of equals. Tiles come from
  /// right to left.
  template <int N>
  __device__ __forceinline__ void meet(bool first, const float (&most)[2], const float (&s)[N], int key0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (first) exponents[r] = squares[r] = distances[r] = 0.f, best[r] = -INFINITY, best_key[r] = -1;
      const bool higher = most[r] > -INFINITY && most[r] >= best[r];
      if (!__any_sync(~0u, higher)) continue;
      int key = 1 << 30;
#pragma unroll
      for (int i = N / 4 - 1; i >= 0; --i) {
        if (s[4 * i + 2 * r + 1] == most[r]) key = key0 + 8 * i + 1;
        if (s[4 * i + 2 * r] == most[r]) key = key0 + 8 * i;
      }
      key = min(key, __shfl_xor_sync(~0u, key, 1));
      key = min(key, __shfl_xor_sync(~0u, key, 2));
      if (higher) best[r] = most[r], best_key[r] = key;
    }
  }
  /// The sums of row r go over to a new reference: times `factor`, `moved` = (old - new) * sum.
  __device__ __forceinline__ void rebase(int r, float factor, float moved) {
    exponents[r] = factor > 0.f ? factor * (exponents[r] + moved) : 0.f;
    squares[r] *= factor * factor, distances[r] *= factor;
  }
  /// A weight 2^exponent at a distance; an exponent of -inf adds nothing.
  __device__ __forceinline__ void add(int r, float weight, float exponent, float distance) {
    exponents[r] = fmaf(weight, fmaxf(exponent, -1000.f), exponents[r]);
    squares[r] = fmaf(weight, weight, squares[r]);
    distances[r] = fmaf(weight, fabsf(distance), distances[r]);
  }
  /// at: head, batch, row of the tensor, rows left. `sum` holds the sink's part too, at `reference`; the
  /// keys' own lies `moved` above it, where they have the sum `keys`.
  __device__ __forceinline__ void finish(const RowProbes& to, int r, const int4& at, int row, float keys,
                                         float reference, float moved, float sink_part, float sink, float sum,
                                         float unit) {
    constexpr float kLn2 = 0.693147180559945309f;
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      exponents[r] += __shfl_xor_sync(~0u, exponents[r], x);
      squares[r] += __shfl_xor_sync(~0u, squares[r], x);
      distances[r] += __shfl_xor_sync(~0u, distances[r], x);
    }
    if (threadIdx.x % 4 != 0 || row >= at.w) return;
    const bool none = best_key[r] < 0;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum, weight = none ? 0.f : ptx::exp2(moved) * inverse;
    float all = none ? 0.f : weight * fmaf(moved, keys, exponents[r]);
    if (sink_part > 0.f) all = fmaf(sink_part * inverse, sink - reference, all);
    const auto put = [&](const RowsView& view, float x) {
      static_cast<float*>(view.data)[view.at(at.y, at.x, at.z + row)] = x;
    };
    put(to.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - all));
    put(to.top_weight, none ? 0.f : ptx::exp2(fmaf(best[r], unit, -reference)) * inverse);
    put(to.second_moment, squares[r] * weight * weight);
    put(to.mean_distance, distances[r] * weight);
    put(to.sink_mass, sink_part * inverse);
    static_cast<Index*>(to.top_position.data)[to.top_position.at(at.y, at.x, at.z + row)] = best_key[r];
  }
};

}  // namespace headwise::cuda
