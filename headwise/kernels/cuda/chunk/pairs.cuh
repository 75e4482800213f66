// What kernels over the rows of a chunk share: a pair's terms, its mask, numbers of planes, sums of blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunk/chunks.h"
#include "headwise/kernels/cuda/inputs/relative.cuh"
#include "headwise/kernels/cuda/mma/keys.cuh"

namespace headwise::cuda::chunk {

inline constexpr float kChunkLog2e = 1.44269504088896341f, kChunkLn2 = 0.693147180559945309f;

/// bias - slope |q - k| + relative of head h. A call: unrolled loops around it would take minutes to compile.
static __device__ __noinline__ float added_terms(const RunInputs& f, const SequenceLocation& at, Index b,
                                                 Index h, Index i, Index j) {
  float s = 0.f;
  const Index q = at.q_start + i;
  if (f.bias)
    s += load_float(f.bias, f.bias_dtype,
                    b * f.bias_step[0] + h * f.bias_step[1] + i * f.bias_step[2] + j * f.bias_step[3]);
  if (f.slopes.data)
    s -= number_of(f.slopes, static_cast<int>(h)) * static_cast<float>(q < j ? j - q : q - j);
  if (f.relative) s += relative_number(f, h, q, j);
  return s;
}
static __device__ __noinline__ bool mask_opens(const RunInputs& f, const SequenceLocation& at, Index b,
                                               Index h, Index i, Index j) {
  return f.masks[f.mask_count == 1 ? 0 : h].may_attend(at.q_start + i, j, MaskSubject{b, h, at.q_start});
}
/// The keys one query of a head may see: a run where masks open runs, else the mask is asked pair by pair.
struct RowOpen {
  int begin, end;
  bool asks;
  __device__ __forceinline__ RowOpen(const RunInputs& f, bool runs, const SequenceLocation& at, Index b,
                                     Index h, Index i, int keys)
      : begin(0), end(keys), asks(f.mask_count != 0 && !runs) {
    if (f.mask_count == 0 || !runs) return;
    const mma::KeySpan run = mma::key_span(f.masks[f.mask_count == 1 ? 0 : h], at.q_start + i, keys,
                                           MaskSubject{b, h, at.q_start});
    begin = run.begin, end = run.end;
  }
  __device__ __forceinline__ bool operator()(const RunInputs& f, const SequenceLocation& at, Index b, Index h,
                                             Index i, int j) const {
    return j >= begin && j < end && (!asks || mask_opens(f, at, b, h, i, j));
  }
};
/// 1 / (1 - p) for a pair that dropout keeps, else 0.
static __device__ __noinline__ float drawn(const RunInputs& f, const SequenceLocation& at, Index b, Index h,
                                           Index i, Index j) {
  const Index id = f.sequence_ids ? f.sequence_ids[b] : b;
  return f.rule.keep(id, h, at.q_start + i, j) ? static_cast<float>(1 / (1 - f.dropout)) : 0.f;
}
__device__ __forceinline__ float pair_kept(const RunInputs& f, const SequenceLocation& at, Index b, Index h,
                                           Index i, Index j) {
  return f.dropout == 0 ? 1.f : drawn(f, at, b, h, i, j);
}
/// cap tanh(s / cap), and its slope.
__device__ __forceinline__ float capped(const RunInputs& f, float s, float* slant = nullptr) {
  if (f.softcap == 0) return s;
  const auto cap = static_cast<float>(f.softcap);
  const float t = tanhf(s / cap);
  if (slant) *slant = 1.f - t * t;
  return cap * t;
}
__device__ __forceinline__ float gate_of(const RunInputs& f, const SequenceLocation& at, Index h, Index i) {
  if (!f.gate) return 1.f;
  return load_float(f.gate, f.gate_dtype,
                    at.tensor_batch * f.gate_step[0] + (at.q_row + i) * f.gate_step[1] + h * f.gate_step[2]);
}
/// A number of a plane that products read: f32, bf16 or f16.
__device__ __forceinline__ void store_weight(void* plane, DType t, Index at, float x) {
  switch (t) {
    case DType::bf16: static_cast<bf16*>(plane)[at] = static_cast<bf16>(x); break;
    case DType::f16: static_cast<f16*>(plane)[at] = static_cast<f16>(x); break;
    default: static_cast<float*>(plane)[at] = x;
  }
}

__device__ __forceinline__ float warp_sum_of(float x) {
#pragma unroll
  for (int n = 16; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
  return x;
}
__device__ __forceinline__ float warp_most_of(float x) {  // a NaN stays
#pragma unroll
  for (int n = 16; n > 0; n /= 2) {
    const float y = __shfl_xor_sync(~0u, x, n);
    x = x != x || y != y ? NAN : fmaxf(x, y);
  }
  return x;
}

}  // namespace headwise::cuda::chunk
