// RowSums: what the statistics of rows need beside the softmax, kept along the tiles of the Hopper forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_forward.h"
#include "headwise/kernels/cuda/ptx.cuh"

namespace headwise::cuda {

/// Of a thread's two rows. Scores times `unit` are exponents of 2; sums are relative to the row's reference,
/// a quarter of the row's columns each until finish(). They lie in shared memory and are fetched once a tile:
/// in registers they left no room for a third group of queries.
struct RowSums {
  static constexpr int kBytes = 48;  // of a thread: 4 floats a row, a key a row, 8 to spread over the banks
  std::uint32_t at;

  __device__ __forceinline__ RowSums(std::uint32_t base, int thread) : at(base + kBytes * thread) {}
  __device__ __forceinline__ std::uint32_t key_of(int r) const { return at + 32 + 4 * r; }

  /// What one row adds up within a tile.
  struct Tile {
    float exponents = 0.f, squares = 0.f, columns = 0.f;
    /// A weight 2^exponent at a column of the tile.
    __device__ __forceinline__ void add(float weight, float exponent, float column) {
      exponents = fmaf(weight, exponent, exponents);
      squares = fmaf(weight, weight, squares);
      columns = fmaf(weight, column, columns);
    }
  };

  /// A tile's maxima: where one is the row's highest so far, its key, the smallest of equals. Tiles come from
  /// right to left.
  template <int N>
  __device__ __forceinline__ void meet(bool first, const float (&most)[2], const float (&s)[N],
                                       int key0) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (first) {
        ptx::store_floats(at + 16 * r, 0.f, 0.f, 0.f, -INFINITY);
        ptx::store_word(key_of(r), ~0u);
      }
      const float best = first ? -INFINITY : ptx::load_float(at + 16 * r + 12);
      const bool higher = most[r] > -INFINITY && most[r] >= best;
      if (!__any_sync(~0u, higher)) continue;
      int key = 1 << 30;
#pragma unroll
      for (int i = N / 4 - 1; i >= 0; --i) {
        if (s[4 * i + 2 * r + 1] == most[r]) key = key0 + 8 * i + 1;
        if (s[4 * i + 2 * r] == most[r]) key = key0 + 8 * i;
      }
      key = min(key, __shfl_xor_sync(~0u, key, 1));
      key = min(key, __shfl_xor_sync(~0u, key, 2));
      if (!higher) continue;
      ptx::store_float(at + 16 * r + 12, most[r]);
      ptx::store_word(key_of(r), static_cast<std::uint32_t>(key));
    }
  }
  /// A tile joins row r. Where the reference has grown, what is there goes over to it first: times `factor`,
  /// `moved` = (old - new) * sum.
  __device__ __forceinline__ void join(int r, bool grown, float factor, float moved, const Tile& tile,
                                       float distances) const {
    float4 x = ptx::load_floats(at + 16 * r);
    if (grown) {
      x.x = factor > 0.f ? factor * (x.x + moved) : 0.f;
      x.y *= factor * factor, x.z *= factor;
    }
    ptx::store_floats(at + 16 * r, x.x + tile.exponents, x.y + tile.squares, x.z + distances, x.w);
  }
  /// at: head, batch, row of the tensor, rows left. `sum` holds the sink's part too, at `reference`; the
  /// keys' own lies `moved` above it, where they have the sum `of_keys`.
  __device__ __forceinline__ void finish(const RowProbes& to, int r, const int4& place, int row,
                                         float of_keys, float reference, float moved, float sink_part,
                                         float sink, float sum, float unit) const {
    constexpr float kLn2 = 0.693147180559945309f;
    float4 x = ptx::load_floats(at + 16 * r);  // exponents, squares, distances, the highest score
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      x.x += __shfl_xor_sync(~0u, x.x, lane);
      x.y += __shfl_xor_sync(~0u, x.y, lane);
      x.z += __shfl_xor_sync(~0u, x.z, lane);
    }
    if (threadIdx.x % 4 != 0 || row >= place.w) return;
    const int best_key = static_cast<int>(ptx::load_word(key_of(r)));
    const bool none = best_key < 0;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum, weight = none ? 0.f : ptx::exp2(moved) * inverse;
    float all = none ? 0.f : weight * fmaf(moved, of_keys, x.x);
    if (sink_part > 0.f) all = fmaf(sink_part * inverse, sink - reference, all);
    const auto put = [&](const RowsView& view, float value) {
      static_cast<float*>(view.data)[view.at(place.y, place.x, place.z + row)] = value;
    };
    put(to.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - all));
    put(to.top_weight, none ? 0.f : ptx::exp2(fmaf(x.w, unit, -reference)) * inverse);
    put(to.second_moment, x.y * weight * weight);
    put(to.mean_distance, x.z * weight);
    put(to.sink_mass, sink_part * inverse);
    static_cast<Index*>(to.top_position.data)[to.top_position.at(place.y, place.x, place.z + row)] = best_key;
  }
};

}  // namespace headwise::cuda
