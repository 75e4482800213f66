// Scores of a warp's rows in the Hopper forward: their maxima, and the scores themselves a second time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"

namespace headwise::cuda::hopper::forward {

/// The highest of the first `Keys` scores of a thread's two rows, in every thread of a row.
template <int Keys, int N>
__device__ __forceinline__ void row_maxima(const float (&s)[N], float (&most)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float c[4] = {s[2 * r], s[2 * r + 1], s[4 + 2 * r], s[4 + 2 * r + 1]};
#pragma unroll
    for (int j = 2; j < Keys / 8; ++j) {
      c[2 * (j & 1)] = fmaxf(c[2 * (j & 1)], s[4 * j + 2 * r]);
      c[2 * (j & 1) + 1] = fmaxf(c[2 * (j & 1) + 1], s[4 * j + 2 * r + 1]);
    }
    most[r] = fmaxf(fmaxf(c[0], c[1]), fmaxf(c[2], c[3]));
  }
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) {
    most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], x));
    most[1] = fmaxf(most[1], __shfl_xor_sync(~0u, most[1], x));
  }
}

/// The greater one of bits of floats, if it is positive: whole numbers have that order, three an instruction.
__device__ __forceinline__ int higher(int bits, float a, float b) {
  return __vimax3_s32(bits, __float_as_int(a), __float_as_int(b));
}

/// The scores of a warp's 16 rows by mma.sync, bit by bit those of wgmma: one warp may have them again where
/// a warpgroup would have to agree. Addresses go through volatile moves, so that what is made of them takes
/// no registers along the tiles.
template <class T, int Dim, int Rows, int Keys>
__device__ __forceinline__ void scores_again(float (&s)[Keys / 2], std::uint32_t q, std::uint32_t k) {
  const int thread = static_cast<int>(ptx::thread_now());
  asm volatile("mov.u32 %0, %0;" : "+r"(k));
  asm volatile("mov.u32 %0, %0;" : "+r"(q));
  const int lane = thread % 32, row = (thread / 32 - 4) * 16;  // the first warpgroup copies
#pragma unroll
  for (int i = 0; i < Keys / 2; ++i) s[i] = 0.f;
#pragma unroll 1
  for (int i = 0; i < Dim / 16; ++i) {
    std::uint32_t a[4];
    ptx::load_matrices(q + chunk_offset(Rows, row + (lane & 15), 2 * i + (lane >> 4)), a);
#pragma unroll
    for (int j = 0; j < Keys / 16; ++j) {
      std::uint32_t b[4];
      ptx::load_matrices(
          k + chunk_offset(Keys, 16 * j + (lane & 7) + (lane >> 4) * 8, 2 * i + (lane >> 3 & 1)), b);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* x = s + 8 * j + 4 * h;
        float d[4] = {x[0], x[1], x[2], x[3]};
        Number<T>::multiply_add(d, a, b[2 * h], b[2 * h + 1]);
        x[0] = d[0], x[1] = d[1], x[2] = d[2], x[3] = d[3];
      }
    }
  }
}

}  // namespace headwise::cuda::hopper::forward
