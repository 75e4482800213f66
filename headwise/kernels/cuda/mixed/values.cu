// Weights of mixed heads and their product with v in one sweep: a block has 32 queries of all heads.
#include "headwise/kernels/cuda/mixed/values.cuh"

namespace headwise::cuda::mixed {

using chunk::ChunkJob;
using chunk::kChunkRows;
namespace {

using namespace values;

/// Barriers, and what the job says: by one thread.
__device__ __forceinline__ void begin_facts(Facts& facts, const BlockPlace& at, const ChunkJob& job) {
  const auto bar = [&](int n) { return at.base + kFacts + 8u * static_cast<std::uint32_t>(n); };
  for (int n = 0; n < 2 * kHeads + 2; ++n) ptx::mbarrier_init(bar(n), n < 2 * kHeads ? 1 : kHeads);
  ptx::mbarrier_init_fence();
  for (int n = 0; n < 2 * kHeads; ++n) ptx::mbarrier_expect(bar(n), kTileBytes);
  const SequenceLocation place = at.p.rows.in.places[job.sequence];
  facts.kv_row = static_cast<int>(place.kv_row), facts.batch = static_cast<int>(place.tensor_batch);
  facts.q_row = static_cast<int>(place.q_row) + job.row0 + at.row0;
  facts.first_key = job.keys, facts.plain_begin = 0, facts.plain_end = job.keys, facts.past = 0;
}

/// What queries see, by a thread each; powers and slots of heads, by the threads behind.
__device__ __forceinline__ void gather_facts(Facts& facts, const BlockPlace& at, const ChunkJob& job) {
  const MixPairs& m = at.p.rows;
  const RunInputs& in = m.in;
  const int thread = at.thread;
  if (thread < kChunkRows) {
    const chunk::RowOpen open(in, true, in.places[job.sequence], job.sequence, 0, job.row0 + thread,
                              job.keys);
    const bool sees = thread < job.rows && open.begin < open.end;
    if (sees) atomicMin(&facts.first_key, open.begin);
    if (thread / kRows == at.rank) {
      facts.begin[thread % kRows] = open.begin, facts.end[thread % kRows] = open.end;
      if (sees) atomicMax(&facts.plain_begin, open.begin), atomicMin(&facts.plain_end, open.end);
    }
  } else if (const int h = thread - kChunkRows; h < kHeads) {
    int most = 0;
    for (int n = 0; h < at.ins && n * kMixPart < job.keys; ++n)
      for (int half = 0; half < 2; ++half)
        most = max(most, at.p.past[((n * m.group.count + at.slot) * 2 + half) * kHeads + h]);
    facts.powers[h] = exp2f(static_cast<float>(-most));
    if (most) facts.past = 1;
    facts.slots[kOfKeys][h] = static_cast<int>(in.k.layout.slot(min(h, at.ins - 1)));
    facts.slots[kOfValues][h] = static_cast<int>(in.v.layout.slot(min(h, at.outs - 1)));
  }
}

/// Both mixes as lanes take them, by the first warp. Scores come without scale, divided by their head's power
/// of 2; the matrix has both. Where its numbers are far from 1 it is multiplied by a power of 2, which is
/// returned, and logits are divided again.
__device__ __forceinline__ float put_mixes(Facts& facts, const BlockPlace& at) {
  const MixPairs& m = at.p.rows;
  const RunInputs& in = m.in;
  const int heads = at.heads, ins = at.ins, outs = at.outs;
  const auto scaled_coefficient = [&](int from, int to) {
    const float scale = from < ins ? static_cast<float>(in.scales[in.scale_count == 1 ? 0 : from]) : 0.f;
    return coefficient(m.before, from, to) * scale * chunk::kChunkLog2e / facts.powers[min(from, ins - 1)];
  };
  float factor =
      matrix_factor_of(ins * heads, [&](int n) { return scaled_coefficient(n / heads, n % heads); });
  factor = factor >= 2.f && factor <= 131072.f ? 1.f : factor / 128.f;
  const float after_factor =
      matrix_factor_of(heads * outs, [&](int n) { return coefficient(m.after, n / outs, n % outs); }) /
      8192.f;
  const std::uint32_t mixes = at.mixes();
  if (at.warp == 0) {
    if (at.lane == 0) facts.logit_unit = 1.f / factor, facts.out_unit = exp2f(-kRaise) / after_factor;
    TileMix<f16, false> of;
    of.load([&](int from, int to) { return scaled_coefficient(from, to) * factor; });
    ptx::store_shared(mixes, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
    of.load([&](int from, int to) { return coefficient(m.after, from, to) * after_factor; });
    ptx::store_shared(mixes + kLaneBytes, of.high[0][0], of.high[0][1], of.high[1][0], of.high[1][1]);
  }
  return factor;
}

/// Logits begin at -lse: heads 2 t, 2 t + 1 (+ 8) of a query are together for each t.
__device__ __forceinline__ void put_begins(Facts& facts, const BlockPlace& at, int rows, float factor) {
  const MixPairs& m = at.p.rows;
  const int lane = at.lane, g = at.g, t = at.t, own = at.own;
  const int h = 8 * (g >> 2) + 2 * t + (g & 1), r = g >> 1 & 1, i = at.row0 + own + r;
  float x = -INFINITY;
  if (h < at.heads && i < rows) x = m.lse[(static_cast<Index>(at.slot) * at.heads + h) * kChunkRows + i];
  const bool none = x == -INFINITY;
  const std::uint32_t to = at.of_warp(256) + static_cast<std::uint32_t>(kFacts + kFrom + r * 128 +
                                                                        (g >> 2) * 64 + t * 16 + (g & 1) * 4);
  x = none ? -INFINITY : (kRaise - x * chunk::kChunkLog2e) * factor;
  ptx::store_float(to, x), ptx::store_float(to + 8, x);  // for keys g and g + 8
#pragma unroll
  for (int n = 0; n < 2; ++n)
    if (__all_sync(~0u, r != n || none) && lane == 0) facts.end[own + n] = -1;
}

/// From here on the plain keys are steps: of those between, no pair is closed and logits are in units of 1.
__device__ __forceinline__ void plain_steps(Facts& facts, int first, float factor) {
  facts.plain_begin = (facts.plain_begin + kKeys - 1) / kKeys - first;
  facts.plain_end = factor == 1.f ? facts.plain_end / kKeys - first : 0;
}

/// Out by the place of this head's values.
__device__ __forceinline__ void put_out(const BlockPlace& own, const Sums& o) {
  const MixPairs& m = own.p.rows;
  const RunInputs& in = m.in;
  const int lane = own.lane, g = own.g, warp = own.warp, row0 = own.row0;
  const float unit = own.facts().out_unit();
  const ChunkJob job = m.group.jobs[own.slot];
  const SequenceLocation at = in.places[job.sequence];
  if (warp < own.outs) {
    const std::uint32_t to = own.base + static_cast<std::uint32_t>((kHeads + own.thread / 32) * kTileBytes);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float x[2] = {unit, unit};
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (const int row = row0 + 16 * block + 8 * r + g; in.gate && row < job.rows)
          x[r] *= chunk::gate_of(in, at, warp, job.row0 + row);
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
                (at.q_row + job.row0 + row0) * in.out.step[1] + warp * in.out.step[2] + chunk * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int row = n * 4 + lane / 8;
      if (row0 + row >= job.rows || chunk * 8 >= dim) continue;
      int4 x = ptx::load_shared(to + chunk_offset(kRows, row, chunk));
      if (own.facts().end(row) < 0) x = int4{};
      *reinterpret_cast<int4*>(out + row * in.out.step[1]) = x;
    }
  }
}

__device__ __forceinline__ void tell(std::uint32_t bar) {
  __syncwarp();
  if (ptx::elect_one()) ptx::mbarrier_arrive(bar);
  __syncwarp();
}

__device__ __forceinline__ void sweep_keys(const Sweep& own, Queries& q, Sums& o, int steps) {
  // Scores of all heads, weights of all queries: each is waited for a phase after this warp's own are there.
  const std::uint32_t scored = own.scored(), weighed = own.weighed();
#pragma unroll 1
  for (int step = -1; step < steps; ++step) {
    const std::uint32_t plane = step & 1 ? kPlaneBytes : 0u;
    if (step >= 0) {
      ptx::mbarrier_wait(scored, static_cast<std::uint32_t>(step & 1));
      const bool special = step < own.facts().plain_begin() || step >= own.facts().plain_end();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (special)
          own.mix<true>(plane, step, r);
        else
          own.mix<false>(plane, step, r);
      }
      tell(weighed);
    }
    if (step + 1 < steps) {
      own.multiply_keys(q, kPlaneBytes - plane, step + 1);
      if (step + 2 < steps) own.copy(kOfKeys, step + 2);
      tell(scored);
    }
    if (step >= 0) {
      ptx::mbarrier_wait(weighed, static_cast<std::uint32_t>(step & 1));
      own.multiply_values(o, plane, step, step + 1 == steps);
      if (step + 1 < steps) own.copy(kOfValues, step + 1);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) values_of_mix(const __grid_constant__ MixValues p) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixPairs& m = p.rows;
  const int slot = static_cast<int>(blockIdx.x) / kBlocks, thread = static_cast<int>(threadIdx.x),
            warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t address = ptx::shared_address(raw),
                      base = (address + kTileAlign - 1) & ~(kTileAlign - 1u);
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  BlockPlace at{p, base, slot, rank, thread, warp, lane, g, t};
  const ChunkJob job = m.group.jobs[slot];
  if (job.rows <= 0) return;  // both blocks
  Facts& facts = *reinterpret_cast<Facts*>(raw + (base - address) + kFacts);
  at.heads = m.heads, at.ins = m.before.from, at.outs = m.after.to, at.row0 = rank * kRows;
  if (thread == 0) begin_facts(facts, at, job);
  __syncthreads();
  gather_facts(facts, at, job);
  __syncthreads();
  const int first = facts.first_key / kKeys,
            steps = __shfl_sync(~0u, (job.keys + kKeys - 1) / kKeys - first, 0);

  at.own = 2 * warp;
  if (ptx::elect_one())  // queries, where values go later
    ptx::load_tile({.to = at.of_warp(kTileBytes) + kHeads * kTileBytes,
                    .map = &p.q,
                    .bar = at.full(kOfValues),
                    .row = at.facts().q_row(),
                    .panel = 0,
                    .head = min(warp, at.ins - 1),
                    .batch = at.facts().batch(),
                    .keep = ptx::kEvictFirst});
  __syncwarp();
  if (steps > 0) at.copy(kOfKeys, 0);
  const float factor = put_mixes(facts, at);
  put_begins(facts, at, job.rows, factor);

  const Sweep own(at);
  Queries q;
  own.take_queries(q);
  if (steps > 0) own.copy(kOfValues, 0);
  Sums o;
#pragma unroll
  for (int n = 0; n < 64; ++n) o[n / 32][n / 4 % 8][n % 4] = 0.f;
  if (warp == 0 && lane == 0) plain_steps(facts, first, factor);
  __syncthreads();
  sweep_keys(own, q, o, steps);
  put_out(own, o);
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

}  // namespace headwise::cuda::mixed
