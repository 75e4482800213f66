// A thread's two rows by mma.sync: scores, terms, masks, weights, statistics, and what a row leaves behind.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/relative.cuh"
#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/mma/keys.cuh"

namespace headwise::cuda::mma {

/// Sums over a row's weights that only probes ask for, each relative to the row's reference.
struct RowProbe {
  float exponents = 0, squares = 0, distances = 0, best = -INFINITY;
  int best_key = -1;
};

/// Whose scores terms are applied to: rows [row, rows) of a head, keys [first, keys).
struct TermTile {
  Index b, h;
  int row, rows, first, keys;
  float scale_log2, inverse_cap;
};

template <class T, int Width, bool Full>
struct MmaRows {
  using Tile = MmaTile<T>;
  static constexpr bool kFull = Full;
  static constexpr int kKeys = Tile::kKeys;
  static constexpr float kLog2e = 1.44269504088896341f;
  float o[Width / 8][4], s[kKeys / 8][4], top[2], sum[2];
  RowProbe probe[Full ? 2 : 1];
  KeySpan run[2];
  int position;  // of row 0; row 1 lies 8 below
  float unit;    // scores times unit are exponents of 2

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// s = softcap(scale q.k) + bias - slope |q - k| + relative, in exponents of 2
  __device__ __forceinline__ void apply_terms(const RunInputs& f, const TermTile& at) {
    const auto& [b, h, row, rows, first, keys, scale_log2, inverse_cap] = at;
    const float cap = static_cast<float>(f.softcap) * kLog2e;
    const float slope = f.slopes.data ? kLog2e * number_of(f.slopes, static_cast<int>(h)) : 0.f;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[j][e];
        if (cap == 0.f)
          x *= scale_log2;
        else if constexpr (sizeof(T) == 4)
          x = cap * tanhf(x * inverse_cap);
        else
          x = cap * fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(x * inverse_cap * (2.f * kLog2e))), 1.f);
        const int key = first + 8 * j + 2 * (lane() % 4) + (e & 1);
        if (f.slopes.data) x = fmaf(-slope, static_cast<float>(abs(position + 8 * (e >> 1) - key)), x);
      }
    if (f.bias) {
      const Index base = b * f.bias_step[0] + h * f.bias_step[1] + first * f.bias_step[3];
      add_loaded(
          [&](int i, int key) {
            return load_float(f.bias, f.bias_dtype, base + (row + i) * f.bias_step[2] + key * f.bias_step[3]);
          },
          rows - row, keys - first);
    }
    if (f.relative)
      add_loaded([&](int i, int key) { return relative_number(f, h, position + i, first + key); }, rows - row,
                 keys - first);
  }
  /// s += log2(e) number(row, key): 16 keys at a time, or 32 addresses would fill the registers.
  template <class Number>
  __device__ __forceinline__ void add_loaded(const Number& number, int rows, int keys) {
#pragma unroll 1
    for (int j = 0; j < kKeys / 8; j += 2) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int e = n & 3, key = 8 * (j + n / 4) + 2 * (lane() % 4) + (e & 1), i = 8 * (e >> 1);
        if (i < rows && key < keys) s[n / 4][e] = fmaf(kLog2e, number(i, key), s[n / 4][e]);
      }
      turn<2>(s);
    }
  }
  __device__ __forceinline__ void mask_runs(int first) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + 8 * j + 2 * (lane() % 4) + (e & 1);
        if (key < run[e >> 1].begin || key >= run[e >> 1].end) s[j][e] = -INFINITY;
      }
  }
  /// Any mask: two lanes ask about one row, each about half of the keys.
  __device__ __forceinline__ void mask_pairs(const MaskView& mask, const MaskSubject& place, int first,
                                             int keys) {
    const Index q = position - lane() / 4 + lane() / 2;
    const int from = first + lane() % 2 * (kKeys / 2);
    std::uint32_t word = 0;
#pragma unroll 1
    for (int i = 0; i < kKeys / 2; ++i)
      if (from + i < keys && mask.may_attend(q, from + i, place)) word |= 1u << i;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t open = __shfl_sync(~0u, word, 2 * (lane() / 4 + 8 * r) + half);
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (!(open >> (8 * j + 2 * (lane() % 4) + e) & 1))
              s[half * (kKeys / 16) + j][2 * r + e] = -INFINITY;
      }
  }
  /// s becomes weights relative to 2^(top * unit); the reference stays until a row's maximum grows by more
  /// than 8 exponents, each row by its own choice.
  template <bool Probe>
  __device__ __forceinline__ void weigh(int first) {
    float factor[2];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
      for (int j = 1; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float old = top[r];
      const bool grown = old == -INFINITY ? most > old : (most - old) * unit > 8.f;
      top[r] = grown ? most : old;
      factor[r] = grown ? ptx::exp2((old - most) * unit) : 1.f;
      rescale |= grown;
      const float reference = top[r] == -INFINITY ? 0.f : top[r] * unit;
      if constexpr (Probe) {
        RowProbe& p = probe[r];
        // Empty so far: all sums are 0, and 0 * inf must stay 0.
        if (grown && old != -INFINITY)
          p.exponents = factor[r] * fmaf(old * unit - reference, sum[r], p.exponents);
        p.squares *= factor[r] * factor[r], p.distances *= factor[r];
      }
      float even = 0.f, odd = 0.f;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[j][2 * r + e];
          const float exponent = fmaf(x, unit, -reference), w = ptx::exp2(exponent);
          if constexpr (Probe) {
            RowProbe& p = probe[r];
            const int key = first + 8 * j + 2 * (lane() % 4) + e;
            if (x > p.best) p.best = x, p.best_key = key;
            if (w > 0.f) p.exponents = fmaf(w, exponent, p.exponents);
            p.squares = fmaf(w, w, p.squares);
            p.distances = fmaf(w, static_cast<float>(abs(position + 8 * r - key)), p.distances);
          }
          (e ? odd : even) += w;
          x = w;
        }
      sum[r] = fmaf(sum[r], factor[r], even + odd);
    }
    if (__any_sync(~0u, rescale)) {
#pragma unroll
      for (int n = 0; n < Width / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= factor[e >> 1];
    }
  }
  /// Four keys share a block of random words: of two lanes that hold them, one draws for row 0, one for
  /// row 1.
  __device__ __forceinline__ void drop(const DropoutRule& rule, Index id, Index h, int first) {
    const bool odd = lane() % 2 != 0;
#pragma unroll 1
    for (int j = 0; j < kKeys / 8; j += 2) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int key = first + 8 * (j + n) + 2 * (lane() % 4);
        const Philox::Block x =
            Philox::block(rule.seed, DropoutRule::counter(id, h, position + (odd ? 8 : 0), key));
        const std::uint32_t other0 = __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1),
                            other1 = __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
        const std::uint32_t words[4] = {odd ? other0 : x[0], odd ? other1 : x[1], odd ? x[2] : other0,
                                        odd ? x[3] : other1};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (words[e] < rule.threshold) s[n][e] = 0.f;
      }
      turn<2>(s);
    }
  }
};

/// One of a thread's two rows, where it lies, and whether this thread writes what it leaves.
struct RowEnd {
  int r;
  const SequenceLocation& at;
  Index h, row;
  bool writes;
};
/// What one row leaves behind its values: sink, logarithm, statistics. Returns the factor of its values.
template <class Rows>
__device__ __forceinline__ float finish_row(const RunInputs& f, Rows& rows, const RowEnd& end) {
  const auto& [r, at, h, row, writes] = end;
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2 = 0.693147180559945309f;
  float &sum = rows.sum[r], sink_part = 0.f;
  const float top = rows.top[r];
  RowProbe& probe = rows.probe[Rows::kFull ? r : 0];
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) sum += __shfl_xor_sync(~0u, sum, x);
  if (Rows::kFull && f.probes.asked) {
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      probe.exponents += __shfl_xor_sync(~0u, probe.exponents, x);
      probe.squares += __shfl_xor_sync(~0u, probe.squares, x);
      probe.distances += __shfl_xor_sync(~0u, probe.distances, x);
      const float best = __shfl_xor_sync(~0u, probe.best, x);
      const int key = __shfl_xor_sync(~0u, probe.best_key, x);
      if (best > probe.best || (best == probe.best && key >= 0 && key < probe.best_key))
        probe.best = best, probe.best_key = key;
    }
  }
  float reference = top == -INFINITY ? 0.f : top * rows.unit, weight = 1.f;
  if (f.sinks.data) {
    const float sink = kLog2e * number_of(f.sinks, static_cast<int>(h));
    const float higher = top == -INFINITY ? sink : fmaxf(reference, sink);
    if (higher > -INFINITY) {
      weight = ptx::exp2(reference - higher), sink_part = ptx::exp2(sink - higher);
      if (sum > 0.f) probe.exponents = weight * fmaf(reference - higher, sum, probe.exponents);
      if (sink_part > 0.f) probe.exponents = fmaf(sink_part, sink - higher, probe.exponents);
      sum = (sum > 0.f ? sum * weight : sum) + sink_part;
      reference = higher;
    }
  }
  // A row without keys keeps 0 and has -inf; one whose scores hold a NaN passes it on.
  const bool empty = sum == 0.f || (top == -INFINITY && sum == sum);
  const float inverse = 1.f / sum;
  if (writes && f.lse)
    f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + row * f.lse_step[2]] =
        natural_lse(reference, sum);
  if (Rows::kFull && writes && f.probes.asked) {
    const auto put = [&](const RowsView& to, float x) {
      if (to.data) static_cast<float*>(to.data)[to.at(at.tensor_batch, h, row)] = x;
    };
    const float scaled = weight * inverse;
    put(f.probes.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - probe.exponents * inverse));
    put(f.probes.top_weight, empty ? 0.f : ptx::exp2(fmaf(probe.best, rows.unit, -reference)) * inverse);
    put(f.probes.second_moment, empty ? 0.f : probe.squares * scaled * scaled);
    put(f.probes.mean_distance, empty ? 0.f : probe.distances * scaled);
    put(f.probes.sink_mass, sum == 0.f ? 0.f : sink_part * inverse);
    if (const RowsView& to = f.probes.top_position; to.data)
      static_cast<Index*>(to.data)[to.at(at.tensor_batch, h, row)] = probe.best_key;
  }
  return empty ? 0.f : weight * inverse;
}

}  // namespace headwise::cuda::mma
