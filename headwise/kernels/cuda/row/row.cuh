// What the row kernels share: eight columns at a time, sums of a warp and of a block in one order, launches.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/activation.cuh"
#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/table/rows.h"

namespace headwise::cuda::row {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;

/// Are eight columns one or two loads of 16 bytes in every row?
inline bool wide(const void* data, Index step) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && step % 8 == 0;
}
inline bool wide(const Rows& r) { return !r.data || wide(r.data, r.step); }

__device__ __forceinline__ void load8(const void* p, DType t, Index at, int count, bool wide,
                                      float (&to)[8]) {
  if (wide && count == 8) return load_eight_numbers(p, t, at, to);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = i < count ? number_at(p, t, at + i) : 0.0f;
}
__device__ __forceinline__ void store8(void* p, DType t, Index at, int count, bool wide,
                                       const float (&from)[8]) {
  if (wide && count == 8) return store_eight_numbers(p, t, at, from);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) put_number(p, t, at + i, from[i]);
}
__device__ __forceinline__ void load8(const Rows& r, Index row, Index column, int count, bool wide,
                                      float (&to)[8]) {
  load8(r.data, r.dtype, row * r.step + column, count, wide, to);
}
__device__ __forceinline__ void store8(const Rows& r, Index row, Index column, int count, bool wide,
                                       const float (&from)[8]) {
  store8(r.data, r.dtype, row * r.step + column, count, wide, from);
}
__device__ __forceinline__ int count8(Index columns, Index column) {
  return columns - column < 8 ? static_cast<int>(columns - column) : 8;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// A double into any float type, rounded once.
__device__ __forceinline__ void put_double(void* p, DType t, Index at, double x) {
  switch (t) {
    case DType::bf16: static_cast<__nv_bfloat16*>(p)[at] = __double2bfloat16(x); return;
    case DType::f16: static_cast<__half*>(p)[at] = __double2half(x); return;
    case DType::f64: static_cast<double*>(p)[at] = x; return;
    default: static_cast<float*>(p)[at] = static_cast<float>(x);
  }
}

inline unsigned blocks_of(Index count, Index each) { return static_cast<unsigned>(ceil_div(count, each)); }

/// Makes the device current and starts body().
template <class Body>
Status on_device(int device, Body&& body) {
  const CurrentDevice current(device);
  return current.status().ok() ? body() : current.status();
}

}  // namespace headwise::cuda::row
