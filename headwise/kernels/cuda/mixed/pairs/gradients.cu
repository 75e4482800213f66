// Mixing backward over the pairs of a chunk: probabilities, delta, scores, and the coefficients' gradients.
#include "headwise/kernels/cuda/mixed/pairs/pairs.cuh"

namespace headwise::cuda::mixed {

using chunk::ChunkJob;
using chunk::kChunkRows;
using chunk::plane_at;
namespace {

constexpr int kRowWarps = 4, kProductThreads = 256, kKeyThreads = 64;

/// lse of a chunk's rows out of the run's.
__global__ void __launch_bounds__(kChunkRows) read_lse(const __grid_constant__ MixPairs p) {
  const RunInputs& f = p.in;
  const Index i = threadIdx.x, h = blockIdx.x, slot = blockIdx.y;
  const ChunkJob job = p.group.jobs[slot];
  float lse = -INFINITY;
  if (i < job.rows) {
    const SequenceLocation at = f.places[job.sequence];
    lse = f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] +
                (at.q_row + job.row0 + i) * f.lse_step[2]];
  }
  p.lse[(slot * p.heads + h) * kChunkRows + i] = lse;
}

/// delta = sum_j p dp: a warp a row of a head.
__global__ void __launch_bounds__(32 * kRowWarps) delta_rows(const __grid_constant__ MixPairs p) {
  const RunInputs& f = p.in;
  const int lane = static_cast<int>(threadIdx.x) % 32,
            i = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const Index h = blockIdx.y, slot = blockIdx.z;
  const ChunkJob job = p.group.jobs[slot];
  const Index from = plane_at(slot, p.heads, h, i, p.group.pitch), to = (slot * p.heads + h) * kChunkRows + i;
  float sum = 0.f;
  bool empty = true;
  if (i < job.rows)
    for (int j = 4 * lane; j < job.keys; j += 128) {  // behind the last key both hold 0
      const float4 w = *reinterpret_cast<const float4*>(p.probabilities + from + j),
                   d = *reinterpret_cast<const float4*>(p.dprobabilities + from + j);
      const auto add = [&](float weight, float slope) {  // whatever the slope of a closed pair is
        sum = fmaf(weight, weight != 0.f ? slope : 0.f, sum);
      };
      add(w.x, d.x), add(w.y, d.y), add(w.z, d.z), add(w.w, d.w);
      empty = empty && w.x == 0.f && w.y == 0.f && w.z == 0.f && w.w == 0.f;
    }
  sum = chunk::warp_sum_of(sum);
  empty = __all_sync(~0u, empty);
  if (lane != 0) return;
  p.delta[to] = sum;
  if (p.dsink_rows) {
    const float lse = p.lse[to];
    p.dsink_rows[to] =
        empty || lse == -INFINITY
            ? 0.f
            : -sum * exp2f((number_of(f.sinks, static_cast<int>(h)) - lse) * chunk::kChunkLog2e);
  }
}

/// One query's sum over keys of x_m dy_h, for all m and h: four of each a thread, keys cut into slices.
template <int Heads>
__global__ void __launch_bounds__(kProductThreads) row_products(const __grid_constant__ MixGradient p) {
  constexpr int kSide = Heads / 4, kSlices = kProductThreads / (kSide * kSide),
                kTile = 4 * kSlices < 64 ? 64 : 4 * kSlices, kPitch = kTile + 4;
  __shared__ __align__(16) float x[Heads][kPitch], dy[Heads][kPitch];
  __shared__ float all[Heads][Heads];
  const int i = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const Index slot = blockIdx.y;
  const ChunkJob job = p.group.jobs[slot];
  const MixStage& s = p.stage;
  float* products = p.products + (slot * kChunkRows + i) * s.from * s.to;
  if (i >= job.rows) {
    if (p.given)
      for (int n = thread; n < s.from * s.to; n += kProductThreads) products[n] = 0.f;
    return;
  }
  const int slice = thread / (kSide * kSide), m0 = thread / kSide % kSide * 4, h0 = thread % kSide * 4;
  const auto cap = static_cast<float>(p.softcap);
  float sum[4][4] = {};
  for (int key0 = 0; key0 < job.keys; key0 += kTile) {
    __syncthreads();
    constexpr int kEach = Heads * kTile / kProductThreads;
    float a[kEach], b[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {  // all at once: planes reach as far as
                                       // every key, and heads repeat
      const int at = n * kProductThreads + thread, h = at / kTile, j = min(key0 + at % kTile, job.keys - 1);
      a[n] = p.x[plane_at(slot, p.x_planes, min(h, s.from - 1), i, p.group.pitch) + j];
      b[n] = p.dy[plane_at(slot, p.dy_planes, min(h, s.to - 1), i, p.group.pitch) + j];
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int at = n * kProductThreads + thread, h = at / kTile, j = at % kTile;
      const bool in = key0 + j < job.keys;
      if (cap != 0.f) a[n] = cap * tanhf(a[n] / cap);
      x[h][j] = in && h < s.from ? a[n] : 0.f, dy[h][j] = in && h < s.to ? b[n] : 0.f;
    }
    __syncthreads();
    for (int j = 4 * slice; j < kTile; j += 4 * kSlices) {
      float4 a[4], b[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        a[n] = *reinterpret_cast<const float4*>(&x[m0 + n][j]),
        b[n] = *reinterpret_cast<const float4*>(&dy[h0 + n][j]);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int h = 0; h < 4; ++h)
          sum[m][h] = fmaf(a[m].w, b[h].w,
                           fmaf(a[m].z, b[h].z, fmaf(a[m].y, b[h].y, fmaf(a[m].x, b[h].x, sum[m][h]))));
    }
  }
  // Slices are added one after another.
  for (int n = thread; n < Heads * Heads; n += kProductThreads) all[n / Heads][n % Heads] = 0.f;
  for (int turn = 0; turn < kSlices; ++turn) {
    __syncthreads();
    if (slice == turn)
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int h = 0; h < 4; ++h) all[m0 + m][h0 + h] += sum[m][h];
  }
  __syncthreads();
  if (p.given)
    for (int n = thread; n < s.from * s.to; n += kProductThreads) products[n] = all[n / s.to][n % s.to];
  if (!p.dmix_q) return;
  const SequenceLocation at = p.group.places[job.sequence];
  const Index row = at.q_row + job.row0 + i;
  const float* own =
      p.of_queries + (at.tensor_batch * p.q_rows + row) * p.mix_rows * p.heads + s.row0 * p.heads;
  for (int n = thread; n < (2 * p.rank + 1) * p.heads; n += kProductThreads) {
    const int r = n / p.heads, h = n % p.heads;
    float g = 0.f;
    if (r == 2 * p.rank) {
      g = all[h][h];
    } else {
      const float* other = own + (r < p.rank ? r + p.rank : r - p.rank) * p.heads;
      for (int m = 0; m < p.heads; ++m) g = fmaf(r < p.rank ? all[h][m] : all[m][h], other[m], g);
    }
    store_float(p.dmix_q, p.dmix_q_dtype,
                at.tensor_batch * p.dmix_q_step[0] + row * p.dmix_q_step[1] +
                    (s.row0 + r) * p.dmix_q_step[2] + h * p.dmix_q_step[3],
                static_cast<double>(g));
  }
}

__global__ void __launch_bounds__(32)
    add_products(const float* products, double* given, int count, int size) {
  const int lane = static_cast<int>(threadIdx.x), n = static_cast<int>(blockIdx.x);
  double all = given[n];
  for (int job = 0; job < count; ++job) {
    const float* from = products + static_cast<Index>(job) * kChunkRows * size + n;
    double x = static_cast<double>(from[lane * size]) + static_cast<double>(from[(lane + 32) * size]);
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    all += x;
  }
  if (lane == 0) given[n] = all;
}

/// One key's sums over queries, a rank at a time; the first one brings the gate's.
template <int Heads>
__global__ void __launch_bounds__(kKeyThreads) key_sums(const __grid_constant__ MixGradient p) {
  const Index sequence = p.first_sequence + blockIdx.z;
  const SequenceLocation at = p.group.places[sequence];
  const int j = static_cast<int>(blockIdx.x * kKeyThreads + threadIdx.x), rank = static_cast<int>(blockIdx.y);
  if (j >= at.kv_tokens) return;
  const MixStage& s = p.stage;
  const Index key = at.tensor_batch * p.k_rows + at.kv_row + j;
  const bool low = rank < p.rank, gates = rank == 0;
  const auto place = [&](int r, int h) {
    return (static_cast<Index>(s.row0 + r) * p.heads + h) * p.key_pitch + key;
  };
  const auto cap = static_cast<float>(p.softcap);
  float first[Heads], second[Heads], dfirst[Heads], dsecond[Heads], dgate[Heads];
  bool begins = false, ends = false;
  for (int n = 0; n < p.group.count; ++n)
    if (const ChunkJob job = p.group.jobs[n]; job.sequence == sequence)
      begins = begins || job.row0 == 0, ends = ends || job.row0 + job.rows >= at.q_tokens;
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const bool in = h < p.heads;
    first[h] = in && low ? p.of_keys[place(rank, h)] : 0.f;
    second[h] = in && low ? p.of_keys[place(p.rank + rank, h)] : 0.f;
    dfirst[h] = in && low && !begins ? p.key_sums[place(rank, h)] : 0.f;
    dsecond[h] = in && low && !begins ? p.key_sums[place(p.rank + rank, h)] : 0.f;
    dgate[h] = in && gates && !begins ? p.key_sums[place(2 * p.rank, h)] : 0.f;
  }
  for (int n = 0; n < p.group.count; ++n) {
    const ChunkJob job = p.group.jobs[n];
    if (job.sequence != sequence || j >= job.keys) continue;
    const float *from_x = p.x + plane_at(n, p.x_planes, 0, 0, p.group.pitch) + j,
                *from_dy = p.dy + plane_at(n, p.dy_planes, 0, 0, p.group.pitch) + j;
    const int down = kChunkRows * p.group.pitch;
    for (int i = 0; i < job.rows; ++i) {
      float x[Heads], dy[Heads], inner = 0.f, dinner = 0.f;
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        x[h] = from_x[min(h, p.heads - 1) * down + i * p.group.pitch];
        dy[h] = from_dy[min(h, p.heads - 1) * down + i * p.group.pitch];
      }
#pragma unroll
      for (int h = 0; h < Heads; ++h)
        if (h >= p.heads) x[h] = dy[h] = 0.f;
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        if (cap != 0.f) x[h] = cap * tanhf(x[h] / cap);
        inner = fmaf(x[h], first[h], inner), dinner = fmaf(dy[h], second[h], dinner);
      }
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        dfirst[h] = fmaf(x[h], dinner, dfirst[h]), dsecond[h] = fmaf(dy[h], inner, dsecond[h]);
        dgate[h] = fmaf(x[h], dy[h], dgate[h]);
      }
    }
  }
  const auto put = [&](int r, int h, float x) {
    if (ends)
      store_float(p.dmix_k, p.dmix_k_dtype,
                  at.tensor_batch * p.dmix_k_step[0] + (at.kv_row + j) * p.dmix_k_step[1] +
                      (s.row0 + r) * p.dmix_k_step[2] + h * p.dmix_k_step[3],
                  static_cast<double>(x));
    else
      p.key_sums[place(r, h)] = x;
  };
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    if (h >= p.heads) break;
    if (low) put(rank, h, dfirst[h]), put(p.rank + rank, h, dsecond[h]);
    if (gates) put(2 * p.rank, h, dgate[h]);
  }
}

template <int Heads>
Status start_gradient(const MixGradient& p, cudaStream_t stream) {
  Status status;
  if (p.given || p.dmix_q)
    status = launch({"cuda/mix_row_products", dim3(kChunkRows, static_cast<unsigned>(p.group.count)),
                     kProductThreads, 0, stream},
                    row_products<Heads>, p);
  if (status.ok() && p.given)
    status = launch(
        {"cuda/mix_add_products", dim3(static_cast<unsigned>(p.stage.from * p.stage.to)), 32, 0, stream},
        add_products, p.products, p.given, p.group.count, p.stage.from * p.stage.to);
  if (status.ok() && p.key_sums && p.kv_tokens > 0)
    status = launch({"cuda/mix_key_sums",
                     dim3(static_cast<unsigned>(ceil_div(p.kv_tokens, kKeyThreads)),
                          static_cast<unsigned>(max_of(p.rank, 1)), static_cast<unsigned>(p.sequences)),
                     kKeyThreads, 0, stream},
                    key_sums<Heads>, p);
  return status;
}

}  // namespace

Status mix_probabilities(const MixPairs& p, cudaStream_t stream) {
  Status status =
      launch({"cuda/mix_read_lse", dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.group.count)),
              kChunkRows, 0, stream},
             read_lse, p);
  if (status.ok()) status = start_pass<MixPass::probabilities>("cuda/mix_probabilities", p, stream);
  if (status.ok()) status = start_pass<MixPass::weights_gradient>("cuda/mix_weights_gradient", p, stream);
  return status;
}
Status mix_delta(const MixPairs& p, cudaStream_t stream) {
  return launch(
      {"cuda/mix_delta",
       dim3(kChunkRows / kRowWarps, static_cast<unsigned>(p.heads), static_cast<unsigned>(p.group.count)),
       32 * kRowWarps, 0, stream},
      delta_rows, p);
}
Status mix_scores_gradient(const MixPairs& p, cudaStream_t stream) {
  return start_pass<MixPass::scores_gradient>("cuda/mix_scores_gradient", p, stream);
}
Status mix_gradient(const MixGradient& p, cudaStream_t stream) {
  const int most = p.stage.from > p.stage.to ? p.stage.from : p.stage.to;
  return most <= 8    ? start_gradient<8>(p, stream)
         : most <= 16 ? start_gradient<16>(p, stream)
                      : start_gradient<32>(p, stream);
}

}  // namespace headwise::cuda::mixed
