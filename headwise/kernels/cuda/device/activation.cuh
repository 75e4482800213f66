// Activations and their slopes in f32, and single numbers of any float type, on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/spec/gemm.h"

namespace headwise::cuda {

__device__ __forceinline__ float number_at(const void* p, DType t, Index at) {
  switch (t) {
    case DType::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[at]);
    case DType::f16: return __half2float(static_cast<const __half*>(p)[at]);
    case DType::f64: return static_cast<float>(static_cast<const double*>(p)[at]);
    default: return static_cast<const float*>(p)[at];
  }
}
__device__ __forceinline__ void put_number(void* p, DType t, Index at, float x) {
  switch (t) {
    case DType::bf16: static_cast<__nv_bfloat16*>(p)[at] = __float2bfloat16_rn(x); return;
    case DType::f16: static_cast<__half*>(p)[at] = __float2half_rn(x); return;
    case DType::f64: static_cast<double*>(p)[at] = static_cast<double>(x); return;
    default: static_cast<float*>(p)[at] = x;
  }
}

/// Eight numbers side by side on 16 bytes (f32: two times).
__device__ __forceinline__ void load_eight_numbers(const void* p, DType t, Index at, float (&to)[8]) {
  if (t == DType::f32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + at);
    const float4 x = from[0], y = from[1];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w, to[4] = y.x, to[5] = y.y, to[6] = y.z, to[7] = y.w;
    return;
  }
  const int4 x = *reinterpret_cast<const int4*>(static_cast<const std::uint16_t*>(p) + at);
  const int words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto w = static_cast<std::uint32_t>(words[i]);
    to[2 * i] = t == DType::bf16 ? Number<bf16>::low(w) : Number<f16>::low(w);
    to[2 * i + 1] = t == DType::bf16 ? Number<bf16>::high(w) : Number<f16>::high(w);
  }
}
__device__ __forceinline__ void store_eight_numbers(void* p, DType t, Index at, const float (&from)[8]) {
  if (t == DType::f32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(p) + at);
    to[0] = make_float4(from[0], from[1], from[2], from[3]);
    to[1] = make_float4(from[4], from[5], from[6], from[7]);
    return;
  }
  int words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = static_cast<int>(t == DType::bf16 ? Number<bf16>::pack(from[2 * i], from[2 * i + 1])
                                                 : Number<f16>::pack(from[2 * i], from[2 * i + 1]));
  *reinterpret_cast<int4*>(static_cast<std::uint16_t*>(p) + at) =
      make_int4(words[0], words[1], words[2], words[3]);
}

/// sigmoid(x) and sigmoid(-x), both from the e^-|x| that does not overflow.
__device__ __forceinline__ float2 sigmoids(float x) {
  const float e = expf(-fabsf(x)), s = __fdiv_rn(1.0f, 1.0f + e), small = e * s;
  return x < 0 ? make_float2(small, s) : make_float2(s, small);
}
/// 2 u of gelu_tanh: x (1 + tanh u) / 2 = x sigmoid(2 u).
__device__ __forceinline__ float twice_u(float x) {
  return x * fmaf(0.0713548162726f, x * x, 1.59576912161f);
}

__device__ __forceinline__ float value_at(Activation kind, float x) {
  switch (kind) {
    case Activation::relu: return x < 0 ? 0.0f : x;
    case Activation::gelu: return x * normcdff(x);
    case Activation::gelu_tanh: return x * sigmoids(twice_u(x)).x;
    case Activation::silu: return x * sigmoids(x).x;
    case Activation::sigmoid: return sigmoids(x).x;
    case Activation::none: break;
  }
  return x;
}
__device__ __forceinline__ float slope_at(Activation kind, float x) {
  switch (kind) {
    case Activation::relu: return x > 0 ? 1.0f : 0.0f;
    case Activation::gelu: return fmaf(x, expf(-0.5f * x * x) * 0.398942280f, normcdff(x));
    case Activation::gelu_tanh: {
      const float2 s = sigmoids(twice_u(x));
      return fmaf(x * s.x * s.y, fmaf(0.214064448818f, x * x, 1.59576912161f), s.x);
    }
    case Activation::silu: {
      const float2 s = sigmoids(x);
      return fmaf(x, s.x * s.y, s.x);
    }
    case Activation::sigmoid: {
      const float2 s = sigmoids(x);
      return s.x * s.y;
    }
    case Activation::none: break;
  }
  return 1.0f;
}

}  // namespace headwise::cuda
