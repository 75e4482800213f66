// Weights of mixed heads and their product with v in one sweep: a block has 32 queries of all heads, and the
// two blocks of a job's 64 share every tile of keys and values.
#include "headwise/kernels/cuda/mixed_tiles.cuh"
#include "headwise/kernels/cuda/tile.h"
#include "headwise/kernels/cuda/wgmma.inc"

namespace headwise::cuda {
namespace {

/// Products have keys (then columns of v) as their 64 rows and queries as their 32 columns. Each of four
/// warpgroups multiplies four heads; then each of 16 warps mixes two queries. One more warpgroup copies.
constexpr int kRows = 32, kKeys = 64, kHeads = kTileHeads, kEach = 4, kWarps = 16,
              kThreads = 32 * (kWarps + 4), kBlocks = 2, kStages = 12;
constexpr int kQBytes = kRows * kPanelRowBytes, kTileBytes = kKeys * kPanelRowBytes;
/// Scores, then weights of a head: blocks of 8 queries x 8 keys, those of 8 queries side by side. 16 bytes
/// more, so that eight heads of one query meet all banks.
constexpr int kHeadBytes = kRows * kKeys * 2 + 16;
constexpr int kRing = kHeads * kQBytes, kPairs = kRing + kStages * kTileBytes,
              kFacts = kPairs + kHeads * kHeadBytes;
/// Barriers; what all queries see; keys each may see, their end -1 where the query sees none; powers of 2 of
/// heads; slots; both mixes, as lanes take them.
constexpr int kLimits = 8 * (2 + 2 * kStages), kBegin = kLimits + 32, kEnd = kBegin + 4 * kRows,
              kPowers = kEnd + 4 * kRows, kSlots = kPowers + 4 * kHeads, kMixes = kSlots + 8 * kHeads,
              kFactBytes = kMixes + 1024;
constexpr int kShared = kTileAlign + kFacts + kFactBytes;
static_assert(kShared <= 232448);
/// Weights are 2^8 times as large while they are f16: those of many keys keep their bits.
constexpr float kRaise = 8.f;

/// k runs along rows of 8 keys; blocks of 8 queries x 8 keys lie one after another along the keys.
__device__ __forceinline__ std::uint64_t pairs_descriptor(std::uint32_t at) {
  constexpr std::uint64_t along = 128, down = kKeys / 8 * 128;
  return (at & 0x3FFFFu) >> 4 | (along >> 4) << 16 | (down >> 4) << 32;
}

struct Facts {
  const MixValues& p;
  const std::uint32_t base;
  const int rank;

  __device__ __forceinline__ int* ints(std::uint8_t* start, int offset) const {
    return reinterpret_cast<int*>(start + kFacts + offset);
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return base + kFacts + 8u * static_cast<std::uint32_t>(1 + stage);
  }
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return base + kFacts + 8u * static_cast<std::uint32_t>(1 + kStages + stage);
  }
  __device__ __forceinline__ std::uint32_t stage(int n) const {
    return base + kRing + static_cast<std::uint32_t>(n * kTileBytes);
  }
};

/// The warp that copies: this block's half of every tile goes to both blocks.
__device__ __forceinline__ void copy_tiles(const Facts& f, const ChunkJob& job, const int* slots, int first,
                                           int last) {
  const SequencePlace at = f.p.rows.in.places[job.sequence];
  const auto batch = static_cast<int>(at.tensor_batch);
  ptx::mbarrier_expect(f.base + kFacts, kHeads * kQBytes);
  const int q_heads = f.p.rows.before.from, v_heads = f.p.rows.after.to,
            row = static_cast<int>(at.q_row) + job.row0 + f.rank * kRows;
  for (int h = 0; h < kHeads; ++h)
    ptx::load_tile(f.base + static_cast<std::uint32_t>(h * kQBytes), &f.p.q, f.base + kFacts, row, 0,
                   min(h, q_heads - 1), batch, ptx::kEvictFirst);
  int n = 0;
  for (int tile = first; tile < last; ++tile)
    for (int pass = 0; pass < 2; ++pass)
      for (int each = 0; each < kEach; ++each)
        for (int group = 0; group < kHeads / kEach; ++group, ++n) {
          const int to = n % kStages, h = min(group * kEach + each, (pass ? v_heads : q_heads) - 1);
          ptx::mbarrier_wait(f.empty(to), (n / kStages & 1) ^ 1);
          ptx::mbarrier_expect(f.full(to), kTileBytes);
          ptx::load_tile_for((1 << kBlocks) - 1,
                             f.stage(to) + static_cast<std::uint32_t>(f.rank * kTileBytes / kBlocks),
                             pass ? &f.p.v : &f.p.k, f.full(to),
                             static_cast<int>(at.kv_row) + tile * kKeys + f.rank * (kKeys / kBlocks), 0,
                             slots[pass * kHeads + h], batch, ptx::kEvictLast);
        }
}

__global__ void __launch_bounds__(kThreads, 1) values_of_mix(const __grid_constant__ MixValues p) {
  using Product = Wgmma<kRows, bf16>;
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixRows& m = p.rows;
  const RunInputs& in = m.in;
  const int slot = static_cast<int>(blockIdx.x) / kBlocks, thread = static_cast<int>(threadIdx.x),
            warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t address = ptx::shared_address(raw),
                      base = (address + kTileAlign - 1) & ~(kTileAlign - 1u);
  const Facts f{p, base, static_cast<int>(blockIdx.x) % kBlocks};
  const ChunkJob job = m.group.jobs[slot];
  if (job.rows <= 0) return;  // both blocks
  std::uint8_t* start = raw + (base - address);
  int *limits = f.ints(start, kLimits), *begins = f.ints(start, kBegin), *ends = f.ints(start, kEnd),
      *slots = f.ints(start, kSlots);
  float* powers = reinterpret_cast<float*>(f.ints(start, kPowers));
  const int heads = m.heads, ins = m.before.from, outs = m.after.to, row0 = f.rank * kRows;

  if (thread == 0) {
    ptx::mbarrier_init(base + kFacts, 1);
    for (int n = 0; n < kStages; ++n)
      ptx::mbarrier_init(f.full(n), 1), ptx::mbarrier_init(f.empty(n), kBlocks * 4);
    ptx::mbarrier_init_fence();
    limits[0] = job.keys, limits[1] = 0, limits[2] = job.keys, limits[3] = 0;
  }
  __syncthreads();
  if (thread < kChunkRows) {
    const RowOpen open(in, true, in.places[job.sequence], job.sequence, 0, job.row0 + thread, job.keys);
    const bool sees = thread < job.rows && open.begin < open.end;
    if (sees) atomicMin(&limits[0], open.begin);
    if (thread / kRows == f.rank) {
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
  ptx::cluster_sync();
  const int first = limits[0] / kKeys, last = (job.keys + kKeys - 1) / kKeys;

  if (warp >= kWarps) {
    ptx::give_registers<24>();
    if (warp == kWarps && ptx::elect_one()) copy_tiles(f, job, slots, first, last);
    __syncwarp();
    ptx::cluster_sync();
    return;
  }
  ptx::take_registers<112>();
  const int group = warp / 4, quarter = warp % 4, own = 2 * warp;
  const int keys = job.keys;
  const std::uint32_t pairs = base + kPairs;

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
  const std::uint32_t mixes = base + kFacts + kMixes + static_cast<std::uint32_t>(lane * 32);
  float* units = reinterpret_cast<float*>(limits + 4);
  if (warp == 0) {
    if (lane == 0) units[0] = 1.f / factor, units[1] = exp2f(-kRaise) / after_factor;
    TileMix<f16, false> of;
    of.load([&](int from, int to) { return scaled_coefficient(from, to) * factor; });
    ptx::store_shared(mixes, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
    of.load([&](int from, int to) { return coefficient(m.after, from, to) * after_factor; });
    ptx::store_shared(mixes + 16, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
  }
  const auto mix_of = [](std::uint32_t from) {
    const int4 x = ptx::load_shared(from);
    TileMix<f16, false> of;
    of.high[0][0] = static_cast<std::uint32_t>(x.x), of.high[0][1] = static_cast<std::uint32_t>(x.y);
    of.high[1][0] = static_cast<std::uint32_t>(x.z), of.high[1][1] = static_cast<std::uint32_t>(x.w);
    return of;
  };

  // Logits begin at -lse: heads 2 t, 2 t + 1 (+ 8) of two queries for each t, spread over the lanes.
  float from_lse = -INFINITY;
  if (const int h = 8 * (g >> 2) + 2 * t + (g & 1), i = row0 + own + (g >> 1 & 1); h < heads && i < job.rows)
    if (const float x = m.lse[(static_cast<Index>(slot) * heads + h) * kChunkRows + i]; x != -INFINITY)
      from_lse = (kRaise - x * kChunkLog2e) * factor;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (__all_sync(~0u, (g >> 1 & 1) != r || from_lse == -INFINITY) && lane == 0) ends[own + r] = -1;

  const auto fact = [&](int offset) {
    return static_cast<int>(ptx::load_word(base + kFacts + static_cast<std::uint32_t>(offset)));
  };
  int stage = group, phase = 0;
  const auto next_stage = [&] {
    stage += kEach;
    if (stage >= kStages) stage = group, phase ^= 1;
  };
  const auto release = [&](int n) {
    if (lane < kBlocks) ptx::mbarrier_arrive_at(lane, f.empty(n));
  };

  float o[kEach][kRows / 2];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) o[n][i] = 0.f;

  float s[kRows / 2];
  const auto multiply_keys = [&](int each) {
    ptx::mbarrier_wait(f.full(stage), phase);
    const std::uint64_t left = rows_descriptor(f.stage(stage)),
                        right = rows_descriptor(base +
                                                static_cast<std::uint32_t>((group * kEach + each) * kQBytes));
    ptx::pin(s);
    ptx::wgmma_fence();
    Product::first_shared<0>(s, left, right);
#pragma unroll
    for (int i = 1; i < 4; ++i)
      Product::more_shared<0>(s, advanced(left, k_step(kKeys, i)), advanced(right, k_step(kRows, i)));
    ptx::wgmma_commit();
  };
  const std::uint32_t put_at =
      pairs + static_cast<std::uint32_t>(((lane >> 4 & 1) * 8 + quarter * 2 + (lane >> 3 & 1)) * 128 +
                                         (lane & 7) * 16);
  const auto put_scores_of = [&](int each) {
    const int h = group * kEach + each;
    if (fact(kLimits + 12)) {
      const float power =
          ptx::load_float(base + kFacts + kPowers + 4u * static_cast<std::uint32_t>(min(h, ins - 1)));
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s[i] *= power;
    }
    using Half = Number<f16>;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      ptx::store_matrices_turned(put_at + static_cast<std::uint32_t>(h * kHeadBytes + j * 2048),
                                 Half::pack(s[8 * j], s[8 * j + 1]), Half::pack(s[8 * j + 2], s[8 * j + 3]),
                                 Half::pack(s[8 * j + 4], s[8 * j + 5]),
                                 Half::pack(s[8 * j + 6], s[8 * j + 7]));
  };
  const std::uint32_t mix_at =
      pairs + static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kHeadBytes + own / 8 * 1024 +
                                         own % 8 * 16 + (lane >> 3 & 1) * 128);
  /// Special: some pairs are closed, or logits are not in units of 1.
  const auto mix = [&]<bool Special>(int key0) {
    const TileMix<f16, false> before = mix_of(mixes), after = mix_of(mixes + 16);
    constexpr int kSide = Special ? 1 : 2;  // 32 pairs at a time: neither half waits for the other
    float from[4];
#pragma unroll
    for (int n = 0; n < 8; n += kSide) {
      const int r = n / 4;
      const std::uint32_t here = mix_at + static_cast<std::uint32_t>(r * 16 + n % 4 * 256);
      if (n % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          from[i] = __shfl_sync(~0u, from_lse, (4 * (i / 2) + 2 * r + i % 2) * 4 + t);
      }
      std::uint32_t a[kSide][4];
      float y[kSide][2][4];
#pragma unroll
      for (int k = 0; k < kSide; ++k) ptx::load_matrices_turned(here + 256u * k, a[k]);
#pragma unroll
      for (int k = 0; k < kSide; ++k) before.begin(y[k], from, a[k]);
      if constexpr (Special) {
        const int begin = fact(kBegin + 4 * (own + r)), end = fact(kEnd + 4 * (own + r));
        const float back = ptx::load_float(base + kFacts + kLimits + 16);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = key0 + n % 4 * 16 + g + e / 2 * 8;
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

  ptx::mbarrier_wait(base + kFacts, 0);
  ptx::barrier_sync(1, 32 * kWarps);
#pragma unroll 1
  for (int tile = first; tile < last; ++tile) {
    const int key0 = tile * kKeys;
    multiply_keys(0);
    ptx::barrier_sync(1, 32 * kWarps);  // weights of the tile before are multiplied
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      if (each > 0) multiply_keys(each);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      release(stage);
      next_stage();
      put_scores_of(each);
    }
    ptx::barrier_sync(1, 32 * kWarps);
    if (key0 < fact(kLimits + 4) || key0 + kKeys > fact(kLimits + 8) || fact(kLimits + 16) != 0x3f800000)
      mix.template operator()<true>(key0);
    else
      mix.template operator()<false>(key0);
    ptx::fence_shared_for_async();
    ptx::barrier_sync(1, 32 * kWarps);

#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      ptx::mbarrier_wait(f.full(stage), phase);
      if (key0 + kKeys > keys) {  // values of no key of this job: whatever is there does not count
        for (int row = thread % 128 / 8; row < kKeys; row += 16)
          if (key0 + row >= keys)
            ptx::store_shared(
                f.stage(stage) + static_cast<std::uint32_t>(row * kPanelRowBytes + thread % 8 * 16), 0u, 0u,
                0u, 0u);
        ptx::fence_shared_for_async();
        ptx::barrier_sync(2 + group, 128);
      }
      const std::uint64_t left = columns_descriptor(f.stage(stage), kKeys),
                          right = pairs_descriptor(
                              pairs + static_cast<std::uint32_t>((group * kEach + each) * kHeadBytes));
      ptx::pin(o[each]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Product::left_turned(o[each], advanced(left, kRowStep * static_cast<std::uint32_t>(i)),
                             advanced(right, 256u * static_cast<std::uint32_t>(i)));
      ptx::wgmma_commit();
      if (each > 0) {
        ptx::wgmma_wait<1>();
        release(stage == group ? stage + kStages - kEach : stage - kEach);
      }
      if (each + 1 < kEach) next_stage();
    }
    ptx::wgmma_wait<0>();
    release(stage);
    next_stage();
#pragma unroll
    for (int each = 0; each < kEach; ++each) ptx::pin(o[each]);
  }

  // Columns of v are rows here: turned on the way to where this warpgroup's queries were.
  const float unit = units[1];
  const ChunkJob own_job = m.group.jobs[slot];
  const SequencePlace at = in.places[own_job.sequence];
#pragma unroll
  for (int each = 0; each < kEach; ++each) {
    const int h = group * kEach + each;
    if (h >= outs) continue;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      float x = unit;
      if (const int row = row0 + 8 * (i / 4) + 2 * t + i % 2; in.gate && row < own_job.rows)
        x *= gate_of(in, at, h, own_job.row0 + row);
      o[each][i] *= x;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float* x = o[each] + 8 * j;
      const int row = 16 * j + (lane >> 4 & 1) * 8 + (lane & 7), chunk = quarter * 2 + (lane >> 3 & 1);
      ptx::store_matrices_turned(
          base + static_cast<std::uint32_t>(h * kQBytes) + chunk_offset(kRows, row, chunk),
          Number<bf16>::pack(x[0], x[1]), Number<bf16>::pack(x[2], x[3]), Number<bf16>::pack(x[4], x[5]),
          Number<bf16>::pack(x[6], x[7]));
    }
  }
  ptx::barrier_sync(1, 32 * kWarps);
  const int dim = static_cast<int>(in.out.layout.dim);
  bf16* out = static_cast<bf16*>(in.out.data) + at.tensor_batch * in.out.step[0] +
              (at.q_row + own_job.row0 + row0) * in.out.step[1];
#pragma unroll
  for (int n = 0; n < kEach * 2; ++n) {
    const int h = group * kEach + n / 2, row = n % 2 * 16 + thread % 128 / 8, chunk = thread % 8;
    if (h >= outs || row0 + row >= own_job.rows || chunk * 8 >= dim) continue;
    int4 x =
        ptx::load_shared(base + static_cast<std::uint32_t>(h * kQBytes) + chunk_offset(kRows, row, chunk));
    if (ends[row] < 0) x = int4{};
    *reinterpret_cast<int4*>(out + row * in.out.step[1] + h * in.out.step[2] + chunk * 8) = x;
  }
  ptx::cluster_sync();
}

}  // namespace

int mixed_values_shared() { return kShared; }

Status mixed_values(const MixValues& p, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_values";
  const Status status = allow_shared(kName, values_of_mix, kShared, allowed, device);
  if (!status.ok() || p.rows.group.count == 0) return status;
  Launch l{kName, dim3(static_cast<unsigned>(kBlocks * p.rows.group.count)), kThreads, kShared, stream};
  l.cluster = kBlocks;
  return launch(l, values_of_mix, p);
}

}  // namespace headwise::cuda
