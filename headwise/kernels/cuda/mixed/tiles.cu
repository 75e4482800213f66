// Fixed mixes without scores in memory: 32 x 32 pairs of all heads in shared memory, mixed by mma.sync with
// the heads as the axis that is summed.
#include "headwise/kernels/cuda/mixed/dynamic.h"
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda::mixed {

using chunk::kChunkKeys;
using chunk::kChunkLog2e;
using chunk::kChunkRows;
namespace {

constexpr int kShared = kTileSideBytes + 2 * kTilePlaneBytes + kTileHeads * static_cast<int>(sizeof(int));

/// A warp's keys of its head: on their way as soon as those before them are multiplied.
template <class T>
struct WarpKeys {
  struct Lane {
    int warp, g, t;
  };
  const HeadsView& x;
  Lane own;
  const T* row;

  __device__ __forceinline__ WarpKeys(const HeadsView& of, Index batch, Index first, const Lane& lane)
      : x(of),
        own(lane),
        row(static_cast<const T*>(x.data) + batch * x.step[0] + (first + own.g) * x.step[1] +
            (own.warp < static_cast<int>(x.layout.heads) ? x.layout.slot(own.warp) * x.step[2] : 0) +
            8 * own.t) {}
  /// The next 32 of `left` keys.
  __device__ __forceinline__ void fetch(TileRight& to, int left) {
    const bool in = own.warp < static_cast<int>(x.layout.heads);
    to.load(row, x.step[1], in ? left - own.g : 0, static_cast<int>(x.layout.dim) - 8 * own.t);
    row += kTileKeys * x.step[1];
  }
};

/// lse of a lane's head and query in exponents of 2, of the two queries from `own` on.
struct QueryPair {
  Index slot;
  int own, rows, heads;
};
__device__ __forceinline__ void read_lse(float& lse, const MixPairs& m, const QueryPair& of, int g, int t) {
  if (const int h = 8 * (g >> 2) + 2 * t + (g & 1), i = of.own + (g >> 1 & 1); h < of.heads && i < of.rows) {
    const float x = m.lse[(of.slot * of.heads + h) * kChunkRows + i];
    if (x != -INFINITY) lse = x * kChunkLog2e;
  }
}

__device__ __forceinline__ void begin_sums(float (&top)[2][4], float (&sum)[2][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) top[j][e] = -INFINITY, sum[j][e] = 0.f;
}

/// A warp: it multiplies one head of a tile, and mixes two queries of all heads. Coefficients and a lane's
/// sums stand outside: a struct with arrays is not taken apart into registers. Rows' numbers are [heads 2 t,
/// 2 t + 1
/// (+ 8)][first, second query], 8 for each t; sums are a lane's own, what is read is spread over the lanes.
template <class T, TilePass Pass>
struct TileWarp {
  const MixTiles& p;
  const TileMix<f16, true>& before;
  const TileMix<T, true>& after;
  float (&top)[2][4], (&sum)[2][4];
  const int (&begin)[2], (&stop)[2];  // keys that the two queries see
  const float& lse;
  Index slot;
  int warp, lane, g, t, row0, heads;
  std::uint32_t high, low;  // planes of a tile; weights go to `low`, once what stands there has been read
  float unit;
  std::uint32_t lane_at;

  /// This warp's head of a plane, all in one piece.
  __device__ __forceinline__ void write_plane(std::uint32_t from, void* plane, int count, int key0) const {
    if (warp >= count) return;
    auto* to = reinterpret_cast<int4*>(static_cast<T*>(plane) +
                                       chunk::blocked_at(slot, count, warp, row0, key0, p.rows.group.pitch)) +
               lane;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      to[32 * n] =
          ptx::load_shared(from + static_cast<std::uint32_t>(warp * kTileHeadBytes + (32 * n + lane) * 16));
  }
  __device__ __forceinline__ std::uint32_t unit_at(int n) const {
    return lane_at + static_cast<std::uint32_t>(n * kTileBlockBytes);
  }

  /// Logits of 16 pairs, without their unit. Special && wide: some head's scores are past their range.
  template <bool Special, class StepDown>
  __device__ __forceinline__ void logits(float (&y)[2][4], std::uint32_t from, bool wide,
                                         StepDown&& step_down) const {
    std::uint32_t a[4], rest[4];
    ptx::load_matrices_turned(high + from, a);
    ptx::load_matrices_turned(low + from, rest);
    if (Special && wide) {
      const __half2 first8 = __floats2half2_rn(step_down(2 * t), step_down(2 * t + 1)),
                    last8 = __floats2half2_rn(step_down(2 * t + 8), step_down(2 * t + 9));
#pragma unroll
      for (int n = 0; n < 4; ++n)
        for (std::uint32_t* word : {&a[n], &rest[n]}) {
          const __half2 y2 = __hmul2(*reinterpret_cast<const __half2*>(word), n < 2 ? first8 : last8);
          *word = *reinterpret_cast<const std::uint32_t*>(&y2);
        }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) y[j][0] = y[j][1] = y[j][2] = y[j][3] = 0.f;
    before.low_of(y, a);
    before.high_of(y, rest);
    before.high_of(y, a);
  }
  template <bool Special>
  __device__ __forceinline__ void close(float (&y)[2][4], int key0, int n) const {
    const auto closed = [&](int r) {
      const int key = key0 + 8 * n + g;
      return key < begin[r] || key >= stop[r];
    };
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (Special && closed(r)) y[0][2 * r] = y[0][2 * r + 1] = y[1][2 * r] = y[1][2 * r + 1] = -INFINITY;
  }
  /// Adds weights of 64 pairs to sums, relative to a maximum.
  __device__ __forceinline__ void add_weights(const float (&y)[4][2][4], float back) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // The reference stays until the maximum grows by more than 8 exponents; no branch around it.
        const float most4 = back * fmaxf(fmaxf(y[0][j][e], y[1][j][e]), fmaxf(y[2][j][e], y[3][j][e])),
                    old = top[j][e];
        top[j][e] = most4 > old + 8.f ? most4 : old;
        const float reference = top[j][e] == -INFINITY ? 0.f : top[j][e];
        const auto weight = [&](int n) { return ptx::exp2(fmaf(y[n][j][e], back, -reference)); };
        sum[j][e] =
            fmaf(sum[j][e], ptx::exp2(old - reference), (weight(0) + weight(1)) + (weight(2) + weight(3)));
      }
  }
  /// Weights of 16 pairs, mixed, to where their scores stood.
  __device__ __forceinline__ void put_weights(float (&y)[2][4], const float (&row_lse)[2][4], float back,
                                              std::uint32_t here) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[j][e] = ptx::exp2(fmaf(y[j][e], back, -row_lse[j][e]));
    std::uint32_t weight[4], to[4];
    pack_left<T>(weight, y);
    after.apply(y, weight);
    pack_left<T>(to, y);
    __syncwarp();
    ptx::store_matrices_turned(low + here, to[0], to[1], to[2], to[3]);
  }
  /// Mixes a warp's pairs. Special: some are closed, or scores are past their range; without it there is no
  /// branch between 16 pairs and the next.
  template <bool Special>
  __device__ __forceinline__ void mix(int key0, bool wide, int exponent) const {
    const int shift = Special && wide ? __reduce_max_sync(~0u, exponent) : 0;
    const float back = Special ? ldexpf(unit, shift) : unit;
    const auto step_down = [&](int h) {
      return exp2f(static_cast<float>(__shfl_sync(~0u, exponent, h) - shift));
    };
    if constexpr (Pass == TilePass::lse) {
      float y[4][2][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        logits<Special>(y[n], unit_at(n), wide, step_down);
        close<Special>(y[n], key0, n);
      }
      add_weights(y, back);
    } else {
      float row_lse[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) row_lse[j][e] = __shfl_sync(~0u, lse, (4 * j + e) * 4 + t);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t here = unit_at(n);
        float y[2][4];
        logits<Special>(y, here, wide, step_down);
        close<Special>(y, key0, n);
        put_weights(y, row_lse, back, here);
      }
    }
  }
  /// Maxima and sums of a part over all lanes. `asked`: a bit for each query.
  __device__ __forceinline__ void put_part(int part, int own, std::uint32_t asked) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float reference = top[j][e], x = sum[j][e];
#pragma unroll
        for (int n = 4; n <= 16; n *= 2) {
          const float other = __shfl_xor_sync(~0u, reference, n), x2 = __shfl_xor_sync(~0u, x, n),
                      both = fmaxf(reference, other), from = both == -INFINITY ? 0.f : both;
          x = x * ptx::exp2(reference - from) + x2 * ptx::exp2(other - from), reference = both;
        }
        const int h = 8 * j + 2 * t + (e & 1), i = own + (e >> 1);
        if (g == 0 && h < heads && asked >> (i - row0) & 1)
          p.parts[((part * static_cast<Index>(p.rows.group.count) + slot) * heads + h) * kChunkRows + i] =
              make_float2(reference, x);
      }
  }
};

template <class T, TilePass Pass>
__global__ void __launch_bounds__(kTileThreads, 1) mix_tiles(const __grid_constant__ MixTiles p) {
  constexpr bool kWhole = Pass == TilePass::weights;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixPairs& m = p.rows;
  const RunInputs& f = m.in;
  const Index slot = blockIdx.x / 2;
  const int half = static_cast<int>(blockIdx.x % 2), part = static_cast<int>(blockIdx.y);
  const chunk::ChunkJob job = m.group.jobs[slot];
  // Weights are 0 up to the end of the last 64 keys.
  const int first = part * kMixPart,
            last = min(first + kMixPart,
                       kWhole ? (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys : job.keys);
  const std::uint32_t asked =
      Pass == TilePass::lse && p.left
          ? reinterpret_cast<const std::uint32_t*>(p.left)[(part * m.group.count + slot) * 2 + half]
          : ~0u;
  if (first >= last || !asked) return;
  const SequenceLocation at = f.places[job.sequence];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            g = lane / 4, t = lane % 4, heads = m.heads, ins = m.before.from;
  const std::uint32_t side = ptx::shared_address(raw), high = side + kTileSideBytes,
                      low = high + kTilePlaneBytes;  // weights go there, once what stands there has been read
  int* exponents = reinterpret_cast<int*>(raw + kShared) - kTileHeads;

  WarpKeys<T> keys(f.k, at.tensor_batch, at.kv_row + first, {warp, g, t});
  TileRight right;
  keys.fetch(right, job.keys - first);

  const int row0 = half * kTileRows, own = row0 + 2 * warp;  // the first of the two queries this warp mixes
  put_side<T>(side, f.q, at.tensor_batch, at.q_row + job.row0 + row0, job.rows - row0);

  const auto scale_of_head = [&](int h) {
    return h < ins ? static_cast<float>(f.scales[f.scale_count == 1 ? 0 : h]) : 0.f;
  };
  // The matrix has the scale, and a power of 2 that brings its largest number to 2^13: small ones keep bits.
  const auto scaled = [&](int in, int out) {
    return coefficient(m.before, in, out) * scale_of_head(in) * kChunkLog2e;
  };
  const float matrix_factor =
                  matrix_factor_of(ins * heads, [&](int n) { return scaled(n / heads, n % heads); }),
              unit = 1.f / matrix_factor;
  TileMix<f16, true> before;
  before.load([&](int in, int out) { return scaled(in, out) * matrix_factor; });
  TileMix<T, true> after;
  if constexpr (kWhole) after.load([&](int in, int out) { return coefficient(m.after, in, out); });

  float lse = INFINITY, top[2][4], sum[2][4];
  int begin[2], stop[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const chunk::RowOpen open(f, true, at, job.sequence, 0, job.row0 + own + r, job.keys);
    begin[r] = open.begin, stop[r] = open.end;
  }
  begin_sums(top, sum);
  if constexpr (Pass != TilePass::lse) read_lse(lse, m, {slot, own, job.rows, heads}, g, t);
  __syncthreads();

  const std::uint32_t lane_at =
      static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kTileHeadBytes +
                                 warp / 4 * 4 * kTileBlockBytes + (warp % 4 * 2 + (lane >> 3 & 1)) * 16);
  const TileWarp<T, Pass> own_warp{p,    before, after, top,  sum,   begin, stop, lse,  slot,   warp,
                                   lane, g,      t,     row0, heads, high,  low,  unit, lane_at};
  const auto write_planes = [&](int key0) {
    own_warp.write_plane(low, m.weights, m.after.to, key0);
    __syncwarp();
  };
  int most_past = 0;
#pragma unroll 1
  for (int key0 = first; key0 < last; key0 += kTileKeys) {
    const auto own_head = static_cast<std::uint32_t>(warp * kTileHeadBytes);
    const std::uint32_t left = side + static_cast<std::uint32_t>(warp * kTileLeftBytes);
    float s[2][4][4];
    multiply<T>(s, left, right);
    if (key0 + kTileKeys < last) keys.fetch(right, job.keys - (key0 + kTileKeys));
    __syncthreads();  // everyone has mixed the pairs before
    if constexpr (kWhole)
      if (key0 > first) write_planes(key0 - kTileKeys);
    const int past = put_scores(high + own_head, low + own_head, s);
    if (lane == 0) exponents[warp] = past;
    most_past = max(most_past, past);
    __syncthreads();
    const int exponent = exponents[lane & 15];
    const bool wide = __any_sync(~0u, exponent != 0);
    if (wide || key0 < max(begin[0], begin[1]) || key0 + kTileKeys > min(stop[0], stop[1]))
      own_warp.template mix<true>(key0, wide, exponent);
    else
      own_warp.template mix<false>(key0, wide, exponent);
  }
  if constexpr (kWhole) {
    __syncthreads();
    write_planes((last - 1) / kTileKeys * kTileKeys);
  }

  if constexpr (Pass == TilePass::lse) {
    if (p.past && lane == 0)
      p.past[((part * m.group.count + slot) * 2 + half) * kTileHeads + warp] = most_past;
    own_warp.put_part(part, own, asked);
  }
}

/// lse of each row out of its parts, in order, and the sink; or delta.
template <bool Delta>
__global__ void __launch_bounds__(kChunkRows) join_parts(const __grid_constant__ MixTiles p) {
  const MixPairs& m = p.rows;
  const RunInputs& f = m.in;
  const Index i = threadIdx.x, h = blockIdx.x, slot = blockIdx.y, to = (slot * m.heads + h) * kChunkRows + i;
  const chunk::ChunkJob job = m.group.jobs[slot];
  const SequenceLocation at = f.places[job.sequence];
  const Index of_run =
      at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + job.row0 + i) * f.lse_step[2];
  float* record = p.records && i < job.rows
                      ? p.records + (at.tensor_batch * m.q_rows + at.q_row + job.row0 + i) * kRecord +
                            record_place(static_cast<int>(h))
                      : nullptr;
  float top = -INFINITY, sum = 0.f, lse = -INFINITY;
  for (int part = 0; i < job.rows && part * p.part_keys < job.keys; ++part) {
    const float2 x =
        p.parts[((part * static_cast<Index>(m.group.count) + slot) * m.heads + h) * kChunkRows + i];
    if constexpr (Delta) {
      sum += x.y;
    } else {
      const float most = fmaxf(top, x.x), reference = most == -INFINITY ? 0.f : most;
      sum = sum * ptx::exp2(top - reference) + x.y * ptx::exp2(x.x - reference), top = most;
    }
  }
  if constexpr (Delta) {
    m.delta[to] = sum;
    if (record) record[kRecordDelta] = sum;
    if (m.dsink_rows) {
      if (i < job.rows) lse = f.lse[of_run];
      m.dsink_rows[to] = sum == 0.f || lse == -INFINITY
                             ? 0.f
                             : -sum * exp2f((number_of(f.sinks, static_cast<int>(h)) - lse) * kChunkLog2e);
    }
  } else {
    if (i < job.rows) {
      float saved = natural_lse(top == -INFINITY ? 0.f : top, sum);
      if (f.sinks.data) {
        const float sink = number_of(f.sinks, static_cast<int>(h)), most = fmaxf(saved, sink);
        if (most > -INFINITY) saved = most + logf(expf(saved - most) + expf(sink - most));
      }
      if (f.lse) f.lse[of_run] = saved;
      if (top > -INFINITY || sum != sum) lse = saved;
    }
    m.lse[to] = lse;
    if (record) record[kRecordLse] = lse == -INFINITY ? INFINITY : lse * kChunkLog2e;
  }
}

template <class T, TilePass Pass>
Status start(const MixTiles& p, int keys, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_tiles";
  const Status status = allow_shared(kName, mix_tiles<T, Pass>, kShared, allowed, device);
  const dim3 grid(static_cast<unsigned>(2 * p.rows.group.count),
                  static_cast<unsigned>(ceil_div(max_of(keys, 1), kMixPart)));
  return status.ok() ? launch({kName, grid, kTileThreads, kShared, stream}, mix_tiles<T, Pass>, p) : status;
}
template <bool Delta>
Status join(const MixTiles& p, cudaStream_t stream) {
  return launch({"cuda/mix_join_parts",
                 dim3(static_cast<unsigned>(p.rows.heads), static_cast<unsigned>(p.rows.group.count)),
                 kChunkRows, 0, stream},
                join_parts<Delta>, p);
}

}  // namespace

Status join_lse(const MixTiles& p, cudaStream_t stream) { return join<false>(p, stream); }
Status join_delta(const MixTiles& p, cudaStream_t stream) { return join<true>(p, stream); }

template <class T>
Status mixed_tiles(const MixTiles& p, int keys, int device, cudaStream_t stream) {
  Status status = start<T, TilePass::lse>(p, keys, device, stream);
  if (status.ok()) status = join_lse(p, stream);
  return status.ok() && p.rows.weights ? start<T, TilePass::weights>(p, keys, device, stream) : status;
}
template Status mixed_tiles<bf16>(const MixTiles&, int, int, cudaStream_t);
template Status mixed_tiles<f16>(const MixTiles&, int, int, cudaStream_t);

int mixed_tiles_shared() { return kShared; }

}  // namespace headwise::cuda::mixed
