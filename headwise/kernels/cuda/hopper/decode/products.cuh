// Decode on Hopper: one warp copies keys and values, groups of four own 16 keys of every tile each, in turns;
// splits merge in order.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "headwise/kernels/cuda/hopper/decode/eight.cuh"
#include "headwise/kernels/cuda/hopper/decode/merge.cuh"

namespace headwise::cuda::hopper::decode {

/// The state of a row over the keys of all strands.
template <class C>
__device__ __forceinline__ float top_of(const float* stats, int row) {
  float top = -INFINITY;
#pragma unroll
  for (int w = 0; w < C::kStrands; ++w) top = fmaxf(top, stats[(w * C::kRows + row) * 2]);
  return top;
}
template <class C>
__device__ __forceinline__ float sum_of(const float* stats, int row, float top) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < C::kStrands; ++w) {
    const float2 stat = *reinterpret_cast<const float2*>(stats + (w * C::kRows + row) * 2);
    sum = fmaf(stat.x == -INFINITY ? 0.f : ptx::exp2(stat.x - top), stat.y, sum);
  }
  return sum;
}

/// The state of a partial's row. Blocks that share items keep one each.
template <class C>
__device__ __forceinline__ void deliver_state(const Params& p, const Item& d, int row, int share,
                                              const float* stats) {
  const Index partial = partials_at<C>(p, d) + d.partial * C::kRows + row;
  const float top = top_of<C>(stats, row);
  *reinterpret_cast<float2*>(p.partial_stats + (partial * C::kShares + share) * 2) =
      make_float2(top, sum_of<C>(stats, row, top));
}

/// Four columns of a split's row, which strands in `stats` made, go out as they are or as a partial. Blocks
/// that share items count their own columns and keep states of their own.
template <class C>
__device__ __forceinline__ void deliver(const Params& p, const Item& d, int row, int column, float4 a,
                                        const float* stats) {
  if (d.partials == 1) {
    const float top = top_of<C>(stats, row);
    return finish<C>(p, d, row, column == 0, top, sum_of<C>(stats, row, top))
        .template store<typename C::T>(column, a, p.lost);
  }
  const Index partial = partials_at<C>(p, d) + d.partial * C::kRows + row;
  *reinterpret_cast<float4*>(p.partials + partial * C::kHeadDim + column) = a;
  if constexpr (!C::kAhead)
    if (column % C::kOwnColumns == 0) deliver_state<C>(p, d, row, column / C::kOwnColumns, stats);
}

/// Tile `t` of an item as a warp meets it: where queries, keys and what numbers of 8 bits count lie.
struct TileTask {
  int t;
  std::uint32_t q, k, scales;
  int warp, lane;
};
/// One tile: scores, weights, values. The rows meet 16 keys of this warp. Eight: what k and v of 8 bits are.
template <class C, template <class> class Eight>
__device__ __forceinline__ void multiply_tile(const Params& p, const Item& d, const TileTask& task,
                                              QueryRows<C>& rows) {
  const int t = task.t, warp = task.warp, lane = task.lane;
  const std::uint32_t q = task.q, k = task.k;
  [[maybe_unused]] const std::uint32_t scales = task.scales;
  using T = typename C::T;
  constexpr int kDim = C::kHeadDim, kBlocks = C::kBlocks;
  const std::uint32_t v = k + C::kTileBytes;
  const int first_key = t * C::kPace + own_share<C>() * C::kKeys + warp * C::kWarpKeys;
  const bool masked = t < d.full_begin || t >= d.full_end, special = masked || p.cap > 0.f || p.slopes.data;
  float counts[4];  // what this lane's keys count, then their values
  typename QueryRows<C>::Weights weights;
  const auto clear_tail = [&] {  // a NaN of a key closed to all rows survives weights of 0
    if (!p.clear_tail || !masked) return;
    constexpr int kChunks = kDim * C::kItemBytes / 32;  // of half a row: a lane's
    const int key = first_key + lane / 2, past = d.place.q_start + d.place.q_tokens + p.ahead;
    if (key >= min(d.place.kv_tokens, past) || key < d.place.q_start - p.back)
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        ptx::clear_shared(v + C::chunk_at(warp * C::kWarpKeys + lane / 2, lane % 2 * kChunks + i));
    ptx::fence_shared_for_async();
    __syncwarp();
  };
  if constexpr (C::kEight) {
    float s[kBlocks][2][2][4] = {}, both[kBlocks][2][4];
    scores_eight<C, Eight>(q, k, warp, lane, rows, s);
    std::uint32_t b[kDim / 32][4];
    const auto load_values = [&](int n) {
      ptx::load_matrices_turned(v + C::chunk_at(warp * C::kWarpKeys + (lane & 15), 2 * n + (lane >> 4)),
                                b[n]);
    };
    // On their way while weights are made, where there are registers.
    constexpr int kAhead = C::kHoldsQ || !Eight<T>::kNan ? kDim / 32 : 0;
    if constexpr (Eight<T>::kNan && kAhead > 0) clear_tail();
#pragma unroll
    for (int n = 0; n < kAhead; ++n) load_values(n);
    counts_of(scales + warp * C::kWarpKeys * 4, lane, counts);
#pragma unroll
    for (int i = 0; i < kBlocks * 8; ++i) {
      const int block = i / 8, half = i / 4 % 2, n = i % 4;
      both[block][half][n] = (s[block][0][half][n] + s[block][1][half][n]) * counts[2 * half + (n & 1)];
    }
    counts_of(scales + (C::kKeys + warp * C::kWarpKeys) * 4, lane, counts);
    rows.weigh(p, d, {first_key + 2 * (lane % 4), special, masked}, both, counts, weights);
    if constexpr (Eight<T>::kNan && kAhead == 0) clear_tail();
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      if (n >= kAhead) load_values(n);
      values_eight<C, Eight>(b[n], n, weights, rows);
    }
    return;
  }
  clear_tail();
  float s[kBlocks][2][2][4] = {};  // block, even and odd steps, keys
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {  // rows of k are keys: matrices as they lie are the right factor
    std::uint32_t b[4];
    ptx::load_matrices(
        k + C::chunk_at(warp * C::kWarpKeys + (lane & 7) + ((lane >> 4) & 1) * 8, 2 * i + ((lane >> 3) & 1)),
        b);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if constexpr (!C::kHoldsQ) QueryRows<C>::load_q(q, i, block, lane, rows.q[0]);
      Number<T>::multiply_add(s[block][i & 1][0], rows.q[C::kHoldsQ ? i : 0], b[0], b[1]);
      Number<T>::multiply_add(s[block][i & 1][1], rows.q[C::kHoldsQ ? i : 0], b[2], b[3]);
    }
  }
  std::uint32_t b[kDim / 16][4];
  const auto load_values = [&](int n) {  // rows of v are keys: turned, they are the right factor
    ptx::load_matrices_turned(v + C::chunk_at(warp * C::kWarpKeys + (lane & 15), 2 * n + (lane >> 4)), b[n]);
  };
  constexpr int kAhead = C::kHoldsQ ? kDim / 16 : 0;  // on their way while weights are made
#pragma unroll
  for (int n = 0; n < kAhead; ++n) load_values(n);
  float both[kBlocks][2][4];
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i)
    both[i / 8][i / 4 % 2][i % 4] = s[i / 8][0][i / 4 % 2][i % 4] + s[i / 8][1][i / 4 % 2][i % 4];
  rows.weigh(p, d, {first_key + 2 * (lane % 4), special, masked}, both, counts, weights);
#pragma unroll
  for (int n = 0; n < kDim / 16; ++n) {
    if (n >= kAhead) load_values(n);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Number<T>::multiply_add(rows.o[block][2 * n], weights[0][block], b[n][0], b[n][1]);
      Number<T>::multiply_add(rows.o[block][2 * n + 1], weights[0][block], b[n][2], b[n][3]);
    }
  }
}

/// Which thread of a block's consumers is here.
struct ThreadPlace {
  int warp, lane, thread;
};
/// Where the warps of a block meet: `merge` for columns, `stats` for states.
struct JoinTask {
  float* merge;
  const float* stats;
  ThreadPlace place;
};
/// The warps' states become one, warps in order, through the slot of the last tile; the result is the item's
/// partial, or the output.
template <class C>
__device__ __forceinline__ void join_warps(const Params& p, const Item& d, const JoinTask& task,
                                           QueryRows<C>& rows) {
  float* const merge = task.merge;
  const float* const stats = task.stats;
  const auto& [warp, lane, thread] = task.place;
  using Rows = QueryRows<C>;
  constexpr int kQuads = C::kColumns / 4;
  // Four rows of 8 columns lie in different banks.
  const auto at = [](int w, int row, int column) {
    return (w * C::kRows + row) * C::kColumns + (column ^ ((row & 3) * 8 & (C::kColumns - 1)));
  };
  float factor[Rows::kSets];
#pragma unroll
  for (int i = 0; i < Rows::kSets; ++i)
    factor[i] =
        rows.top[i] == -INFINITY ? 0.f : ptx::exp2(rows.top[i] - top_of<C>(stats, Rows::row_of(i, lane)));
  const auto half_of = [&](int pass) {
    return merge + (C::kAhead ? pass % 2 * C::kWarps * C::kRows * C::kColumns : 0);
  };
  const auto write = [&](int pass) {
#pragma unroll
    for (int i = 0; i < Rows::kSets; ++i)
#pragma unroll
      for (int n = 0; n < C::kColumns / 8; ++n) {
        const int first = pass * C::kColumns / 8 + n, row = Rows::row_of(i, lane),
                  half = 2 * (i % C::kHalves);
        const float* o = rows.o[i / C::kHalves][first] + half;
        if constexpr (!C::kEight) {
          *reinterpret_cast<float2*>(half_of(pass) + at(warp, row, 8 * n + 2 * (lane % 4))) =
              make_float2(o[0] * factor[i], o[1] * factor[i]);
        } else if (n % 2 == 0) {  // even columns, then odd ones
          const float* odd = rows.o[i / C::kHalves][first + 1] + half;
          *reinterpret_cast<float4*>(half_of(pass) + at(warp, row, 8 * n + 4 * (lane % 4))) =
              make_float4(o[0] * factor[i], odd[0] * factor[i], o[1] * factor[i], odd[1] * factor[i]);
        }
      }
  };
  constexpr int kAll = C::kRows * kQuads, kMine = (kAll + C::kConsumers - 1) / C::kConsumers;
  const auto quad = [&](int pass, int i, int w) {
    return *reinterpret_cast<const float4*>(half_of(pass) + at(w, i / kQuads, i % kQuads * 4));
  };
#pragma unroll
  for (int pass = 0; pass < C::kMergePasses; ++pass) {
    if (!C::kAhead || pass == 0) write(pass);
    ptx::barrier_sync(1, C::kConsumers);
    [[maybe_unused]] float4 x[kMine][C::kWarps];
    if constexpr (C::kAhead) {  // all loads are on their way before the next pass is written
#pragma unroll
      for (int m = 0; m < kMine; ++m)
#pragma unroll
        for (int w = 0; w < C::kWarps; ++w)
          if (const int i = thread + m * C::kConsumers; kAll % C::kConsumers == 0 || i < kAll)
            x[m][w] = quad(pass, i, w);
      if (pass + 1 < C::kMergePasses) write(pass + 1);
      if (pass == 0 && d.partials > 1 && warp == C::kWarps - 1 && lane < C::kRows)  // beside others' columns
        deliver_state<C>(p, d, lane, 0, stats);
    }
#pragma unroll(C::kAhead ? kMine : 1)
    for (int m = 0; m < kMine; ++m) {
      const int i = thread + m * C::kConsumers, row = i / kQuads;
      if (i >= kAll || d.row_block * C::kRows + row >= d.place.q_tokens * p.group) break;
      float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int w = 0; w < C::kWarps; ++w) {
        const float4 y = C::kAhead ? x[m][w] : quad(pass, i, w);
        a.x += y.x, a.y += y.y, a.z += y.z, a.w += y.w;
      }
      deliver<C>(p, d, row, pass * C::kColumns + i % kQuads * 4, a, stats);
    }
    if (!C::kAhead && pass + 1 < C::kMergePasses) ptx::barrier_sync(1, C::kConsumers);
  }
}

/// The same among blocks that share an item: each is sent the columns it sums, of all strands.
template <class C>
__device__ __forceinline__ void join_shares(const Shared<C>& shared, const Params& p, const Item& d,
                                            const ThreadPlace& place, const QueryRows<C>& rows) {
  const auto& [warp, lane, thread] = place;
  using Rows = QueryRows<C>;
  constexpr int kStats = C::kStrands * C::kRows * C::kOwnColumns;  // states lie behind the columns
  const int strand = own_share<C>() * C::kWarps + warp;
  const std::uint32_t to = ptx::shared_address(shared.joined);
  ptx::cluster_wait();  // the others' barriers are there
#pragma unroll
  for (int i = 0; i < Rows::kSets; ++i) {
    const int row = strand * C::kRows + Rows::row_of(i, lane);
    for (int share = lane % 4; share < C::kShares; share += 4)
      ptx::send_pair(share, to + (kStats + row * 2) * 4, rows.top[i], rows.sum[i], shared.join);
#pragma unroll
    for (int n = 0; n < C::kHeadDim / 8; ++n) {
      const float* o = rows.o[i / C::kHalves][n] + 2 * (i % C::kHalves);
      const int column = 8 * n % C::kOwnColumns + 2 * (lane % 4);
      ptx::send_pair(8 * n / C::kOwnColumns, to + (row * C::kOwnColumns + column) * 4, o[0], o[1],
                     shared.join);
    }
  }
  ptx::mbarrier_wait(shared.join, 0);
  const float* stats = shared.joined + kStats;
  for (int i = thread; i < C::kRows * C::kOwnQuads; i += C::kConsumers) {
    const int row = i / C::kOwnQuads, quad = i % C::kOwnQuads * 4;
    if (d.row_block * C::kRows + row >= d.place.q_tokens * p.group) break;
    const float top = top_of<C>(stats, row);
    float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::kStrands; ++w) {  // rounded where join_warps rounds
      const float own = stats[(w * C::kRows + row) * 2], f = own == -INFINITY ? 0.f : ptx::exp2(own - top);
      const float4 x =
          *reinterpret_cast<const float4*>(shared.joined + (w * C::kRows + row) * C::kOwnColumns + quad);
      a.x += __fmul_rn(x.x, f), a.y += __fmul_rn(x.y, f);
      a.z += __fmul_rn(x.z, f), a.w += __fmul_rn(x.w, f);
    }
    deliver<C>(p, d, row, own_share<C>() * C::kOwnColumns + quad, a, stats);
  }
}

template <class C, template <class> class Eight>
__device__ __forceinline__ void multiply_items(const Shared<C>& shared, const Params& p, std::uint8_t* raw) {
  const int lane = threadIdx.x % 32, thread = threadIdx.x, warp = threadIdx.x / 32;
  const int slice = warp % C::kSlices, group = warp / C::kSlices;
  const auto arrive = [&](std::uint32_t bar) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  int slot = 0, phase = 0;
  for (int turn = 0;; ++turn) {
    const int side = turn & 1;
    ptx::mbarrier_wait(shared.q_full + 8 * side, turn >> 1 & 1);
    const bool more = shared.items[turn & 3].b >= 0;
    if (more) {
      decltype(auto) d = shared.published(turn);
      const std::uint32_t q = shared.q + side * C::kQBytes, q_empty = shared.q_empty + 8 * side;
      QueryRows<C> rows;
      rows.start(q, lane);
      if constexpr (C::kHoldsQ) arrive(q_empty);
      std::uint32_t k = 0, empty = 0;
      bool own = true;
#pragma unroll 1
      for (int t = d.begin;;) {
        k = shared.ring + slot * 2 * C::kTileBytes, empty = shared.empty + 8 * slot;
        if constexpr (C::kGroups > 1) own = t % C::kGroups == group;
        if (own) {
          ptx::mbarrier_wait(shared.full + 8 * slot, phase);
          multiply_tile<C, Eight>(p, d,
                                  {.t = t,
                                   .q = q,
                                   .k = k,
                                   .scales = shared.scales + slot * C::kScaleBytes,
                                   .warp = slice,
                                   .lane = lane},
                                  rows);
        }
        if (++slot == C::kSlots) slot = 0, phase ^= 1;
        if (++t == d.end) break;
        if (own) arrive(empty);
      }
      if constexpr (!C::kHoldsQ) arrive(q_empty);
#pragma unroll
      for (int i = 0; i < QueryRows<C>::kSets; ++i) {
        rows.sum[i] += __shfl_xor_sync(~0u, rows.sum[i], 1);
        rows.sum[i] += __shfl_xor_sync(~0u, rows.sum[i], 2);
      }
      if constexpr (C::kShares > 1) {
        join_shares<C>(shared, p, d, {.warp = warp, .lane = lane, .thread = thread}, rows);
      } else {
        float* stats = shared.stats + side * C::kStatFloats;
#pragma unroll
        for (int i = 0; i < QueryRows<C>::kSets; ++i)
          if (lane % 4 == 0)
            *reinterpret_cast<float2*>(stats + (warp * C::kRows + QueryRows<C>::row_of(i, lane)) * 2) =
                make_float2(rows.top[i], rows.sum[i]);
        ptx::barrier_sync(1, C::kConsumers);
        join_warps<C>(p, d,
                      {.merge = reinterpret_cast<float*>(raw + (k - ptx::shared_address(raw))),
                       .stats = stats,
                       .place = {.warp = warp, .lane = lane, .thread = thread}},
                      rows);
        ptx::fence_shared_for_async();
        if constexpr (C::kGroups > 1) ptx::barrier_sync(1, C::kConsumers);  // one group speaks for the slot
        if (own) arrive(empty);
      }
      if (thread == 0)
        shared.partial[side] = d.partials > 1
                                   ? make_int2(d.rows_at(p) * C::kShares + own_share<C>(), d.partials)
                                   : make_int2(-1, 0);
    } else if (thread == 0) {
      shared.partial[side] = make_int2(-2, 0);
    }
    // Where this block was the last to finish a row block, it merges the partials.
    if (turn > 0) {
      ptx::mbarrier_wait(shared.counted, (turn - 1) & 1);
      if (shared.last[side ^ 1]) merge_partials<C>(p, shared.published(turn - 1));
    }
    arrive(shared.written);
    if (!more) return;
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    hopper_decode(const __grid_constant__ Maps maps, const __grid_constant__ Params params) {
  extern __shared__ std::uint8_t raw[];
  const Shared<C> shared(raw);
  // The thread that copies has its first keys on their way before the block is ready. (Not where items are
  // shared: there the others' code, which comes from memory too, is what a call of 11 us waits for.)
  constexpr bool kKeysFirst = C::kShares == 1;
  const bool pieces = C::kEight || params.pages, copies = threadIdx.x == C::kConsumers;
  Copy<C> copy{shared, maps, params};
  if (copies) {
    ptx::prefetch_map(&maps.k), ptx::prefetch_map(&maps.v);
    for (int s = 0; s < C::kSlots; ++s)
      ptx::mbarrier_init(shared.full + 8 * s, C::kEight ? 33 : 1);  // 32 lanes bring scales
    for (int side = 0; side < 2; ++side) ptx::mbarrier_init(shared.q_full + 8 * side, 1);
    ptx::mbarrier_init_fence();
    if (kKeysFirst && !pieces) copy.begin();
  } else if (threadIdx.x == 0) {
    for (int s = 0; s < C::kSlots; ++s) ptx::mbarrier_init(shared.empty + 8 * s, C::kSlices);
    for (int side = 0; side < 2; ++side) ptx::mbarrier_init(shared.q_empty + 8 * side, C::kWarps);
    ptx::mbarrier_init(shared.written, C::kWarps), ptx::mbarrier_init(shared.counted, 1);
    ptx::mbarrier_init(shared.join, 1);
    ptx::mbarrier_init_fence();
    if constexpr (C::kShares > 1) ptx::mbarrier_expect(shared.join, 4 * C::kJoinFloats);
  }
  __syncthreads();
  if constexpr (C::kShares > 1) ptx::cluster_arrive();
  if (threadIdx.x >= C::kConsumers) {
    if constexpr (C::kExchanges) ptx::give_registers<C::kGiven>();
    if (threadIdx.x < C::kConsumers + 32) {
      if (pieces)
        copy_pieces<C>(shared, maps, params);
      else if (copies) {
        if (!kKeysFirst) copy.begin();
        copy.run();
      }
    } else if (threadIdx.x == C::kConsumers + 32) {
      count_partials<C>(shared, params);
    }
  } else {
    if constexpr (C::kExchanges) ptx::take_registers<C::kTaken>();
    if (C::kEight && params.e4m3)  // a loop of its own: two ways in one need more registers
      multiply_items<C, FromE4m3>(shared, params, raw);
    else
      multiply_items<C, FromInt8>(shared, params, raw);
  }
}

template <class C>
Status allow(int device) {
  static bool allowed[64] = {};
  return allow_shared("cuda/hopper_decode", hopper_decode<C>, C::kShared, allowed, device);
}

template <class C>
Status start_items(const Instance& instance, const Maps& maps, const Params& params) {
  const Status status = allow<C>(instance.device);
  if (!status.ok()) return status;
  const int processors = instance.processors;
  const auto grid = static_cast<unsigned>(C::kShares > 1              ? params.items * C::kShares
                                          : params.items < processors ? params.items
                                                                      : processors);
  return launch(
      {"cuda/hopper_decode", dim3(grid), C::kThreads, C::kShared, instance.stream, false, C::kShares},
      hopper_decode<C>, maps, params);
}

template <class T, class Kv>
Status attend(const Instance& instance, const Maps& maps, const Params& params) {
  const auto start = [&]<class C>(C*) { return start_items<C>(instance, maps, params); };
  switch (instance.head_dim + instance.rows) {
    case 64 + 16: return start(static_cast<Config<T, Kv, 64, 16>*>(nullptr));
    case 64 + 32: return start(static_cast<Config<T, Kv, 64, 32>*>(nullptr));
    case 128 + 8: return start(static_cast<Config<T, Kv, 128, 8>*>(nullptr));
    case 128 + 16: return start(static_cast<Config<T, Kv, 128, 16>*>(nullptr));
    case 128 + 32: return start(static_cast<Config<T, Kv, 128, 32>*>(nullptr));
    case 256 + 16: return start(static_cast<Config<T, Kv, 256, 16>*>(nullptr));
    default: return {"cuda/hopper_decode", 1, "no instance of this head_dim"};
  }
}

/// use(Config*) of the instance whose blocks share items.
template <class T, class Use>
Status with_shares(int head_dim, int rows, Use&& use) {
  const auto of = [&]<int D, int R>(std::integer_sequence<int, D, R>) {
    return use(static_cast<Config<T, T, D, R, shares_of(D)>*>(nullptr));
  };
  switch (head_dim + rows) {
    case 64 + 16: return of(std::integer_sequence<int, 64, 16>{});
    case 128 + 8: return of(std::integer_sequence<int, 128, 8>{});
    case 128 + 16: return of(std::integer_sequence<int, 128, 16>{});
    case 256 + 16: return of(std::integer_sequence<int, 256, 16>{});
    default: return {"cuda/hopper_decode", 1, "no instance of this head_dim and rows"};
  }
}

template <class T>
Status attend_in_shares(const Instance& instance, const Maps& maps, const Params& params) {
  return with_shares<T>(instance.head_dim, instance.rows,
                        [&]<class C>(C*) { return start_items<C>(instance, maps, params); });
}

template <class T>
Status shared_items(int head_dim, int rows, int device, int& items) {
  return with_shares<T>(head_dim, rows, [&]<class C>(C*) {
    static int known[64] = {};  // one more than there are; 0: not asked yet
    int& mine = known[static_cast<unsigned>(device) % 64];
    Status status;
    if (mine == 0) {
      status = allow<C>(device);
      if (status.ok())
        status = clusters_at_once(
            {"cuda/hopper_decode", dim3(C::kShares), C::kThreads, C::kShared, nullptr, false, C::kShares},
            hopper_decode<C>, items);
      if (!status.ok()) return status;
      mine = items + 1;
    }
    items = mine - 1;
    return status;
  });
}

}  // namespace headwise::cuda::hopper::decode
