// Gradients in two sweeps on Hopper: one kernel for dk and dv, one for dq; scores are made in both.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/sweeps_copy.cuh"
#include "headwise/kernels/cuda/hopper/backward/tiles.cuh"

namespace headwise::cuda::hopper::backward {

// Seven products instead of five. At head_dim 256 the sums of dk, dv and dq do not fit one kernel's
// registers. 64 KB of dq would leave for every 64 x 64 scores, as much as q and dout bring. Here none leaves,
// no order is waited for, and a tile's bits depend on its sequence alone.

/// What a thread of the kernel of dk and dv holds: sums of its keys, scores or dp, weights or ds as left
/// factors, weights times slopes of the softcap. References: a struct with arrays is not taken apart into
/// registers.
template <class C>
struct SweepKeyRegisters {
  float (&sum)[C::kDim / 2], (&s)[C::kRows / 2];
  std::uint32_t (&left)[C::kRows / 4], (&slanted)[C::kTerms ? C::kRows / 4 : 1];
  int& used;  // tiles of queries that were met
};

/// What a warpgroup does for 64 keys: `Values` makes the weights, hands them over and sums dv = p dout; the
/// other makes dp = v dout^T and sums dk = ds q. Weights are a thread's own to its partner, in the order of
/// fragments: keys are rows, so p and ds are left factors as they stand.
///   values: p handed over | the next s, dv | the next exp under dv
///   keys:   dp of this step | ds | dk, the next dp
template <class C, bool Values>
struct SweepKeyGroup : SweepKeyRegisters<C> {
  using T = typename C::T;
  static constexpr int kDim = C::kDim, kRows = C::kRows, kBarrier = kSweepGroup + (Values ? 0 : 1);
  static constexpr float kLog2e = 1.44269504088896341f;
  using SweepKeyRegisters<C>::sum, SweepKeyRegisters<C>::s, SweepKeyRegisters<C>::left,
      SweepKeyRegisters<C>::slanted, SweepKeyRegisters<C>::used;
  const SweepKeysShared<C>& shared;
  const BackwardMaps& maps;
  const BackwardParams& p;
  int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
  int row0 = warp * 16 + lane / 4, column0 = lane % 4 * 2;
  std::uint32_t own = Values ? shared.k : shared.v;

  /// False: there is no further tile.
  __device__ __forceinline__ bool begin_tile(int tile, SweepKeyTile& now) const {
    ptx::mbarrier_wait(shared.kv_full, tile & 1);
    now.what = ptx::load_shared(shared.info);
    if (now.what.x < 0) return false;
    now.where = ptx::load_shared(shared.info + 16);
    now.first_key = now.what.x * kRows;
    now.steps = p.group * (now.what.z - now.what.y);
    now.m = now.what.y, now.head = now.what.w;
    now.slope = 0.f;
    read_slope(true, now);
    return true;
  }
  __device__ __forceinline__ void read_slope(bool reads, SweepKeyTile& now) const {
    if constexpr (C::kTerms && Values)
      if (p.slopes.data && reads) now.slope = kLog2e * number_of(p.slopes, now.head);
  }
  __device__ __forceinline__ void await_rows(std::uint32_t full, std::uint32_t tiles, int use, int at,
                                             const SweepKeyTile& now) const {
    ptx::mbarrier_wait(full + 8 * (use & 1), (use >> 1) & 1);
    if (p.clear_tail && now.q_tokens() - at * kRows < kRows) {
      clear_tile_rows<kDim>(tiles + (use & 1) * C::kTileBytes, kRows, now.q_tokens() - at * kRows, thread);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(kBarrier, 128);
    }
  }
  __device__ __forceinline__ void await_queries(int use, int at, const SweepKeyTile& now) const {
    await_rows(shared.q_full, shared.q, use, at, now);
  }
  __device__ __forceinline__ void await_dout(int use, int at, const SweepKeyTile& now) const {
    await_rows(shared.dout_full, shared.dout, use, at, now);
  }
  __device__ __forceinline__ void release(std::uint32_t empty, int use) const {
    if (lane == 0) ptx::mbarrier_arrive(empty + 8 * (use & 1));
  }
  /// The next s or dp; after the last step a dummy.
  __device__ __forceinline__ void multiply(int use) const {
    ptx::wgmma_fence();
    multiply_rows<kRows, T, kDim / 16, kRows, kRows>(
        s, own, (Values ? shared.q : shared.dout) + (use & 1) * C::kTileBytes);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void add(int use) const {
    const std::uint64_t right =
        columns_descriptor((Values ? shared.dout : shared.q) + (use & 1) * C::kTileBytes, kRows);
    ptx::pin(sum), ptx::pin(left);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i)
      Wgmma<kDim, T>::left_registers(sum, left + 4 * i, advanced(right, kRowStep * i));
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void weigh(int use, const SweepKeyTile& now) const {
    const int position = now.q_start() + now.m * kRows;
    float2 l;
    weights_of<C>(
        s, p, now.slope, slanted,
        [&](int j, int r) {
          if (r == 0) l = ptx::load_pair(shared.lse + (use & 1) * C::kRowBytes + (8 * j + column0) * 4);
          return l;
        },
        [&](int j, int r, int e) { return position + column0 + 8 * j + e - (now.first_key + row0 + 8 * r); });
    if (now.first_key + 63 >= now.kv_tokens() || now.first_key + 63 > position + p.ahead ||
        now.first_key < position + kRows - 1 - p.back) {
      int low[2], high[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = now.first_key + row0 + 8 * r;
        low[r] = key >= now.kv_tokens() ? 1 << 30 : key - p.ahead - position - column0;
        high[r] = key + p.back - position - column0;
      }
      close_weights<C>(s, slanted, low, high);
    }
  }
  __device__ __forceinline__ void values_step(bool more, SweepKeyTile& now) const {
    const int st = used & 1;
    const std::uint32_t pair = shared.pair + st * C::kPairBytes + thread * 16;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) left[i] = Number<T>::pack(s[2 * i], s[2 * i + 1]);
    ptx::barrier_sync(kPairEmpty + st, 256);
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const std::uint32_t* x = C::kTerms ? slanted + 4 * i : left + 4 * i;
      ptx::store_shared(pair + i * 2048, x[0], x[1], x[2], x[3]);
    }
    ptx::barrier_arrive(kPairFull + st, 256);
    release(shared.q_empty, used);

    const int met = now.m;
    if (++now.m == now.what.z) {
      now.m = now.what.y, ++now.head;
      read_slope(more, now);
    }
    if (more) await_queries(used + 1, now.m, now);
    multiply(used + 1);
    await_dout(used, met, now);
    add(used);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    weigh(used + 1, now);
    ptx::wgmma_wait<0>();
    ptx::pin(sum), ptx::pin(left);
    release(shared.dout_empty, used);
    ++used;
  }
  __device__ __forceinline__ void keys_step(bool more, SweepKeyTile& now) const {
    const int st = used & 1;
    const std::uint32_t pair = shared.pair + st * C::kPairBytes + thread * 16;
    ptx::wgmma_wait<0>();
    ptx::pin(s), ptx::pin(sum);
    ptx::barrier_sync(kPairFull + st, 256);
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int4 w = ptx::load_shared(pair + i * 2048);
      left[4 * i] = static_cast<std::uint32_t>(w.x), left[4 * i + 1] = static_cast<std::uint32_t>(w.y);
      left[4 * i + 2] = static_cast<std::uint32_t>(w.z), left[4 * i + 3] = static_cast<std::uint32_t>(w.w);
    }
    ptx::barrier_arrive(kPairEmpty + st, 256);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 l = ptx::load_pair(shared.delta + st * C::kRowBytes + (8 * j + column0) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint32_t& w = left[2 * j + r];
        const int x = 4 * j + 2 * r;
        w = Number<T>::pack(Number<T>::low(w) * (s[x] - l.x), Number<T>::high(w) * (s[x + 1] - l.y));
      }
    }
    __syncwarp();
    release(shared.dout_empty, used);
    await_queries(used, now.m, now);
    add(used);
    now.m = now.m + 1 == now.what.z ? now.what.y : now.m + 1;
    if (more) await_dout(used + 1, now.m, now);
    multiply(used + 1);
    ptx::wgmma_wait<1>();
    ptx::pin(sum), ptx::pin(left);
    release(shared.q_empty, used);
    ++used;
  }

  __device__ __forceinline__ void meet_queries(SweepKeyTile& now) const {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sum[i] = 0.f;
    if (now.steps > 0) {
      if constexpr (Values)
        await_queries(used, now.m, now);
      else
        await_dout(used, now.m, now);
    }
    multiply(used);
    if constexpr (Values) {
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      weigh(used, now);
    }
#pragma unroll 1
    for (int i = 1; i <= now.steps; ++i) {
      if constexpr (Values)
        values_step(i < now.steps, now);
      else
        keys_step(i < now.steps, now);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(s), ptx::pin(sum);
  }
  __device__ __forceinline__ void end_tile(const SweepKeyTile& now) const {
    const int4 at = ptx::load_shared(shared.info + 32);  // batch, row of q, row of k
    const GradientRows to{Values ? &maps.dv : &maps.dk,
                          Values ? p.dv : p.dk,
                          Values ? p.value_chunks : p.head_chunks,
                          Values ? p.dv_step : p.dk_step,
                          at.z + now.first_key,
                          now.kv_tokens() - now.first_key,
                          now.where.w,
                          at.x};
    store_gradient<T, kDim, kRows>(sum, Values ? 1.f : p.scale,
                                   {.tile = own, .first = 0, .by_rows = p.store_rows, .barrier = kBarrier},
                                   to);
    if (p.store_rows) ptx::barrier_sync(kBarrier, 128);
    if (thread == 0) {
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.kv_empty);
    }
  }
};

template <class C, bool Values>
__device__ __forceinline__ void sweep_key_sums(const SweepKeysShared<C>& shared, const BackwardMaps& maps,
                                               const BackwardParams& p) {
  float sum[C::kDim / 2], s[C::kRows / 2];
  std::uint32_t left[C::kRows / 4], slanted[C::kTerms ? C::kRows / 4 : 1];
  int used = 0;
  const SweepKeyGroup<C, Values> own{{sum, s, left, slanted, used}, shared, maps, p};
  if constexpr (!Values) ptx::barrier_arrive(kPairEmpty, 256), ptx::barrier_arrive(kPairEmpty + 1, 256);

#pragma unroll 1
  for (int tile = 0;; ++tile) {
    SweepKeyTile now;
    if (!own.begin_tile(tile, now)) break;
    own.meet_queries(now);
    own.end_tile(now);
  }
  if (own.thread == 0) ptx::wait_stores();
}

/// What a thread of the kernel of dq holds: sums of its queries, scores that become weights, dp, ds as left
/// factors; of its two rows, r = 0 and 1, log2(e) lse and delta.
template <class C>
struct SweepQueryRegisters {
  float (&sum)[C::kDim / 2], (&s)[C::kRows / 2], (&dp)[C::kRows / 2];
  std::uint32_t (&ds)[C::kRows / 4];
  float (&lse)[2], (&delta)[2];
  int& used;  // tiles of keys that were met
};

/// A warpgroup's 64 queries: dq = ds k over tiles of keys. The two groups share k and v and never meet.
///   s of this step | dp, exp under it | ds | dq, the next s behind it
template <class C>
struct SweepQueryGroup : SweepQueryRegisters<C> {
  using T = typename C::T;
  static constexpr int kDim = C::kDim, kRows = C::kRows;
  static constexpr float kLog2e = 1.44269504088896341f;
  using SweepQueryRegisters<C>::sum, SweepQueryRegisters<C>::s, SweepQueryRegisters<C>::dp,
      SweepQueryRegisters<C>::ds, SweepQueryRegisters<C>::lse, SweepQueryRegisters<C>::delta,
      SweepQueryRegisters<C>::used;
  const SweepQueriesShared<C>& shared;
  const BackwardMaps& maps;
  const BackwardParams& p;
  int group;
  int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
  int row0 = warp * 16 + lane / 4, column0 = lane % 4 * 2, barrier = kSweepGroup + group;
  std::uint32_t q = shared.q + group * C::kTileBytes, dout = shared.dout + group * C::kTileBytes;

  /// False: there is no further tile.
  __device__ __forceinline__ bool begin_tile(int tile, SweepQueryTile& now) const {
    ptx::mbarrier_wait(shared.own_full, tile & 1);
    now.what = ptx::load_shared(shared.info);
    if (now.what.x < 0) return false;
    now.where = ptx::load_shared(shared.info + 16);
    now.first = now.what.x * 2 * kRows + group * kRows, now.position = now.where.z + now.first;
    now.n = now.what.y, now.slope = 0.f;
    const int at = now.what.w * p.q_padded + ptx::load_shared(shared.info + 48).x + now.first + row0;
#pragma unroll
    for (int r = 0; r < 2; ++r) lse[r] = p.lse[at + 8 * r], delta[r] = p.delta[at + 8 * r];
    if constexpr (C::kTerms)
      if (p.slopes.data) now.slope = kLog2e * number_of(p.slopes, now.what.w);
    return true;
  }
  __device__ __forceinline__ void clear_keys(std::uint32_t tile_at, int at, const SweepQueryTile& now) const {
    if (p.clear_tail && now.kv_tokens() - at * kRows < kRows) {
      clear_tile_rows<kDim>(tile_at, kRows, now.kv_tokens() - at * kRows, thread);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(barrier, 128);
    }
  }
  __device__ __forceinline__ void await_keys(int use, int at, const SweepQueryTile& now) const {
    ptx::mbarrier_wait(shared.k_full + 8 * (use & 1), (use >> 1) & 1);
    clear_keys(shared.k + (use & 1) * C::kTileBytes, at, now);
  }
  __device__ __forceinline__ void release(std::uint32_t empty) const {
    if (lane == 0) ptx::mbarrier_arrive(empty);
  }
  __device__ __forceinline__ void multiply_scores(int use) const {
    ptx::wgmma_fence();
    multiply_rows<kRows, T, kDim / 16, kRows, kRows>(s, q, shared.k + (use & 1) * C::kTileBytes);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void weigh(std::uint32_t (&slanted)[C::kTerms ? 16 : 1],
                                        const SweepQueryTile& now) const {
    const int first_key = now.n * kRows;
    weights_of<C>(
        s, p, now.slope, slanted, [&](int, int r) { return make_float2(lse[r], lse[r]); },
        [&](int j, int r, int e) { return now.position + row0 + 8 * r - (first_key + column0 + 8 * j + e); });
    if (first_key + 63 >= now.kv_tokens() || first_key + 63 > now.position + p.ahead ||
        first_key < now.position + kRows - 1 - p.back) {
      int low[2], high[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int query = now.position + row0 + 8 * r;
        low[r] = query - p.back - first_key - column0;
        high[r] = min(query + p.ahead, now.kv_tokens() - 1) - first_key - column0;
      }
      close_weights<C>(s, slanted, low, high);
    }
  }
  __device__ __forceinline__ void step(bool more, SweepQueryTile& now) const {
    const int st = used & 1;
    ptx::wgmma_wait<0>();
    ptx::pin(s), ptx::pin(sum);
    ptx::mbarrier_wait(shared.v_full, used & 1);
    clear_keys(shared.v, now.n, now);
    ptx::wgmma_fence();
    multiply_rows<kRows, T, kDim / 16, kRows, kRows>(dp, dout, shared.v);
    ptx::wgmma_commit();
    std::uint32_t slanted[C::kTerms ? 16 : 1];
    weigh(slanted, now);
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    release(shared.v_empty);
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int r = i & 1;
      const float w0 = C::kTerms ? Number<T>::low(slanted[C::kTerms ? i : 0]) : s[2 * i],
                  w1 = C::kTerms ? Number<T>::high(slanted[C::kTerms ? i : 0]) : s[2 * i + 1];
      ds[i] = Number<T>::pack(w0 * (dp[2 * i] - delta[r]), w1 * (dp[2 * i + 1] - delta[r]));
    }
    const std::uint64_t right = columns_descriptor(shared.k + st * C::kTileBytes, kRows);
    ptx::pin(sum), ptx::pin(ds);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i)
      Wgmma<kDim, T>::left_registers(sum, ds + 4 * i, advanced(right, kRowStep * i));
    ptx::wgmma_commit();
    ++now.n;
    if (more) await_keys(used + 1, now.n, now);
    multiply_scores(used + 1);  // after the last step a dummy
    ptx::wgmma_wait<1>();
    ptx::pin(sum), ptx::pin(ds);
    release(shared.k_empty + 8 * st);
    ++used;
  }

  __device__ __forceinline__ void meet_keys(SweepQueryTile& now) const {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sum[i] = 0.f;
    await_keys(used, now.n, now);
    multiply_scores(used);
#pragma unroll 1
    for (int i = now.what.y + 1; i <= now.what.z; ++i) step(i < now.what.z, now);
    ptx::wgmma_wait<0>();
    ptx::pin(s), ptx::pin(sum);
  }
  __device__ __forceinline__ void end_tile(const SweepQueryTile& now) const {
    const int4 at = ptx::load_shared(shared.info + 32);
    const GradientRows to{
        &maps.dq,   p.dq_out, p.head_chunks, p.dq_step, at.y + now.first, now.q_tokens() - now.first,
        now.what.w, at.x};
    store_gradient<T, kDim, kRows>(sum, p.scale,
                                   {.tile = q, .first = 0, .by_rows = p.store_rows, .barrier = barrier}, to);
    if (p.store_rows) ptx::barrier_sync(barrier, 128);
    if (thread == 0) {
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.own_empty);
    }
  }
};

template <class C>
__device__ __forceinline__ void sweep_query_sums(const SweepQueriesShared<C>& shared,
                                                 const BackwardMaps& maps, const BackwardParams& p,
                                                 int group) {
  float sum[C::kDim / 2], s[C::kRows / 2], dp[C::kRows / 2], lse[2], delta[2];
  std::uint32_t ds[C::kRows / 4];
  int used = 0;
  const SweepQueryGroup<C> own{{sum, s, dp, ds, lse, delta, used}, shared, maps, p, group};

#pragma unroll 1
  for (int tile = 0;; ++tile) {
    SweepQueryTile now;
    if (!own.begin_tile(tile, now)) break;
    own.meet_keys(now);
    own.end_tile(now);
  }
  if (own.thread == 0) ptx::wait_stores();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_sweep_keys(const __grid_constant__ BackwardMaps maps,
                      const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const SweepKeysShared<C> shared(raw);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    if (shared.k % kTileAlign != 0) __trap();
    ptx::mbarrier_init(shared.kv_full, 1), ptx::mbarrier_init(shared.kv_empty, 2);
    for (int s = 0; s < 16; s += 8) {
      ptx::mbarrier_init(shared.q_full + s, 1), ptx::mbarrier_init(shared.q_empty + s, 8);
      ptx::mbarrier_init(shared.dout_full + s, 1), ptx::mbarrier_init(shared.dout_empty + s, 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  if (group == 0) {
    ptx::give_registers<C::kCopyRegisters>();
    if (threadIdx.x < 32 && ptx::elect_one()) sweep_copy<C>(shared, maps, params);
  } else {
    ptx::take_registers<C::kProductRegisters>();
    if (group == 1)
      sweep_key_sums<C, true>(shared, maps, params);
    else
      sweep_key_sums<C, false>(shared, maps, params);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_sweep_queries(const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const SweepQueriesShared<C> shared(raw);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    if (shared.q % kTileAlign != 0) __trap();
    ptx::mbarrier_init(shared.own_full, 1), ptx::mbarrier_init(shared.own_empty, 2);
    ptx::mbarrier_init(shared.v_full, 1), ptx::mbarrier_init(shared.v_empty, 8);
    for (int s = 0; s < 16; s += 8)
      ptx::mbarrier_init(shared.k_full + s, 1), ptx::mbarrier_init(shared.k_empty + s, 8);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  if (group == 0) {
    ptx::give_registers<C::kCopyRegisters>();
    if (threadIdx.x < 32 && ptx::elect_one()) sweep_copy<C>(shared, maps, params);
  } else {
    ptx::take_registers<C::kProductRegisters>();
    sweep_query_sums<C>(shared, maps, params, group - 1);
  }
}

template <class T>
Status sweep_backward(const SweepInstance& instance, const BackwardMaps& maps, const BackwardParams& params,
                      const LaunchPlace& place) {
  constexpr const char* kName = "cuda/hopper_backward";
  const auto start = [&]<int HeadDim, bool Terms>() {
    using C = SweepConfig<T, HeadDim, Terms>;
    const bool keys = instance.what == SweepGradient::keys;
    const auto kernel = keys ? hopper_sweep_keys<C> : hopper_sweep_queries<C>;
    const std::size_t bytes = keys ? C::kKeysShared : C::kQueriesShared;
    static bool allowed[2][64] = {};
    const Status status = allow_shared(kName, kernel, bytes, allowed[keys], place.device);
    if (!status.ok()) return status;
    const auto grid = static_cast<unsigned>(min_of(params.tiles, place.processors));
    return launch({kName, dim3(grid), C::kThreads, bytes, place.stream, true}, kernel, maps, params);
  };
  const auto of_width = [&]<int HeadDim>() {
    return instance.terms ? start.template operator()<HeadDim, true>()
                          : start.template operator()<HeadDim, false>();
  };
  return instance.width == 192 ? of_width.template operator()<192>() : of_width.template operator()<256>();
}

}  // namespace headwise::cuda::hopper::backward
