// The products of chunks by mma.sync: 64 rows a block, tiles of the other side one after another.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunks.h"
#include "headwise/kernels/cuda/mma_keys.cuh"
#include "headwise/kernels/cuda/per_head.cuh"

namespace headwise::cuda {

inline constexpr int kChunkWidth = 64;  // columns of values at a time
inline constexpr int kScoreSpan = 256;  // keys of a block of chunk_scores

template <class T>
__global__ void __launch_bounds__(128) scores_of_chunk(const __grid_constant__ ChunkScores p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const ChunkJob job = p.group.jobs[blockIdx.z];
  const Index h = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kScoreSpan, last = min(first + kScoreSpan, job.keys);
  if (first >= last) return;
  const SequencePlace at = p.group.places[job.sequence];
  const int dim = static_cast<int>(p.x.layout.dim), warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t start = ptx::shared_address(raw);
  const Tile x(start, kChunkRows, dim);
  const int tile_bytes = Tile::bytes(kKeys, dim);
  const std::uint32_t stage = start + Tile::bytes(kChunkRows, dim);
  const auto copy = [&](int key0, std::uint32_t to) {
    copy_tile<T>(Tile(to, kKeys, dim), kKeys, p.y, p.vector_y, at.tensor_batch, at.kv_row + key0,
                 job.keys - key0, h, 0, dim, Tile::padded(dim));
    ptx::commit_copies();
  };
  copy_tile<T>(x, kChunkRows, p.x, p.vector_x, at.tensor_batch, at.q_row + job.row0, job.rows, h, 0, dim,
               Tile::padded(dim));
  copy(first, stage);
  const float scale = p.scales ? static_cast<float>(p.scales[p.scale_count == 1 ? 0 : h]) : 1.f;
  float* to = p.to + plane_at(blockIdx.z, p.planes, h, warp * 16 + lane / 4, p.group.pitch) + 2 * (lane % 4);
  for (int key0 = first, use = 0; key0 < last; key0 += kKeys, ++use) {
    const std::uint32_t here = stage + static_cast<std::uint32_t>((use & 1) * tile_bytes);
    ptx::wait_copies<0>();
    __syncthreads();
    if (key0 + kKeys < last) copy(key0 + kKeys, stage + static_cast<std::uint32_t>((~use & 1) * tile_bytes));
    float s[kKeys / 8][4] = {};
    Tile::scores(s, x, Tile(here, kKeys, dim), warp * 16, dim);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2*>(to + static_cast<Index>(8 * r) * p.group.pitch + key0 + 8 * j) =
            make_float2(scale * s[j][2 * r], scale * s[j][2 * r + 1]);
  }
}

template <class T>
__device__ __forceinline__ float2 load_two(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(from);
  } else {
    const std::uint32_t x = *reinterpret_cast<const std::uint32_t*>(from);
    return make_float2(Number<T>::low(x), Number<T>::high(x));
  }
}

template <class T>
__global__ void __launch_bounds__(128) values_of_chunk(const __grid_constant__ ChunkValues p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys, kWidth = kChunkWidth;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const ChunkJob job = p.group.jobs[blockIdx.z];
  const Index h = blockIdx.y;
  const SequencePlace at = p.group.places[job.sequence];
  const int dim = static_cast<int>(p.y.layout.dim), column = static_cast<int>(blockIdx.x) * kWidth,
            columns = min(dim - column, kWidth);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            row = warp * 16 + lane / 4;
  const std::uint32_t stage = ptx::shared_address(raw);
  const int tile_bytes = Tile::bytes(kKeys, kWidth);
  const auto copy = [&](int key0, std::uint32_t to) {
    copy_tile<T>(Tile(to, kKeys, kWidth), kKeys, p.y, p.vector_y, at.tensor_batch, at.kv_row + key0,
                 job.keys - key0, h, column, columns, kWidth);
    ptx::commit_copies();
  };
  if (job.keys > 0) copy(0, stage);
  const T* from =
      static_cast<const T*>(p.w) + plane_at(blockIdx.z, p.planes, h, row, p.group.pitch) + 2 * (lane % 4);
  float o[kWidth / 8][4] = {};
  for (int key0 = 0, use = 0; key0 < job.keys; key0 += kKeys, ++use) {
    float w[kKeys / 8][4];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = load_two(from + static_cast<Index>(8 * r) * p.group.pitch + key0 + 8 * j);
        w[j][2 * r] = x.x, w[j][2 * r + 1] = x.y;
      }
    ptx::wait_copies<0>();
    __syncthreads();
    if (key0 + kKeys < job.keys)
      copy(key0 + kKeys, stage + static_cast<std::uint32_t>((~use & 1) * tile_bytes));
    Tile::template values<kWidth>(
        o, w, Tile(stage + static_cast<std::uint32_t>((use & 1) * tile_bytes), kKeys, kWidth));
  }
  T* out = static_cast<T*>(p.to.data) + at.tensor_batch * p.to.step[0] + h * p.to.step[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    if (i >= job.rows) continue;
    float factor = p.factor;
    if (p.lse) {
      const float* lse = p.lse + static_cast<Index>(blockIdx.z) * p.lse_heads * kChunkRows + i;
      bool empty = true;
      for (int n = p.all_heads ? 0 : static_cast<int>(h); n < (p.all_heads ? p.lse_heads : h + 1); ++n)
        empty = empty && lse[n * kChunkRows] == -INFINITY;
      if (empty) factor = 0.f;
    }
    const Index to = at.q_row + job.row0 + i;
    if (p.gate && factor != 0.f)
      factor *= load_float(p.gate, p.gate_dtype,
                           at.tensor_batch * p.gate_step[0] + to * p.gate_step[1] + h * p.gate_step[2]);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (const int c = 8 * n + 2 * (lane % 4) + e; c < columns)
          out[to * p.to.step[1] + (column + c) * p.to.step[3]] =
              static_cast<T>(factor == 0.f ? 0.f : factor * o[n][2 * r + e]);
  }
}

/// sum += w^T x over 64 rows; w [64 rows 64 keys] and x [64 rows kChunkWidth] in shared memory, 16 keys a
/// warp.
template <class T>
__device__ __forceinline__ void add_turned(float (&sum)[kChunkWidth / 8][4], const MmaTile<T>& w,
                                           const MmaTile<T>& x, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < kChunkRows / 16; ++i) {
      std::uint32_t a[4];
      ptx::load_matrices_turned(
          w.at(16 * i + (lane & 7) + ((lane >> 4) & 1) * 8, key / 8 + ((lane >> 3) & 1)), a);
#pragma unroll
      for (int n = 0; n < kChunkWidth / 16; ++n) {
        std::uint32_t b[4];
        ptx::load_matrices_turned(x.at(16 * i + (lane & 15), 2 * n + (lane >> 4)), b);
        Number<T>::multiply_add(sum[2 * n], a, b[0], b[1]);
        Number<T>::multiply_add(sum[2 * n + 1], a, b[2], b[3]);
      }
    }
  } else {
    const int g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int i = 0; i < kChunkRows; i += 8) {
      const typename MmaTile<T>::Left a(w.element(i + t, key + g), w.element(i + t, key + g + 8),
                                        w.element(i + t + 4, key + g), w.element(i + t + 4, key + g + 8));
#pragma unroll
      for (int n = 0; n < kChunkWidth / 8; ++n)
        MmaTile<T>::multiply_add(sum[n], a, x.element(i + t, 8 * n + g), x.element(i + t + 4, 8 * n + g));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(128) keys_of_chunk(const __grid_constant__ ChunkKeys p) {
  using Tile = MmaTile<T>;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const Index sequence = p.first_sequence + blockIdx.z;
  const SequencePlace at = p.group.places[sequence];
  const HeadLayout& layout = p.to.layout;
  const int dim = static_cast<int>(layout.dim), chunks = (dim + kChunkWidth - 1) / kChunkWidth;
  const Index slot = blockIdx.y / chunks;
  const int column = static_cast<int>(blockIdx.y) % chunks * kChunkWidth,
            columns = min(dim - column, kChunkWidth), key0 = static_cast<int>(blockIdx.x) * kChunkKeys;
  if (key0 >= at.kv_tokens) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            key = key0 + warp * 16 + lane / 4;
  const std::uint32_t start = ptx::shared_address(raw);
  const Tile w(start, kChunkRows, kChunkKeys),
      x(start + Tile::bytes(kChunkRows, kChunkKeys), kChunkRows, kChunkWidth);
  const HeadsView planes{const_cast<void*>(p.w), {0, p.group.pitch, 0, 1}, HeadLayout::split(1, kChunkKeys)};
  float total[kChunkWidth / 8][4] = {};
  bool first = false, last = false;
  for (int n = 0; n < p.group.count; ++n)
    if (const ChunkJob job = p.group.jobs[n]; job.sequence == sequence)
      first = first || job.row0 == 0, last = last || job.row0 + job.rows >= at.q_tokens;
  // Where a thread's four numbers of eight columns stand in the sums.
  float* sums = p.sums + ((sequence * p.kv_tokens + key) * layout.slots() + slot) * dim + column;
  const Index down = 8 * layout.slots() * dim;
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int n = 0; n < kChunkWidth / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = 8 * n + 2 * (lane % 4) + (e & 1);
        if (c < columns && key + 8 * (e >> 1) < at.kv_tokens)
          body(total[n][e], (e >> 1) * down + c, e >> 1, c);
      }
  };
  if (!first) each([&](float& sum, Index from, int, int) { sum = sums[from]; });
  for (int n = 0; n < p.group.count; ++n) {
    const ChunkJob job = p.group.jobs[n];
    if (job.sequence != sequence || job.keys <= key0) continue;
    for (Index h = slot * layout.group; h < (slot + 1) * layout.group; ++h) {
      __syncthreads();
      HeadsView plane = planes;
      plane.data = static_cast<T*>(plane.data) + plane_at(n, p.planes, h, 0, p.group.pitch);
      copy_tile<T>(w, kChunkRows, plane, true, 0, 0, kChunkRows, 0, key0, kChunkKeys, kChunkKeys);
      copy_tile<T>(x, kChunkRows, p.x, p.vector_x, at.tensor_batch, at.q_row + job.row0, job.rows, h, column,
                   columns, kChunkWidth);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncthreads();
      float sum[kChunkWidth / 8][4] = {};
      add_turned<T>(sum, w, x, warp * 16);
      // One sum a job: the bits do not depend on which jobs share a group.
#pragma unroll
      for (int i = 0; i < kChunkWidth / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) total[i][e] += sum[i][e];
    }
  }
  if (!last) return each([&](float& sum, Index to, int, int) { sums[to] = sum; });
  T* out = static_cast<T*>(p.to.data) + at.tensor_batch * p.to.step[0] + slot * p.to.step[2];
  each([&](float& sum, Index, int r, int c) {
    out[(at.kv_row + key + 8 * r) * p.to.step[1] + (column + c) * p.to.step[3]] = static_cast<T>(sum);
  });
}

template <class T>
Status chunk_scores(const ChunkScores& p, int keys, int device, cudaStream_t stream) {
  constexpr const char* kName = "cuda/chunk_scores";
  using Tile = MmaTile<T>;
  static bool allowed[64] = {};
  const Status status = allow_shared(
      kName, scores_of_chunk<T>, static_cast<std::size_t>(facts_of(device).shared_bytes), allowed, device);
  if (!status.ok() || keys == 0) return status;
  const auto dim = static_cast<int>(p.x.layout.dim);
  const auto bytes =
      static_cast<std::size_t>(Tile::bytes(kChunkRows, dim) + 2 * Tile::bytes(Tile::kKeys, dim));
  return launch({kName,
                 dim3(static_cast<unsigned>(ceil_div(keys, kScoreSpan)), static_cast<unsigned>(p.heads),
                      static_cast<unsigned>(p.group.count)),
                 128, bytes, stream},
                scores_of_chunk<T>, p);
}
template <class T>
Status chunk_values(const ChunkValues& p, int, cudaStream_t stream) {
  using Tile = MmaTile<T>;
  return launch({"cuda/chunk_values",
                 dim3(static_cast<unsigned>(ceil_div(p.y.layout.dim, kChunkWidth)),
                      static_cast<unsigned>(p.heads), static_cast<unsigned>(p.group.count)),
                 128, static_cast<std::size_t>(2 * Tile::bytes(Tile::kKeys, kChunkWidth)), stream},
                values_of_chunk<T>, p);
}
template <class T>
Status chunk_keys(const ChunkKeys& p, int sequences, int, cudaStream_t stream) {
  using Tile = MmaTile<T>;
  const HeadLayout& layout = p.to.layout;
  if (p.kv_tokens == 0) return {};
  return launch(
      {"cuda/chunk_keys",
       dim3(static_cast<unsigned>(ceil_div(p.kv_tokens, kChunkKeys)),
            static_cast<unsigned>(layout.slots() * ceil_div(layout.dim, kChunkWidth)),
            static_cast<unsigned>(sequences)),
       128,
       static_cast<std::size_t>(Tile::bytes(kChunkRows, kChunkKeys) + Tile::bytes(kChunkRows, kChunkWidth)),
       stream},
      keys_of_chunk<T>, p);
}

}  // namespace headwise::cuda
