// What the tiles of the Hopper gradients share: products of rows, weights of capped scores, rows that leave.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/hopper/backward/copy.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper::backward {

/// d = a b^T over `Steps` of 16 columns, rows of a and b in shared memory.
template <int N, class T, int Steps, int ARows, int BRows>
__device__ __forceinline__ void multiply_rows(float (&d)[N / 2], std::uint32_t a, std::uint32_t b) {
  const std::uint64_t left = rows_descriptor(a), right = rows_descriptor(b);
#pragma unroll
  for (int i = 0; i < Steps; ++i) {
    if (i == 0)
      Wgmma<N, T>::template first_shared<0>(d, left, right);
    else
      Wgmma<N, T>::template more_shared<0>(d, advanced(left, k_step(ARows, i)),
                                           advanced(right, k_step(BRows, i)));
  }
}

/// The capped score in exponents of 2. tanh(y) = 1 - 2 u, u = 1 / (1 + e^2y); its slope 1 - tanh^2 = 4 u (1 -
/// u).
__device__ __forceinline__ float capped(const BackwardParams& p, float x, float& slant) {
  const float u = ptx::reciprocal(1.f + ptx::exp2(x * p.inverse_cap * (2.f * 1.44269504088896341f)));
  slant = 4.f * u * (1.f - u);
  return p.cap * fmaf(-2.f, u, 1.f);
}

/// Pairs of a thread that are closed: close(j, r, first, second) of key `key` + 8 r and the two queries from
/// `query` + 8 j on.
template <class C, class Close>
__device__ __forceinline__ void each_closed(const BackwardParams& p, int key, int keys, int query,
                                            Close&& close) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int low = key + 8 * r >= keys ? 1 << 30 : key + 8 * r - p.ahead - query;
    const int high = key + 8 * r + p.back - query;
#pragma unroll
    for (int j = 0; j < C::kQueries / 8; ++j)
      close(j, r, 8 * j < low || 8 * j > high, 8 * j + 1 < low || 8 * j + 1 > high);
  }
}

/// What a thread has of a step: scores or weights, dout.v, weights as dv reads them, slopes of the softcap;
/// pairs: ds holds weights that were not dropped.
template <class C>
struct StepRegisters {
  const float (&s)[C::kQueries / 2], (&dp)[C::kQueries / 2];
  const std::uint32_t (&weights)[C::kQueries / 4], (&slants)[C::kTerms ? C::kQueries / 4 : 1];
};
/// ds = the gradients of scores; `delta`: of the thread's first query.
template <class C>
__device__ __forceinline__ void score_gradients(std::uint32_t (&ds)[C::kQueries / 4],
                                                const StepRegisters<C>& x, std::uint32_t delta,
                                                const BackwardParams& p) {
  using T = typename C::T;
#pragma unroll
  for (int j = 0; j < C::kQueries / 8; ++j) {
    float2 l = ptx::load_pair(delta + 32 * j);
    if constexpr (C::kPairs) l.x *= p.inverse_kept, l.y *= p.inverse_kept;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = 4 * j + 2 * r;
      const std::uint32_t w = x.weights[2 * j + r];
      if constexpr (C::kPairs) {  // a weight that was dropped is 0; its score's gradient is not
        const std::uint32_t all = ds[2 * j + r];
        ds[2 * j + r] = Number<T>::pack(fmaf(Number<T>::low(w), x.dp[i], -l.x * Number<T>::low(all)),
                                        fmaf(Number<T>::high(w), x.dp[i + 1], -l.y * Number<T>::high(all)));
      } else {
        float w0 = C::kRoundedWeights ? Number<T>::low(w) : x.s[i],
              w1 = C::kRoundedWeights ? Number<T>::high(w) : x.s[i + 1];
        if constexpr (C::kTerms)
          w0 *= Number<f16>::low(x.slants[2 * j + r]), w1 *= Number<f16>::high(x.slants[2 * j + r]);
        ds[2 * j + r] = Number<T>::pack(w0 * (x.dp[i] - l.x), w1 * (x.dp[i + 1] - l.y));
      }
    }
  }
}

/// Two sweeps: weights of scores, in place: exp2 over the rows' or columns' lse. `exponent(j, r)` is log2(e)
/// lse of two pairs, `distance(j, r, e)` query - key of one; slanted: weight times the slope of the softcap,
/// packed.
template <class C, class Exponent, class Distance>
__device__ __forceinline__ void weights_of(float (&s)[32], const BackwardParams& p, float slope,
                                           std::uint32_t (&slanted)[C::kTerms ? 16 : 1], Exponent&& exponent,
                                           Distance&& distance) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
      const float2 l = exponent(j, r);
      if constexpr (C::kTerms) {
        float slant0 = 1.f, slant1 = 1.f;
        if (p.cap > 0.f) {
          x0 = capped(p, x0, slant0), x1 = capped(p, x1, slant1);
        } else {
          x0 *= p.scale_log2, x1 *= p.scale_log2;
        }
        x0 = ptx::exp2(fmaf(-slope, static_cast<float>(abs(distance(j, r, 0))), x0) - l.x);
        x1 = ptx::exp2(fmaf(-slope, static_cast<float>(abs(distance(j, r, 1))), x1) - l.y);
        slanted[2 * j + r] = Number<typename C::T>::pack(x0 * slant0, x1 * slant1);
      } else {
        x0 = ptx::exp2(fmaf(x0, p.scale_log2, -l.x)), x1 = ptx::exp2(fmaf(x1, p.scale_log2, -l.y));
      }
    }
}
/// Weights of row r outside columns [low, high] become 0; limits count from this thread's first column.
template <class C>
__device__ __forceinline__ void close_weights(float (&s)[32], std::uint32_t (&slanted)[C::kTerms ? 16 : 1],
                                              const int (&low)[2], const int (&high)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool closed0 = 8 * j < low[r] || 8 * j > high[r],
                 closed1 = 8 * j + 1 < low[r] || 8 * j + 1 > high[r];
      if (closed0) s[4 * j + 2 * r] = 0.f;
      if (closed1) s[4 * j + 2 * r + 1] = 0.f;
      if constexpr (C::kTerms) slanted[2 * j + r] &= (closed0 ? 0u : 0xffffu) | (closed1 ? 0u : 0xffff0000u);
    }
}

/// Fragments of 64 rows as they stand.
template <int Dim>
__device__ __forceinline__ void put_fragments(const float (&d)[Dim / 2], float* to, int thread) {
#pragma unroll
  for (int i = 0; i < Dim / 8; ++i)
    reinterpret_cast<float4*>(to)[i * 128 + thread] =
        make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
}

/// A warpgroup sets rows [from, rows) of a tile to 0. Two may clear the same: zeros over zeros disturb
/// nobody.
template <int Dim>
__device__ __forceinline__ void clear_tile_rows(std::uint32_t tile, int rows, int from, int thread) {
  for (int i = thread; i < (rows - from) * (Dim / 8); i += 128)
    ptx::store_shared(tile + chunk_offset(rows, from + i / (Dim / 8), i % (Dim / 8)), 0u, 0u, 0u, 0u);
}

/// 64 rows of a gradient [batch row head dim] and what of them there is.
struct GradientRows {
  const CUtensorMap* map;  // boxes of 64 rows x 64 columns
  void* to;                // null: not asked
  int chunks;              // of 8 columns in a row
  const Index (&step)[3];
  int row, left, head, batch;
};
/// The rows in shared memory that a gradient leaves through: first .. first + 63 of a tile.
struct StagedRows {
  std::uint32_t tile;
  int first;
  bool by_rows;  // rows that end a sequence leave one by one
  int barrier;   // of this warpgroup
};
/// A warpgroup's factor * d leaves through a tile of `TileRows`.
template <class T, int Dim, int TileRows>
__device__ __forceinline__ void store_gradient(const float (&d)[Dim / 2], float factor,
                                               const StagedRows& through, const GradientRows& to) {
  const auto& [staged, first, by_rows, barrier] = through;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int j = 0; j < Dim / 16; ++j)
    ptx::store_matrices(staged + chunk_offset(TileRows, first + warp * 16 + (lane & 15), 2 * j + (lane >> 4)),
                        Number<T>::pack(factor * d[8 * j], factor * d[8 * j + 1]),
                        Number<T>::pack(factor * d[8 * j + 2], factor * d[8 * j + 3]),
                        Number<T>::pack(factor * d[8 * j + 4], factor * d[8 * j + 5]),
                        Number<T>::pack(factor * d[8 * j + 6], factor * d[8 * j + 7]));
  ptx::fence_shared_for_async();
  ptx::barrier_sync(barrier, 128);
  if (!to.to) return;
  if (by_rows && to.left < 64) {  // a bulk store would run into the next sequence
    auto* out = static_cast<std::uint16_t*>(to.to) + to.batch * to.step[0] + to.head * to.step[2];
    for (int i = thread; i < to.left * (Dim / 8); i += 128) {
      const int row = i / (Dim / 8), chunk = i % (Dim / 8);
      if (chunk >= to.chunks) continue;
      *reinterpret_cast<int4*>(out + (to.row + row) * to.step[1] + chunk * 8) =
          ptx::load_shared(staged + chunk_offset(TileRows, first + row, chunk));
    }
  } else if (thread == 0) {
#pragma unroll
    for (int c = 0; c < (Dim + 63) / 64; ++c)
      ptx::store_tile(to.map, staged + c * panel_bytes(TileRows) + first * kPanelRowBytes, to.row, 0, to.head,
                      to.batch, 64 * c);
    ptx::commit_stores();
  }
}

}  // namespace headwise::cuda::hopper::backward
