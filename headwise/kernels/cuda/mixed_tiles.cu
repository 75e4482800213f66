// Fixed mixes forward without scores in memory: a warp has 16 queries x 16 keys of all heads in registers.
#include "headwise/kernels/cuda/chunk_rows.cuh"
#include "headwise/kernels/cuda/mixed_tiles.h"
#include "headwise/kernels/cuda/mma_tile.cuh"

namespace headwise::cuda {
namespace {

constexpr int kHeads = 16, kThreads = 256, kTileKeys = 32, kHalf = kHeads / 2;
constexpr int kQBytes = kHeads * kChunkRows * kPanelRowBytes,
              kStageBytes = kHalf * kTileKeys * kPanelRowBytes;

struct TileShared {
  float before[kHeads][kHeads];   // [in out], times scale and log2(e)
  float after[kHeads][kHeads];    // [out in]
  float lse[kHeads][kChunkRows];  // in exponents of 2; inf: the row weighs nothing
};
constexpr int kShared = kQBytes + 2 * kStageBytes + static_cast<int>(sizeof(TileShared));

/// Rows of `count` heads from `first` on into panels of 64 columns, `rows` of them a head; what is not there
/// is 0.
template <class T>
__device__ __forceinline__ void copy_heads(std::uint32_t to, int rows, const HeadsView& x, int first,
                                           int count, Index batch, Index row, int there) {
  const int dim = static_cast<int>(x.layout.dim), heads = static_cast<int>(x.layout.heads);
  const T* base = static_cast<const T*>(x.data) + batch * x.step[0] + row * x.step[1];
  for (int n = static_cast<int>(threadIdx.x); n < count * rows * 8; n += kThreads) {
    const int c = n % 8, r = n / 8 % rows, h = n / 8 / rows;
    const bool in = r < there && first + h < heads && c * 8 < dim;
    ptx::copy_16(to + static_cast<std::uint32_t>(h * rows * kPanelRowBytes) + chunk_offset(rows, r, c),
                 in ? base + r * x.step[1] + x.layout.slot(first + h) * x.step[2] + c * 8 : base,
                 in ? 16 : 0);
  }
  ptx::commit_copies();
}

template <class T, bool Weights>
__global__ void __launch_bounds__(kThreads, 1) mix_tiles(const __grid_constant__ MixTiles p) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixRows& m = p.rows;
  const RunInputs& f = m.in;
  const Index slot = blockIdx.y;
  const ChunkJob job = m.group.jobs[slot];
  const int end = (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys,
            first = static_cast<int>(blockIdx.x) * kMixPart,
            last = min(first + kMixPart, Weights ? end : job.keys);
  if (first >= last) return;
  const SequencePlace at = f.places[job.sequence];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int ins = m.before.from, heads = m.heads;
  auto& shared = *reinterpret_cast<TileShared*>(raw + kQBytes + 2 * kStageBytes);
  const std::uint32_t q = ptx::shared_address(raw), stage = q + kQBytes;
  // Keys come in halves of the heads: one is on its way while the other is multiplied.
  const auto copy_keys = [&](int unit) {
    const int key = first + unit / 2 * kTileKeys;
    if (key < last)
      copy_heads<T>(stage + static_cast<std::uint32_t>((unit & 1) * kStageBytes), kTileKeys, f.k,
                    unit % 2 * kHalf, kHalf, at.tensor_batch, at.kv_row + key, job.keys - key);
  };
  copy_heads<T>(q, kChunkRows, f.q, 0, kHeads, at.tensor_batch, at.q_row + job.row0, job.rows);
  copy_keys(0);
  for (int n = thread; n < kHeads * kHeads; n += kThreads) {
    const int out = n / kHeads, in = n % kHeads;
    float c = 0.f, d = 0.f;
    if (out < heads && in < ins) {
      c = m.before.kind == Mix::none ? (in == out ? 1.f : 0.f) : m.before.given[in * m.before.to + out];
      c *= static_cast<float>(f.scales[f.scale_count == 1 ? 0 : in]) * kChunkLog2e;
    }
    if (out < m.after.to && in < heads)
      d = m.after.kind == Mix::none ? (in == out ? 1.f : 0.f) : m.after.given[in * m.after.to + out];
    shared.before[in][out] = c, shared.after[out][in] = d;
  }
  if constexpr (Weights)
    for (int n = thread; n < kHeads * kChunkRows; n += kThreads) {
      const int h = n / kChunkRows, i = n % kChunkRows;
      const float lse = h < heads ? m.lse[(slot * heads + h) * kChunkRows + i] : -INFINITY;
      shared.lse[h][i] = lse == -INFINITY ? INFINITY : lse * kChunkLog2e;
    }

  const int row = warp % 4 * 16 + lane / 4,
            side = warp / 4;  // two warps share 16 rows, 16 keys each
  int begin[2], stop[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowOpen open(f, true, at, job.sequence, 0, job.row0 + row + 8 * r, job.keys);
    begin[r] = open.begin, stop[r] = open.end;
  }
  float top[Weights ? 1 : kHeads][2], sum[Weights ? 1 : kHeads][2];
#pragma unroll
  for (int h = 0; h < (Weights ? 1 : kHeads); ++h)
    top[h][0] = top[h][1] = -INFINITY, sum[h][0] = sum[h][1] = 0.f;
  const std::uint32_t q_at = q + chunk_offset(kChunkRows, warp % 4 * 16 + (lane & 15), lane >> 4),
                      k_at = stage + chunk_offset(kTileKeys, side * 16 + (lane & 7), lane >> 3);
  std::uint32_t* out = reinterpret_cast<std::uint32_t*>(static_cast<T*>(m.weights) +
                                                        plane_at(slot, m.after.to, 0, row, m.group.pitch)) +
                       side * 8 + lane % 4;

#pragma unroll 1
  for (int key0 = first, unit = 0; key0 < last; key0 += kTileKeys) {
    // Heads come one after another and each adds to all mixed ones: 128 sums that do not wait for one
    // another.
    float y[kHeads][8];  // [head][8 keys, two rows; eight keys further]
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
      for (int e = 0; e < 8; ++e) y[h][e] = 0.f;
#pragma unroll 1
    for (int half = 0; half < 2; ++half, ++unit) {
      ptx::wait_copies<0>();
      __syncthreads();
      copy_keys(unit + 1);
#pragma unroll 1
      for (int n = 0; n < kHalf; ++n) {
        std::uint32_t a[4][4], b[2][2][4];
        const std::uint32_t keys = k_at + static_cast<std::uint32_t>((unit & 1) * kStageBytes +
                                                                     n * kTileKeys * kPanelRowBytes),
                            rows = q_at + static_cast<std::uint32_t>((half * kHalf + n) * kChunkRows *
                                                                     kPanelRowBytes);
#pragma unroll
        for (std::uint32_t step = 0; step < 4; ++step) ptx::load_matrices(rows ^ (32u * step), a[step]);
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i)
#pragma unroll
          for (std::uint32_t part = 0; part < 2; ++part)
            ptx::load_matrices((keys ^ (64u * part)) + i * 8 * kPanelRowBytes, b[i][part]);
        float s[2][4] = {};
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            Number<T>::multiply_add(s[i], a[step], b[i][step / 2][step % 2 * 2],
                                    b[i][step / 2][step % 2 * 2 + 1]);
#pragma unroll
        for (int h = 0; h < kHeads; h += 4) {
          const float4 c = *reinterpret_cast<const float4*>(&shared.before[half * kHalf + n][h]);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const float x = s[e / 4][e % 4];
            y[h][e] = fmaf(c.x, x, y[h][e]), y[h + 1][e] = fmaf(c.y, x, y[h + 1][e]);
            y[h + 2][e] = fmaf(c.z, x, y[h + 2][e]), y[h + 3][e] = fmaf(c.w, x, y[h + 3][e]);
          }
        }
      }
    }
    if (__any_sync(~0u, key0 < begin[0] || key0 < begin[1] || key0 + kTileKeys > stop[0] ||
                            key0 + kTileKeys > stop[1])) {
      const int key = key0 + side * 16 + 2 * (lane % 4);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int at_key = key + 8 * (e / 4) + (e & 1), r = e / 2 % 2;
        if (at_key < begin[r] || at_key >= stop[r]) {
#pragma unroll
          for (int h = 0; h < kHeads; ++h) y[h][e] = -INFINITY;
        }
      }
    }
    if constexpr (!Weights) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // The reference stays until the maximum grows by more than 8 exponents; no branch around it.
          const float *low = y[h] + 2 * r, *high = low + 4;
          const float most = fmaxf(fmaxf(low[0], low[1]), fmaxf(high[0], high[1])), old = top[h][r];
          top[h][r] = most > old + 8.f ? most : old;
          const float reference = top[h][r] == -INFINITY ? 0.f : top[h][r];
          sum[h][r] = fmaf(sum[h][r], ptx::exp2(old - reference),
                           (ptx::exp2(low[0] - reference) + ptx::exp2(low[1] - reference)) +
                               (ptx::exp2(high[0] - reference) + ptx::exp2(high[1] - reference)));
        }
    } else {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float lse[2] = {shared.lse[h][row], shared.lse[h][row + 8]};
#pragma unroll
        for (int e = 0; e < 8; ++e) y[h][e] = ptx::exp2(y[h][e] - lse[e / 2 % 2]);
      }
#pragma unroll 1
      for (int v = 0; v < m.after.to; ++v) {
        float w[8] = {};
#pragma unroll
        for (int h = 0; h < kHeads; h += 4) {
          const float4 c = *reinterpret_cast<const float4*>(&shared.after[v][h]);
#pragma unroll
          for (int e = 0; e < 8; ++e)
            w[e] = fmaf(c.w, y[h + 3][e],
                        fmaf(c.z, y[h + 2][e], fmaf(c.y, y[h + 1][e], fmaf(c.x, y[h][e], w[e]))));
        }
        std::uint32_t* to = out + (static_cast<Index>(v) * kChunkRows * m.group.pitch + key0) / 2;
        to[0] = Number<T>::pack(w[0], w[1]), to[4 * m.group.pitch] = Number<T>::pack(w[2], w[3]);
        to[4] = Number<T>::pack(w[4], w[5]), to[4 * m.group.pitch + 4] = Number<T>::pack(w[6], w[7]);
      }
    }
  }
  if constexpr (!Weights) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float t = top[h][r], x = sum[h][r];
#pragma unroll
        for (int n = 1; n <= 2; n *= 2) {
          const float t2 = __shfl_xor_sync(~0u, t, n), x2 = __shfl_xor_sync(~0u, x, n), most = fmaxf(t, t2);
          const float reference = most == -INFINITY ? 0.f : most;
          x = x * ptx::exp2(t - reference) + x2 * ptx::exp2(t2 - reference), t = most;
        }
        if (lane % 4 == 0)
          p.parts[(((blockIdx.x * 2 + side) * static_cast<Index>(m.group.count) + slot) * heads + h) *
                      kChunkRows +
                  row + 8 * r] = make_float2(t, x);
      }
    }
  }
}

/// lse of each row out of its parts, in order, and the sink.
__global__ void __launch_bounds__(kChunkRows) join_parts(const __grid_constant__ MixTiles p) {
  const MixRows& m = p.rows;
  const RunInputs& f = m.in;
  const Index i = threadIdx.x, h = blockIdx.x, slot = blockIdx.y;
  const ChunkJob job = m.group.jobs[slot];
  float lse = -INFINITY;
  if (i < job.rows) {
    float top = -INFINITY, sum = 0.f;
    for (int part = 0; part * kMixPart / 2 < (job.keys + kMixPart - 1) / kMixPart * kMixPart; ++part) {
      const float2 x =
          p.parts[((part * static_cast<Index>(m.group.count) + slot) * m.heads + h) * kChunkRows + i];
      const float most = fmaxf(top, x.x), reference = most == -INFINITY ? 0.f : most;
      sum = sum * ptx::exp2(top - reference) + x.y * ptx::exp2(x.x - reference), top = most;
    }
    float saved = natural_lse(top == -INFINITY ? 0.f : top, sum);
    if (f.sinks.data) {
      const float sink = number_of(f.sinks, static_cast<int>(h)), most = fmaxf(saved, sink);
      if (most > -INFINITY) saved = most + logf(expf(saved - most) + expf(sink - most));
    }
    const SequencePlace at = f.places[job.sequence];
    if (f.lse)
      f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + job.row0 + i) * f.lse_step[2]] =
          saved;
    if (top > -INFINITY || sum != sum) lse = saved;
  }
  m.lse[(slot * m.heads + h) * kChunkRows + i] = lse;
}

}  // namespace

template <class T>
Status mixed_tiles(const MixTiles& p, int keys, int device, cudaStream_t stream) {
  static bool allowed[2][64] = {};
  constexpr const char* kName = "cuda/mix_tiles";
  Status status = allow_shared(kName, mix_tiles<T, false>, kShared, allowed[0], device);
  if (status.ok()) status = allow_shared(kName, mix_tiles<T, true>, kShared, allowed[1], device);
  const dim3 grid(static_cast<unsigned>(ceil_div(max_of(keys, 1), kMixPart)),
                  static_cast<unsigned>(p.rows.group.count));
  if (status.ok()) status = launch({kName, grid, kThreads, kShared, stream}, mix_tiles<T, false>, p);
  if (status.ok())
    status = launch(
        {"cuda/mix_join_parts", dim3(static_cast<unsigned>(p.rows.heads), grid.y), kChunkRows, 0, stream},
        join_parts, p);
  return status.ok() ? launch({kName, grid, kThreads, kShared, stream}, mix_tiles<T, true>, p) : status;
}
template Status mixed_tiles<bf16>(const MixTiles&, int, int, cudaStream_t);
template Status mixed_tiles<f16>(const MixTiles&, int, int, cudaStream_t);

int mixed_tiles_shared() { return kShared; }

}  // namespace headwise::cuda
