// RowSums: what the statistics of rows need beside the softmax, kept along the tiles of the Hopper forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/hopper/forward/facts.cuh"
#include "headwise/kernels/cuda/hopper/forward/rows.cuh"
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::forward {

/// A row at its end: the keys' own sum, and the sum with the sink's part at `reference`, which the keys' lies
/// `moved` above.
struct RowEnd {
  TileLocation location;
  int row;
  float of_keys, reference, moved, sink_part, sink, sum;
  __device__ __forceinline__ bool written() const { return threadIdx.x % 4 == 0 && row < location.left; }
  __device__ __forceinline__ void put(const RowsView& to, float value) const {
    if (to.data)
      static_cast<float*>(to.data)[to.at(location.batch, location.head, location.row + row)] = value;
  }
  /// From the sum of weight * exponent over the row's keys and the highest weight, relative to their
  /// reference. Gives what such weights are multiplied by.
  __device__ __forceinline__ float put_few(const RowProbes& to, float exponents, float best) const {
    constexpr float kLn2 = 0.693147180559945309f;
    const bool none = of_keys == 0.f;
    const float inverse = sum == 0.f ? 0.f : ptx::reciprocal(sum),
                weight = none ? 0.f : ptx::exp2(moved) * inverse;
    float all = none ? 0.f : weight * fmaf(moved, of_keys, exponents);
    if (sink_part > 0.f) all = fmaf(sink_part * inverse, sink - reference, all);
    put(to.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - all));
    put(to.top_weight, none ? 0.f : best * weight);
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

/// What a pass over the tiles has an eye on beside the softmax.
enum class Statistics { none, few, all };

/// Of a thread's two rows. Scores times `unit` are exponents of 2; sums are relative to the row's reference,
/// a quarter of the row's columns each until finish(). They lie in shared memory and are fetched once a tile:
/// in registers they left no room for a third group of queries.
struct RowSums {
  static constexpr int kBytes = 48;  // of a thread: 4 floats a row, a key a row, 8 to spread over the banks
  std::uint32_t at;

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
  /// What FewRowSums left here of row r; `made` gives its RowEnd.
  template <class Made>
  __device__ __forceinline__ void finish_few(const RowProbes& to, int r, Made&& made) const {
    float2 x = ptx::load_pair(exponents_of(r));
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      x.x += __shfl_xor_sync(~0u, x.x, lane);
      x.y = fmaxf(x.y, __shfl_xor_sync(~0u, x.y, lane));
    }
    if (const RowEnd end = made(); end.written()) end.put_few(to, x.x, x.y);
  }
  __device__ __forceinline__ void finish(const RowProbes& to, int r, const RowEnd& end, float unit) const {
    float2 x = ptx::load_pair(exponents_of(r)), y = ptx::load_pair(others_of(r));
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      x.x += __shfl_xor_sync(~0u, x.x, lane);
      x.y = fmaxf(x.y, __shfl_xor_sync(~0u, x.y, lane));  // scores: all the same
      y.x += __shfl_xor_sync(~0u, y.x, lane);
      y.y += __shfl_xor_sync(~0u, y.y, lane);
    }
    if (!end.written()) return;
    const float best = ptx::exp2(fmaf(x.y, unit, -end.reference - end.moved));
    const float weight = end.put_few(to, x.x, best);
    end.put(to.second_moment, y.x * weight * weight);
    end.put(to.mean_distance, y.y * weight);
    const RowsView& keys = to.top_position;
    if (keys.data)
      static_cast<Index*>(
          keys.data)[keys.at(end.location.batch, end.location.head, end.location.row + end.row)] =
          static_cast<int>(ptx::load_word(key_of(r)));
  }
};

/// What entropy, top_weight and sink_mass need, of a thread's two rows. Between two tiles it lies where
/// RowSums has it, the highest weight of the thread's columns in place of the row's highest score. A tile
/// fetches it, and puts it back once its weights are those that count.
struct FewRowSums {
  float exponents[2];
  int best[2];

  __device__ __forceinline__ void fetch(const RowSums& from) {
    const float4 x = ptx::load_floats(from.at);
    exponents[0] = x.x, exponents[1] = x.z;
    best[0] = __float_as_int(x.y), best[1] = __float_as_int(x.w);
  }
  __device__ __forceinline__ void add(int r, float weight0, float exponent0, float weight1, float exponent1) {
    exponents[r] = fmaf(weight0, exponent0, exponents[r]);
    exponents[r] = fmaf(weight1, exponent1, exponents[r]);
  }
  /// The highest weight of a tile in row r.
  __device__ __forceinline__ void meet(int r, float weight) {
    best[r] = max(best[r], __float_as_int(weight));
  }
  /// Some weight may be above 2^rise, or some exponent was not finite.
  __device__ __forceinline__ bool high(int rise) const {
    return max(best[0], best[1]) > ((127 + rise) << 23) - 4096 ||  // bits of nearly 2^rise
           exponents[0] != exponents[0] || exponents[1] != exponents[1];
  }
  /// The reference of row r moves by `fall` <= 0 exponents, 2^fall being `factor`; 0: it begins.
  __device__ __forceinline__ void move(const RowSums& sums, int r, float factor, float fall,
                                       float sum) const {
    float2 x{0.f, 0.f};
    if (factor != 0.f) {
      x = ptx::load_pair(sums.exponents_of(r));
      x.x = factor * fmaf(fmaxf(fall, -200.f), sum, x.x), x.y *= factor;
    }
    ptx::store_pair(sums.exponents_of(r), x.x, x.y);
  }
  __device__ __forceinline__ void put(const RowSums& to) const {
    ptx::store_floats(to.at, exponents[0], __int_as_float(best[0]), exponents[1], __int_as_float(best[1]));
  }
};

/// Left alone ptxas adds up most of a tile's weights along its last quarter of exponents. Here exponents of
/// some pairs wait for what earlier ones have added: which ones was measured, at 32 pairs.
struct FewPace {
  int zero;  // 0, which ptxas does not know
  float added[2][2];

  __device__ __forceinline__ void before(int pair, const FewRowSums& sums, const float (&odd)[2],
                                         float (&minus)[2]) {
    constexpr int kFrom[] = {4, 22}, kTo[] = {14, 28};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (pair == kTo[i])
        minus[0] = ptx::after(added[i][0], minus[0], zero),
        minus[1] = ptx::after(added[i][1], minus[1], zero);
      if (pair == kFrom[i]) added[i][0] = sums.exponents[i], added[i][1] = odd[1 - i];
    }
  }
};

/// Sum of weight * |d - column| of row r of a tile, d being where the row stands among its columns: on one
/// side of them |d * sum of weights - sum of weight * column|.
template <int N>
__device__ __forceinline__ float distances_of(const float (&weights)[N], int r, float d, bool across,
                                              float all, float columns) {
  float sum = fabsf(fmaf(d, all, -columns));
  if (__any_sync(~0u, across && d > 0.f && d < 2 * N)) {
    sum = 0.f;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      sum = fmaf(weights[4 * j + 2 * r], fabsf(d - static_cast<float>(8 * j)), sum);
      sum = fmaf(weights[4 * j + 2 * r + 1], fabsf(d - static_cast<float>(8 * j + 1)), sum);
    }
  }
  return sum;
}

}  // namespace headwise::cuda::hopper::forward
