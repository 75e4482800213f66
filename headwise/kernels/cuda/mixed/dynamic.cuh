// Pairs of 16 tokens and all heads in a warp's registers: dynamic mixes in f32, products of heads,
// coefficients.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed/dynamic.h"
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda::mixed {

/// x[4 n + c]: token n of two, head c of a lane's four.
struct Pairs {
  float x[8];
};
__device__ __forceinline__ void take4(float (&x)[4], const float* from) {
  const float4 y = *reinterpret_cast<const float4*>(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}
/// Loads behind stay behind: without it they all come first, and more is alive than there are registers.
__device__ __forceinline__ void forget() { asm volatile("" ::: "memory"); }
/// y_h = x_h (1 + gates) + sum_r w2[r h] sum_m w1[r m] x_m of the own token and of the other one; Turned: w1
/// and w2 change places. `own` and `other`: a lane's numbers of the mix in three records.
template <bool Turned>
__device__ __forceinline__ Pairs mixed(const Pairs& p, const float* own, const float* const (&other)[2]) {
  constexpr int kFirst = Turned ? kDynamicRank : 0, kSecond = kDynamicRank - kFirst;
  float inner[2 * kDynamicRank][2];
#pragma unroll
  for (int r = 0; r < kDynamicRank; ++r) {
    float w[4];
    take4(w, own + (kFirst + r) * 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* x = p.x + 4 * n;
      float v[4];
      take4(v, other[n] + (kFirst + r) * 16);
      inner[r][n] = fmaf(w[3], x[3], fmaf(w[2], x[2], fmaf(w[1], x[1], w[0] * x[0])));
      inner[kDynamicRank + r][n] = fmaf(v[3], x[3], fmaf(v[2], x[2], fmaf(v[1], x[1], v[0] * x[0])));
    }
  }
#pragma unroll
  for (int step = 1; step <= 2; ++step)
#pragma unroll
    for (int r = 0; r < 2 * kDynamicRank; ++r)
#pragma unroll
      for (int n = 0; n < 2; ++n) inner[r][n] += __shfl_xor_sync(~0u, inner[r][n], step);
  Pairs y;
  float gate[4];
  take4(gate, own + 2 * kDynamicRank * 16);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float v[4];
    take4(v, other[n] + 2 * kDynamicRank * 16);
#pragma unroll
    for (int c = 0; c < 4; ++c) y.x[4 * n + c] = fmaf(p.x[4 * n + c], gate[c] + v[c], p.x[4 * n + c]);
  }
#pragma unroll
  for (int r = 0; r < kDynamicRank; ++r) {
    float w[4];
    take4(w, own + (kSecond + r) * 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float v[4];
      take4(v, other[n] + (kSecond + r) * 16);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        y.x[4 * n + c] = fmaf(w[c], inner[r][n], fmaf(v[c], inner[kDynamicRank + r][n], y.x[4 * n + c]));
    }
  }
  return y;
}

/// [16 tokens, 16 heads] as the left factor of a product; turned, as one with the heads down.
template <class T>
__device__ __forceinline__ void pack_turned(std::uint32_t (&to)[4], const Pairs& p) {
#pragma unroll
  for (int n = 0; n < 4; ++n)
    to[n] = turned(Number<T>::pack(p.x[4 * (n >> 1) + 2 * (n & 1)], p.x[4 * (n >> 1) + 2 * (n & 1) + 1]));
}
/// sum[m h] += sum over pairs of x_m y_h
template <class T>
__device__ __forceinline__ void add_products(float (&sum)[2][4], const Pairs& x, const Pairs& y) {
  std::uint32_t a[4], b[4];  // [eight tokens][eight heads]
  pack_turned<T>(a, x), pack_turned<T>(b, y);
  Number<T>::multiply_add(sum[0], a, b[0], b[2]);
  Number<T>::multiply_add(sum[1], a, b[1], b[3]);
}

/// Row r of a record's mix as a row of mix_q and mix_k, or -1: the run's rank is smaller, or nothing is
/// dynamic.
__device__ __forceinline__ int given_row(const MixPairs& m, int stage, int r) {
  const MixStage& s = stage ? m.after : m.before;
  if (s.kind != Mix::dynamic) return -1;
  if (r == 2 * kDynamicRank) return s.row0 + 2 * m.rank;
  return r % kDynamicRank < m.rank ? s.row0 + r / kDynamicRank * m.rank + r % kDynamicRank : -1;
}
__device__ __forceinline__ Index coefficient_at(const AnyView& v, Index batch, Index token, int row, int h) {
  return batch * v.step[0] + token * v.step[1] + row * v.step[2] + h * v.step[3];
}
/// A coefficient of a record: its stage, its row there and its head; of which token.
struct CoefficientOf {
  int stage, r, h;
  Index batch, token;
};
__device__ __forceinline__ void put_coefficient(const AnyView& to, const MixPairs& m, const CoefficientOf& of,
                                                float x) {
  const int row = given_row(m, of.stage, of.r);
  if (row >= 0 && of.h < m.heads)
    store_float(to.data, to.dtype, coefficient_at(to, of.batch, of.token, row, of.h), static_cast<double>(x));
}

}  // namespace headwise::cuda::mixed
