// Gradients on Hopper: two warpgroups of 64 keys each make scores, dv, dk and half of dq, step by step of q.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/group.cuh"

namespace headwise::cuda::hopper::backward {

/// Two scores become weights in exponents of 2 over `l`. `distance`: of the first query and the key.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::weigh_pair(int j, int r, const float2& l, int distance,
                                                             float slope) const {
  float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
  if constexpr (C::kTerms) {
    float slant0 = 1.f, slant1 = 1.f;
    if (p.cap > 0.f) {
      x0 = capped(p, x0, slant0), x1 = capped(p, x1, slant1);
    } else {
      x0 *= p.scale_log2, x1 *= p.scale_log2;
    }
    x0 = ptx::exp2(fmaf(-slope, static_cast<float>(abs(distance)), x0) - l.x);
    x1 = ptx::exp2(fmaf(-slope, static_cast<float>(abs(distance + 1)), x1) - l.y);
    slants[2 * j + r] = Number<f16>::pack(slant0, slant1);
  } else if constexpr (C::kPairs) {
    x0 = ptx::exp2(x0 - l.x), x1 = ptx::exp2(x1 - l.y);
    ds[2 * j + r] = Number<T>::pack(x0, x1);  // as the gradient of a score needs it
    return;
  } else {
    x0 = ptx::exp2(fmaf(x0, p.scale_log2, -l.x)), x1 = ptx::exp2(fmaf(x1, p.scale_log2, -l.y));
  }
  weights[2 * j + r] = Number<T>::pack(x0, x1);
}

/// Scores of this step become weights, those of closed pairs 0.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::weigh(int st, const KeyTile& now) const {
  const int position = now.q_start() + now.m * kQueries;
  const bool edge = now.first_key + 63 >= now.kv_tokens() || now.first_key + 63 > position + p.ahead ||
                    now.first_key < position + kQueries - 1 - p.back;
  if constexpr (C::kPairs)
    add_pair_terms<C>(s, p, shared.score + st * C::kScoreBytes, stand, now.slope,
                      position + column0 - now.n() * kKeys - row0);
  if (!C::kTerms && edge)
    each_closed<C>(p, now.n() * kKeys + row0, now.kv_tokens(), position + column0,
                   [&](int j, int r, bool closed0, bool closed1) {
                     if (closed0) s[4 * j + 2 * r] = -INFINITY;
                     if (closed1) s[4 * j + 2 * r + 1] = -INFINITY;
                   });
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j) {
    const float2 l = ptx::load_pair(shared.lse + st * C::kRowBytes + (8 * j + column0) * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      weigh_pair(j, r, l, position + column0 + 8 * j - (now.n() * kKeys + row0 + 8 * r), now.slope);
  }
  if constexpr (C::kPairs) {
#pragma unroll
    for (int i = 0; i < kQueries / 4; ++i) weights[i] = ds[i];
    if (p.drops) draws.apply(weights, stand);
  }
  if (C::kTerms && edge)
    each_closed<C>(p, now.n() * kKeys + row0, now.kv_tokens(), position + column0,
                   [&](int j, int r, bool closed0, bool closed1) {
                     weights[2 * j + r] &= (closed0 ? 0u : 0xffffu) | (closed1 ? 0u : 0xffff0000u);
                   });
}

/// dv += p dout
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::add_values(std::uint32_t dout) const {
  const std::uint64_t dout_columns = columns_descriptor(dout, kQueries);
  ptx::pin(dv), ptx::pin(weights);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kQueries / 16; ++i)
    Wgmma<kDim, T>::left_registers(dv, weights + 4 * i, advanced(dout_columns, kRowStep * i));
  ptx::wgmma_commit();
}

/// ds to shared memory as [queries keys], a panel of 64 keys for each group, where both groups meet.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::share_gradients(std::uint32_t score,
                                                                  const KeyTile& now) const {
#pragma unroll
  for (int j = 0; j < kQueries / 16; ++j)
    ptx::store_matrices_turned(score + chunk_offset(kQueries, 16 * j + (lane >> 4) * 8 + (lane & 7),
                                                    group * 8 + warp * 2 + ((lane >> 3) & 1)),
                               ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
  ptx::fence_shared_for_async();
  ptx::barrier_sync(kBothGroups, 256);
  if constexpr (C::kPairs)
    if (p.dbias && thread == 0) {
      ptx::store_tile(&maps.dbias, score + group * panel_bytes(kQueries), now.m * kQueries, 0, now.head,
                      ptx::load_shared(now.info + 64).x - p.first, now.first_key);
      ptx::commit_stores();
    }
}

/// dq = ds k: 64 queries x 64 columns for each group, its half of the columns, or of the queries.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::multiply_queries(float (&dq)[32], std::uint32_t score,
                                                                   const KeyTile& now) const {
  const std::uint64_t left = rows_descriptor(score + (kQueries == 128 ? group * 64 * kPanelRowBytes : 0)),
                      right =
                          columns_descriptor(now.k + (kDim == 128 ? group * panel_bytes(kKeys) : 0), kKeys);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    if (i == 0)
      Wgmma<64, T>::template first_shared<1>(dq, left, right);
    else
      Wgmma<64, T>::template more_shared<1>(dq, advanced(left, k_step(kQueries, i)),
                                            advanced(right, kRowStep * i));
  }
  ptx::wgmma_commit();
}

/// dk += ds q
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::add_keys(std::uint32_t q) const {
  const std::uint64_t q_columns = columns_descriptor(q, kQueries);
  ptx::pin(dk), ptx::pin(ds);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kQueries / 16; ++i)
    Wgmma<kDim, T>::left_registers(dk, ds + 4 * i, advanced(q_columns, kRowStep * i));
  ptx::wgmma_commit();
}

/// A step of queries:
///   s = k q^T | dp = v dout^T, p = exp(s) under it | dv += p dout, ds = p (dp - delta) under it | ds to
///   shared memory, both groups meet | dq = ds k, dk += ds q, dq leaves under it | the next s behind them.
/// p and ds are left factors as they stand, since keys are rows.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::step(bool more, KeyTile& now) const {
  const int st = used & 1;
  const std::uint32_t q = shared.q + st * C::kQBytes, dout = shared.dout + st * C::kQBytes;
  ptx::wgmma_wait<0>();
  ptx::pin(s), ptx::pin(dk), ptx::pin(dv);
  add_numbers(now);
  ptx::wgmma_fence();
  multiply_rows<kQueries, T, kDim / 16, kKeys, kQueries>(dp, now.v + group * 64 * kPanelRowBytes, dout);
  ptx::wgmma_commit();
  weigh(st, now);
  add_values(dout);
  ptx::wgmma_wait<1>();
  ptx::pin(dp);
  score_gradients<C>(ds, {s, dp, weights, slants}, shared.delta + st * C::kRowBytes + column0 * 4, p);
  // Two slots: the other group may still read the last.
  const std::uint32_t score = shared.score + st * C::kScoreBytes;
  share_gradients(score, now);
  float dq[32];
  multiply_queries(dq, score, now);
  add_keys(q);
  ptx::wgmma_wait<1>();
  ptx::pin(dq);
  ptx::barrier_sync(kSlabEmpty + group, 160);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    ptx::store_floats(shared.sum + group * C::kSlabBytes + i * 2048 + thread * 16, dq[4 * i], dq[4 * i + 1],
                      dq[4 * i + 2], dq[4 * i + 3]);
  ptx::fence_shared_for_async();
  ptx::barrier_arrive(kSlabFull + 2 * st + group, 160);

  now.m += p.down ? -1 : 1;
  if (p.down ? now.m < now.what.y : now.m == now.what.z) {
    now.m = p.down ? now.what.z - 1 : now.what.y, ++now.head;
    read_slope(more, now);
  }
  if (more) await_queries(used + 1, now.m, now);
  multiply_scores(used + 1, now);  // after the last step a dummy: no branch around wgmma
  if (more) draw(now);
  ptx::wgmma_wait<1>();
  ptx::pin(dv), ptx::pin(dk);
  if constexpr (C::kPairs)
    if (p.dbias && thread == 0) ptx::wait_stores_read();
  if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * st);
  ++used;
}

template <class C>
__device__ __forceinline__ void BackwardGroup<C>::meet_queries(KeyTile& now) const {
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) dk[i] = 0.f, dv[i] = 0.f;
  if (now.steps > 0) await_queries(used, now.m, now);
  multiply_scores(used, now);
  if (now.steps > 0) draw(now);
#pragma unroll 1
  for (int i = 1; i <= now.steps; ++i) step(i < now.steps, now);
  ptx::wgmma_wait<0>();
  ptx::pin(s);
}

/// A warpgroup's dk and dv leave, and the slot of k and v is free.
template <class C>
__device__ __forceinline__ void BackwardGroup<C>::end_tile(const KeyTile& now) const {
  const int4 at = ptx::load_shared(now.info + 32);  // batch, row of q, row of k, part
  if (p.parts > 1) {  // fragments as they stand, added up later in the order of parts
    const Index block = static_cast<Index>((at.w * p.kv_heads + now.where.w) * p.kv_padded +
                                           ptx::load_shared(now.info + 48).y + now.first_key) *
                        kDim;
    put_fragments<kDim>(dv, p.dv_parts + block, thread);
    put_fragments<kDim>(dk, p.dk_parts + block, thread);
    ptx::barrier_sync(kOwnGroup + group, 128);
    if (thread == 0) ptx::mbarrier_arrive(shared.kv_empty + 8 * now.slot);
  } else {
    // dv leaves over this group's rows of v; dk over its rows of k, once the other group has made its dq.
    const auto to = [&](const CUtensorMap* map, void* data, int chunks, const Index(&step)[3]) {
      return GradientRows{map,         data, chunks, step, at.z + now.first_key, now.where.x - now.first_key,
                          now.where.w, at.x};
    };
    const auto through = [&](std::uint32_t tile) {
      return StagedRows{
          .tile = tile, .first = group * 64, .by_rows = p.store_rows, .barrier = kOwnGroup + group};
    };
    store_gradient<T, kDim, kKeys>(dv, C::kPairs ? p.kept : 1.f, through(now.v),
                                   to(&maps.dv, p.dv, p.value_chunks, p.dv_step));
    ptx::barrier_sync(kBothGroups, 256);
    store_gradient<T, kDim, kKeys>(dk, C::kPairs ? p.scale * p.kept : p.scale, through(now.k),
                                   to(&maps.dk, p.dk, p.head_chunks, p.dk_step));
    if (p.store_rows) ptx::barrier_sync(kOwnGroup + group, 128);
    if (thread == 0) {
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.kv_empty + 8 * now.slot);
    }
  }
}

/// One warpgroup: 64 keys of each tile.
template <class C>
__device__ __forceinline__ void backward_products(const BackwardShared<C>& shared, const BackwardMaps& maps,
                                                  const BackwardParams& p, int group) {
  constexpr int kDim = C::kDim, kQueries = C::kQueries;
  float dk[kDim / 2], dv[kDim / 2], s[kQueries / 2], dp[kQueries / 2];
  std::uint32_t weights[kQueries / 4], ds[kQueries / 4], slants[C::kTerms ? kQueries / 4 : 1];
  [[maybe_unused]] PairDraws<C> draws;
  int used = 0;
  const BackwardGroup<C> own{{dk, dv, s, dp, weights, ds, slants, draws, used}, shared, maps, p, group};

#pragma unroll 1
  for (int tile = 0;; ++tile) {
    KeyTile now;
    if (!own.begin_tile(tile, now)) break;
    own.meet_queries(now);
    own.end_tile(now);
  }
  if (own.thread == 0) ptx::wait_stores();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_backward(const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  const BackwardShared<C> shared(raw);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    if (shared.k % kTileAlign != 0) __trap();
    ptx::prefetch_map(&maps.q), ptx::prefetch_map(&maps.dout), ptx::prefetch_map(&maps.k),
        ptx::prefetch_map(&maps.v), ptx::prefetch_map(&maps.dk), ptx::prefetch_map(&maps.dv);
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_init(shared.kv_full + 8 * s, 1), ptx::mbarrier_init(shared.kv_empty + 8 * s, 4);
      ptx::mbarrier_init(shared.full + 8 * s, 1), ptx::mbarrier_init(shared.empty + 8 * s, 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::let_follower_start();
  ptx::wait_for_forerunner();
  if (group == 0) {
    ptx::give_registers<C::kCopyRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp == 0) {
      if (ptx::elect_one()) backward_copy<C>(shared, maps, params);
    } else if (warp <= 2) {
      backward_add<C>(shared, params, warp - 1);
    }
  } else {
    ptx::take_registers<C::kProductRegisters>();
    backward_products<C>(shared, maps, params, group - 1);
  }
}

template <class T>
Status backward(int width, BackwardPasses passes, const BackwardMaps& maps, const BackwardParams& params,
                const LaunchPlace& place) {
  constexpr const char* kName = "cuda/hopper_backward";
  const auto start = [&]<int HeadDim, BackwardPasses Passes>() {
    using C = BackwardConfig<T, HeadDim, Passes>;
    static bool allowed[64] = {};
    const Status status = allow_shared(kName, hopper_backward<C>, C::kShared, allowed, place.device);
    if (!status.ok()) return status;
    const auto grid =
        static_cast<unsigned>(params.tiles < place.processors ? params.tiles : place.processors);
    return launch({kName, dim3(grid), C::kThreads, C::kShared, place.stream, true}, hopper_backward<C>, maps,
                  params);
  };
  const auto of_width = [&]<int HeadDim>() {
    switch (passes) {
      case BackwardPasses::band: return start.template operator()<HeadDim, BackwardPasses::band>();
      case BackwardPasses::terms: return start.template operator()<HeadDim, BackwardPasses::terms>();
      default: return start.template operator()<HeadDim, BackwardPasses::pairs>();
    }
  };
  return width == 64 ? of_width.template operator()<64>() : of_width.template operator()<128>();
}

}  // namespace headwise::cuda::hopper::backward
