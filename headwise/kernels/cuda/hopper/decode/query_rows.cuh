// QueryRows: what a warp of decode on Hopper holds of its rows: q, limits, and the softmax state over its
// keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/hopper/decode/copy.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper::decode {

/// What a warp holds of its rows: the left factor, limits, slopes, and the softmax state over its own keys.
template <class C>
struct QueryRows {
  using T = typename C::T;
  static constexpr int kDim = C::kHeadDim, kBlocks = C::kBlocks, kHalves = C::kHalves,
                       kSets = kBlocks * kHalves;
  // Weights meet values as W. Times the scale of an int8 value a weight leaves the range of f16, and is
  // rounded where a weight of 1 was not: it goes as the sum of two bf16.
  using W = std::conditional_t<C::kEight, bf16, T>;
  static constexpr int kTerms = C::kEight ? 2 : 1;
  using Weights = std::uint32_t[kTerms][kBlocks][4];
  std::uint32_t q[C::kHoldsQ ? kDim / 16 : 1][4];
  float top[kSets], sum[kSets];
  float o[kBlocks][kDim / 8][4];

  /// The row of set i that this lane holds.
  static __device__ __forceinline__ int row_of(int i, int lane) {
    return 16 * (i / kHalves) + 8 * (i % kHalves) + lane / 4;
  }

  __device__ __forceinline__ void start(std::uint32_t from, int lane) {
#pragma unroll
    for (int i = 0; i < kBlocks * kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i / (kDim / 8)][i % (kDim / 8)][j] = 0.f;
#pragma unroll
    for (int i = 0; i < kSets; ++i) top[i] = -INFINITY, sum[i] = 0.f;
    // Rows that are not there hold anything: rows do not meet, and these are not written.
    if constexpr (C::kHoldsQ) {
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) load_q(from, i, 0, lane, q[i]);
    }
  }
  /// Columns 16 i .. 16 i + 15 of a block of 16 rows.
  static __device__ __forceinline__ void load_q(std::uint32_t from, int i, int block, int lane,
                                                std::uint32_t (&to)[4]) {
    if constexpr (C::kEight) {  // four columns a lane, as a word of k holds them
      const std::uint32_t at = from + (16 * block + lane / 4) * C::kQPitch + 32 * i + 8 * (lane % 4);
      to[0] = ptx::load_word(at), to[2] = ptx::load_word(at + 4), to[1] = to[3] = 0u;
      if (kHalves == 2)
        to[1] = ptx::load_word(at + 8 * C::kQPitch), to[3] = ptx::load_word(at + 8 * C::kQPitch + 4);
    } else if constexpr (kHalves == 1) {  // the lower half is empty
      const std::uint32_t at = from + lane / 4 * C::kQPitch + 32 * i + 4 * (lane % 4);
      to[0] = ptx::load_word(at), to[2] = ptx::load_word(at + 16), to[1] = to[3] = 0u;
    } else {
      ptx::load_matrices(from + (16 * block + (lane & 15)) * C::kQPitch + 32 * i + 16 * (lane >> 4), to);
    }
  }

  /// Keys from `column` on. `special`: scores are not only scaled, with limits where `masked`.
  struct Keys {
    int column;
    bool special, masked;
  };
  /// s [rows, 16 keys] -> weights, times what the values of this lane's four keys count.
  __device__ __forceinline__ void weigh(const Params& p, const Item& d, const Keys& keys,
                                        float (&s)[kBlocks][2][4], [[maybe_unused]] const float (&counts)[4],
                                        Weights& weights) {
    float factor[kSets], x[kSets][4];
#pragma unroll
    for (int i = 0; i < kSets; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = s[i / kHalves][j / 2][2 * (i % kHalves) + (j & 1)];
    if (keys.special) {
      adjust(p, x, d, keys.column, keys.masked);
    } else {
#pragma unroll
      for (int i = 0; i < kSets; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) x[i][j] *= p.scale_log2;
    }
    bool rescale = false;
    float most[kSets];
#pragma unroll
    for (int i = 0; i < kSets; ++i)
      most[i] = fmaxf(top[i], fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3])));
#pragma unroll
    for (int far = 1; far <= 2; far *= 2)
#pragma unroll
      for (int i = 0; i < kSets; ++i) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], far));
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      const float reference = most[i] == -INFINITY ? 0.f : most[i];
      factor[i] = most[i] == top[i] ? 1.f : ptx::exp2(top[i] - reference);
      rescale |= most[i] != top[i];
      top[i] = most[i];
      bool closed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) closed[j] = x[i][j] == -INFINITY, x[i][j] = ptx::exp2(x[i][j] - reference);
      sum[i] = fmaf(sum[i], factor[i], (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]));
      if constexpr (C::kEight) {  // a scale of NaN does not reach through a closed pair
#pragma unroll
        for (int j = 0; j < 4; ++j) x[i][j] = closed[j] ? 0.f : x[i][j] * counts[j];
      }
      const int block = i / kHalves, half = i % kHalves;
#pragma unroll
      for (int n = 0; n < kTerms; ++n) {
        auto& w = weights[n][block];
        w[half] = Number<W>::pack(x[i][0], x[i][1]), w[2 + half] = Number<W>::pack(x[i][2], x[i][3]);
        if (kHalves == 1) w[1] = w[3] = 0u;
        if (n + 1 == kTerms) break;
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // what rounding left
          const std::uint32_t both = w[half + j / 2 * 2];
          x[i][j] -= j & 1 ? Number<W>::high(both) : Number<W>::low(both);
        }
      }
    }
    if (__any_sync(~0u, rescale)) {
#pragma unroll
      for (int i = 0; i < kSets; ++i)
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          float* at = o[i / kHalves][n] + 2 * (i % kHalves);
          at[0] *= factor[i], at[1] *= factor[i];
        }
    }
  }
  /// Scale or softcap, ALiBi, limits.
  __device__ __forceinline__ void adjust(const Params& p, float (&x)[kSets][4], const Item& d, int column,
                                         bool masked) const {
    constexpr float kLog2e = 1.44269504088896341f;
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      const int packed = d.row_block * C::kRows + row_of(i, threadIdx.x % 32),
                position = d.place.q_start + quotient<C>(p.by_group, packed), begin = position - p.back,
                end = min(d.place.kv_tokens, position + p.ahead + 1);
      float slope = 0.f;
      if (p.slopes.data) {
        if (packed < d.place.q_tokens * p.group)
          slope = kLog2e * number_of(p.slopes, d.kv_head * p.group + packed % p.group);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& y = x[i][j];
        const int key = column + 8 * (j / 2) + (j & 1);
        y = p.cap > 0.f
                ? p.cap *
                      fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(y * p.inverse_cap * (2.f * kLog2e))), 1.f)
                : y * p.scale_log2;
        if (p.slopes.data) y = fmaf(-slope, static_cast<float>(abs(position - key)), y);
        if (masked && (key < begin || key >= end)) y = -INFINITY;
      }
    }
  }
};

}  // namespace headwise::cuda::hopper::decode
