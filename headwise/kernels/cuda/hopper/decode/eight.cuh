// Products of decode on Hopper with keys and values of 8 bits: widened where they are multiplied.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/eight_bits.cuh"
#include "headwise/kernels/cuda/hopper/decode/query_rows.cuh"

namespace headwise::cuda::hopper::decode {

/// What the numbers of a lane's four keys count; `from`: of the warp's 16 keys.
__device__ __forceinline__ void counts_of(std::uint32_t from, int lane, float (&counts)[4]) {
  const float2 near = ptx::load_pair(from + 8 * (lane % 4)), far = ptx::load_pair(from + 32 + 8 * (lane % 4));
  counts[0] = near.x, counts[1] = near.y, counts[2] = far.x, counts[3] = far.y;
}

/// Scores of keys of 8 bits, [block, even and odd steps, keys]. A word of a matrix holds four columns of a
/// key: q's columns lie alike.
template <class C, template <class> class Eight>
__device__ __forceinline__ void scores_eight(std::uint32_t q, std::uint32_t k, int warp, int lane,
                                             QueryRows<C>& rows, float (&s)[C::kBlocks][2][2][4]) {
  using From = Eight<typename C::T>;
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 32; ++i) {
    std::uint32_t b[4];
    ptx::load_matrices(
        k + C::chunk_at(warp * C::kWarpKeys + (lane & 7) + ((lane >> 4) & 1) * 8, 2 * i + ((lane >> 3) & 1)),
        b);
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int block = 0; block < C::kBlocks; ++block) {
        if constexpr (!C::kHoldsQ) QueryRows<C>::load_q(q, 2 * i + step, block, lane, rows.q[0]);
        const auto& left = rows.q[C::kHoldsQ ? 2 * i + step : 0];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t word = b[2 * half + step];
          Number<typename C::T>::multiply_add(s[block][step][half], left, From::template pair<0, 1>(word),
                                              From::template pair<2, 3>(word));
        }
      }
  }
}

/// Adds weights times values of 8 bits. A turned word holds two columns of two keys: rows.o has the even
/// columns of 16, then the odd ones.
template <class C, template <class> class Eight>
__device__ __forceinline__ void values_eight(const std::uint32_t (&b)[4], int step,
                                             const typename QueryRows<C>::Weights& weights,
                                             QueryRows<C>& rows) {
  using From = Eight<bf16>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = 2 * step + i;
    const std::uint32_t low = b[2 * i], high = b[2 * i + 1];
    const std::uint32_t even[2] = {From::template pair<0, 2>(low), From::template pair<0, 2>(high)},
                        odd[2] = {From::template pair<1, 3>(low), From::template pair<1, 3>(high)};
#pragma unroll
    for (int block = 0; block < C::kBlocks; ++block)
#pragma unroll
      for (int term = 0; term < QueryRows<C>::kTerms; ++term) {
        Number<bf16>::multiply_add(rows.o[block][2 * n], weights[term][block], even[0], even[1]);
        Number<bf16>::multiply_add(rows.o[block][2 * n + 1], weights[term][block], odd[0], odd[1]);
      }
  }
}

}  // namespace headwise::cuda::hopper::decode
