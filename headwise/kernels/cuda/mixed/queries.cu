// Gradients of fixed mixes, a query's pairs of all heads in shared memory: its deltas, then weights and score
// gradients over the planes they are made of. Blocks of a cluster share a query's keys and take every n-th
// query of a group.
#include "headwise/kernels/cuda/mixed/queries.cuh"

namespace headwise::cuda::mixed {

namespace {

using namespace queries;

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    gradients_of_queries(const __grid_constant__ MixTiles p, const __grid_constant__ QueryMaps maps,
                         bool ahead) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ __align__(8) std::uint64_t arrived[kStages<T>], summed[2][2];
  __shared__ float of_warps[2][kWarps][kTileHeads], of_ranks[2][2][kQueryRanks][kTileHeads];
  __shared__ __align__(16) QueryNote notes[2][2];
  const MixPairs& m = p.rows;
  const int rank = static_cast<int>(blockIdx.x), ranks = static_cast<int>(gridDim.x),
            clusters = static_cast<int>(gridDim.y),
            rows =
                (m.group.count * chunk::kChunkRows - static_cast<int>(blockIdx.y) + clusters - 1) / clusters;
  const int team = static_cast<int>(threadIdx.x) / kTeam, thread = static_cast<int>(threadIdx.x) % kTeam,
            warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, heads = m.heads,
            ins = m.before.from;
  const std::uint32_t start = (ptx::shared_address(raw) + kTileAlign - 1) &
                              ~static_cast<std::uint32_t>(kTileAlign - 1),
                      bars = ptx::shared_address(arrived), bells = ptx::shared_address(summed[team]);
  if (threadIdx.x == 0) init_barriers<T>(bars, bells);
  ptx::wait_for_forerunner();  // nothing is read before
  const auto scaled = [&](int in, int out) {
    return coefficient(m.before, in, out) * scale_of_head(m, ins, in) * chunk::kChunkLog2e;
  };
  const float matrix_factor =
                  matrix_factor_of(ins * heads, [&](int n) { return scaled(n / heads, n % heads); }),
              unit = 1.f / matrix_factor;
  TileMix<f16, true> before;
  before.load([&](int in, int out) { return scaled(in, out) * matrix_factor; });
  TileMix<T, false> after, after_turned, before_turned;  // gradients of 16 bits take coefficients of 16 bits
  after.load([&](int in, int out) { return coefficient(m.after, in, out); });
  after_turned.load([&](int in, int out) { return coefficient(m.after, out, in); });
  before_turned.load(
      [&](int in, int out) { return coefficient(m.before, out, in) * scale_of_head(m, ins, out); });
  float dbefore[2][4] = {}, dafter[2][4] = {}, row_lse[2][2], row_delta[2][2], sum[2][2];
  const std::uint32_t lane_at = lane_offset(warp, lane);
  const int own_plane = warp / 2, own_box = warp % 2;
  const auto own_at = static_cast<std::uint32_t>(own_plane * kPlaneBytes + own_box * kBoxBytes);
  const CUtensorMap* own_map = own_plane == 0 ? &maps.scores : own_plane == 1 ? &maps.weights : &maps.rests;
  int begin = 0, stop = 0, end = 0, exponents = 0, coming = -1;
  std::uint32_t scores = start, dweights = start, rests = start, parity = 0;
  const QueryTeam<T> own{{before, after, after_turned, before_turned, dbefore, dafter, row_lse, row_delta,
                          sum, begin, stop, end, scores, dweights, rests, exponents, coming, parity},
                         p,
                         rank,
                         ranks,
                         clusters,
                         team,
                         thread,
                         warp,
                         lane,
                         g,
                         t,
                         heads,
                         ins,
                         start,
                         bars,
                         unit,
                         lane_at,
                         own_plane,
                         own_box,
                         own_at,
                         own_map};
  if (team < rows && warp == kWarps - 1) own.write_note(notes[team][0], team);
  ptx::wait_copies<0>();
  ptx::cluster_sync();  // everyone's barriers are there
  if (ahead && team == 0)
    for (int r = 0; r < kStages<T> && r < rows; ++r) own.load(r, r, rank);
#pragma unroll 1
  for (int r = team, turn = 0; r < rows; r += 2, ++turn) {
    const QueryNote& note = notes[team][turn & 1];
    if (r + 2 < rows && warp == kWarps - 1) own.write_note(notes[team][~turn & 1], r + 2);
    own.begin_query(note, ahead);
    const int parts = (end + kKeys - 1) / kKeys,
              last_part = rank < parts ? rank + (parts - 1 - rank) / ranks * ranks : rank - ranks;
    if (ahead) own.await_query(r, r % kStages<T>);
    for (int part = rank; part < parts; part += ranks) {
      if (!ahead) own.sync(), own.fetch(r, part);
      own.template mix_part<false>(part);
    }
    if (coming >= 0) own.bring();
    const QueryDeltas deltas{of_warps[team], of_ranks[team][turn & 1],
                             bells + static_cast<std::uint32_t>(8 * (turn & 1))};
    own.make_deltas(deltas, turn);
    own.put_sinks(deltas, note, r);
    for (int part = last_part; part >= rank; part -= ranks) {
      if (part < last_part) own.fetch(r, part);
      own.put_part(r, part);
    }
    if (last_part < rank) own.sync();  // sums and notes of this query have been read
    if (ahead && r + kStages<T> < rows) {
      coming = r + kStages<T>;
      if constexpr (kStages<T> == 2) own.bring();  // it is this team's next one
    }
  }
  ptx::wait_stores();
  ptx::cluster_sync();
  if (p.products) own.put_products(raw);
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
  static int known[64][kQueryRanks + 1] = {};
  int& found = known[static_cast<std::size_t>(device) % 64][ranks];
  if (found == 0) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(ranks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ranks), kQueryBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared);
    config.attrs = &cluster, config.numAttrs = 1;
    int most = 0;
    const Status status =
        status_of("cuda/mix_queries", cudaOccupancyMaxActiveClusters(&most, kernel, &config));
    if (!status.ok()) return status;
    found = most > 0 ? most : 1;
  }
  count = found;
  return {};
}

}  // namespace

template <class T>
Status mixed_queries(const MixTiles& p, const QueryMaps& maps, int keys, double* dbefore, double* dafter,
                     int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_queries";
  Status status = allow_shared(kName, gradients_of_queries<T>, kShared<T>, allowed, device);
  if (status.ok()) status = mixed_planes<T>(p, keys, device, stream);
  const auto ranks = static_cast<int>(min_of(ceil_div(max_of(keys, 1), kQueryPart), kQueryRanks));
  int clusters = 0;
  if (status.ok()) status = clusters_of(gradients_of_queries<T>, ranks, kShared<T>, device, clusters);
  clusters = static_cast<int>(
      min_of(min_of(clusters, kQueryBlocks / ranks), p.rows.group.count * chunk::kChunkRows));
  if (status.ok())
    status = launch({kName, dim3(static_cast<unsigned>(ranks), static_cast<unsigned>(clusters)), kThreads,
                     kShared<T>, stream, true, static_cast<unsigned>(ranks)},
                    gradients_of_queries<T>, p, maps, keys <= ranks * kQueryPart);
  return status.ok() && p.products
             ? launch({"cuda/mix_add_products", dim3(kProducts / 32), kAddThreads, 0, stream}, add_products,
                      p, ranks * clusters, dbefore, dafter)
             : status;
}
template Status mixed_queries<bf16>(const MixTiles&, const QueryMaps&, int, double*, double*, int,
                                    cudaStream_t);
template Status mixed_queries<f16>(const MixTiles&, const QueryMaps&, int, double*, double*, int,
                                   cudaStream_t);

int mixed_queries_shared() { return kShared<f16>; }

}  // namespace headwise::cuda::mixed
