// Sums of exponents of mixed heads: 64 queries of all heads a block. Half of the warps multiply queries,
// which stay in their registers, with keys; the other half mixes the heads of the tile before.
#include <cuda_bf16.h>

#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda::mixed {
namespace {

/// A tile is 16 keys. Eight warps have two heads each and put scores into one of two buffers; eight warps mix
/// eight queries each. Every scheduler has two of both.
constexpr int kRows = chunk::kChunkRows, kKeys = kMixSumKeys, kHeads = kTileHeads, kWarps = 8,
              kEach = kHeads / kWarps, kQueries = kRows / kWarps, kThreads = 2 * 32 * kWarps, kStages = 2,
              kPartTiles = kMixPart / kKeys;
constexpr int kTileBytes = kKeys * kPanelRowBytes, kQBytes = kRows * kPanelRowBytes;
/// Scores of a head: blocks of 8 queries x 8 keys. 16 bytes more, so that eight heads of one query meet all
/// banks. A buffer has their upper halves, then their lower ones; before the first tile queries are there.
constexpr int kHeadBytes = kRows * kKeys * 2 + 16, kPlaneBytes = kHeads * kHeadBytes,
              kBufferBytes = 2 * kPlaneBytes;
constexpr int kPairs = kHeads * kStages * kTileBytes, kFacts = kPairs + 2 * kBufferBytes;
/// Parts a block takes one after another at most: more of them would leave uneven blocks to the end.
constexpr int kMostParts = 4;
/// Barriers; keys that some query sees; parts with scores past their range; what logits count; keys in all,
/// where they lie, and slots of heads; keys each query sees; the mix, as lanes take it.
constexpr int kLimits = 8 * (2 + kWarps * kStages), kPast = kLimits + 8, kUnit = kPast + 4 * kMostParts,
              kPlace = kUnit + 4, kSlots = kPlace + 12, kBegin = kSlots + 4 * kHeads + 8,
              kEnd = kBegin + 4 * kRows, kMix = kEnd + 4 * kRows, kFactBytes = kMix + 1024;
constexpr int kSumsShared = kTileAlign + kFacts + kFactBytes;
static_assert(kSumsShared <= 232448 && kHeads * kQBytes <= 2 * kBufferBytes && kMix % 16 == 0);
/// Named barriers, each of two buffers: scores are there, scores are mixed; then one of the warps that
/// multiply.
constexpr int kFull = 1, kEmpty = 3, kTaken = 5;

/// Scores are divided by 2^4, so that their lower halves and the matrix's are both normal numbers. A block
/// that finds one past 3750 then (60000 as it was), or no number, leaves its part to mixed_tiles.
constexpr float kScoreUnit = 0.0625f;
constexpr int kMostBits = 0x6b53;
/// A query with a sum outside of these is left as well: 2^-100 and 2^120.
constexpr float kLeastSum = 7.9e-31f, kMostSum = 1.3e36f;

/// Of keys that some query sees, of all parts of this block. The first is a multiple of four: a tile's number
/// says its stage, its buffer and how often both were used before.
struct Tiles {
  int first, last;
};

/// Two heads' queries of a warp, 16 rows and 16 columns a fragment; of one head; eight keys of one.
using BlockQueries = std::uint32_t[kRows / 16][4][4];
using HeadQueries = std::uint32_t[kEach][kRows / 16][4][4];
using UnitKeys = std::uint32_t[2][4];

__device__ __forceinline__ void take_queries(HeadQueries& q, std::uint32_t pairs, int warp, int lane,
                                             int rows) {
  const int g = lane / 4;
#pragma unroll
  for (int each = 0; each < kEach; ++each)
#pragma unroll
    for (int block = 0; block < kRows / 16; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::load_matrices(pairs + static_cast<std::uint32_t>((kEach * warp + each) * kQBytes) +
                               chunk_offset(kRows, 16 * block + (lane & 15), 2 * i + (lane >> 4)),
                           q[each][block][i]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          std::uint32_t& x = q[each][block][i][n];
          const __nv_bfloat162 y =
              __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x), __float2bfloat162_rn(kScoreUnit));
          x = 16 * block + g + n % 2 * 8 < rows ? *reinterpret_cast<const std::uint32_t*>(&y) : 0u;
        }
      }
}
/// Scores of a head with eight keys.
__device__ __forceinline__ void multiply_unit(float (&s)[kRows / 16][4], BlockQueries& q, const UnitKeys& k,
                                              bool there) {
  // Behind a branch products of four blocks stay side by side; heads that are not there are 0.
  if (there) {
#pragma unroll
    for (int block = 0; block < kRows / 16; ++block)
      Number<bf16>::multiply_from(s[block], {0.f, 0.f, 0.f, 0.f}, q[block][0], k[0][0], k[0][1]);
#pragma unroll
    for (int i = 1; i < 4; ++i)
#pragma unroll
      for (int block = 0; block < kRows / 16; ++block)
        Number<bf16>::multiply_add(s[block], q[block][i], k[i / 2][i % 2 * 2], k[i / 2][i % 2 * 2 + 1]);
  } else {
#pragma unroll
    for (int block = 0; block < kRows / 16; ++block) {
      s[block][0] = s[block][1] = s[block][2] = s[block][3] = 0.f;
      ptx::pin(s[block]);
    }
  }
}
/// Writes upper and lower halves of scores, divided by 2^4; `most` meets the upper ones.
__device__ __forceinline__ void put_unit(float (&s)[kRows / 16][4], std::uint32_t to, std::uint32_t minus,
                                         __half2& most) {
  using Half = Number<f16>;
#pragma unroll
  for (int block = 0; block < kRows / 16; ++block) {
    float(&x)[4] = s[block];
    const std::uint32_t high[2] = {Half::pack(x[0], x[1]), Half::pack(x[2], x[3])};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      most = __hmax2_nan(most, __habs2(*reinterpret_cast<const __half2*>(&high[i])));
    Half::multiply_add_8(x, high, minus);
    ptx::store_matrices(to + static_cast<std::uint32_t>(block * 512), high[0], high[1],
                        Half::pack(x[0], x[1]), Half::pack(x[2], x[3]));
  }
}

/// A warp's two heads times all tiles.
__device__ __forceinline__ void multiply_heads(const MixSums& p, int rows, const Tiles& tiles, int warp,
                                               std::uint32_t base) {
  const int lane = ptx::lane_now(), g = lane / 4, t = lane % 4;
  const std::uint32_t facts = base + kFacts, pairs = base + kPairs;
  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(facts + static_cast<std::uint32_t>(offset)));
  };
  const auto full = [&](int tile) {
    return facts + 8u * static_cast<std::uint32_t>(1 + warp * kStages + (tile & (kStages - 1)));
  };
  const auto stage = [&](int tile) {
    return base + static_cast<std::uint32_t>((warp * kStages + (tile & (kStages - 1))) * kEach * kTileBytes);
  };
  const auto copy = [&](int tile) {
    if (tile >= tiles.last || !ptx::elect_one()) return;
    ptx::mbarrier_expect(full(tile), kEach * kTileBytes);
#pragma unroll
    for (int each = 0; each < kEach; ++each)
      ptx::load_tile({.to = stage(tile) + each * kTileBytes,
                      .map = &p.k,
                      .bar = full(tile),
                      .row = fact(kPlace + 4) + tile * kKeys,
                      .panel = 0,
                      .head = fact(kSlots + 4 * (kEach * warp + each)),
                      .batch = fact(kPlace + 8),
                      .keep = ptx::kEvictLast});
  };
  for (int n = 0; n < kStages; ++n) copy(tiles.first + n);

  HeadQueries q;
  ptx::mbarrier_wait(facts, 0);
  take_queries(q, pairs, warp, lane, rows);
  ptx::barrier_sync(kTaken, 32 * kWarps);

  /// -1 on the diagonal: a product with it leaves of scores what their upper halves do not hold.
  const std::uint32_t minus = g / 2 == t ? (g % 2 ? 0xbc000000u : 0xbc00u) : 0u;
  const std::uint32_t take_at =
      stage(0) + static_cast<std::uint32_t>((lane & 7) * 128 + ((lane >> 3 ^ (lane & 7)) << 4));
  std::uint32_t put_at =
      pairs + static_cast<std::uint32_t>(kEach * warp * kHeadBytes + (lane >> 4) * kPlaneBytes +
                                         (lane >> 3 & 1) * 256 + (lane & 7) * 16);
  constexpr int kUnits = kEach * kKeys / 8;             // eight keys of one head
  const int there = p.rows.before.from - kEach * warp;  // heads
  __half2 most = __half2half2(__ushort_as_half(0));
  UnitKeys k;
  const auto wait = [&](int tile) {
    if (tile >= tiles.last) return;
    ptx::mbarrier_wait(full(tile), static_cast<std::uint32_t>(tile >> 1 & 1));
    if (tile + 1 == tiles.last) {  // rows of no key of this job
      const int chunk = ptx::lane_now();
      for (int row = max(fact(kPlace) - tile * kKeys, 0) + chunk / 8; row < kKeys; row += 4)
        for (int each = 0; each < kEach; ++each)
          ptx::clear_shared(stage(tile) + static_cast<std::uint32_t>(each * kTileBytes +
                                                                     row * kPanelRowBytes + chunk % 8 * 16));
      __syncwarp();
    }
  };
  const auto take = [&](int tile, int unit) {
    const std::uint32_t from =
        take_at + static_cast<std::uint32_t>((tile & (kStages - 1)) * kEach * kTileBytes + unit * 1024);
    ptx::load_matrices(from, k[0]), ptx::load_matrices(from ^ 64u, k[1]);
  };
  wait(tiles.first);
  take(tiles.first, 0);
#pragma unroll 1
  for (int tile = tiles.first; tile < tiles.last; ++tile) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int each = unit / 2, j = unit % 2;
      float s[kRows / 16][4];
      multiply_unit(s, q[each], k, each < there);
      if (unit + 1 == kUnits) {
        __syncwarp();
        copy(tile + kStages);
        wait(tile + 1);
        take(tile + 1, 0);
      } else {
        take(tile, unit + 1);
      }
      if (unit == 0) ptx::barrier_sync(kEmpty + (tile & 1), kThreads);
      put_unit(s, put_at + static_cast<std::uint32_t>(each * kHeadBytes + j * 128), minus, most);
    }
    if ((tile + 1) % kPartTiles == 0 || tile + 1 == tiles.last) {
      if (static_cast<int>(max(__half_as_ushort(__low2half(most)), __half_as_ushort(__high2half(most)))) >
          kMostBits)
        ptx::store_word(facts + kPast + static_cast<std::uint32_t>(4 * (tile / kPartTiles % kMostParts)), 1u);
      most = __half2half2(__ushort_as_half(0));
    }
    ptx::barrier_arrive(kFull + (tile & 1), kThreads);
    put_at += static_cast<std::uint32_t>(tile & 1 ? -kBufferBytes : kBufferBytes);
  }
}

using QuerySums = float[kQueries][4];  // of heads 2 t, 2 t + 1 (+ 8) over a lane's keys

/// Writes the sums of a part. Every lane of a head has its sum; lane g takes query g.
__device__ __forceinline__ void put_part(const MixSums& p, const QuerySums& sum, int part, int warp,
                                         int heads, std::uint32_t facts) {
  const MixPairs& m = p.rows;
  const int own = kQueries * warp;
  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(facts + static_cast<std::uint32_t>(offset)));
  };
  const Index to = part * static_cast<Index>(m.group.count) + static_cast<int>(blockIdx.x);
  const int now = ptx::lane_now(), g = now / 4, t = now % 4;
  const int begin = fact(kBegin + 4 * (own + g)), end = fact(kEnd + 4 * (own + g));
  const bool sees = max(begin, part * kMixPart) < min(end, (part + 1) * kMixPart);
  bool outside = false;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float of = 0.f;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float x = sum[i][n];
#pragma unroll
      for (int far = 4; far <= 16; far *= 2) x += __shfl_xor_sync(~0u, x, far);
      if (g == i) of = x;
    }
    outside = outside || of < kLeastSum || of > kMostSum;
    if (const int h = 8 * (n / 2) + 2 * t + n % 2; h < heads)
      p.parts[(to * heads + h) * chunk::kChunkRows + own + g] =
          sees ? make_float2(0.f, of) : make_float2(-INFINITY, 0.f);
  }
  const unsigned lanes = fact(kPast + 4 * (part % kMostParts)) ? ~0u : __ballot_sync(~0u, sees && outside);
  unsigned left = 0;
#pragma unroll
  for (int i = 0; i < kQueries; ++i) left |= (lanes >> 4 * i & 15u ? 1u : 0u) << i;
  if (now == 0) p.left[to * kWarps + warp] = static_cast<std::uint8_t>(left);
  if (now < 2 * kHeads / kWarps) p.past[to * 2 * kHeads + warp * (2 * kHeads / kWarps) + now] = 0;
}

/// A warp's eight queries: exponents of mixed heads, and their sums of each part.
__device__ __forceinline__ void mix_queries(const MixSums& p, int rows, const Tiles& tiles, int part,
                                            int parts, int warp, std::uint32_t base) {
  const int lane = ptx::lane_now(), own = kQueries * warp, heads = p.rows.heads;
  const std::uint32_t facts = base + kFacts;
  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(facts + static_cast<std::uint32_t>(offset)));
  };
  const int queries = rows - own;
  const std::uint32_t mix_at = base + kPairs +
                               static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kHeadBytes +
                                                          own / 8 * 256 + (lane >> 3 & 1) * 128);
  TileMix<f16, true> before;
  {
    const std::uint32_t at = facts + kMix + static_cast<std::uint32_t>(lane * 32);
    const int4 high = ptx::load_shared(at), low = ptx::load_shared(at + 16);
    const auto word = [](int x) { return static_cast<std::uint32_t>(x); };
    before = {{{word(high.x), word(high.y)}, {word(high.z), word(high.w)}},
              {{word(low.x), word(low.y)}, {word(low.z), word(low.w)}}};
  }
  // Tiles that all of these queries see whole, in logits of units of 1.
  int plain, plain_end;
  {
    const int query = own + lane % kQueries, begin = fact(kBegin + 4 * query), end = fact(kEnd + 4 * query);
    plain = (__reduce_max_sync(~0u, begin < end ? begin : 0) + kKeys - 1) / kKeys;
    plain_end = __reduce_min_sync(~0u, begin < end ? end : fact(kPlace)) / kKeys;
    if (ptx::load_float(facts + kUnit) != 1.f) plain_end = 0;
  }

  QuerySums sum;
  std::uint32_t a[4], rest[4];
  const auto load = [&](std::uint32_t from, int i) {
    ptx::load_matrices_turned(from + static_cast<std::uint32_t>(16 * i), a);
    ptx::load_matrices_turned(from + static_cast<std::uint32_t>(16 * i + kPlaneBytes), rest);
  };
  const auto multiply = [&](float(&y)[2][4]) {
    before.template begin<true>(y, {0.f, 0.f, 0.f, 0.f}, a);
    before.high_of(y, rest), before.high_of(y, a);
  };
  const auto add = [&](int i, const float(&y)[2][4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) sum[i][n] += ptx::exp2(y[n / 2][n % 2]) + ptx::exp2(y[n / 2][n % 2 + 2]);
    ptx::pin(sum[i]);  // both forms below end alike: the compiler would join them and hold all terms
  };
  /// Products of a query stand between its predecessor's exponents. Without the way out between queries the
  /// compiler orders them to save registers, each behind the one before: an eighth slower.
  const auto mix = [&](std::uint32_t from) {
    float y[2][2][4];
    load(from, 0);
    multiply(y[0]);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (i + 1 < kQueries) load(from, i + 1);
      if (i >= queries) break;
      if (i + 1 < kQueries) multiply(y[(i + 1) % 2]);
      add(i, y[i % 2]);
    }
  };
  /// Some pairs are closed, or logits are not in units of 1.
  const auto mix_special = [&](int tile, std::uint32_t from) {
    const int g = ptx::lane_now() / 4;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float y[2][4];
      load(from, i);
      multiply(y);
      const int begin = fact(kBegin + 4 * (own + i)) - tile * kKeys,
                end = fact(kEnd + 4 * (own + i)) - tile * kKeys;
      const float unit = ptx::load_float(facts + kUnit);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = g + e / 2 * 8;
#pragma unroll
        for (int j = 0; j < 2; ++j) y[j][e] = key < begin || key >= end ? -INFINITY : y[j][e] * unit;
      }
      add(i, y);
    }
  };

  for (int n = 0; n < 2; ++n)
    if (tiles.first + n < tiles.last) ptx::barrier_arrive(kEmpty + n, kThreads);
  int tile = tiles.first;
#pragma unroll 1
  for (; part < parts; ++part) {
#pragma unroll
    for (int i = 0; i < kQueries; ++i) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
    const int last = min(tiles.last, (part + 1) * kPartTiles);
#pragma unroll 1
    for (; tile < last; ++tile) {
      const std::uint32_t from = mix_at + static_cast<std::uint32_t>((tile & 1) * kBufferBytes);
      ptx::barrier_sync(kFull + (tile & 1), kThreads);
      if (tile >= plain && tile < plain_end)
        mix(from);
      else
        mix_special(tile, from);
      if (tile + 2 < tiles.last) ptx::barrier_arrive(kEmpty + (tile & 1), kThreads);
    }

    put_part(p, sum, part, warp, heads, facts);
  }
}

__global__ void __launch_bounds__(kThreads, 1) sums_of_mix(const __grid_constant__ MixSums p, int walk) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixPairs& m = p.rows;
  const RunInputs& in = m.in;
  const int part = static_cast<int>(blockIdx.y) * walk;
  const chunk::ChunkJob job = m.group.jobs[blockIdx.x];
  if (part * kMixPart >= job.keys || job.rows <= 0) return;
  const int parts = min(part + walk, (job.keys + kMixPart - 1) / kMixPart), heads = m.heads,
            ins = m.before.from, thread = static_cast<int>(threadIdx.x),
            warp = __shfl_sync(~0u, thread / 32, 0);
  const std::uint32_t address = ptx::shared_address(raw),
                      base = (address + kTileAlign - 1) & ~(kTileAlign - 1u), facts = base + kFacts;
  std::uint8_t* start = raw + (base - address) + kFacts;
  int *limits = reinterpret_cast<int*>(start + kLimits), *begins = reinterpret_cast<int*>(start + kBegin),
      *ends = reinterpret_cast<int*>(start + kEnd);
  const SequenceLocation& at = in.places[job.sequence];

  if (thread == 0) {
    for (int n = 0; n <= kWarps * kStages; ++n)
      ptx::mbarrier_init(facts + 8u * static_cast<std::uint32_t>(n), 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_expect(facts, kHeads * kQBytes);
    limits[0] = job.keys, limits[1] = 0;
    for (int n = 0; n < kMostParts; ++n) limits[2 + n] = 0;
    int* place = reinterpret_cast<int*>(start + kPlace);
    place[0] = job.keys, place[1] = static_cast<int>(at.kv_row), place[2] = static_cast<int>(at.tensor_batch);
  }
  __syncthreads();
  if (const int lane = ptx::lane_now(); lane < 2)
    ptx::load_tile({.to = base + kPairs + static_cast<std::uint32_t>((warp * 2 + lane) * kQBytes / 2),
                    .map = &p.q,
                    .bar = facts,
                    .row = static_cast<int>(at.q_row) + job.row0 + lane * kRows / 2,
                    .panel = 0,
                    .head = min(warp, ins - 1),
                    .batch = static_cast<int>(at.tensor_batch),
                    .keep = ptx::kEvictNormal});
  if (thread < kRows) {
    const chunk::RowOpen open(in, true, at, job.sequence, 0, job.row0 + thread, job.keys);
    const bool sees = thread < job.rows && open.begin < open.end;
    begins[thread] = sees ? open.begin : 0, ends[thread] = sees ? open.end : 0;
    if (sees) atomicMin(&limits[0], open.begin), atomicMax(&limits[1], open.end);
  } else if (const int h = thread - kRows; h < kHeads) {
    reinterpret_cast<int*>(start + kSlots)[h] = static_cast<int>(in.k.layout.slot(min(h, ins - 1)));
  }
  if (warp == kWarps) {
    const int lane = ptx::lane_now();
    const auto scaled_coefficient = [&](int from, int to) {
      const float scale = from < ins ? static_cast<float>(in.scales[in.scale_count == 1 ? 0 : from]) : 0.f;
      return coefficient(m.before, from, to) * scale * (chunk::kChunkLog2e / kScoreUnit);
    };
    float factor =
        matrix_factor_of(ins * heads, [&](int n) { return scaled_coefficient(n / heads, n % heads); });
    factor = factor >= 2.f && factor <= 65536.f ? 1.f : factor / 128.f;
    if (lane == 0) ptx::store_float(facts + kUnit, 1.f / factor);
    TileMix<f16, true> of;
    of.load([&](int from, int to) { return scaled_coefficient(from, to) * factor; });
    const std::uint32_t to = facts + kMix + static_cast<std::uint32_t>(lane * 32);
    ptx::store_shared(to, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
    ptx::store_shared(to + 16, of.low[0][0], of.low[0][1], of.low[1][0], of.low[1][1]);
  }
  __syncthreads();
  const Tiles tiles{max(limits[0], part * kMixPart) / (4 * kKeys) * 4,
                    (min(limits[1], parts * kMixPart) + kKeys - 1) / kKeys};
  if (warp < kWarps) {
    ptx::take_registers<168>();
    multiply_heads(p, job.rows, tiles, warp, base);
  } else {
    ptx::give_registers<88>();
    mix_queries(p, job.rows, tiles, part, parts, warp - kWarps, base);
  }
}

}  // namespace

int mixed_sums_shared() { return kSumsShared; }

Status mixed_sums(const MixSums& p, int keys, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_sums";
  const Status status = allow_shared(kName, sums_of_mix, kSumsShared, allowed, device);
  if (!status.ok() || p.rows.group.count == 0) return status;
  // Bits do not ask who sums a part: few jobs have a block for each, many have blocks of several.
  const Index parts = ceil_div(max_of(keys, 1), kMixPart), jobs = p.rows.group.count,
              processors = max_of(facts_of(device).processors, 1);
  const auto rounds = [&](Index walk) { return ceil_div(jobs * ceil_div(parts, walk), processors) * walk; };
  Index walk = 1;
  for (Index n = 2; n <= min_of(parts, kMostParts); ++n)
    if (rounds(n) <= rounds(walk)) walk = n;
  const dim3 grid(static_cast<unsigned>(jobs), static_cast<unsigned>(ceil_div(parts, walk)));
  return launch({kName, grid, kThreads, kSumsShared, stream}, sums_of_mix, p, static_cast<int>(walk));
}

}  // namespace headwise::cuda::mixed
