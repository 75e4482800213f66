// Sums of exponents of mixed heads: 64 queries of all heads a block, their keys by bulk copies, products by
// wgmma with the queries in registers.
#include <cuda_bf16.h>

#include "headwise/kernels/cuda/mixed_tiles.cuh"
#include "headwise/kernels/cuda/tile.h"
#include "headwise/kernels/cuda/wgmma.inc"

namespace headwise::cuda {
namespace {

/// Each of two warpgroups multiplies eight heads, four of them a stage; then each of eight warps mixes eight
/// queries. Sixteen warps would have half of the registers: queries and sums leave too few of those.
constexpr int kRows = kChunkRows, kKeys = 32, kHeads = kTileHeads, kEach = 8, kWarps = 8,
              kQueries = kRows / kWarps, kThreads = 32 * kWarps, kStages = 3;
constexpr int kTileBytes = kKeys * kPanelRowBytes, kStageBytes = kHeads / 2 * kTileBytes,
              kQBytes = kRows * kPanelRowBytes;
/// Scores of a head: blocks of 8 queries x 8 keys. 16 bytes more, so that eight heads of one query meet all
/// banks. Before the first tile the queries are there.
constexpr int kHeadBytes = kRows * kKeys * 2 + 16, kPlaneBytes = kHeads * kHeadBytes;
constexpr int kPairs = kStages * kStageBytes, kFacts = kPairs + 2 * kPlaneBytes;
/// Barriers; what all queries see; which keys of the part each of them sees; the mix, as lanes take it;
/// slots.
constexpr int kLimits = 8 * (1 + kStages), kOpen = kLimits + 32, kMix = kOpen + 4 * kRows,
              kSlots = kMix + 1024, kFactBytes = kSlots + 4 * kHeads;
constexpr int kSumsShared = kTileAlign + kFacts + kFactBytes;
static_assert(kSumsShared <= 232448 && kHeads * kQBytes <= 2 * kPlaneBytes);

/// Scores are divided by 2^4, so that their lower halves and the matrix's are both normal numbers; a block
/// that finds one past 3750 then, 60000 as it was, leaves its part to mixed_tiles.
constexpr float kScoreUnit = 0.0625f;
constexpr int kMostBits = 0x6b53;
/// Sums stay as they are up to this.
constexpr float kMostSum = 1.15e18f;

__global__ void __launch_bounds__(kThreads, 1) sums_of_mix(const __grid_constant__ MixSums p) {
  using Product = Wgmma<kKeys, bf16>;
  using Half = Number<f16>;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixRows& m = p.rows;
  const RunInputs& in = m.in;
  const int slot = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
  const ChunkJob job = m.group.jobs[slot];
  const int first_key = part * kMixPart, last_key = min(first_key + kMixPart, job.keys);
  if (first_key >= last_key || job.rows <= 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0),
            lane = thread % 32, g = lane / 4, t = lane % 4, group = warp / 4, quarter = warp % 4,
            own = kQueries * warp;
  const int heads = m.heads, ins = m.before.from;
  const std::uint32_t address = ptx::shared_address(raw),
                      base = (address + kTileAlign - 1) & ~(kTileAlign - 1u), facts = base + kFacts,
                      pairs = base + kPairs;
  std::uint8_t* start = raw + (base - address) + kFacts;
  int *limits = reinterpret_cast<int*>(start + kLimits), *opened = reinterpret_cast<int*>(start + kOpen);
  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(facts + static_cast<std::uint32_t>(offset)));
  };
  const auto full = [&](int stage) { return facts + 8u * static_cast<std::uint32_t>(1 + stage); };

  if (thread == 0) {
    for (int n = 0; n <= kStages; ++n) ptx::mbarrier_init(facts + 8u * static_cast<std::uint32_t>(n), 1);
    ptx::mbarrier_init_fence();
    limits[0] = last_key, limits[1] = 0, limits[2] = last_key, limits[3] = first_key;
  }
  __syncthreads();
  if (thread < kRows) {
    const RowOpen open(in, true, in.places[job.sequence], job.sequence, 0, job.row0 + thread, job.keys);
    // Two numbers from 0 to kMixPart.
    opened[thread] =
        min(max(open.begin - first_key, 0), kMixPart) | min(max(open.end - first_key, 0), kMixPart) << 16;
    if (thread < job.rows && open.begin < open.end) {
      atomicMin(&limits[0], open.begin), atomicMax(&limits[3], open.end);
      atomicMax(&limits[1], open.begin), atomicMin(&limits[2], open.end);
    }
  }
  __syncthreads();
  const int first = max(limits[0], first_key) / kKeys, last = (min(limits[3], last_key) + kKeys - 1) / kKeys;

  __syncthreads();
  int* slots = reinterpret_cast<int*>(start + kSlots);
  if (thread == 0) {
    limits[0] = static_cast<int>(in.places[job.sequence].kv_row);
    limits[3] = static_cast<int>(in.places[job.sequence].tensor_batch);
  }
  if (thread < kHeads) slots[thread] = static_cast<int>(in.k.layout.slot(min(thread, ins - 1)));
  __syncthreads();
  // ---- queries
  if (warp == 0 && lane == 0) ptx::mbarrier_expect(facts, kHeads * kQBytes);
  if (lane < 4)
    ptx::load_tile(pairs + static_cast<std::uint32_t>((warp * 4 + lane) * kQBytes / 2), &p.q, facts,
                   static_cast<int>(in.places[job.sequence].q_row) + job.row0 + lane % 2 * kRows / 2, 0,
                   min(2 * warp + lane / 2, ins - 1), limits[3], ptx::kEvictNormal);
  /// Half a tile, half `n` of all: the first four heads of each group, or the other four.
  const auto copy_keys = [&](int n) {
    if (first + n / 2 >= last) return;
    const std::uint32_t to = static_cast<std::uint32_t>(n % kStages);
    if (lane == 0) {
      if (warp == 0) ptx::mbarrier_expect(full(static_cast<int>(to)), kStageBytes);
      ptx::load_tile(base + to * kStageBytes + static_cast<std::uint32_t>(warp * kTileBytes), &p.k,
                     full(static_cast<int>(to)), fact(kLimits) + (first + n / 2) * kKeys, 0,
                     fact(kSlots + 4 * (group * kEach + (n & 1) * 4 + quarter)), fact(kLimits + 12),
                     ptx::kEvictLast);
    }
  };
  for (int n = 0; n < kStages; ++n) copy_keys(n);

  const auto scaled_coefficient = [&](int from, int to) {
    const float scale = from < ins ? static_cast<float>(in.scales[in.scale_count == 1 ? 0 : from]) : 0.f;
    return coefficient(m.before, from, to) * scale * (kChunkLog2e / kScoreUnit);
  };
  float factor =
      matrix_factor_of(ins * heads, [&](int n) { return scaled_coefficient(n / heads, n % heads); });
  factor = factor >= 2.f && factor <= 65536.f ? 1.f : factor / 128.f;
  // All in shared memory: registers are for queries and sums.
  const auto back = [&] { return ptx::load_float(facts + kLimits + 16); };
  const std::uint32_t mix_of_lane = facts + kMix + static_cast<std::uint32_t>(lane * 32);
  if (warp == 0) {
    if (lane == 0) ptx::store_float(facts + kLimits + 16, 1.f / factor);
    TileMix<f16, true> of;
    of.load([&](int from, int to) { return scaled_coefficient(from, to) * factor; });
    ptx::store_shared(mix_of_lane, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
    ptx::store_shared(mix_of_lane + 16, of.low[0][0], of.low[0][1], of.low[1][0], of.low[1][1]);
  }

  std::uint32_t q[kEach][4][4];
  ptx::mbarrier_wait(facts, 0);
#pragma unroll
  for (int each = 0; each < kEach; ++each) {
    const int h = group * kEach + each;
    const __nv_bfloat162 power = __float2bfloat162_rn(kScoreUnit);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::load_matrices(pairs + static_cast<std::uint32_t>(h * kQBytes) +
                             chunk_offset(kRows, 16 * quarter + (lane & 15), 2 * i + (lane >> 4)),
                         q[each][i]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const __nv_bfloat162 x = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&q[each][i][n]), power);
        const bool there = 16 * quarter + g + n % 2 * 8 < job.rows;
        q[each][i][n] = there ? *reinterpret_cast<const std::uint32_t*>(&x) : 0u;
      }
    }
  }

  // ---- sums of heads 2 t, 2 t + 1 (+ 8) of this warp's queries over a lane's keys; references of a query's
  // 16 heads are spread over the lanes, in units of 1 / factor.
  float sum[kQueries][4], reference[kQueries / 2] = {};
#pragma unroll
  for (int i = 0; i < kQueries; ++i) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
  unsigned known = 0;  // queries that have a reference
  __half2 most = __half2half2(__ushort_as_half(0));

  const std::uint32_t put_at =
      pairs + static_cast<std::uint32_t>(((2 * quarter + (lane >> 3 & 1)) * 4 + (lane >> 4 & 1)) * 128 +
                                         (lane & 7) * 16);
  const auto put = [&](const float(&s)[kKeys / 2], int each) {
    const std::uint32_t to = put_at + static_cast<std::uint32_t>((group * kEach + each) * kHeadBytes);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float x = s[8 * j + 2 * n], y = s[8 * j + 2 * n + 1];
        high[n] = Half::pack(x, y);
        const __half2 pair = *reinterpret_cast<const __half2*>(&high[n]);
        most = __hmax2(most, __habs2(pair));
        const float2 taken = __half22float2(pair);
        low[n] = Half::pack(x - taken.x, y - taken.y);
      }
      ptx::store_matrices(to + j * 256, high[0], high[1], high[2], high[3]);
      ptx::store_matrices(to + kPlaneBytes + j * 256, low[0], low[1], low[2], low[3]);
    }
  };
  const std::uint32_t mix_at =
      pairs + static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kHeadBytes + own / 8 * 512 +
                                         (lane >> 3 & 1) * 128);
  /// Special: some pairs are closed, or logits are not in units of 1.
  const auto mix = [&]<bool Special>(int key0) {
    TileMix<f16, true> before;
    const int4 high = ptx::load_shared(mix_of_lane), low = ptx::load_shared(mix_of_lane + 16);
    before.high[0][0] = static_cast<std::uint32_t>(high.x),
    before.high[0][1] = static_cast<std::uint32_t>(high.y);
    before.high[1][0] = static_cast<std::uint32_t>(high.z),
    before.high[1][1] = static_cast<std::uint32_t>(high.w);
    before.low[0][0] = static_cast<std::uint32_t>(low.x),
    before.low[0][1] = static_cast<std::uint32_t>(low.y);
    before.low[1][0] = static_cast<std::uint32_t>(low.z),
    before.low[1][1] = static_cast<std::uint32_t>(low.w);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float from[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) from[n] = -__shfl_sync(~0u, reference[i / 2], i % 2 * 16 + t * 4 + n);
      int begin = 0, end = 0;
      const float unit = Special ? back() : 1.f;
      if constexpr (Special) {
        const int open = fact(kOpen + 4 * (own + i));
        begin = (open & 0xffff) - key0, end = (open >> 16) - key0;
      }
      /// Of 32 pairs: neither half waits for the other.
      const auto logits = [&](float(&y)[2][2][4]) {
        const std::uint32_t here = mix_at + static_cast<std::uint32_t>(i * 16);
        std::uint32_t a[2][4], rest[2][4];
        ptx::load_matrices_turned(here, a[0]), ptx::load_matrices_turned(here + 256, a[1]);
        ptx::load_matrices_turned(here + kPlaneBytes, rest[0]);
        ptx::load_matrices_turned(here + kPlaneBytes + 256, rest[1]);
        before.template begin<true>(y[0], from, a[0]), before.template begin<true>(y[1], from, a[1]);
        before.high_of(y[0], rest[0]), before.high_of(y[1], rest[1]);
        before.high_of(y[0], a[0]), before.high_of(y[1], a[1]);
        if constexpr (Special) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int key = e / 4 * 16 + g + e % 4 / 2 * 8;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float& x = y[e / 4][j][e % 4];
              x = key < begin || key >= end ? -INFINITY : x * unit;
            }
          }
        }
      };
      float fresh[4];
      {
        float y[2][2][4];
        logits(y);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          fresh[n] = (ptx::exp2(y[0][n / 2][n % 2]) + ptx::exp2(y[0][n / 2][n % 2 + 2])) +
                     (ptx::exp2(y[1][n / 2][n % 2]) + ptx::exp2(y[1][n / 2][n % 2 + 2]));
      }
      const bool past = fmaxf(fmaxf(fresh[0], fresh[1]), fmaxf(fresh[2], fresh[3])) > kMostSum;
      if (!(known >> i & 1) || __any_sync(~0u, past)) {
        // A new reference: the largest logit of this tile, of all lanes.
        float y[2][2][4];
        logits(y);
        bool found = false;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float four[4] = {y[0][n / 2][n % 2], y[0][n / 2][n % 2 + 2], y[1][n / 2][n % 2],
                                 y[1][n / 2][n % 2 + 2]};
          float less = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
#pragma unroll
          for (int far = 4; far <= 16; far *= 2) less = fmaxf(less, __shfl_xor_sync(~0u, less, far));
          if (known >> i & 1) less = fmaxf(less, 0.f);
          found = found || less != -INFINITY;
          if (less == -INFINITY) less = 0.f;
          sum[i][n] *= ptx::exp2(-less);
          fresh[n] = (ptx::exp2(four[0] - less) + ptx::exp2(four[1] - less)) +
                     (ptx::exp2(four[2] - less) + ptx::exp2(four[3] - less));
          const float moved = __shfl_sync(~0u, less / unit - from[n], (lane & 15) / 4);
          if (lane / 16 == i % 2 && lane % 4 == n) reference[i / 2] = moved;
        }
        if (__any_sync(~0u, found)) known |= 1u << i;
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[i][n] += fresh[n];
    }
  };

#pragma unroll 1
  for (int tile = first, n = 0; tile < last; ++tile, n += 2) {
    const int key0 = tile * kKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int use = n + half, stage = use % kStages;
      ptx::mbarrier_wait(full(stage), static_cast<std::uint32_t>(use / kStages) & 1);
      float s[2][kKeys / 2];
      const auto multiply = [&](int k) {
        const std::uint64_t right = rows_descriptor(
            base + static_cast<std::uint32_t>(stage * kStageBytes + (group * 4 + k) * kTileBytes));
        ptx::wgmma_fence();
        Product::first_registers(s[k & 1], q[4 * half + k][0], right);
#pragma unroll
        for (int i = 1; i < 4; ++i)
          Product::more_registers(s[k & 1], q[4 * half + k][i], advanced(right, k_step(kKeys, i)));
        ptx::wgmma_commit();
      };
      multiply(0);
      if (half == 0) ptx::barrier_sync(1, kThreads);  // scores before are mixed
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < 3) {
          multiply(k + 1);
          ptx::wgmma_wait<1>();
        } else {
          ptx::wgmma_wait<0>();
        }
        ptx::pin(s[k & 1]);
        if (key0 + kKeys > job.keys) {
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i)
            if (key0 + 8 * (i / 4) + 2 * t + i % 2 >= job.keys) s[k & 1][i] = 0.f;
        }
        put(s[k & 1], 4 * half + k);
      }
    }
    ptx::barrier_sync(1, kThreads);
    copy_keys(n + kStages), copy_keys(n + kStages + 1);
    if (key0 < fact(kLimits + 4) || key0 + kKeys > fact(kLimits + 8) || back() != 1.f)
      mix.template operator()<true>(key0 - first_key);
    else
      mix.template operator()<false>(0);
  }

  const bool past = static_cast<int>(max(__half_as_ushort(__low2half(most)),
                                         __half_as_ushort(__high2half(most)))) > kMostBits;
  const int any_past = __syncthreads_or(past);
  if (thread < 2 * kHeads) p.past[(part * m.group.count + slot) * 2 * kHeads + thread] = 0;
  if (thread == 0) p.left[part * m.group.count + slot] = any_past;
#pragma unroll
  for (int i = 0; i < kQueries; ++i)
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float x = sum[i][n];
#pragma unroll
      for (int far = 4; far <= 16; far *= 2) x += __shfl_xor_sync(~0u, x, far);
      const float of = __shfl_sync(~0u, reference[i / 2], i % 2 * 16 + t * 4 + n) * back();
      if (const int h = 8 * (n / 2) + 2 * t + n % 2; g == 0 && h < heads)
        p.parts[((part * static_cast<Index>(m.group.count) + slot) * heads + h) * kChunkRows + own + i] =
            make_float2(known >> i & 1 ? of : -INFINITY, x);
    }
}

}  // namespace

int mixed_sums_shared() { return kSumsShared; }

Status mixed_sums(const MixSums& p, int keys, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_sums";
  const Status status = allow_shared(kName, sums_of_mix, kSumsShared, allowed, device);
  if (!status.ok() || p.rows.group.count == 0) return status;
  const dim3 grid(static_cast<unsigned>(p.rows.group.count),
                  static_cast<unsigned>(ceil_div(max_of(keys, 1), kMixPart)));
  return launch({kName, grid, kThreads, kSumsShared, stream}, sums_of_mix, p);
}

}  // namespace headwise::cuda
