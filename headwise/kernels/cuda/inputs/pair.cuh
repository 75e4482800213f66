// One pair's score and one number of a tensor, by one thread: what the plain kernels of both directions
// share.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/relative.cuh"
#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda {

template <class T>
struct Work {  // what a kernel computes in
  using type = float;
};
template <>
struct Work<double> {
  using type = double;
};

/// Element c of a head's vector; columns outside of a row read as 0.
template <class T, class W>
__device__ W element(const HeadsView& x, Index batch, Index row, Index head, Index c) {
  const T* data = static_cast<const T*>(x.data);
  const HeadLayout& l = x.layout;
  if (l.row == 0)
    return static_cast<W>(
        data[batch * x.step[0] + row * x.step[1] + l.slot(head) * x.step[2] + c * x.step[3]]);
  const Index column = l.column(head) + c;
  return column < 0 || column >= l.row
             ? W(0)
             : static_cast<W>(data[batch * x.step[0] + row * x.step[1] + column * x.step[2]]);
}
/// Batch, or page, and row of key or value j of sequence b; row -1: a page outside the pool.
struct TokenPlace {
  Index batch, row;
};
inline __device__ TokenPlace token_place(const RunInputs& p, const SequenceLocation& at, Index b, Index j) {
  if (!p.pages) return {at.tensor_batch, at.kv_row + j};
  const Index page = p.pages[b * p.pages_step[0] + j / p.page_size * p.pages_step[1]];
  return {page, page < 0 || page >= p.page_count ? Index{-1} : j % p.page_size};
}
/// Element c of key or value j of sequence b, without its scale; pages outside the pool read as 0.
template <class T, class W>
__device__ W kv_element(const RunInputs& p, const HeadsView& x, const SequenceLocation& at, Index b, Index j,
                        Index head, Index c) {
  const TokenPlace t = token_place(p, at, b, j);
  if (t.row < 0) return W(0);
  if (p.kv_dtype == DType::e4m3) return static_cast<W>(element<e4m3, float>(x, t.batch, t.row, head, c));
  return p.kv_dtype == DType::i8 ? element<std::int8_t, W>(x, t.batch, t.row, head, c)
                                 : element<T, W>(x, t.batch, t.row, head, c);
}
/// What the numbers of key or value j count.
template <class W>
__device__ W kv_scale(const RunInputs& p, const ScalesView& s, const HeadsView& x, const SequenceLocation& at,
                      Index b, Index j, Index head) {
  if (!p.k_scale.data) return W(1);
  const TokenPlace t = token_place(p, at, b, j);
  return t.row < 0 ? W(0)
                   : static_cast<W>(
                         s.data[t.batch * s.step[0] + t.row * s.step[1] + x.layout.slot(head) * s.step[2]]);
}
template <class W>
__device__ W warp_most(W x) {
  for (int n = 16; n > 0; n /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, n));
  return x;
}
template <class W>
__device__ W warp_sum(W x) {
  for (int n = 16; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
  return x;
}

/// s = softcap(scale * q.k) + bias + alibi of one open pair; `slant`: its slope over scale * q.k.
template <class T, class W>
__device__ W score(const RunInputs& p, const SequenceLocation& at, Index b, Index h, Index i, Index j,
                   W* slant = nullptr) {
  W dot = 0;
  for (Index c = 0; c < p.q.layout.dim; ++c)
    dot = fma(element<T, W>(p.q, at.tensor_batch, at.q_row + i, h, c),
              kv_element<T, W>(p, p.k, at, b, j, h, c), dot);
  dot *= kv_scale<W>(p, p.k_scale, p.k, at, b, j, h);
  W s = static_cast<W>(p.scales[p.scale_count == 1 ? 0 : h]) * dot;
  if (slant) *slant = 1;
  if (p.softcap != 0) {
    const W t = tanh(s / static_cast<W>(p.softcap));
    s = static_cast<W>(p.softcap) * t;
    if (slant) *slant = 1 - t * t;
  }
  if (p.bias)
    s += load_number<W>(p.bias, p.bias_dtype,
                        b * p.bias_step[0] + h * p.bias_step[1] + i * p.bias_step[2] + j * p.bias_step[3]);
  if (p.slopes.data) {
    const Index q = at.q_start + i;
    s -= number_of<W>(p.slopes, static_cast<int>(h)) * static_cast<W>(q < j ? j - q : q - j);
  }
  if (p.relative) s += relative_number<W>(p, h, at.q_start + i, j);
  return s;
}

}  // namespace headwise::cuda
