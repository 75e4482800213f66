// RowSums: what the statistics of rows need beside the softmax, kept along the tiles of the Hopper forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_forward.h"
#include "headwise/kernels/cuda/ptx.cuh"

namespace headwise::cuda {

/// A row at its end: the keys' own sum, and the sum with the sink's part at `reference`, which the keys' lies
/// `moved` above.
struct RowEnd {
  int4 place;  // head, batch, row of the tensor, rows left
  int row;
  float of_keys, reference, moved, sink_part, sink, sum;
  __device__ __forceinline__ bool written() const { return threadIdx.x % 4 == 0 && row < place.w; }
  __device__ __forceinline__ void put(const RowsView& to, float value) const {
    if (to.data) static_cast<float*>(to.data)[to.at(place.y, place.x, place.z + row)] = value;
  }
  /// From the sum of weight * exponent over the row's keys and its highest score (-inf: none), which `unit`
  /// makes an exponent. Gives what weights relative to the keys' reference are multiplied by.
  __device__ __forceinline__ float put_few(const RowProbes& to, float exponents, float best,
                                           float unit) const {
    constexpr float kLn2 = 0.693147180559945309f;
    const bool none = best == -INFINITY;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum, weight = none ? 0.f : ptx::exp2(moved) * inverse;
    float all = none ? 0.f : weight * fmaf(moved, of_keys, exponents);
    if (sink_part > 0.f) all = fmaf(sink_part * inverse, sink - reference, all);
    put(to.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - all));
    put(to.top_weight, none ? 0.f : ptx::exp2(fmaf(best, unit, -reference)) * inverse);
    put(to.sink_mass, sink_part * inverse);
    return weight;
  }
};

/// Sum of weight * exponent of row r where some of the exponents are -inf: those add nothing.
template <int N>
__device__ __forceinline__ float exponents_of(const float (&weights)[N], int r) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float w = weights[4 * (i / 2) + 2 * r + (i & 1)];
    sum = fmaf(w, fmaxf(__log2f(w), -1000.f), sum);
  }
  return sum;
}

/// Of a thread's two rows. Scores times `unit` are exponents of 2; sums are relative to the row's reference,
/// a quarter of the row's columns each until finish(). They lie in shared memory and are fetched once a tile:
/// in registers they left no room for a third group of queries.
struct RowSums {
  static constexpr int kBytes = 48;  // of a thread: 4 floats a row, a key a row, 8 to spread over the banks
  std::uint32_t at;

  __device__ __forceinline__ RowSums(std::uint32_t base, int thread) : at(base + kBytes * thread) {}
  __device__ __forceinline__ std::uint32_t exponents_of(int r) const { return at + 8 * r; }
  __device__ __forceinline__ std::uint32_t best_of(int r) const { return at + 8 * r + 4; }
  __device__ __forceinline__ std::uint32_t others_of(int r) const { return at + 16 + 8 * r; }
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
        ptx::store_pair(exponents_of(r), 0.f, -INFINITY);
        ptx::store_pair(others_of(r), 0.f, 0.f);
        ptx::store_word(key_of(r), ~0u);
      }
      const float best = first ? -INFINITY : ptx::load_float(best_of(r));
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
      ptx::store_float(best_of(r), most[r]);
      ptx::store_word(key_of(r), static_cast<std::uint32_t>(key));
    }
  }
  /// The reference of row r has grown: its sum of exponents goes over to it, times `factor`, `moved` = (old -
  /// new) * sum.
  __device__ __forceinline__ void move(int r, float factor, float moved) const {
    const float x = ptx::load_float(exponents_of(r));
    ptx::store_float(exponents_of(r), factor > 0.f ? factor * (x + moved) : 0.f);
  }
  /// A tile joins row r, where `grown` after all sums have gone over to the new reference.
  __device__ __forceinline__ void join(int r, bool grown, float factor, float moved, const Tile& tile,
                                       float distances) const {
    if (grown) move(r, factor, moved);
    float2 x = ptx::load_pair(others_of(r));
    if (grown) x.x *= factor * factor, x.y *= factor;
    ptx::store_pair(others_of(r), x.x + tile.squares, x.y + distances);
    ptx::store_float(exponents_of(r), ptx::load_float(exponents_of(r)) + tile.exponents);
  }
  /// A tile's sums of exponents and its maxima join, where nothing else is asked for.
  __device__ __forceinline__ void join_few(bool first, const float (&exponents)[2],
                                           const float (&most)[2]) const {
    float4 x = {0.f, -INFINITY, 0.f, -INFINITY};
    if (!first) x = ptx::load_floats(at);
    ptx::store_floats(at, x.x + exponents[0], fmaxf(x.y, most[0]), x.z + exponents[1], fmaxf(x.w, most[1]));
  }
  __device__ __forceinline__ void finish(const RowProbes& to, int r, const RowEnd& end, float unit) const {
    float2 x = ptx::load_pair(exponents_of(r)), y = ptx::load_pair(others_of(r));
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      x.x += __shfl_xor_sync(~0u, x.x, lane);
      y.x += __shfl_xor_sync(~0u, y.x, lane);
      y.y += __shfl_xor_sync(~0u, y.y, lane);
    }
    if (!end.written()) return;
    const float weight = end.put_few(to, x.x, x.y, unit);
    end.put(to.second_moment, y.x * weight * weight);
    end.put(to.mean_distance, y.y * weight);
    const RowsView& keys = to.top_position;
    if (keys.data)
      static_cast<Index*>(keys.data)[keys.at(end.place.y, end.place.x, end.place.z + end.row)] =
          static_cast<int>(ptx::load_word(key_of(r)));
  }
};

/// `value`, which is not to be had before `after` is; `zero` is 0, which the compiler cannot know.
__device__ __forceinline__ float held(float value, float after, int zero) {
  return __int_as_float(__float_as_int(after) * zero + __float_as_int(value));
}

/// Scores s of two rows become weights relative to 2^reference. Gives sums of weights, added up as without
/// statistics, and of weight * exponent. Step: so many pairs of columns wait for the sums of those before
/// them. Left to itself ptxas makes all sums after the last exponent: D64 and D96 have no registers for that.
template <int Step, int N>
__device__ __forceinline__ void weigh_few(float (&s)[N], float (&reference)[2], float unit, bool masked,
                                          int zero, float (&sums)[2], float (&exponents)[2]) {
  float even[2] = {}, odd[2] = {};
  exponents[0] = exponents[1] = 0.f;
  // Exponents of -inf add nothing. Masks make them; without one, only inputs that are not finite.
  const auto finite = [&](float e) { return masked ? fmaxf(e, -1000.f) : e; };
#pragma unroll
  for (int first = 0; first < N / 4; first += Step)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = first; j < first + Step; ++j) {
        float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
        const float e0 = fmaf(x0, unit, -reference[r]), e1 = fmaf(x1, unit, -reference[r]);
        x0 = ptx::exp2(e0), x1 = ptx::exp2(e1);
        even[r] += x0, odd[r] += x1;
        exponents[r] = fmaf(x1, finite(e1), fmaf(x0, finite(e0), exponents[r]));
      }
      reference[r] = held(reference[r], exponents[r], zero);
    }
  const float both = exponents[0] + exponents[1];
  if (!masked && __any_sync(~0u, both != both))
    exponents[0] = exponents_of(s, 0), exponents[1] = exponents_of(s, 1);
  sums[0] = even[0] + odd[0], sums[1] = even[1] + odd[1];
}

}  // namespace headwise::cuda
