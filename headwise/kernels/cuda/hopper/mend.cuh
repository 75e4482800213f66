// One query of a masked run on Hopper, of whose output some numbers are made anew from its open keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"
#include "headwise/kernels/cuda/inputs/mend.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper {

/// What ForwardParams says of one query.
template <class T, bool kTerms>
struct BandRow {
  static constexpr float kLog2e = 1.44269504088896341f;
  const ForwardParams& p;
  const Place& place;
  int b, head, row;  // the sequence, or a piece of one; the query of it
  const T* q;
  int begin, end;
  float sink, slope;

  __device__ Index batch() const { return p.places ? place.batch : b; }
  __device__ int position() const { return place.q_start + row; }
  __device__ const T* token(const void* data, const Index (&step)[3], int j) const {
    const ForwardPages& pages = p.pages;
    Index from = batch(), at = place.kv_row + j;
    if (pages.table) {
      from = pages.table[b * pages.step[0] + j / p.tensors.page_size * pages.step[1]];
      at = j % p.tensors.page_size;
      if (from < 0 || from >= p.tensors.page_count) return nullptr;
    }
    return static_cast<const T*>(data) + from * step[0] + at * step[1] + head / p.group * step[2];
  }
  __device__ bool open(int j) const {
    const BlockLists& blocks = p.blocks;
    if (!kTerms || !blocks.lists) return true;
    const int q = position(), block = j / blocks.kv_block;
    if (q < 0 || q / blocks.q_block >= blocks.rows) return false;
    return blocks.bits[static_cast<Index>(q / blocks.q_block) * blocks.words + block / 32] >> (block % 32) &
           1u;
  }
  __device__ float score(int j) const {
    const T* k = token(p.tensors.k, p.tensors.k_step, j);
    float x = 0;
#pragma unroll 1
    for (int c = 0; k && c < p.tensors.head_dim; ++c)
      x = fmaf(static_cast<float>(q[c]), static_cast<float>(k[c]), x);
    if constexpr (!kTerms) return x * p.scale_log2;
    x = p.cap > 0.f ? p.cap * tanhf(x * p.inverse_cap) : x * p.scale_log2;
    x = fmaf(-slope, static_cast<float>(abs(position() - j)), x);
    if (p.bias.data)
      x = fmaf(
          kLog2e,
          load_float(p.bias.data, p.bias.dtype,
                     b / p.pieces * p.bias.step[0] + head * p.bias.step[1] +
                         (place.first_query + row) * p.bias.step[2] + (place.first_key + j) * p.bias.step[3]),
          x);
    return x;
  }
  __device__ float kept(int j) const {
    if (!kTerms || !p.drops) return 1.f;
    const int n = b / p.pieces;
    return p.rule.keep(p.sequence_ids ? p.sequence_ids[n] : n, head, position(), j) ? 1.f : 0.f;
  }
  __device__ float value(int j, int c) const {
    const T* v = token(p.tensors.v, p.tensors.v_step, j);
    return v ? static_cast<float>(v[c]) : 0.f;
  }
  __device__ float factor() const {
    if constexpr (!kTerms) return 1.f;
    const RowGate& gate = p.gate;
    return p.kept * (gate.data ? number_of(gate, batch(), place.q_row + row, head) : 1.f);
  }
};

/// Mends query `row` of sequence, or piece, b.
template <int kEach, bool kTerms, class T>
__device__ __forceinline__ void mend_query(const ForwardParams& p, const Place& place, int b, int head,
                                           int row) {
  constexpr float kLog2e = BandRow<T, kTerms>::kLog2e;
  const HopperTensors& m = p.tensors;
  const int position = place.q_start + row;
  const Index batch = p.places ? place.batch : b, at = place.q_row + row;
  const T* q = static_cast<const T*>(m.q) + batch * m.q_step[0] + at * m.q_step[1] + head * m.q_step[2];
  T* out = static_cast<T*>(p.out) + batch * p.out_step[0] + at * p.out_step[1] + head * p.out_step[2];
  mend_row<kEach>(out, 1, m.value_dim,
                  BandRow<T, kTerms>{p, place, b, head, row, q, max(position - p.back, 0),
                                     min(place.kv_tokens, position + p.ahead + 1),
                                     p.sinks.data ? kLog2e * number_of(p.sinks, head) : -INFINITY,
                                     kTerms && p.slopes.data ? kLog2e * number_of(p.slopes, head) : 0.f});
}

}  // namespace headwise::cuda::hopper
