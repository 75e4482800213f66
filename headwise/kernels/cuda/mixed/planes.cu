// Scores and dout.v of every head as planes of 16-bit numbers: what gradients of mixed rows are made of.
#include <cuda_fp16.h>

#include "headwise/kernels/cuda/chunk/products.cuh"
#include "headwise/kernels/cuda/mixed/tiles.h"

namespace headwise::cuda::mixed {

using chunk::kChunkKeys;
namespace {

/// A block: up to two jobs of one sequence, 32 rows x 64 keys a warp, tiles of 128 keys one after another.
constexpr int kThreads = 256, kRows = 2 * chunk::kChunkRows, kKeys = 128, kStages = 3, kSpan = 1024,
              kTileBytes = kKeys * kPanelRowBytes, kShared = kRows * kPanelRowBytes + kStages * kTileBytes;

/// 32 rows x 64 keys of a warp, by lanes.
using TileSums = float[2][8][4];

/// Rows from x_at on times keys from y_at on.
template <class T>
__device__ __forceinline__ void multiply_tile(TileSums& s, std::uint32_t x_at, std::uint32_t y_at) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t a[2][4], b[4][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) ptx::load_matrices((x_at ^ (32u * i)) + n * 16 * kPanelRowBytes, a[n]);
#pragma unroll
    for (int n = 0; n < 4; ++n) ptx::load_matrices((y_at ^ (32u * i)) + n * 16 * kPanelRowBytes, b[n]);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Number<T>::multiply_add(s[r][2 * n], a[r], b[n][0], b[n][1]);
        Number<T>::multiply_add(s[r][2 * n + 1], a[r], b[n][2], b[n][3]);
      }
  }
}

/// Where a lane's first numbers of a tile go.
struct TileTarget {
  const MixTiles& p;
  bool of_scores;
  Index to;
  int key0;
};
/// Writes the tile times `factor` as numbers N; says whether one of them is past the range of f16.
template <class N, bool kTwoParts>
__device__ __forceinline__ bool put_tile(const TileSums& s, const TileTarget& at, float factor) {
  const MixPairs& m = at.p.rows;
  __half2 most = __half2half2(__ushort_as_half(0));
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      std::uint32_t high[4];
      [[maybe_unused]] std::uint32_t low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float *z = s[r / 2][4 * part + j] + r % 2 * 2, z0 = z[0] * factor, z1 = z[1] * factor;
        high[j] = Number<N>::pack(z0, z1);
        if constexpr (std::is_same_v<N, f16>)
          most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&high[j])));
        if constexpr (kTwoParts)
          low[j] = Number<N>::pack(z0 - Number<N>::low(high[j]), z1 - Number<N>::high(high[j]));
      }
      const Index place = at.to + static_cast<Index>(8 * r) * m.group.pitch + at.key0 + 32 * part;
      auto* plane = static_cast<std::uint16_t*>(at.of_scores ? m.dscores : m.weights);
      *reinterpret_cast<uint4*>(plane + place) = make_uint4(high[0], high[1], high[2], high[3]);
      if constexpr (kTwoParts)
        if (at.of_scores)
          *reinterpret_cast<uint4*>(at.p.score_rests + place) = make_uint4(low[0], low[1], low[2], low[3]);
    }
  return __hisinf(__low2half(most)) || __hisinf(__high2half(most));
}
/// The power of 2 by which a tile is divided to come into the range of f16.
__device__ __forceinline__ int exponent_of(const TileSums& s) {
  float most = 0.f;
#pragma unroll
  for (int n = 0; n < 64; ++n) most = fmaxf(most, fabsf(s[n / 32][n / 4 % 8][n % 4]));
#pragma unroll
  for (int n = 16; n > 0; n /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
  return most > 3e38f ? 113 : static_cast<int>(__float_as_uint(most) >> 23) - 127 - 14;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) pair_planes(const __grid_constant__ MixTiles p) {
  constexpr bool kTwoParts = std::is_same_v<T, f16>;
  extern __shared__ __align__(128) std::uint8_t raw[];
  ptx::let_follower_start();
  const MixPairs& m = p.rows;
  const RunInputs& f = m.in;
  const chunk::ChunkJob* jobs = m.group.jobs;
  // The last job first: those whose planes are written last are read first, some of them from the cache.
  const int slot0 = static_cast<int>(gridDim.y - 1 - blockIdx.y), even = slot0 & ~1;
  const bool both = even + 1 < m.group.count && jobs[even].sequence == jobs[even + 1].sequence;
  if (both && slot0 != even) return;
  const chunk::ChunkJob job = jobs[slot0];
  const int rows = job.rows + (both ? jobs[slot0 + 1].rows : 0),
            keys = both ? max(job.keys, jobs[slot0 + 1].keys) : job.keys;
  const int first = static_cast<int>(blockIdx.x) * kSpan, last = min(first + kSpan, keys);
  if (first >= last) return;
  const int ins = m.before.from, head = static_cast<int>(blockIdx.z) % ins;
  const bool of_scores = static_cast<int>(blockIdx.z) < ins;
  const int plane_head = of_scores ? head : static_cast<int>(blockIdx.z) - ins;
  const HeadsView &x = of_scores ? f.q : p.dout, &y = of_scores ? f.k : f.v;
  const SequenceLocation at = f.places[job.sequence];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
            t = lane % 4;

  // Sixteen bytes of four rows a thread; keys lie in the order in which a lane gets eight side by side.
  const std::uint32_t left = ptx::shared_address(raw), stages = left + kRows * kPanelRowBytes;
  const int row = thread / 8, chunk = thread % 8, bytes = chunk * 8 < static_cast<int>(x.layout.dim) ? 16 : 0;
  const auto copy = [&](std::uint32_t to, const T* from, Index step, int there) {
    const T* own = from + row * step + chunk * 8;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const bool in = row + 32 * n < there && bytes;
      ptx::copy_16(to + static_cast<std::uint32_t>(32 * n * kPanelRowBytes), in ? own + 32 * n * step : from,
                   in ? 16 : 0);
    }
  };
  const T* keys_from = chunk::head_row<T>(y, at.tensor_batch, at.kv_row, plane_head);
  const auto copy_keys = [&](int use) {
    const int key0 = first + use * kKeys;
    if (key0 < last)
      copy(stages + static_cast<std::uint32_t>(use % kStages * kTileBytes) +
               chunk_offset(kKeys, chunk::ChunkWeights<T>::row_of_key(row), chunk),
           keys_from + key0 * y.step[1], y.step[1], keys - key0);
    ptx::commit_copies();
  };
  copy(left + chunk_offset(kRows, row, chunk),
       chunk::head_row<T>(x, at.tensor_batch, at.q_row + job.row0, plane_head), x.step[1], rows);
#pragma unroll
  for (int use = 0; use < kStages - 1; ++use) copy_keys(use);

  const int half = warp / 2 % 2, slot = slot0 + warp / 4, row0 = 32 * half,
            planes = of_scores ? ins : m.after.to;
  const bool mine = warp < 4 || both;
  const std::uint32_t x_at = left + chunk_offset(kRows, warp / 2 * 32 + (lane & 15), lane >> 4),
                      y_at = chunk_offset(kKeys, warp % 2 * 64 + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
  const Index to = chunk::plane_at(slot, planes, plane_head, row0 + g, m.group.pitch) + warp % 2 * 64 + 8 * t;
  const int end = (keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys - warp % 2 * 64;
#pragma unroll 1
  for (int key0 = first, use = 0; key0 < last; key0 += kKeys, ++use) {
    ptx::wait_copies<kStages - 2>();
    __syncthreads();
    copy_keys(use + kStages - 1);
    if (!mine || key0 >= end) continue;
    const std::uint32_t from = stages + static_cast<std::uint32_t>(use % kStages * kTileBytes) + y_at;
    TileSums s = {};
    multiply_tile<T>(s, x_at, from);
    const TileTarget target{p, of_scores, to, key0};
    if (!of_scores) {
      put_tile<T, kTwoParts>(s, target, 1.f);
      continue;
    }
    int exponent = 0;
    if (__any_sync(~0u, put_tile<f16, kTwoParts>(s, target, 1.f))) {
      exponent = exponent_of(s);
      put_tile<f16, kTwoParts>(s, target, __uint_as_float(static_cast<std::uint32_t>(127 - exponent) << 23));
    }
    if (lane == 0)
      p.exponents[((slot * 2 + half) * static_cast<Index>(m.group.pitch / 64) + key0 / 64 + warp % 2) * 16 +
                  head] = exponent;
  }
}

}  // namespace

template <class T>
Status mixed_planes(const MixTiles& p, int keys, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_pair_planes";
  const Status status = allow_shared(kName, pair_planes<T>, kShared, allowed, device);
  const dim3 grid(static_cast<unsigned>(ceil_div(keys, kSpan)), static_cast<unsigned>(p.rows.group.count),
                  static_cast<unsigned>(p.rows.before.from + p.rows.after.to));
  return status.ok() && keys > 0 ? launch({kName, grid, kThreads, kShared, stream}, pair_planes<T>, p)
                                 : status;
}
template Status mixed_planes<bf16>(const MixTiles&, int, int, cudaStream_t);
template Status mixed_planes<f16>(const MixTiles&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mixed
