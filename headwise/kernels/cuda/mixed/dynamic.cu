// Dynamic mixes: 16 x 32 pairs of all heads in shared memory, mixed in f32 by a warp for each own token. Own
// tokens are queries; for the gradient of the keys' coefficients they are keys and the queries pass by.
#include "headwise/kernels/cuda/mixed/dynamic_block.cuh"

namespace headwise::cuda::mixed {

using chunk::kChunkKeys;
using chunk::kChunkRows;
namespace {

using namespace dynamic;

/// Maximum and sum, or delta, of a part: what the lanes of a warp have of each head together.
template <class T, TilePass Pass, bool OfKeys>
__device__ __forceinline__ void put_part(const Block<T, Pass, OfKeys>& b, const OwnSums& own_sums) {
  const MixPairs& m = b.p.tiles.rows;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float reference = own_sums.top[c], x = own_sums.sum[c];
#pragma unroll
    for (int n = 4; n <= 16; n *= 2) {
      if constexpr (Pass == TilePass::lse) {
        const float other = __shfl_xor_sync(~0u, reference, n), x2 = __shfl_xor_sync(~0u, x, n),
                    both = fmaxf(reference, other), from = both == -INFINITY ? 0.f : both;
        x = x * ptx::exp2(reference - from) + x2 * ptx::exp2(other - from), reference = both;
      } else {
        x += __shfl_xor_sync(~0u, x, n);
      }
    }
    if (b.g == 0 && b.head_of(c) < b.heads)
      b.p.tiles.parts[((b.part * static_cast<Index>(m.group.count) + b.slot) * b.heads + b.head_of(c)) *
                          kChunkRows +
                      b.row0 + b.warp] = make_float2(reference, x);
  }
}

/// Gradients of the own token's coefficients, from its products of heads.
template <class T, TilePass Pass, bool OfKeys>
__device__ __forceinline__ void put_coefficients(const Block<T, Pass, OfKeys>& b, const OwnSums& own_sums) {
  const DynamicTiles& p = b.p;
  const int warp = b.warp, lane = b.lane, g = b.g, t = b.t;
  __syncthreads();
  float* all = b.scores + warp * 2 * kTileHeads * kTileHeads;  // the two products of this warp's token
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int n = (g + 8 * (e >> 1)) * kTileHeads + 8 * j + 2 * t + (e & 1);
      all[n] = own_sums.before[j][e], all[kTileHeads * kTileHeads + n] = own_sums.after[j][e];
    }
  __syncwarp();
  if (!b.own_there) return;
  for (int n = lane; n < kDynamicSums; n += 32) {
    const int stage = n / kRecordMix, r = n % kRecordMix / 16, h = n % 16;
    const float* product = all + stage * kTileHeads * kTileHeads;
    float x = 0.f;
    if (r == 2 * kDynamicRank) {
      x = product[h * kTileHeads + h];
    } else {
      const bool is_first = r < kDynamicRank;
      const float* w = b.own_records + warp * kRecord + stage * kRecordMix +
                       (is_first ? r + kDynamicRank : r - kDynamicRank) * 16;
      for (int o = 0; o < kTileHeads; ++o)
        x = fmaf(w[record_place(o)], product[is_first ? h * kTileHeads + o : o * kTileHeads + h], x);
    }
    if constexpr (OfKeys)
      put_coefficient(p.dmix_k, p.tiles.rows,
                      {.stage = stage, .r = r, .h = h, .batch = b.batch, .token = b.own_row + warp}, x);
    else
      p.sums[((b.slot * kChunkRows + b.row0 + warp) * p.tiles.part_count + b.part) * kDynamicSums + n] = x;
  }
}

template <class T, TilePass Pass, bool OfKeys>
__global__ void __launch_bounds__(kTileThreads, 1) mix_dynamic(const __grid_constant__ DynamicTiles p) {
  using Own = Block<T, Pass, OfKeys>;
  constexpr bool kBackward = Own::kBackward, kGradients = Own::kGradients, kWhole = Own::kWhole;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixPairs& m = p.tiles.rows;
  const RunInputs& f = m.in;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            g = lane / 4, t = lane % 4, heads = m.heads, part = OfKeys ? 0 : static_cast<int>(blockIdx.y);
  Own b{p, warp, lane, g, t, heads, part};
  const Index slot = OfKeys ? 0 : blockIdx.x / 4;
  const chunk::ChunkJob job =
      OfKeys ? chunk::ChunkJob{static_cast<int>(blockIdx.y), 0, 0, 0} : m.group.jobs[slot];
  const SequenceLocation at = f.places[job.sequence];
  const int row0 = static_cast<int>(OfKeys ? blockIdx.x : blockIdx.x % 4) * kOwn,
            there = (OfKeys ? static_cast<int>(at.kv_tokens) : job.rows) - row0,
            count = OfKeys ? static_cast<int>(at.q_tokens) : job.keys, first = part * kDynamicPart,
            last = OfKeys ? count
                          : min(first + kDynamicPart,
                                kWhole ? (count + kChunkKeys - 1) / kChunkKeys * kChunkKeys : count);
  if (OfKeys ? there <= 0 : first >= last) return;
  const Index own_row = OfKeys ? at.kv_row + row0 : at.q_row + job.row0 + row0,
              other_row = OfKeys ? at.q_row : at.kv_row;
  const float *own_from = OfKeys ? p.key_records + (at.tensor_batch * m.k_rows + own_row) * kRecord
                                 : p.tiles.records + (at.tensor_batch * m.q_rows + own_row) * kRecord,
              *other_from = OfKeys ? p.tiles.records + (at.tensor_batch * m.q_rows + other_row) * kRecord
                                   : p.key_records + (at.tensor_batch * m.k_rows + other_row) * kRecord;
  const HeadsView &left0 = OfKeys ? f.k : f.q, &left1 = OfKeys ? f.v : p.tiles.dout,
                  &right0 = OfKeys ? f.q : f.k, &right1 = OfKeys ? p.tiles.dout : f.v;

  const std::uint32_t side = ptx::shared_address(raw);
  float* scores = reinterpret_cast<float*>(raw + Own::kSides * kOwnSideBytes);
  float* dweights = scores + kPlaneWords;
  float *own_records = scores + Own::kSides * kPlaneWords, *others = own_records + kOwn * kRecord;
  b.slot = slot, b.batch = at.tensor_batch, b.row0 = row0, b.there = there, b.count = count;
  b.first = first, b.last = last, b.own_row = own_row, b.other_row = other_row, b.other_from = other_from;
  b.side = side, b.scores = scores, b.dweights = dweights, b.own_records = own_records, b.others = others;
  const T *from0 = b.first_token(right0), *from1 = kBackward ? b.first_token(right1) : nullptr;
  TileRight right;
  b.fetch(right, right0, from0, first);
  Own::copy_records(own_records, own_from, max(min(there, kOwn), 0));
  b.copy_others(first);
  put_side<T, kOwn>(side, left0, at.tensor_batch, own_row, there);
  if constexpr (kBackward) put_side<T, kOwn>(side + kOwnSideBytes, left1, at.tensor_batch, own_row, there);
  const float own_scale = b.scale_of(warp);
  __shared__ float scales[kTileHeads];
  if (threadIdx.x < kTileHeads) scales[threadIdx.x] = b.scale_of(static_cast<int>(threadIdx.x));
  b.scales = scales;
  ptx::wait_copies<0>();
  __syncthreads();

  b.own_there = warp < there;
  b.own = own_records + warp * kRecord + 4 * t;
  b.begin = 0, b.stop = 0;
  if (!OfKeys && b.own_there) {
    const int2 run = *reinterpret_cast<const int2*>(own_records + warp * kRecord + kRecordOpen);
    b.begin = run.x, b.stop = run.y;
  }
  OwnSums own_sums = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) own_sums.top[c] = -INFINITY, own_sums.sum[c] = 0.f;

#pragma unroll 1
  for (int token0 = first; token0 < last; token0 += kTileKeys) {
    const std::uint32_t left = side + static_cast<std::uint32_t>(warp * kOwn * 128);
    const bool more = token0 + kTileKeys < last;
    float s[1][4][4];
    multiply<T>(s, left, right);
    if constexpr (kBackward)
      b.fetch(right, right1, from1, token0);
    else if (more)
      b.fetch(right, right0, from0, token0 + kTileKeys);
    __syncthreads();  // everyone has mixed the pairs before
    if constexpr (kWhole)
      if (token0 > first) b.write_planes(token0 - kTileKeys);
    if (more) b.copy_others(token0 + kTileKeys);
    b.put(scores, s, own_scale);
    if constexpr (kBackward) {
      multiply<T>(s, left + kOwnSideBytes, right);
      if (more) b.fetch(right, right0, from0, token0 + kTileKeys);
      b.put(dweights, s, 1.f);
    }
    if (more)
      ptx::wait_copies<1>();
    else
      ptx::wait_copies<0>();
    __syncthreads();
    b.mix(own_sums, token0);
  }
  if constexpr (kWhole) {
    __syncthreads();
    b.write_planes((last - 1) / kTileKeys * kTileKeys);
  }

  if constexpr (Pass == TilePass::lse || Pass == TilePass::delta) put_part(b, own_sums);
  if constexpr (kGradients)
    if (OfKeys || p.sums) put_coefficients(b, own_sums);
}

template <class T, TilePass Pass, bool OfKeys = false>
Status start(const DynamicTiles& p, dim3 grid, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_dynamic";
  constexpr int kShared = shared_of(is_backward(Pass));
  const Status status = allow_shared(kName, mix_dynamic<T, Pass, OfKeys>, kShared, allowed, device);
  return status.ok() ? launch({kName, grid, kTileThreads, kShared, stream}, mix_dynamic<T, Pass, OfKeys>, p)
                     : status;
}
dim3 grid_of(const DynamicTiles& p, int keys) {
  return dim3(static_cast<unsigned>(kChunkRows / kOwn * p.tiles.rows.group.count),
              static_cast<unsigned>(ceil_div(max_of(keys, 1), kDynamicPart)));
}

}  // namespace

template <class T>
Status mixed_dynamic(const DynamicTiles& p, int keys, int device, cudaStream_t stream) {
  Status status = start<T, TilePass::lse>(p, grid_of(p, keys), device, stream);
  if (status.ok()) status = join_lse(p.tiles, stream);
  return status.ok() ? start<T, TilePass::weights>(p, grid_of(p, keys), device, stream) : status;
}
template <class T>
Status mixed_dynamic_backward(const DynamicTiles& p, int keys, int device, cudaStream_t stream) {
  Status status = start<T, TilePass::delta>(p, grid_of(p, keys), device, stream);
  if (status.ok()) status = join_delta(p.tiles, stream);
  if (status.ok()) status = start<T, TilePass::gradients>(p, grid_of(p, keys), device, stream);
  return status.ok() && p.sums ? join_query_sums(p, stream) : status;
}
template <class T>
Status mixed_dynamic_keys(const DynamicTiles& p, Index kv_tokens, Index batch, int device,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(kv_tokens, kOwn)), static_cast<unsigned>(batch));
  return kv_tokens == 0 ? Status{} : start<T, TilePass::gradients, true>(p, grid, device, stream);
}
template Status mixed_dynamic<bf16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic<f16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_backward<bf16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_backward<f16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_keys<bf16>(const DynamicTiles&, Index, Index, int, cudaStream_t);
template Status mixed_dynamic_keys<f16>(const DynamicTiles&, Index, Index, int, cudaStream_t);

int mixed_dynamic_shared(bool backward) { return shared_of(backward); }

}  // namespace headwise::cuda::mixed
