// A query's pairs of all heads in shared memory, for gradients of fixed mixes: a team of warps and its steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda::mixed::queries {

using chunk::kChunkKeys;
using chunk::kChunkRows;

/// Two teams of a block take queries in turn. A team has 1,024 keys at a time, 128 a warp; every eighth part
/// of a longer sequence.
constexpr int kTeam = 256, kThreads = 2 * kTeam, kWarps = kTeam / 32, kKeys = kQueryPart,
              kPanelBytes = kTileHeads * kPanelRowBytes, kPlaneBytes = kKeys / 64 * kPanelBytes,
              kBoxBytes = kQueryBoxPanels * kPanelBytes, kProducts = kTileProducts, kAddThreads = 256;
template <class T>
constexpr bool kTwoParts = std::is_same_v<T, f16>;  // those of bf16 are rounded more than a score of 11 bits
template <class T>
constexpr int kPlanes = kTwoParts<T> ? 3 : 2;
template <class T>
constexpr int kStageBytes = kPlanes<T>*(kPlaneBytes);
/// Queries in shared memory: one a team, and where there is room the next one on its way.
template <class T>
constexpr int kStages = kTwoParts<T> ? 2 : 3;
template <class T>
constexpr int kShared = kStages<T>*(kStageBytes<T>)+kTileAlign;

/// What a team knows of its next query while it has another one at hand.
struct alignas(16) QueryNote {
  float lse[kTileHeads];
  int exponents[kKeys / 64][kTileHeads];  // of this block's first part
  int begin, stop, end;                   // open keys; keys of its job in whole tiles
};

__device__ __forceinline__ float scale_of_head(const MixPairs& m, int ins, int h) {
  return h < ins ? static_cast<float>(m.in.scales[m.in.scale_count == 1 ? 0 : h]) : 0.f;
}
__device__ __forceinline__ float lse_of(const QueryNote& note, int h) {
  return note.lse[h] == -INFINITY ? INFINITY : note.lse[h] * chunk::kChunkLog2e;
}

/// Where deltas of a query meet: sums of a team's warps, sums of the blocks of a cluster, and the barrier
/// that says these are here.
struct QueryDeltas {
  float (&of_warps)[kWarps][kTileHeads], (&of_rank)[kQueryRanks][kTileHeads];
  std::uint32_t bell;

  __device__ __forceinline__ float delta_of(int h, int ranks) const {
    float x = 0.f;
    for (int n = 0; n < ranks; ++n) x += of_rank[n][h];
    return x;
  }
};

template <class T>
__device__ __forceinline__ void init_barriers(std::uint32_t bars, std::uint32_t bells) {
  for (int n = 0; n < kStages<T>; ++n) ptx::mbarrier_init(bars + static_cast<std::uint32_t>(8 * n), 1);
  for (int n = 0; n < 4; ++n) ptx::mbarrier_init(bells + static_cast<std::uint32_t>(8 * n), 1);
  ptx::mbarrier_init_fence();
}
/// Planes in shared memory: panels of 64 keys, a head a row, 16 bytes at c of row h stand at c ^ h % 8. Here
/// are the first of sixteen keys of a lane's head, or the eight behind them; ^ 32 takes the next sixteen.
__device__ __forceinline__ std::uint32_t lane_offset(int warp, int lane) {
  return static_cast<std::uint32_t>(warp * 2 * kPanelBytes + (lane >> 4) * 8 * kPanelRowBytes +
                                    (lane & 7) * kPanelRowBytes + (((lane >> 3 & 1) ^ (lane & 7)) << 4));
}

/// What a thread holds, each where it was made: a struct with arrays is not taken apart into registers.
template <class T>
struct QueryRegisters {
  const TileMix<f16, true>& before;  // coefficients, scaled
  const TileMix<T, false>&after, &after_turned, &before_turned;
  float (&dbefore)[2][4], (&dafter)[2][4];  // sums of matrices' gradients
  float (&row_lse)[2][2], (&row_delta)[2][2], (&sum)[2][2];
  int &begin, &stop, &end;                   // of the query at hand: open keys, keys in whole tiles
  std::uint32_t &scores, &dweights, &rests;  // planes of the stage at hand
  int& exponents;         // of this warp's two tiles of 64 keys, a byte each, a head a lane
  int& coming;            // the query that takes the stage this team has written from, or -1
  std::uint32_t& parity;  // of the team's own stage, where queries have more than one part
};

/// A thread of a team, and the work of its team on queries.
template <class T>
struct QueryTeam : QueryRegisters<T> {
  using R = QueryRegisters<T>;
  using R::before, R::after, R::after_turned, R::before_turned, R::dbefore, R::dafter, R::row_lse,
      R::row_delta, R::sum, R::begin, R::stop, R::end, R::scores, R::dweights, R::rests, R::exponents,
      R::coming, R::parity;
  const MixTiles& p;
  int rank, ranks, clusters, team, thread, warp, lane, g, t, heads, ins;
  std::uint32_t start, bars;
  float unit;
  std::uint32_t lane_at;
  // A box a warp. What is not there comes as 0, and what comes and is not mixed goes back as it was.
  int own_plane, own_box;
  std::uint32_t own_at;
  const CUtensorMap* own_map;

  __device__ __forceinline__ void sync() const { ptx::barrier_sync(1 + team, kTeam); }
  /// Query r of this cluster among the rows of all slots.
  __device__ __forceinline__ int row_of(int r) const { return r * clusters + static_cast<int>(blockIdx.y); }
  static __device__ __forceinline__ int end_of(const chunk::ChunkJob& job) {
    return (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys;
  }
  __device__ __forceinline__ int count_of(int part) const { return min(end - part * kKeys, kKeys); }
  static __device__ __forceinline__ int boxes_of(int count) {
    return max(count + 64 * kQueryBoxPanels - 1, 0) / (64 * kQueryBoxPanels);
  }
  __device__ __forceinline__ int panel_of(int part) const {
    return part * (kKeys / 64) + own_box * kQueryBoxPanels;
  }

  /// By one warp. Rows behind the last query of a job are closed: products read all rows of a slot.
  __device__ __forceinline__ void write_note(QueryNote& to, int r) const {
    const MixPairs& m = p.rows;
    const RunInputs& f = m.in;
    const int slot = row_of(r) / kChunkRows, i = row_of(r) % kChunkRows;
    const chunk::ChunkJob job = m.group.jobs[slot];
    const SequenceLocation at = f.places[job.sequence];
    if (lane < kTileHeads) {
      const bool in = i < job.rows && lane < heads;
      ptx::copy_4(ptx::shared_address(&to.lse[lane]),
                  in ? f.lse + at.tensor_batch * f.lse_step[0] + lane * f.lse_step[1] +
                           (at.q_row + job.row0 + i) * f.lse_step[2]
                     : f.lse,
                  in);
    }
    const int tile0 = rank * (kKeys / 64), tiles = m.group.pitch / 64;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int tile = tile0 + n * 8 + lane / 4;
      const bool in = tile < tiles;
      const Index from = ((slot * Index{2} + i / 32) * tiles + (in ? tile : 0)) * kTileHeads + lane % 4 * 4;
      ptx::copy_16(ptx::shared_address(&to.exponents[n * 8 + lane / 4][lane % 4 * 4]), p.exponents + from,
                   in ? 16 : 0);
    }
    if (lane == 0) {
      const chunk::RowOpen open(f, true, at, job.sequence, 0, job.row0 + i, job.keys);
      const bool live = i < job.rows;
      to.begin = live ? open.begin : 0, to.stop = live ? open.end : 0, to.end = end_of(job);
    }
  }

  /// By all warps of a team.
  __device__ __forceinline__ void load(int stage, int r, int part) const {
    if (lane != 0 || own_plane >= kPlanes<T>) return;
    const int slot = row_of(r) / kChunkRows, i = row_of(r) % kChunkRows,
              boxes = boxes_of(min(end_of(p.rows.group.jobs[slot]) - part * kKeys, kKeys));
    const std::uint32_t bar = bars + static_cast<std::uint32_t>(8 * stage);
    if (warp == 0) ptx::mbarrier_expect(bar, static_cast<std::uint32_t>(kPlanes<T> * boxes * kBoxBytes));
    if (own_box < boxes)
      ptx::load_tile({.to = start + static_cast<std::uint32_t>(stage * kStageBytes<T>) + own_at,
                      .map = own_map,
                      .bar = bar,
                      .row = 0,
                      .panel = panel_of(part),
                      .head = i,
                      .batch = slot,
                      .keep = ptx::kEvictNormal});
  }
  __device__ __forceinline__ void use(int stage) const {
    scores = start + static_cast<std::uint32_t>(stage * kStageBytes<T>);
    dweights = scores + kPlaneBytes, rests = dweights + kPlaneBytes;
  }
  __device__ __forceinline__ void bring() const {
    ptx::wait_stores_read();
    load(coming % kStages<T>, coming, rank);
    coming = -1;
  }
  /// `from`: those of the part's first tile.
  __device__ __forceinline__ void load_exponents(const int* from, int part) const {
    const int h = lane & 15, there = count_of(part) - warp * 128;
    exponents = h < ins && there > 0 ? from[2 * warp * kTileHeads + h] : 0;
    if (h < ins && there > 64) exponents |= from[(2 * warp + 1) * kTileHeads + h] << 8;
  }
  // One part a query: queries come while those before them are mixed. More: a team's own stage, one by one.
  __device__ __forceinline__ void fetch(int r, int part) const {
    ptx::wait_stores_read();
    load(team, r, part);
    use(team);
    ptx::mbarrier_wait(bars + static_cast<std::uint32_t>(8 * team), parity);
    const Index tile = (row_of(r) / 32) * static_cast<Index>(p.rows.group.pitch / 64) + part * (kKeys / 64);
    parity ^= 1, load_exponents(p.exponents + tile * kTileHeads, part);
  }

  /// Scores of 16 keys come to the largest exponent of their heads.
  template <class StepDown>
  __device__ __forceinline__ void level(std::uint32_t (&a)[4], std::uint32_t (&rest)[4],
                                        StepDown&& step_down) const {
    const __half2 first8 = __floats2half2_rn(step_down(2 * t), step_down(2 * t + 1)),
                  last8 = __floats2half2_rn(step_down(2 * t + 8), step_down(2 * t + 9));
#pragma unroll
    for (int w = 0; w < 4; ++w)
      for (std::uint32_t* word : {&a[w], &rest[w]}) {
        const __half2 y2 = __hmul2(*reinterpret_cast<const __half2*>(word), w < 2 ? first8 : last8);
        *word = *reinterpret_cast<const std::uint32_t*>(&y2);
      }
  }
  /// Weights y and their gradients d of 16 keys: sums of matrices' gradients, then both planes.
  template <bool Special>
  __device__ __forceinline__ void put_gradients(float (&y)[2][4], float (&d)[2][4], std::uint32_t (&du)[4],
                                                std::uint32_t here, bool wide, int exponent) const {
    std::uint32_t weight[4], slope[4], to[4], raw_scores[4];
    pack_left<T>(weight, y);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[j][e] = y[j][e] * (d[j][e] - row_delta[j][e & 1]);
    pack_left<T>(slope, d);
    // Matrices' gradients: heads down, pairs across.
    ptx::load_matrices(scores + here, raw_scores), ptx::load_matrices(dweights + here, du);
    const float first8 = Special && wide ? ldexpf(1.f, __shfl_sync(~0u, exponent, g)) : 1.f,
                last8 = Special && wide ? ldexpf(1.f, __shfl_sync(~0u, exponent, g + 8)) : 1.f;
    const std::uint32_t score[4] = {score_as<T, Special>(raw_scores[0], first8),
                                    score_as<T, Special>(raw_scores[2], last8),
                                    score_as<T, Special>(raw_scores[1], first8),
                                    score_as<T, Special>(raw_scores[3], last8)},
                        left[4] = {turned(weight[0]), turned(weight[2]), turned(weight[1]),
                                   turned(weight[3])};
    Number<T>::multiply_add(dbefore[0], score, turned(slope[0]), turned(slope[1]));
    Number<T>::multiply_add(dbefore[1], score, turned(slope[2]), turned(slope[3]));
    Number<T>::multiply_add(dafter[0], left, du[0], du[1]);
    Number<T>::multiply_add(dafter[1], left, du[2], du[3]);
    before_turned.apply(d, slope);
    pack_left<T>(to, d);
    __syncwarp();  // scores of these pairs have been read
    ptx::store_matrices_turned(scores + here, to[0], to[1], to[2], to[3]);
    after.apply(y, weight);
    pack_left<T>(to, y);
    ptx::store_matrices_turned(dweights + here, to[0], to[1], to[2], to[3]);
  }
  /// 64 keys of a warp. Special: some are closed, or scores are past their range.
  template <bool Special, bool Gradients>
  __device__ __forceinline__ void mix(int key0, std::uint32_t here0, bool wide, int exponent) const {
    const int shift = Special && wide ? __reduce_max_sync(~0u, exponent) : 0;
    const float back = Special ? ldexpf(unit, shift) : unit;
    const auto step_down = [&](int h) {
      return exp2f(static_cast<float>(__shfl_sync(~0u, exponent, h) - shift));
    };
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::uint32_t here = here0 ^ static_cast<std::uint32_t>(n * 32);
      std::uint32_t x[4], du[4];
      [[maybe_unused]] std::uint32_t rest[4] = {};
      ptx::load_matrices_turned(scores + here, x);
      if constexpr (kTwoParts<T>) ptx::load_matrices_turned(rests + here, rest);
      ptx::load_matrices_turned(dweights + here, du);
      std::uint32_t a[4] = {x[0], x[1], x[2], x[3]};
      if (Special && wide) level(a, rest, step_down);
      float y[2][4] = {}, d[2][4];
      before.low_of(y, a);
      if constexpr (kTwoParts<T>) before.high_of(y, rest);
      before.high_of(y, a);
      if constexpr (Special) {  // closed pairs may hold anything
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (const int key = key0 + 16 * n + 8 * r + g; key < begin || key >= stop) {
            y[0][2 * r] = y[0][2 * r + 1] = y[1][2 * r] = y[1][2 * r + 1] = -INFINITY;
            du[r] = du[r + 2] = x[r] = x[r + 2] = 0;
          }
        if constexpr (Gradients) {
          ptx::store_matrices_turned(dweights + here, du[0], du[1], du[2], du[3]);
          ptx::store_matrices_turned(scores + here, x[0], x[1], x[2], x[3]);
          __syncwarp();
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) y[j][e] = ptx::exp2(fmaf(y[j][e], back, -row_lse[j][e & 1]));
      after_turned.apply(d, du);
      if constexpr (!Gradients) {
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[j][e & 1] = fmaf(y[j][e], d[j][e], sum[j][e & 1]);
      } else {
        put_gradients<Special>(y, d, du, here, wide, exponent);
      }
    }
  }
  template <bool Gradients>
  __device__ __forceinline__ void mix_part(int part) const {
#pragma unroll 1
    for (int n = 0; n < 2; ++n) {
      const int inside = warp * 128 + n * 64, key0 = part * kKeys + inside,
                exponent = exponents >> 8 * n & 255;
      if (inside < count_of(part)) {
        const bool wide = __any_sync(~0u, exponent != 0);
        const std::uint32_t here = lane_at + static_cast<std::uint32_t>(n * kPanelBytes);
        if (wide || key0 < begin || key0 + 64 > stop)
          mix<true, Gradients>(key0, here, wide, exponent);
        else
          mix<false, Gradients>(key0, here, wide, exponent);
      }
      if (!Gradients && coming >= 0) bring();  // by now its memory has been read
    }
  }
  __device__ __forceinline__ void begin_query(const QueryNote& note, bool ahead) const {
    begin = note.begin, stop = note.stop, end = note.end;
    if (ahead) load_exponents(note.exponents[0], rank);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) row_lse[j][e] = lse_of(note, 8 * j + 2 * t + e), sum[j][e] = 0.f;
  }
  /// The query's stage is there.
  __device__ __forceinline__ void await_query(int r, int stage) const {
    use(stage);
    const std::uint32_t bar = bars + static_cast<std::uint32_t>(8 * stage),
                        phase = static_cast<std::uint32_t>(r / kStages<T> & 1);
    if (coming >= 0 && !ptx::mbarrier_test(bar, phase)) bring();  // it need not wait for this query
    ptx::mbarrier_wait(bar, phase);
  }
  /// Deltas of a query: lanes, warps, blocks. The next note's copies are there too.
  __device__ __forceinline__ void make_deltas(const QueryDeltas& d, int turn) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int n = 4; n <= 16; n *= 2) sum[j][e] += __shfl_xor_sync(~0u, sum[j][e], n);
        if (g == 0) d.of_warps[warp][8 * j + 2 * t + e] = sum[j][e];
      }
    if (ranks > 1 && thread == 0)
      ptx::mbarrier_expect(d.bell, static_cast<std::uint32_t>(ranks * kTileHeads * 4));
    ptx::wait_copies<0>();
    sync();
    if (const int h = thread % kTileHeads, to = thread / kTileHeads; to < ranks) {
      float x = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) x += d.of_warps[w][h];
      if (ranks > 1)
        ptx::send_float(to, ptx::shared_address(&d.of_rank[rank][h]), x, d.bell);
      else
        d.of_rank[0][h] = x;
    }
    if (ranks > 1)
      ptx::mbarrier_wait(d.bell, static_cast<std::uint32_t>(turn / 2 & 1));
    else
      sync();
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) row_delta[j][e] = d.delta_of(8 * j + 2 * t + e, ranks);
  }
  __device__ __forceinline__ void put_sinks(const QueryDeltas& d, const QueryNote& note, int r) const {
    const MixPairs& m = p.rows;
    if (rank == 0 && thread < heads && m.dsink_rows) {
      const float lse = lse_of(note, thread), delta = d.delta_of(thread, ranks);
      m.dsink_rows[(Index{row_of(r) / kChunkRows} * heads + thread) * kChunkRows + row_of(r) % kChunkRows] =
          delta == 0.f || lse == INFINITY
              ? 0.f
              : -delta * exp2f(number_of(m.in.sinks, thread) * chunk::kChunkLog2e - lse);
    }
  }
  /// Weights and score gradients of a part, and both planes on their way to memory.
  __device__ __forceinline__ void put_part(int r, int part) const {
    mix_part<true>(part);
    ptx::fence_shared_for_async();
    sync();
    if (lane == 0 && own_plane < 2 && own_box < boxes_of(count_of(part)))
      ptx::store_tile(own_map, scores + own_at, 0, panel_of(part), row_of(r) % kChunkRows,
                      row_of(r) / kChunkRows);
    ptx::commit_stores();
  }
  /// Sums of matrices' gradients of all warps of a block. `raw`: the planes are written, their memory is
  /// free.
  __device__ __forceinline__ void put_products(std::uint8_t* raw) const {
    const MixPairs& m = p.rows;
    auto* all = reinterpret_cast<float*>(raw) + team * kWarps * kProducts;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int n = (g + 8 * (e >> 1)) * kTileHeads + 8 * j + 2 * t + (e & 1);
        all[warp * kProducts + n] = dbefore[j][e] * scale_of_head(m, ins, g + 8 * (e >> 1));
        all[warp * kProducts + kTileHeads * kTileHeads + n] = dafter[j][e];
      }
    __syncthreads();
    float* to = p.products + (blockIdx.y * gridDim.x + blockIdx.x) * kProducts;
    for (int n = static_cast<int>(threadIdx.x); n < kProducts; n += kThreads) {
      float x = 0.f;
#pragma unroll
      for (int w = 0; w < 2 * kWarps; ++w) x += reinterpret_cast<const float*>(raw)[w * kProducts + n];
      to[n] = x;
    }
  }
};

}  // namespace headwise::cuda::mixed::queries
