// What the Hopper gradients do to single pairs of a tile: a bias is added, dropout's draws are made.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/hopper/backward/copy.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper::backward {

/// Where a thread stands in its warpgroup's 64 keys x queries.
struct PairThread {
  int group, warp, lane;
};

/// s = scale s + log2(e) bias, the bias in the tile that scores' gradients will overwrite: a warp reads what
/// it writes.
template <class C>
__device__ __forceinline__ void add_bias_tile(float (&s)[C::kQueries / 2], float scale, std::uint32_t tile,
                                              const PairThread& at) {
  using T = typename C::T;
  constexpr float kLog2e = 1.44269504088896341f;
#pragma unroll
  for (int j = 0; j < C::kQueries / 16; ++j) {
    std::uint32_t b[4];
    ptx::load_matrices_turned(tile + chunk_offset(C::kQueries, 16 * j + (at.lane >> 4) * 8 + (at.lane & 7),
                                                  at.group * 8 + at.warp * 2 + ((at.lane >> 3) & 1)),
                              b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float &x0 = s[8 * j + 2 * i], &x1 = s[8 * j + 2 * i + 1];
      x0 = fmaf(kLog2e, Number<T>::low(b[i]), x0 * scale);
      x1 = fmaf(kLog2e, Number<T>::high(b[i]), x1 * scale);
    }
  }
}

/// Where a thread's first pair lies in a bias, and what its sequence has.
struct PairPlace {
  Index first;  // the sequence's first number, of the head
  int query, queries, key, keys;
};
/// The same, numbers read one by one: any format and steps. Rows and keys that are not there read their
/// neighbours': nothing comes of them.
template <class C>
__device__ __forceinline__ void add_bias_numbers(float (&s)[C::kQueries / 2], float scale,
                                                 const PairBias& bias, const PairPlace& at) {
  constexpr float kLog2e = 1.44269504088896341f;
  const auto add = [&]<class B>(const B* data) {
    data += at.first + min(at.query, at.queries - 1) * bias.step[2] + min(at.key, at.keys - 1) * bias.step[3];
    const Index below = (min(at.key + 8, at.keys - 1) - min(at.key, at.keys - 1)) * bias.step[3];
    const int left = max(at.queries - 1 - at.query, 0);
#pragma unroll
    for (int i = 0; i < C::kQueries / 4; ++i) {  // both keys of a query: its offset is not kept
      const B* row = data + min(8 * (i / 2) + (i & 1), left) * bias.step[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const B number = row[r * below];
        float y;
        if constexpr (sizeof(B) == 4)
          y = number;
        else
          y = Number<B>::low(number.bits);
        float& x = s[4 * (i / 2) + 2 * r + (i & 1)];
        x = fmaf(kLog2e, y, x * scale);
      }
    }
  };
  switch (bias.dtype) {
    case DType::bf16: return add(static_cast<const bf16*>(bias.data));
    case DType::f16: return add(static_cast<const f16*>(bias.data));
    default: return add(static_cast<const float*>(bias.data));
  }
}

/// Scale, a bias in its tile, slopes; distance: of a thread's first query and key. A bias that is read number
/// by number is there already, and the scale with it.
template <class C>
__device__ __forceinline__ void add_pair_terms(float (&s)[C::kQueries / 2], const BackwardParams& p,
                                               std::uint32_t tile, const PairThread& at, float slope,
                                               int distance) {
  if (p.bias_tiles) {
    add_bias_tile<C>(s, p.scale_log2, tile, at);
  } else if (!p.bias.data) {
#pragma unroll
    for (int i = 0; i < C::kQueries / 2; ++i) s[i] *= p.scale_log2;
  }
  if (p.slopes.data) {
#pragma unroll
    for (int i = 0; i < C::kQueries / 2; ++i)
      s[i] = fmaf(-slope, static_cast<float>(abs(distance + 8 * (i / 4) + (i & 1) - 4 * (i & 2))), s[i]);
  }
}

/// Which pairs of a step dropout keeps. Four keys share a block of random words, and four lanes hold them:
/// each draws for one of the lanes' two rows of keys and one of their two columns of queries.
template <class C>
struct PairDraws {
  static constexpr int kWords = C::kQueries / 64;
  std::uint32_t bits[kWords];  // 4 bits a column of 8 queries: of the four keys

  __device__ __forceinline__ void draw(const DropoutRule& rule, Index id, int head, int query, int key,
                                       const PairThread& at) {
    const int mine = at.lane / 4 % 4;
    query += mine & 1, key += (mine >> 1) * 8 + at.lane / 16 * 4;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      bits[w] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const Philox::Block x =
            Philox::block(rule.seed, DropoutRule::counter(id, head, query + 8 * (8 * w + j), key));
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (x[c] >= rule.threshold) bits[w] |= 1u << (4 * j + c);
      }
    }
  }
  /// Packed weights of the others become 0. A bit at the end of a byte is spread over a half of a word.
  __device__ __forceinline__ void apply(std::uint32_t (&weights)[C::kQueries / 4],
                                        const PairThread& at) const {
    const int mine = at.lane / 4 % 4;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int from = (at.lane & ~12) | r << 3;
        const std::uint32_t first = __shfl_sync(~0u, bits[w], from) << (3 - mine),
                            second = __shfl_sync(~0u, bits[w], from | 4) << (3 - mine);
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // odd and even columns of 8 queries
          const std::uint32_t low = first << (4 * half), high = second << (4 * half);
#pragma unroll
          for (int j = 1 - half; j < 8; j += 2)
            weights[2 * (8 * w + j) + r] &= ptx::spread_signs(low, high, j / 2);
        }
      }
  }
};

}  // namespace headwise::cuda::hopper::backward
