// What the Hopper forward does to single pairs of a tile: softcap, slopes, a bias, dropout, a mask's blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/hopper/forward/facts.cuh"
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::forward {

/// s = softcap * tanh(scale * q.k / softcap) - slope * |q - k|, in exponents of 2; `distance`: of a thread's
/// first row and key.
template <int Keys>
__device__ __forceinline__ void cap_scores(float (&s)[Keys / 2], const ForwardParams& p, float slope,
                                           int distance) {
  constexpr float kLog2e = 1.44269504088896341f;
#pragma unroll
  for (int i = 0; i < Keys / 2; ++i) {
    float x = s[i];
    if (p.cap > 0.f) {
      // tanh(y) = 1 - 2 / (1 + e^2y): exact at both ends, 1e-7 of the cap in between
      const float e = ptx::exp2(x * p.inverse_cap * (2.f * kLog2e));
      x = p.cap * fmaf(-2.f, ptx::reciprocal(1.f + e), 1.f);
    } else {
      x *= p.scale_log2;
    }
    const int d = distance + 8 * ((i >> 1) & 1) - 8 * (i / 4) - (i & 1);
    s[i] = fmaf(-slope, static_cast<float>(abs(d)), x);
  }
}

/// s += log2(e) bias of a thread's two rows, from key0 on. Rows and keys that are not there read their
/// neighbours': nothing comes of them.
template <int Keys>
__device__ __forceinline__ void add_bias(float (&s)[Keys / 2], const PairBias& bias, FactLoader facts,
                                         int row0, int key0) {
  constexpr float kLog2e = 1.44269504088896341f;
  const TileLocation at = facts.location();
  const TileSequence in = facts.sequence();
  const int first_key = facts.first_key();
  const auto add = [&]<class B>(const B* data) {
    data += in.sequence * bias.step[0] + at.head * bias.step[1] + first_key * bias.step[3];
    const B* rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = data + (in.row + min(row0 + 8 * r, at.left - 1)) * bias.step[2];
#pragma unroll
    for (int i = 0; i < Keys / 4; ++i) {  // both rows of a key: its offset is not kept
      const Index key = max(min(key0 + 8 * (i / 2) + (i & 1), in.kv_tokens - 1), 0) * bias.step[3];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const B number = rows[r][key];
        float y;
        if constexpr (sizeof(B) == 4)
          y = number;
        else
          y = Number<B>::low(number.bits);
        float& x = s[4 * (i / 2) + 2 * r + (i & 1)];
        x = fmaf(kLog2e, y, x);
      }
    }
  };
  switch (bias.dtype) {
    case DType::bf16: return add(static_cast<const bf16*>(bias.data));
    case DType::f16: return add(static_cast<const f16*>(bias.data));
    default: return add(static_cast<const float*>(bias.data));
  }
}

/// s = scale s + log2(e) bias, the bias in a tile of `Rows` x Keys, of which a warp has 16 rows from row0 on.
template <class T, int Rows, int Keys>
__device__ __forceinline__ void add_bias_tile(float (&s)[Keys / 2], float scale, std::uint32_t tile, int row0,
                                              int lane) {
  constexpr float kLog2e = 1.44269504088896341f;
#pragma unroll
  for (int j = 0; j < Keys / 16; ++j) {
    std::uint32_t b[4];
    ptx::load_matrices(tile + chunk_offset(Rows, row0 + (lane & 15), 2 * j + (lane >> 4)), b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float &x0 = s[8 * j + 2 * i], &x1 = s[8 * j + 2 * i + 1];
      x0 = fmaf(kLog2e, Number<T>::low(b[i]), x0 * scale);
      x1 = fmaf(kLog2e, Number<T>::high(b[i]), x1 * scale);
    }
  }
}

/// Which pairs of a tile dropout keeps. Four keys share a block of random words: of two lanes that hold them,
/// one draws for row 0, one for row 1; 4 bits a block.
template <int Keys>
struct TileDraws {
  static constexpr int kWords = (Keys + 63) / 64;
  std::uint32_t bits[kWords];

  __device__ __forceinline__ void draw(const ForwardParams& p, FactLoader facts, int row0, int key0) {
    const TileSequence in = facts.sequence();
    const Index id = p.sequence_ids ? p.sequence_ids[in.sequence] : in.sequence;
    const int head = facts.location().head, query = in.position + row0 + threadIdx.x % 2 * 8;
#pragma unroll
    for (int w = 0; w < kWords; ++w) bits[w] = 0;
#pragma unroll
    for (int j = 0; j < Keys / 8; ++j) {
      const Philox::Block x = Philox::block(p.rule.seed, DropoutRule::counter(id, head, query, key0 + 8 * j));
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (x[c] >= p.rule.threshold) bits[j / 8] |= 1u << (4 * (j % 8) + c);
    }
  }
  /// Packed weights of the others become 0. A bit at the end of a byte is spread over a half of a word.
  __device__ __forceinline__ void apply(std::uint32_t (&weights)[Keys / 4]) const {
    const int own = threadIdx.x % 2 * 2;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const std::uint32_t other = __shfl_xor_sync(~0u, bits[w], 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t row = (own != 0) == (r != 0) ? bits[w] : other;
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // even and odd blocks of 8 keys
          const std::uint32_t low = row << (7 - 4 * half - own), high = row << (6 - 4 * half - own);
#pragma unroll
          for (int j = half; j < 8 && 8 * w + j < Keys / 8; j += 2)
            weights[2 * (8 * w + j) + r] &= ptx::spread_signs(low, high, j / 2);
        }
      }
    }
  }
};

/// The same block by block, where registers are shorter.
/// Four keys share a block of random words: of two lanes
/// that hold them, one draws for row 0, one for row 1.
template <int Keys>
__device__ __forceinline__ void drop_weights(std::uint32_t (&weights)[Keys / 4], const ForwardParams& p,
                                             FactLoader facts, int row0, int key0) {
  const TileSequence in = facts.sequence();
  const Index id = p.sequence_ids ? p.sequence_ids[in.sequence] : in.sequence;
  const bool odd = threadIdx.x % 2 != 0;
  const int head = facts.location().head, query = in.position + row0 + (odd ? 8 : 0);
#pragma unroll
  for (int j = 0; j < Keys / 8; ++j) {
    const Philox::Block x = Philox::block(p.rule.seed, DropoutRule::counter(id, head, query, key0 + 8 * j));
    const std::uint32_t other0 = __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1),
                        other1 = __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
    const auto kept = [&](std::uint32_t low, std::uint32_t high) {
      return (low < p.rule.threshold ? 0u : 0xffffu) | (high < p.rule.threshold ? 0u : 0xffff0000u);
    };
    weights[2 * j] &= kept(odd ? other0 : x[0], odd ? other1 : x[1]);
    weights[2 * j + 1] &= kept(odd ? x[2] : other0, odd ? x[3] : other1);
  }
}

/// Bits of the keys [key0, key0 + keys) that are open to the query at position q, as below(key) gives those
/// under a key.
template <class Below>
__device__ __forceinline__ std::uint32_t open_blocks(const BlockLists& blocks, int q, int key0, int keys,
                                                     Below&& below) {
  const int row = q / blocks.q_block;
  if (q < 0 || row >= blocks.rows) return 0;
  const std::uint32_t* bits = blocks.bits + static_cast<std::int64_t>(row) * blocks.words;
  int c = key0 / blocks.kv_block, key = c * blocks.kv_block;
  std::uint32_t open = 0;
#pragma unroll 1
  for (; key < key0 + keys; ++c, key += blocks.kv_block)
    if (bits[c / 32] >> (c % 32) & 1u) open |= below(key + blocks.kv_block) & ~below(key);
  return open;
}

}  // namespace headwise::cuda::hopper::forward
