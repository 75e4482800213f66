// Gradients of fixed mixes, a query's pairs of all heads in shared memory: its deltas, then weights and score
// gradients over the planes they are made of. Blocks of a cluster share a query's keys and take every n-th
// query of a group.
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda {
namespace {

/// Two teams of a block take queries in turn. A team has 1,024 keys at a time, 128 a warp; every eighth part
/// of a longer sequence.
constexpr int kTeam = 256, kThreads = 2 * kTeam, kWarps = kTeam / 32, kKeys = kLinePart,
              kPanelBytes = kTileHeads * kPanelRowBytes, kPlaneBytes = kKeys / 64 * kPanelBytes,
              kBoxBytes = kLineBoxPanels * kPanelBytes, kProducts = kTileProducts, kAddThreads = 256;
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
struct alignas(16) LineNote {
  float lse[kTileHeads];
  int exponents[kKeys / 64][kTileHeads];  // of this block's first part
  int begin, stop, end;                   // open keys; keys of its job in whole tiles
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    mix_lines(const __grid_constant__ MixTiles p, const __grid_constant__ LineMaps maps, bool ahead) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ __align__(8) std::uint64_t arrived[kStages<T>], summed[2][2];
  __shared__ float of_warps[2][kWarps][kTileHeads], of_ranks[2][2][kLineRanks][kTileHeads];
  __shared__ __align__(16) LineNote notes[2][2];
  const MixRows& m = p.rows;
  const RunInputs& f = m.in;
  const int rank = static_cast<int>(blockIdx.x), ranks = static_cast<int>(gridDim.x),
            clusters = static_cast<int>(gridDim.y),
            rows = (m.group.count * kChunkRows - static_cast<int>(blockIdx.y) + clusters - 1) / clusters;
  const int team = static_cast<int>(threadIdx.x) / kTeam, thread = static_cast<int>(threadIdx.x) % kTeam,
            warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, heads = m.heads,
            ins = m.before.from;
  const std::uint32_t start = (ptx::shared_address(raw) + kTileAlign - 1) &
                              ~static_cast<std::uint32_t>(kTileAlign - 1),
                      bars = ptx::shared_address(arrived), bells = ptx::shared_address(summed[team]);
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages<T>; ++n) ptx::mbarrier_init(bars + static_cast<std::uint32_t>(8 * n), 1);
    for (int n = 0; n < 4; ++n) ptx::mbarrier_init(bells + static_cast<std::uint32_t>(8 * n), 1);
    ptx::mbarrier_init_fence();
  }
  const auto team_sync = [&] { ptx::barrier_sync(1 + team, kTeam); };
  /// Query r of this cluster among the rows of all slots.
  const auto row_of = [&](int r) { return r * clusters + static_cast<int>(blockIdx.y); };
  const auto end_of = [](const ChunkJob& job) {
    return (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys;
  };
  /// By one warp. Rows behind the last query of a job are closed: products read all rows of a slot.
  const auto write_note = [&](LineNote& to, int r) {
    const int slot = row_of(r) / kChunkRows, i = row_of(r) % kChunkRows;
    const ChunkJob job = m.group.jobs[slot];
    const SequencePlace at = f.places[job.sequence];
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
      const RowOpen open(f, true, at, job.sequence, 0, job.row0 + i, job.keys);
      const bool live = i < job.rows;
      to.begin = live ? open.begin : 0, to.stop = live ? open.end : 0, to.end = end_of(job);
    }
  };

  ptx::wait_for_forerunner();  // nothing is read before
  const auto scale_of_head = [&](int h) {
    return h < ins ? static_cast<float>(f.scales[f.scale_count == 1 ? 0 : h]) : 0.f;
  };
  const auto scaled = [&](int in, int out) {
    return coefficient(m.before, in, out) * scale_of_head(in) * kChunkLog2e;
  };
  const float matrix_factor =
                  matrix_factor_of(ins * heads, [&](int n) { return scaled(n / heads, n % heads); }),
              unit = 1.f / matrix_factor;
  TileMix<f16, true> before;
  before.load([&](int in, int out) { return scaled(in, out) * matrix_factor; });
  TileMix<T, false> after, after_turned, before_turned;  // gradients of 16 bits take coefficients of 16 bits
  after.load([&](int in, int out) { return coefficient(m.after, in, out); });
  after_turned.load([&](int in, int out) { return coefficient(m.after, out, in); });
  before_turned.load([&](int in, int out) { return coefficient(m.before, out, in) * scale_of_head(out); });
  float dbefore[2][4] = {}, dafter[2][4] = {};

  // Planes in shared memory: panels of 64 keys, a head a row, 16 bytes at c of row h stand at c ^ h % 8. Here
  // are the first of sixteen keys of a lane's head, or the eight behind them; ^ 32 takes the next sixteen.
  const auto lane_at =
      static_cast<std::uint32_t>(warp * 2 * kPanelBytes + (lane >> 4) * 8 * kPanelRowBytes +
                                 (lane & 7) * kPanelRowBytes + (((lane >> 3 & 1) ^ (lane & 7)) << 4));
  int end = 0;  // of the query at hand
  const auto count_of = [&](int part) { return min(end - part * kKeys, kKeys); };
  const auto boxes_of = [](int count) {
    return max(count + 64 * kLineBoxPanels - 1, 0) / (64 * kLineBoxPanels);
  };
  // A box a warp. What is not there comes as 0, and what comes and is not mixed goes back as it was.
  const int own_plane = warp / 2, own_box = warp % 2;
  const auto own_at = static_cast<std::uint32_t>(own_plane * kPlaneBytes + own_box * kBoxBytes);
  const CUtensorMap* own_map = own_plane == 0 ? &maps.scores : own_plane == 1 ? &maps.weights : &maps.rests;
  const auto panel_of = [&](int part) { return part * (kKeys / 64) + own_box * kLineBoxPanels; };
  /// By all warps of a team.
  const auto load = [&](int stage, int r, int part) {
    if (lane != 0 || own_plane >= kPlanes<T>) return;
    const int slot = row_of(r) / kChunkRows, i = row_of(r) % kChunkRows,
              boxes = boxes_of(min(end_of(m.group.jobs[slot]) - part * kKeys, kKeys));
    const std::uint32_t bar = bars + static_cast<std::uint32_t>(8 * stage);
    if (warp == 0) ptx::mbarrier_expect(bar, static_cast<std::uint32_t>(kPlanes<T> * boxes * kBoxBytes));
    if (own_box < boxes)
      ptx::load_tile(start + static_cast<std::uint32_t>(stage * kStageBytes<T>) + own_at, own_map, bar, 0,
                     panel_of(part), i, slot, ptx::kEvictNormal);
  };
  std::uint32_t scores = start, dweights = start, rests = start;  // of the stage at hand
  const auto use = [&](int stage) {
    scores = start + static_cast<std::uint32_t>(stage * kStageBytes<T>);
    dweights = scores + kPlaneBytes, rests = dweights + kPlaneBytes;
  };

  float row_lse[2][2], row_delta[2][2], sum[2][2];
  int begin = 0, stop = 0;
  /// 64 keys of a warp. Special: some are closed, or scores are past their range.
  const auto mix = [&]<bool Special, bool Gradients>(int key0, std::uint32_t here0, bool wide, int exponent) {
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
      if (Special && wide) {
        const __half2 first8 = __floats2half2_rn(step_down(2 * t), step_down(2 * t + 1)),
                      last8 = __floats2half2_rn(step_down(2 * t + 8), step_down(2 * t + 9));
#pragma unroll
        for (int w = 0; w < 4; ++w)
          for (std::uint32_t* word : {&a[w], &rest[w]}) {
            const __half2 y2 = __hmul2(*reinterpret_cast<const __half2*>(word), w < 2 ? first8 : last8);
            *word = *reinterpret_cast<const std::uint32_t*>(&y2);
          }
      }
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
    }
  };
  int exponents = 0;  // of this warp's two tiles of 64 keys, a byte each, a head a lane
  /// `from`: those of the part's first tile.
  const auto load_exponents = [&](const int* from, int part) {
    const int h = lane & 15, there = count_of(part) - warp * 128;
    exponents = h < ins && there > 0 ? from[2 * warp * kTileHeads + h] : 0;
    if (h < ins && there > 64) exponents |= from[(2 * warp + 1) * kTileHeads + h] << 8;
  };
  int coming = -1;  // the query that takes the stage this team has written from
  const auto bring = [&] {
    ptx::wait_stores_read();
    load(coming % kStages<T>, coming, rank);
    coming = -1;
  };
  const auto mix_part = [&]<bool Gradients>(int part) {
#pragma unroll 1
    for (int n = 0; n < 2; ++n) {
      const int inside = warp * 128 + n * 64, key0 = part * kKeys + inside,
                exponent = exponents >> 8 * n & 255;
      if (inside < count_of(part)) {
        const bool wide = __any_sync(~0u, exponent != 0);
        const std::uint32_t here = lane_at + static_cast<std::uint32_t>(n * kPanelBytes);
        if (wide || key0 < begin || key0 + 64 > stop)
          mix.template operator()<true, Gradients>(key0, here, wide, exponent);
        else
          mix.template operator()<false, Gradients>(key0, here, wide, exponent);
      }
      if (!Gradients && coming >= 0) bring();  // by now its memory has been read
    }
  };
  // One part a query: queries come while those before them are mixed. More: a team's own stage, one by one.
  std::uint32_t parity = 0;
  const auto fetch = [&](int r, int part) {
    ptx::wait_stores_read();
    load(team, r, part);
    use(team);
    ptx::mbarrier_wait(bars + static_cast<std::uint32_t>(8 * team), parity);
    const Index tile = (row_of(r) / 32) * static_cast<Index>(m.group.pitch / 64) + part * (kKeys / 64);
    parity ^= 1, load_exponents(p.exponents + tile * kTileHeads, part);
  };
  if (team < rows && warp == kWarps - 1) write_note(notes[team][0], team);
  ptx::wait_copies<0>();
  ptx::cluster_sync();  // everyone's barriers are there
  if (ahead && team == 0)
    for (int r = 0; r < kStages<T> && r < rows; ++r) load(r, r, rank);

#pragma unroll 1
  for (int r = team, turn = 0; r < rows; r += 2, ++turn) {
    const LineNote& note = notes[team][turn & 1];
    if (r + 2 < rows && warp == kWarps - 1) write_note(notes[team][~turn & 1], r + 2);
    begin = note.begin, stop = note.stop, end = note.end;
    if (ahead) load_exponents(note.exponents[0], rank);
    const auto lse_of = [&](int h) {
      return note.lse[h] == -INFINITY ? INFINITY : note.lse[h] * kChunkLog2e;
    };
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) row_lse[j][e] = lse_of(8 * j + 2 * t + e), sum[j][e] = 0.f;
    const int parts = (end + kKeys - 1) / kKeys,
              last_part = rank < parts ? rank + (parts - 1 - rank) / ranks * ranks : rank - ranks;
    const int stage = ahead ? r % kStages<T> : team;
    if (ahead) {
      use(stage);
      const std::uint32_t bar = bars + static_cast<std::uint32_t>(8 * stage),
                          phase = static_cast<std::uint32_t>(r / kStages<T> & 1);
      if (coming >= 0 && !ptx::mbarrier_test(bar, phase)) bring();  // it need not wait for this query
      ptx::mbarrier_wait(bar, phase);
    }
    for (int part = rank; part < parts; part += ranks) {
      if (!ahead) team_sync(), fetch(r, part);
      mix_part.template operator()<false>(part);
    }
    if (coming >= 0) bring();
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int n = 4; n <= 16; n *= 2) sum[j][e] += __shfl_xor_sync(~0u, sum[j][e], n);
        if (g == 0) of_warps[team][warp][8 * j + 2 * t + e] = sum[j][e];
      }
    const std::uint32_t bell = bells + static_cast<std::uint32_t>(8 * (turn & 1));
    if (ranks > 1 && thread == 0)
      ptx::mbarrier_expect(bell, static_cast<std::uint32_t>(ranks * kTileHeads * 4));
    ptx::wait_copies<0>();  // the next note's
    team_sync();
    float(&of_rank)[kLineRanks][kTileHeads] = of_ranks[team][turn & 1];
    if (const int h = thread % kTileHeads, to = thread / kTileHeads; to < ranks) {
      float x = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) x += of_warps[team][w][h];
      if (ranks > 1)
        ptx::send_float(to, ptx::shared_address(&of_rank[rank][h]), x, bell);
      else
        of_rank[0][h] = x;
    }
    if (ranks > 1)
      ptx::mbarrier_wait(bell, static_cast<std::uint32_t>(turn / 2 & 1));
    else
      team_sync();
    const auto delta_of = [&](int h) {
      float x = 0.f;
      for (int n = 0; n < ranks; ++n) x += of_rank[n][h];
      return x;
    };
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) row_delta[j][e] = delta_of(8 * j + 2 * t + e);
    if (rank == 0 && thread < heads && m.dsink_rows) {
      const float lse = lse_of(thread), delta = delta_of(thread);
      m.dsink_rows[(Index{row_of(r) / kChunkRows} * heads + thread) * kChunkRows + row_of(r) % kChunkRows] =
          delta == 0.f || lse == INFINITY ? 0.f
                                          : -delta * exp2f(number_of(f.sinks, thread) * kChunkLog2e - lse);
    }
    for (int part = last_part; part >= rank; part -= ranks) {
      if (part < last_part) fetch(r, part);
      mix_part.template operator()<true>(part);
      ptx::fence_shared_for_async();
      team_sync();
      if (lane == 0 && own_plane < 2 && own_box < boxes_of(count_of(part)))
        ptx::store_tile(own_map, scores + own_at, 0, panel_of(part), row_of(r) % kChunkRows,
                        row_of(r) / kChunkRows);
      ptx::commit_stores();
    }
    if (last_part < rank) team_sync();  // sums and notes of this query have been read
    if (ahead && r + kStages<T> < rows) {
      coming = r + kStages<T>;
      if constexpr (kStages<T> == 2) bring();  // it is this team's next one
    }
  }
  ptx::wait_stores();
  ptx::cluster_sync();
  if (!p.products) return;
  auto* all = reinterpret_cast<float*>(raw) + team * kWarps * kProducts;  // the planes are written
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int n = (g + 8 * (e >> 1)) * kTileHeads + 8 * j + 2 * t + (e & 1);
      all[warp * kProducts + n] = dbefore[j][e] * scale_of_head(g + 8 * (e >> 1));
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

/// Matrices' gradients: what `count` blocks have summed, eighths of them side by side, then in order.
__global__ void __launch_bounds__(kAddThreads)
    add_products(const __grid_constant__ MixTiles p, int count, double* dbefore, double* dafter) {
  __shared__ double sums[kAddThreads / 32][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) / 32,
            place = static_cast<int>(blockIdx.x) * 32 + lane, n = place % (kTileHeads * kTileHeads);
  double x = 0;
#pragma unroll 4
  for (int block = part; block < count; block += kAddThreads / 32)
    x += static_cast<double>(p.products[static_cast<Index>(block) * kProducts + place]);
  sums[part][lane] = x;
  __syncthreads();
  const bool is_after = place >= kTileHeads * kTileHeads;
  const MixStage& s = is_after ? p.rows.after : p.rows.before;
  double* to = is_after ? dafter : dbefore;
  const int in = n / kTileHeads, out = n % kTileHeads;
  if (part != 0 || !to || in >= s.from || out >= s.to) return;
  double all = to[in * s.to + out];
  for (int k = 0; k < kAddThreads / 32; ++k) all += sums[k][lane];
  to[in * s.to + out] = all;
}

/// How many clusters of so many blocks run at a time.
template <class Kernel>
Status clusters_of(Kernel* kernel, int ranks, int shared, int device, int& count) {
  static int known[64][kLineRanks + 1] = {};
  int& found = known[static_cast<std::size_t>(device) % 64][ranks];
  if (found == 0) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(ranks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ranks), kLineBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared);
    config.attrs = &cluster, config.numAttrs = 1;
    int most = 0;
    const Status status = status_of("cuda/mix_lines", cudaOccupancyMaxActiveClusters(&most, kernel, &config));
    if (!status.ok()) return status;
    found = most > 0 ? most : 1;
  }
  count = found;
  return {};
}

}  // namespace

template <class T>
Status mixed_lines(const MixTiles& p, const LineMaps& maps, int keys, double* dbefore, double* dafter,
                   int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_lines";
  Status status = allow_shared(kName, mix_lines<T>, kShared<T>, allowed, device);
  if (status.ok()) status = mixed_planes<T>(p, keys, device, stream);
  const auto ranks = static_cast<int>(min_of(ceil_div(max_of(keys, 1), kLinePart), kLineRanks));
  int clusters = 0;
  if (status.ok()) status = clusters_of(mix_lines<T>, ranks, kShared<T>, device, clusters);
  clusters = static_cast<int>(min_of(min_of(clusters, kLineBlocks / ranks), p.rows.group.count * kChunkRows));
  if (status.ok())
    status = launch({kName, dim3(static_cast<unsigned>(ranks), static_cast<unsigned>(clusters)), kThreads,
                     kShared<T>, stream, true, static_cast<unsigned>(ranks)},
                    mix_lines<T>, p, maps, keys <= ranks * kLinePart);
  return status.ok() && p.products
             ? launch({"cuda/mix_add_products", dim3(kProducts / 32), kAddThreads, 0, stream}, add_products,
                      p, ranks * clusters, dbefore, dafter)
             : status;
}
template Status mixed_lines<bf16>(const MixTiles&, const LineMaps&, int, double*, double*, int, cudaStream_t);
template Status mixed_lines<f16>(const MixTiles&, const LineMaps&, int, double*, double*, int, cudaStream_t);

int mixed_lines_shared() { return kShared<f16>; }

}  // namespace headwise::cuda
