// The products of chunks by mma.sync: 64 rows a block, tiles of the other side one after another.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunk/chunks.h"
#include "headwise/kernels/cuda/inputs/per_head.cuh"
#include "headwise/kernels/cuda/mma/keys.cuh"

namespace headwise::cuda::chunk {

using mma::copy_tile;
using mma::MmaTile;

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
  const SequenceLocation at = p.group.places[job.sequence];
  const int dim = static_cast<int>(p.x.layout.dim), warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t start = ptx::shared_address(raw);
  const Tile x(start, kChunkRows, dim);
  const int tile_bytes = Tile::bytes(kKeys, dim);
  const std::uint32_t stage = start + Tile::bytes(kChunkRows, dim);
  const auto copy = [&](int key0, std::uint32_t to) {
    copy_tile<T>(Tile(to, kKeys, dim), kKeys,
                 {.x = p.y,
                  .vector = p.vector_y,
                  .batch = at.tensor_batch,
                  .row = at.kv_row + key0,
                  .rows = job.keys - key0,
                  .head = h,
                  .columns = dim,
                  .width = Tile::padded(dim)});
    ptx::commit_copies();
  };
  copy_tile<T>(x, kChunkRows,
               {.x = p.x,
                .vector = p.vector_x,
                .batch = at.tensor_batch,
                .row = at.q_row + job.row0,
                .rows = job.rows,
                .head = h,
                .columns = dim,
                .width = Tile::padded(dim)});
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

/// 64 rows x 64 columns of halves, four pieces of 16 bytes a thread. Where they go is found once: most
/// instructions of a product were addresses.
template <class T>
struct HalfTileCopy {
  std::uint32_t at[4];
  int bytes;

  template <class RowMap>
  __device__ __forceinline__ HalfTileCopy(int columns, RowMap&& place) {
    const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int n = 0; n < 4; ++n) at[n] = chunk_offset(64, place(row + 16 * n), chunk);
    bytes = 2 * min(max(columns - 8 * chunk, 0), 8);
  }
  /// `from`: the first row and column; rows past `rows` are 0.
  __device__ __forceinline__ void operator()(std::uint32_t to, const T* from, Index step, int rows) const {
    const int row = static_cast<int>(threadIdx.x) / 8;
    const T* own = from + row * step + static_cast<int>(threadIdx.x) % 8 * 8;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int there = row + 16 * n < rows ? bytes : 0;
      ptx::copy_16(to + at[n], there ? own + 16 * n * step : from, there);
    }
  }
};
/// A head's first column of a row.
template <class T>
__device__ __forceinline__ const T* head_row(const HeadsView& x, Index batch, Index row, Index head) {
  return static_cast<const T*>(x.data) + batch * x.step[0] + row * x.step[1] +
         (x.layout.group == 1 ? head : x.layout.slot(head)) * x.step[2];  // a division is 100 instructions
}

/// 16 rows of weights and 64 keys. Halves: a lane has 8 keys side by side of two rows, so the tile of values
/// has its rows in the order in which products meet them.
template <class T>
struct ChunkWeights {
  static constexpr bool kHalves = sizeof(T) == 2;
  static constexpr int kKeys = MmaTile<T>::kKeys;
  uint4 halves[2][2];
  float2 floats[kHalves ? 1 : kKeys / 8][2];

  static __device__ __forceinline__ int row_of_key(int key) {
    if constexpr (!kHalves) return key;
    return (key & 32) | (key << 2 & 16) | (key << 2 & 8) | (key >> 2 & 6) | (key & 1);
  }
  /// `from`: row lane / 4 of a tile, and where its first number of this lane is; `down`: eight rows further,
  /// `along`: 32 keys.
  __device__ __forceinline__ void load(const T* from, Index down, Index along) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const T* row = from + r * down;
      if constexpr (kHalves) {
        halves[r][0] = *reinterpret_cast<const uint4*>(row);
        halves[r][1] = *reinterpret_cast<const uint4*>(row + along);
      } else {
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) floats[j][r] = *reinterpret_cast<const float2*>(row + 8 * j);
      }
    }
  }
  template <int Width>
  __device__ __forceinline__ void add(float (&o)[Width / 8][4], const MmaTile<T>& v) const {
    if constexpr (kHalves) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const std::uint32_t v_at = v.at(lane & 15, lane >> 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 x = halves[0][i / 2], y = halves[1][i / 2];
        const std::uint32_t a[4] = {i % 2 ? x.z : x.x, i % 2 ? y.z : y.x, i % 2 ? x.w : x.y,
                                    i % 2 ? y.w : y.y};
#pragma unroll
        for (int n = 0; n < Width / 16; ++n) {
          std::uint32_t b[4];
          ptx::load_matrices_turned((v_at ^ (32u * n)) + i * 16 * kPanelRowBytes, b);
          Number<T>::multiply_add(o[2 * n], a, b[0], b[1]);
          Number<T>::multiply_add(o[2 * n + 1], a, b[2], b[3]);
        }
      }
    } else {
      float w[kKeys / 8][4];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) w[j][2 * r] = floats[j][r].x, w[j][2 * r + 1] = floats[j][r].y;
      MmaTile<T>::template values<Width>(o, w, v);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(128) values_of_chunk(const __grid_constant__ ChunkValues p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys, kWidth = kChunkWidth;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const ChunkJob job = p.group.jobs[blockIdx.z];
  const Index h = blockIdx.y;
  const SequenceLocation at = p.group.places[job.sequence];
  const int dim = static_cast<int>(p.y.layout.dim), column = static_cast<int>(blockIdx.x) * kWidth,
            columns = min(dim - column, kWidth);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            row = warp * 16 + lane / 4;
  const std::uint32_t stage = ptx::shared_address(raw);
  const int tile_bytes = Tile::bytes(kKeys, kWidth);
  const bool by_pieces = sizeof(T) == 2 && p.vector_y;
  const HalfTileCopy<T> copy_half(columns, ChunkWeights<T>::row_of_key);
  const T* head = by_pieces ? head_row<T>(p.y, at.tensor_batch, at.kv_row, h) + column : nullptr;
  const auto copy = [&](int key0, std::uint32_t to) {
    if (by_pieces)
      copy_half(to, head + key0 * p.y.step[1], p.y.step[1], job.keys - key0);
    else
      copy_tile<T>(Tile(to, kKeys, kWidth), kKeys,
                   {.x = p.y,
                    .vector = p.vector_y,
                    .batch = at.tensor_batch,
                    .row = at.kv_row + key0,
                    .rows = job.keys - key0,
                    .head = h,
                    .column = column,
                    .columns = columns,
                    .width = kWidth},
                   ChunkWeights<T>::row_of_key);
    ptx::commit_copies();
  };
  const int key_of_lane = (sizeof(T) == 2 ? 8 : 2) * (lane % 4);
  const T* from = static_cast<const T*>(p.w) +
                  (p.blocked ? blocked_at(blockIdx.z, p.planes, h, row, key_of_lane, p.group.pitch)
                             : plane_at(blockIdx.z, p.planes, h, row, p.group.pitch) + key_of_lane);
  const Index down = p.blocked ? 256 : Index{8} * p.group.pitch, along = p.blocked ? 2048 : 32,
              tile_step = p.blocked ? 4096 : kKeys;
  ChunkWeights<T> next;
  if (job.keys > 0) copy(0, stage), next.load(from, down, along);
  float o[kWidth / 8][4] = {};
  for (int key0 = 0, use = 0; key0 < job.keys; key0 += kKeys, ++use) {
    const ChunkWeights<T> w = next;
    ptx::wait_copies<0>();
    __syncthreads();
    if (key0 + kKeys < job.keys) {
      copy(key0 + kKeys, stage + static_cast<std::uint32_t>((~use & 1) * tile_bytes));
      from += tile_step;
      next.load(from, down, along);
    }
    w.template add<kWidth>(o,
                           Tile(stage + static_cast<std::uint32_t>((use & 1) * tile_bytes), kKeys, kWidth));
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

/// Rows of jobs times rows of x for the keys of a block. Halves: 128 keys, 32 a warp, tiles come while those
/// before them are multiplied; f32: 64 keys, 16 a warp.
template <class T>
struct ChunkKeyTile {
  static constexpr bool kHalves = sizeof(T) == 2;
  static constexpr int kKeys = kHalves ? 128 : 64, kParts = kKeys / 64, kStages = kHalves ? 2 : 1,
                       kLeftBytes = MmaTile<T>::bytes(kChunkRows, kKeys),
                       kBytes = kLeftBytes + MmaTile<T>::bytes(kChunkRows, kChunkWidth);

  /// sum += w^T x
  static __device__ __forceinline__ void add(float (&sum)[kParts][kChunkWidth / 8][4], std::uint32_t stage,
                                             bool blocked) {
    const MmaTile<T> w(stage, kChunkRows, kKeys), x(stage + kLeftBytes, kChunkRows, kChunkWidth);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32,
              key = warp * (kKeys / 4);
    if constexpr (kHalves) {
      // 16 rows further down a panel, or in blocks of 8 x 8 as they lie in memory.
      const std::uint32_t w_at = blocked
                                     ? stage +
                                           static_cast<std::uint32_t>(warp * 4096 + (lane >> 4) * 512 +
                                                                      (lane >> 3 & 1) * 128 + (lane & 7) * 16)
                                     : w.at((lane & 7) + (lane >> 4) * 8, key / 8 + (lane >> 3 & 1)),
                          w_next = blocked ? w_at + 256 : w_at ^ 32u,
                          down = blocked ? 1024 : 16 * kPanelRowBytes, x_at = x.at(lane & 15, lane >> 4);
#pragma unroll
      for (int i = 0; i < kChunkRows / 16; ++i) {
        std::uint32_t a[kParts][4];
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          ptx::load_matrices_turned((part ? w_next : w_at) + i * down, a[part]);
#pragma unroll
        for (int n = 0; n < kChunkWidth / 16; ++n) {
          std::uint32_t b[4];
          ptx::load_matrices_turned((x_at ^ (32u * n)) + i * 16 * kPanelRowBytes, b);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            Number<T>::multiply_add(sum[part][2 * n], a[part], b[0], b[1]);
            Number<T>::multiply_add(sum[part][2 * n + 1], a[part], b[2], b[3]);
          }
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
          MmaTile<T>::multiply_add(sum[0][n], a, x.element(i + t, 8 * n + g),
                                   x.element(i + t + 4, 8 * n + g));
      }
    }
  }
  /// The plane of one job and head; keys past the last 64 it has are 0. Blocked: as it lies, in one piece.
  static __device__ __forceinline__ void copy(std::uint32_t to, const ChunkKeys& p, const ChunkJob& job,
                                              int slot, Index head, int key0) {
    using Tile = MmaTile<T>;
    const Tile w(to, kChunkRows, kKeys);
    const int end = (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys - key0;
    const T* base =
        static_cast<const T*>(p.w) + (p.blocked ? blocked_at(slot, p.planes, head, 0, key0, p.group.pitch)
                                                : plane_at(slot, p.planes, head, 0, p.group.pitch) + key0);
    constexpr int kChunks = kKeys / Tile::kChunk;
    const int thread = static_cast<int>(threadIdx.x);
    if (kHalves && p.blocked) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {  // two of them are 32 keys; `end` is a multiple of 64
        const bool in = n / 2 * 32 < end;
        ptx::copy_16(to + static_cast<std::uint32_t>(thread * 16 + n * 2048),
                     in ? base + thread * 8 + n * 1024 : base, in ? 16 : 0);
      }
      return;
    }
    const int row0 = thread / kChunks, chunk = thread % kChunks;
    const bool in = chunk * Tile::kChunk < end;
    const T* from = in ? base + row0 * static_cast<Index>(p.group.pitch) + chunk * Tile::kChunk : base;
    const Index down = in ? Index{128 / kChunks} * p.group.pitch : 0;
#pragma unroll 8
    for (int row = row0; row < kChunkRows; row += 128 / kChunks, from += down)
      ptx::copy_16(w.at(row, chunk), from, in ? 16 : 0);
  }
};

template <class T>
__global__ void __launch_bounds__(128, sizeof(T) == 2 ? 4 : 3)
    keys_of_chunk(const __grid_constant__ ChunkKeysBoth both) {
  using Keys = ChunkKeyTile<T>;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const ChunkKeys& p = both.of[blockIdx.x % both.count];
  const Index sequence = p.first_sequence + blockIdx.z;
  const SequenceLocation at = p.group.places[sequence];
  const HeadLayout& layout = p.to.layout;
  const int dim = static_cast<int>(layout.dim), chunks = (dim + kChunkWidth - 1) / kChunkWidth;
  const Index slot = blockIdx.y / chunks;
  if (slot >= layout.slots()) return;
  const int column = static_cast<int>(blockIdx.y) % chunks * kChunkWidth,
            columns = min(dim - column, kChunkWidth),
            key0 = static_cast<int>(blockIdx.x) / both.count * Keys::kKeys;
  if (key0 >= at.kv_tokens) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            key = key0 + warp * (Keys::kKeys / 4) + lane / 4;
  const std::uint32_t start = ptx::shared_address(raw);
  float total[Keys::kParts][kChunkWidth / 8][4] = {};
  bool first = false, last = false;
  for (int n = 0; n < p.group.count; ++n)
    if (const ChunkJob job = p.group.jobs[n]; job.sequence == sequence)
      first = first || job.row0 == 0, last = last || job.row0 + job.rows >= at.q_tokens;
  // Where a thread's numbers of eight columns stand in the sums.
  float* sums = p.sums + ((sequence * p.kv_tokens + key) * layout.slots() + slot) * dim + column;
  const Index down = layout.slots() * dim;
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int part = 0; part < Keys::kParts; ++part)
#pragma unroll
      for (int n = 0; n < kChunkWidth / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = 8 * n + 2 * (lane % 4) + (e & 1), r = 16 * part + 8 * (e >> 1);
          if (c < columns && key + r < at.kv_tokens) body(total[part][n][e], r * down + c, r, c);
        }
  };
  if (!first) each([&](float& sum, Index from, int, int) { sum = sums[from]; });
  // The next job of this sequence that reaches these keys, heads of a slot one after another.
  struct Item {
    int job;
    Index head;
  };
  const auto after = [&](Item i) {
    if (i.job >= 0 && ++i.head < (slot + 1) * layout.group) return i;
    do ++i.job;
    while (i.job < p.group.count &&
           (p.group.jobs[i.job].sequence != sequence || p.group.jobs[i.job].keys <= key0));
    i.head = slot * layout.group;
    return i;
  };
  const bool by_pieces = sizeof(T) == 2 && p.vector_x;
  const HalfTileCopy<T> copy_half(columns, [](int row) { return row; });
  const auto stage = [&](int use) {
    return start + static_cast<std::uint32_t>(use % Keys::kStages * Keys::kBytes);
  };
  const auto copy = [&](const Item& i, std::uint32_t to) {
    if (i.job >= p.group.count) return;
    const ChunkJob job = p.group.jobs[i.job];
    Keys::copy(to, p, job, i.job, i.head, key0);
    if (by_pieces)
      copy_half(to + Keys::kLeftBytes,
                head_row<T>(p.x, at.tensor_batch, at.q_row + job.row0, i.head) + column, p.x.step[1],
                job.rows);
    else
      copy_tile<T>(MmaTile<T>(to + Keys::kLeftBytes, kChunkRows, kChunkWidth), kChunkRows,
                   {.x = p.x,
                    .vector = p.vector_x,
                    .batch = at.tensor_batch,
                    .row = at.q_row + job.row0,
                    .rows = job.rows,
                    .head = i.head,
                    .column = column,
                    .columns = columns,
                    .width = kChunkWidth});
    ptx::commit_copies();
  };
  Item item = after({-1, 0});
  copy(item, start);
  for (int use = 0; item.job < p.group.count; ++use) {
    const Item next = after(item);
    ptx::wait_copies<0>();
    __syncthreads();
    if constexpr (Keys::kStages == 2) copy(next, stage(use + 1));
    // Sums stay f32 from job to job: the bits do not depend on which jobs share a group.
    Keys::add(total, stage(use), p.blocked);
    if constexpr (Keys::kStages == 1) {
      __syncthreads();
      copy(next, start);
    }
    item = next;
  }
  if (!last) return each([&](float& sum, Index to, int, int) { sums[to] = sum; });
  T* out = static_cast<T*>(p.to.data) + at.tensor_batch * p.to.step[0] + slot * p.to.step[2];
  each([&](float& sum, Index, int r, int c) {
    out[(at.kv_row + key + r) * p.to.step[1] + (column + c) * p.to.step[3]] = static_cast<T>(sum);
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
Status chunk_keys(const ChunkKeysBoth& p, int sequences, int, cudaStream_t stream) {
  using Keys = ChunkKeyTile<T>;
  Index blocks = 0;
  for (int n = 0; n < p.count; ++n) {
    const HeadLayout& layout = p.of[n].to.layout;
    blocks = max_of(blocks, layout.slots() * ceil_div(layout.dim, kChunkWidth));
  }
  const Index keys = p.of[0].kv_tokens;
  if (keys == 0 || p.count == 0) return {};
  return launch({"cuda/chunk_keys",
                 dim3(static_cast<unsigned>(p.count * ceil_div(keys, Keys::kKeys)),
                      static_cast<unsigned>(blocks), static_cast<unsigned>(sequences)),
                 128, static_cast<std::size_t>(Keys::kStages * Keys::kBytes), stream},
                keys_of_chunk<T>, p);
}

}  // namespace headwise::cuda::chunk
