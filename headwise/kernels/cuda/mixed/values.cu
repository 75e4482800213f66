// Weights of mixed heads and their product with v in one sweep: a block has 32 queries of all heads.
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda {
namespace {

/// A warp has one head: it multiplies its queries with the 32 keys of a step and its weights with their
/// values; between, it mixes two queries of all heads. Scores of the next step are computed before the
/// weights of this one are needed, so pairs lie in two planes and no warp waits for the slowest at once.
/// Tiles of a head are copied by its warp, the next one as soon as it has read one: no warp waits for another
/// block, and L2 gives each tile to both blocks of a job. Multicast to both took 1.18 ms instead of 1.13.
constexpr int kRows = 32, kKeys = 32, kHeads = kTileHeads, kThreads = 32 * kHeads, kBlocks = 2;
/// Of a head's queries, two times 16 rows x four times 16 columns, so many stay in registers; the others lie
/// in shared memory as lanes take them.
constexpr int kFragments = 8, kHeld = 6, kKept = kFragments - kHeld, kLaneBytes = 32 * 16;
constexpr int kTileBytes = kKeys * kPanelRowBytes;
/// Scores, then weights of a head: blocks of 8 queries x 8 keys, those of 8 queries side by side. 16 bytes
/// more, so that eight heads of one query meet all banks.
constexpr int kHeadBytes = kRows * kKeys * 2 + 16, kPlaneBytes = kHeads * kHeadBytes;
/// Keys and values of a head have a place each.
constexpr int kPairs = 2 * kHeads * kTileBytes, kQueries = kPairs + 2 * kPlaneBytes,
              kFacts = kQueries + kKept * kHeads * kLaneBytes;
/// Barriers; what all queries see; keys each may see, their end -1 where the query sees none; powers of 2 of
/// heads; slots; the first rows of queries and keys, and the batch; both mixes, as lanes take them; where
/// logits of each query begin.
constexpr int kLimits = 8 * (2 * kHeads + 2), kBegin = kLimits + 32, kEnd = kBegin + 4 * kRows,
              kPowers = kEnd + 4 * kRows, kSlots = kPowers + 4 * kHeads, kPlaces = kSlots + 8 * kHeads,
              kMixes = kPlaces + 16, kFrom = kMixes + 2 * kLaneBytes, kFactBytes = kFrom + kRows * 128;
constexpr int kShared = kTileAlign + kFacts + kFactBytes;
static_assert(kShared <= 232448);
/// Weights are 2^8 times as large while they are f16: those of many keys keep their bits.
constexpr float kRaise = 8.f;

/// load_tile by one lane of a warp: in one piece, since a branch around it would keep its address in a
/// register from step to step.
__device__ __forceinline__ void load_by_warp(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar,
                                             int row, int head, int batch) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\n"
      "@one cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3,%4,%3,%5,%6}], [%2], %7;\n}" ::"r"(to),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(head), "r"(batch), "l"(ptx::kEvictLast)
      : "memory");
}

enum Side { kOfKeys, kOfValues };

__global__ void __launch_bounds__(kThreads, 1) values_of_mix(const __grid_constant__ MixValues p) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixRows& m = p.rows;
  const RunInputs& in = m.in;
  const int slot = static_cast<int>(blockIdx.x) / kBlocks, thread = static_cast<int>(threadIdx.x),
            warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t address = ptx::shared_address(raw),
                      base = (address + kTileAlign - 1) & ~(kTileAlign - 1u);
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const ChunkJob job = m.group.jobs[slot];
  if (job.rows <= 0) return;  // both blocks
  std::uint8_t* start = raw + (base - address);
  const auto ints = [&](int offset) { return reinterpret_cast<int*>(start + kFacts + offset); };
  int *limits = ints(kLimits), *begins = ints(kBegin), *ends = ints(kEnd), *slots = ints(kSlots),
      *places = ints(kPlaces);
  float* powers = reinterpret_cast<float*>(ints(kPowers));
  const int heads = m.heads, ins = m.before.from, outs = m.after.to, row0 = rank * kRows;

  if (thread == 0) {
    // Tiles that are there; scores and weights of all warps.
    const auto bar = [&](int n) { return base + kFacts + 8u * static_cast<std::uint32_t>(n); };
    for (int n = 0; n < 2 * kHeads + 2; ++n) ptx::mbarrier_init(bar(n), n < 2 * kHeads ? 1 : kHeads);
    ptx::mbarrier_init_fence();
    for (int n = 0; n < 2 * kHeads; ++n) ptx::mbarrier_expect(bar(n), kTileBytes);
    const SequencePlace at = in.places[job.sequence];
    places[0] = static_cast<int>(at.kv_row), places[1] = static_cast<int>(at.tensor_batch);
    places[2] = static_cast<int>(at.q_row) + job.row0 + row0;
    limits[0] = job.keys, limits[1] = 0, limits[2] = job.keys, limits[3] = 0;
  }
  __syncthreads();
  if (thread < kChunkRows) {
    const RowOpen open(in, true, in.places[job.sequence], job.sequence, 0, job.row0 + thread, job.keys);
    const bool sees = thread < job.rows && open.begin < open.end;
    if (sees) atomicMin(&limits[0], open.begin);
    if (thread / kRows == rank) {
      begins[thread % kRows] = open.begin, ends[thread % kRows] = open.end;
      if (sees) atomicMax(&limits[1], open.begin), atomicMin(&limits[2], open.end);
    }
  } else if (const int h = thread - kChunkRows; h < kHeads) {
    int most = 0;
    for (int n = 0; h < ins && n * kMixPart < job.keys; ++n)
      for (int half = 0; half < 2; ++half)
        most = max(most, p.past[((n * m.group.count + slot) * 2 + half) * kHeads + h]);
    powers[h] = exp2f(static_cast<float>(-most));
    if (most) limits[3] = 1;
    slots[h] = static_cast<int>(in.k.layout.slot(min(h, ins - 1)));
    slots[kHeads + h] = static_cast<int>(in.v.layout.slot(min(h, outs - 1)));
  }
  __syncthreads();
  const auto alike = [](int x) { return __shfl_sync(~0u, x, 0); };
  const int first = limits[0] / kKeys, steps = alike((job.keys + kKeys - 1) / kKeys - first);

  const int own = 2 * warp;
  const auto of_warp = [&](int each) { return base + static_cast<std::uint32_t>(warp * each); };
  const auto full = [&](Side side) { return of_warp(16) + kFacts + 8u * side; };
  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(base + kFacts + static_cast<std::uint32_t>(offset)));
  };
  const auto copy = [&](Side side, int step) {
    const int row = fact(kPlaces) + (fact(kLimits) / kKeys + step) * kKeys, batch = fact(kPlaces + 4),
              from = fact(kSlots + 4 * (side * kHeads + warp));
    load_by_warp(of_warp(kTileBytes) + side * kHeads * kTileBytes, side ? &p.v : &p.k, full(side), row, from,
                 batch);
  };
  if (ptx::elect_one())  // queries, where values go later
    ptx::load_tile(of_warp(kTileBytes) + kHeads * kTileBytes, &p.q, full(kOfValues), fact(kPlaces + 8), 0,
                   min(warp, ins - 1), fact(kPlaces + 4), ptx::kEvictFirst);
  __syncwarp();
  if (steps > 0) copy(kOfKeys, 0);

  // Scores come without scale, divided by their head's power of 2; the matrix has both. Where its numbers are
  // far from 1 it is multiplied by a power of 2, and logits are divided again.
  const auto scaled_coefficient = [&](int from, int to) {
    const float scale = from < ins ? static_cast<float>(in.scales[in.scale_count == 1 ? 0 : from]) : 0.f;
    return coefficient(m.before, from, to) * scale * kChunkLog2e / powers[min(from, ins - 1)];
  };
  float factor =
      matrix_factor_of(ins * heads, [&](int n) { return scaled_coefficient(n / heads, n % heads); });
  factor = factor >= 2.f && factor <= 131072.f ? 1.f : factor / 128.f;
  const float after_factor =
      matrix_factor_of(heads * outs, [&](int n) { return coefficient(m.after, n / outs, n % outs); }) /
      8192.f;
  const std::uint32_t mixes = base + kFacts + kMixes + static_cast<std::uint32_t>(lane * 16);
  float* units = reinterpret_cast<float*>(limits + 4);
  if (warp == 0) {
    if (lane == 0) units[0] = 1.f / factor, units[1] = exp2f(-kRaise) / after_factor;
    TileMix<f16, false> of;
    of.load([&](int from, int to) { return scaled_coefficient(from, to) * factor; });
    ptx::store_shared(mixes, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
    of.load([&](int from, int to) { return coefficient(m.after, from, to) * after_factor; });
    ptx::store_shared(mixes + kLaneBytes, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
  }
  const auto mix_of = [](std::uint32_t from) {
    const int4 x = ptx::load_shared(from);
    TileMix<f16, false> of;
    of.high[0][0] = static_cast<std::uint32_t>(x.x), of.high[0][1] = static_cast<std::uint32_t>(x.y);
    of.high[1][0] = static_cast<std::uint32_t>(x.z), of.high[1][1] = static_cast<std::uint32_t>(x.w);
    return of;
  };

  // Logits begin at -lse: heads 2 t, 2 t + 1 (+ 8) of a query are together for each t.
  {
    const int h = 8 * (g >> 2) + 2 * t + (g & 1), r = g >> 1 & 1, i = row0 + own + r;
    float x = -INFINITY;
    if (h < heads && i < job.rows) x = m.lse[(static_cast<Index>(slot) * heads + h) * kChunkRows + i];
    const bool none = x == -INFINITY;
    const std::uint32_t to = of_warp(256) + static_cast<std::uint32_t>(kFacts + kFrom + r * 128 +
                                                                       (g >> 2) * 64 + t * 16 + (g & 1) * 4);
    x = none ? -INFINITY : (kRaise - x * kChunkLog2e) * factor;
    ptx::store_float(to, x), ptx::store_float(to + 8, x);  // for keys g and g + 8
#pragma unroll
    for (int n = 0; n < 2; ++n)
      if (__all_sync(~0u, r != n || none) && lane == 0) ends[own + n] = -1;
  }

  /// This warp has read its tile: another may be copied to its place.
  const auto release = [&](Side side) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_expect(full(side), kTileBytes);
    __syncwarp();
  };

  // What lanes add to addresses: 16 queries x 16 keys of this warp's head; 16 pairs of all heads; 16 bytes
  // each; rows of a tile, computed for each product again: pairs need the registers.
  const std::uint32_t own_at = static_cast<std::uint32_t>(((lane >> 3 & 1) * 4 + (lane >> 4)) * 128 +
                                                          (lane & 7) * 16),
                      mix_at = static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kHeadBytes +
                                                          (lane >> 3 & 1) * 128),
                      lane_at = static_cast<std::uint32_t>(lane * 16);
  const auto tile_at = [&](Side side) {
    int x = lane;
    asm volatile("" : "+r"(x));
    return side ? chunk_offset(kKeys, x & 15, x >> 4)
                : chunk_offset(kKeys, (x >> 4) * 8 + (x & 7), x >> 3 & 1);
  };
  const auto columns = [&](Side side, std::uint32_t at, int i, int sixteen) {
    return ((at + static_cast<std::uint32_t>(sixteen) * kRowStep) ^ static_cast<std::uint32_t>(i << 5)) +
           of_warp(kTileBytes) + static_cast<std::uint32_t>(side * kHeads * kTileBytes);
  };
  const auto pairs_at = [&](std::uint32_t plane, int block, int sixteen) {
    return own_at + of_warp(kHeadBytes) + plane +
           static_cast<std::uint32_t>(kPairs + block * 1024 + sixteen * 256);
  };

  // ---- queries: fragment 2 i + r has rows 16 r + g (+ 8), columns 16 i + 2 t, 2 t + 1 (+ 8)
  std::uint32_t q[kHeld][4];
  const auto kept_at = [&](int n) {
    return lane_at + of_warp(kKept * kLaneBytes) +
           static_cast<std::uint32_t>(kQueries + (n - kHeld) * kLaneBytes);
  };
  ptx::mbarrier_wait(full(kOfValues), 0);
  const std::uint32_t query_at = tile_at(kOfValues);
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    if (n < kHeld) {
      ptx::load_matrices(columns(kOfValues, query_at, n / 2, n % 2), q[n]);
    } else {
      std::uint32_t x[4];
      ptx::load_matrices(columns(kOfValues, query_at, n / 2, n % 2), x);
      ptx::store_shared(kept_at(n), x[0], x[1], x[2], x[3]);
    }
  }
  release(kOfValues);
  if (steps > 0) copy(kOfValues, 0);

  float o[2][8][4];
#pragma unroll
  for (int n = 0; n < 64; ++n) o[n / 32][n / 4 % 8][n % 4] = 0.f;

  const auto multiply_keys = [&](std::uint32_t plane, int step) {
    using Half = Number<f16>;
    ptx::mbarrier_wait(full(kOfKeys), static_cast<std::uint32_t>(step & 1));
    const std::uint32_t rows_at = tile_at(kOfKeys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[2][2][4];
      std::uint32_t b[4];
#pragma unroll
      for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0.f;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        const int i = n / 2;
        if (n % 2 == 0) ptx::load_matrices(columns(kOfKeys, rows_at, i, half), b);
        std::uint32_t a[4];
        if (n >= kHeld) {
          const int4 x = ptx::load_shared(kept_at(n));
          a[0] = static_cast<std::uint32_t>(x.x), a[1] = static_cast<std::uint32_t>(x.y);
          a[2] = static_cast<std::uint32_t>(x.z), a[3] = static_cast<std::uint32_t>(x.w);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j)
          Number<bf16>::multiply_add(s[n % 2][j], n < kHeld ? q[n] : a, b[2 * j], b[2 * j + 1]);
      }
      if (half == 1) release(kOfKeys);
      if (fact(kLimits + 12)) {
        const float power =
            ptx::load_float(base + kFacts + kPowers + 4u * static_cast<std::uint32_t>(min(warp, ins - 1)));
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] *= power;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::store_matrices(pairs_at(plane, r, half), Half::pack(s[r][0][0], s[r][0][1]),
                            Half::pack(s[r][0][2], s[r][0][3]), Half::pack(s[r][1][0], s[r][1][1]),
                            Half::pack(s[r][1][2], s[r][1][3]));
    }
  };
  const auto multiply_values = [&](std::uint32_t plane, int step) {
    ptx::mbarrier_wait(full(kOfValues), static_cast<std::uint32_t>((step + 1) & 1));
    if (step + 1 == steps) {  // values of no key of this job: whatever is there does not count
      const int there = m.group.jobs[slot].keys - (fact(kLimits) / kKeys + step) * kKeys;
#pragma unroll 1
      for (int row = lane / 8; row < kKeys; row += 4)
        if (row >= there)
          ptx::clear_shared(base + static_cast<std::uint32_t>((kHeads + thread / 32) * kTileBytes +
                                                              row * kPanelRowBytes + lane % 8 * 16));
      __syncwarp();
    }
    const std::uint32_t rows_at = tile_at(kOfValues);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[2][4], b[2][4];
      ptx::load_matrices(pairs_at(plane, 0, half), a[0]);
      ptx::load_matrices_turned(columns(kOfValues, rows_at, 0, half), b[0]);
      ptx::load_matrices(pairs_at(plane, 1, half), a[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < 3) ptx::load_matrices_turned(columns(kOfValues, rows_at, i + 1, half), b[(i + 1) % 2]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          Number<bf16>::multiply_add(o[e / 2][2 * i + e % 2], a[e / 2], b[i % 2][e % 2 * 2],
                                     b[i % 2][e % 2 * 2 + 1]);
      }
    }
    release(kOfValues);
  };
  /// Mixes one of the warp's two queries. Special: some pairs are closed, or logits are not in units of 1.
  const auto mix = [&]<bool Special>(std::uint32_t plane, int step, int r) {
    const TileMix<f16, false> before = mix_of(mixes);
    constexpr int kSide = Special ? 1 : 2;  // 32 pairs at a time: neither half waits for the other
    float from[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 x = ptx::load_floats(of_warp(256) + (lane_at & 48u) +
                                        static_cast<std::uint32_t>(kFacts + kFrom + r * 128 + j * 64));
      from[j][0] = x.x, from[j][1] = x.y, from[j][2] = x.z, from[j][3] = x.w;
    }
#pragma unroll
    for (int n = 0; n < 2; n += kSide) {
      const std::uint32_t here = base + static_cast<std::uint32_t>(warp / 4 * 512 + warp % 4 * 32) + plane +
                                 mix_at + static_cast<std::uint32_t>(kPairs + r * 16 + n * 256);
      std::uint32_t a[kSide][4];
      float y[kSide][2][4];
#pragma unroll
      for (int k = 0; k < kSide; ++k) ptx::load_matrices_turned(here + 256u * k, a[k]);
#pragma unroll
      for (int k = 0; k < kSide; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          Number<f16>::multiply_from(y[k][j], from[j], a[k], before.high[j][0], before.high[j][1]);
      if constexpr (Special) {
        const int begin = fact(kBegin + 4 * (own + r)), end = fact(kEnd + 4 * (own + r));
        const float back = ptx::load_float(base + kFacts + kLimits + 16);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = (fact(kLimits) / kKeys + step) * kKeys + n * 16 + lane / 4 + e / 2 * 8;
          const bool closed = key < begin || key >= end;
#pragma unroll
          for (int j = 0; j < 2; ++j) y[0][j][e] = closed ? -INFINITY : y[0][j][e] * back;
        }
      }
#pragma unroll
      for (int k = 0; k < kSide; ++k) {
#pragma unroll
        for (int e = 0; e < 8; ++e) y[k][e / 4][e % 4] = ptx::exp2(y[k][e / 4][e % 4]);
        pack_left<f16>(a[k], y[k]);
      }
      const TileMix<f16, false> after = mix_of(mixes + kLaneBytes);
#pragma unroll
      for (int k = 0; k < kSide; ++k) after.begin(y[k], {0.f, 0.f, 0.f, 0.f}, a[k]);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kSide; ++k) {
        pack_left<bf16>(a[k], y[k]);
        ptx::store_matrices_turned(here + 256u * k, a[k][0], a[k][1], a[k][2], a[k][3]);
      }
    }
  };

  // From here on limits 1 and 2 are steps: of those between, no pair is closed and logits are in units of 1.
  if (warp == 0 && lane == 0) {
    limits[1] = (limits[1] + kKeys - 1) / kKeys - first;
    limits[2] = factor == 1.f ? limits[2] / kKeys - first : 0;
  }
  __syncthreads();
  // Scores of all heads, weights of all queries: each is waited for a phase after this warp's own are there.
  const std::uint32_t scored = base + kFacts + 8 * 2 * kHeads, weighed = scored + 8;
  const auto tell = [&](std::uint32_t bar) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(bar);
    __syncwarp();
  };
#pragma unroll 1
  for (int step = -1; step < steps; ++step) {
    const std::uint32_t plane = step & 1 ? kPlaneBytes : 0u;
    if (step >= 0) {
      ptx::mbarrier_wait(scored, static_cast<std::uint32_t>(step & 1));
      const bool special = step < fact(kLimits + 4) || step >= fact(kLimits + 8);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (special)
          mix.template operator()<true>(plane, step, r);
        else
          mix.template operator()<false>(plane, step, r);
      }
      tell(weighed);
    }
    if (step + 1 < steps) {
      multiply_keys(kPlaneBytes - plane, step + 1);
      if (step + 2 < steps) copy(kOfKeys, step + 2);
      tell(scored);
    }
    if (step >= 0) {
      ptx::mbarrier_wait(weighed, static_cast<std::uint32_t>(step & 1));
      multiply_values(plane, step);
      if (step + 1 < steps) copy(kOfValues, step + 1);
    }
  }

  // Out by the place of this head's values.
  const float unit = ptx::load_float(base + kFacts + kLimits + 20);
  const ChunkJob own_job = m.group.jobs[slot];
  const SequencePlace at = in.places[own_job.sequence];
  if (warp < outs) {
    const std::uint32_t to = base + static_cast<std::uint32_t>((kHeads + thread / 32) * kTileBytes);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float x[2] = {unit, unit};
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (const int row = row0 + 16 * block + 8 * r + g; in.gate && row < own_job.rows)
          x[r] *= gate_of(in, at, warp, own_job.row0 + row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto pair = [&](int j, int r) {
          const float(&y)[4] = o[block][2 * i + j];
          return Number<bf16>::pack(y[2 * r] * x[r], y[2 * r + 1] * x[r]);
        };
        ptx::store_matrices(to + chunk_offset(kRows, 16 * block + (lane & 15), 2 * i + (lane >> 4)),
                            pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1));
      }
    }
    __syncwarp();
    const int dim = static_cast<int>(in.out.layout.dim), chunk = lane % 8;
    bf16* out = static_cast<bf16*>(in.out.data) + at.tensor_batch * in.out.step[0] +
                (at.q_row + own_job.row0 + row0) * in.out.step[1] + warp * in.out.step[2] + chunk * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int row = n * 4 + lane / 8;
      if (row0 + row >= own_job.rows || chunk * 8 >= dim) continue;
      int4 x = ptx::load_shared(to + chunk_offset(kRows, row, chunk));
      if (fact(kEnd + 4 * row) < 0) x = int4{};
      *reinterpret_cast<int4*>(out + row * in.out.step[1]) = x;
    }
  }
}

}  // namespace

int mixed_values_shared() { return kShared; }

Status mixed_values(const MixValues& p, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_values";
  const Status status = allow_shared(kName, values_of_mix, kShared, allowed, device);
  if (!status.ok() || p.rows.group.count == 0) return status;
  Launch l{kName, dim3(static_cast<unsigned>(kBlocks * p.rows.group.count)), kThreads, kShared, stream};
  l.cluster = kBlocks;  // side by side: they read the same tiles
  return launch(l, values_of_mix, p);
}

}  // namespace headwise::cuda
