// Gradients on Hopper: two warpgroups of 64 keys each make scores, dv, dk and half of dq, step by step of q.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/pairs.cuh"
#include "headwise/kernels/cuda/hopper/backward/tiles.cuh"

namespace headwise::cuda::hopper::backward {

/// A tile of keys, its end: where it lies in shared memory, whose it is.
struct TileEnd {
  int slot, group, first_key;
  std::uint32_t info;
  int4 where, at;
};
/// A warpgroup's dk and dv leave, and the slot of k and v is free.
template <class C>
__device__ __forceinline__ void end_tile(const float (&dk)[C::kDim / 2], const float (&dv)[C::kDim / 2],
                                         const BackwardShared<C>& shared, const BackwardMaps& maps,
                                         const BackwardParams& p, const TileEnd& end) {
  using T = typename C::T;
  constexpr int kDim = C::kDim, kKeys = C::kKeys;
  const auto& [slot, group, first_key, info, where, at] = end;
  const int thread = threadIdx.x % 128;
  const std::uint32_t k = shared.k + slot * C::kKeyBytes, v = shared.v + slot * C::kKeyBytes;
  if (p.parts > 1) {  // fragments as they stand, added up later in the order of parts
    const Index block = static_cast<Index>((at.w * p.kv_heads + where.w) * p.kv_padded +
                                           ptx::load_shared(info + 48).y + first_key) *
                        kDim;
    put_fragments<kDim>(dv, p.dv_parts + block, thread);
    put_fragments<kDim>(dk, p.dk_parts + block, thread);
    ptx::barrier_sync(kOwnGroup + group, 128);
    if (thread == 0) ptx::mbarrier_arrive(shared.kv_empty + 8 * slot);
  } else {
    // dv leaves over this group's rows of v; dk over its rows of k, once the other group has made its dq.
    const auto to = [&](const CUtensorMap* map, void* data, int chunks, const Index(&step)[3]) {
      return GradientRows{map, data, chunks, step, at.z + first_key, where.x - first_key, where.w, at.x};
    };
    store_gradient<T, kDim, kKeys>(dv, C::kPairs ? p.kept : 1.f, v, group * 64,
                                   to(&maps.dv, p.dv, p.value_chunks, p.dv_step), p.store_rows,
                                   kOwnGroup + group);
    ptx::barrier_sync(kBothGroups, 256);
    store_gradient<T, kDim, kKeys>(dk, C::kPairs ? p.scale * p.kept : p.scale, k, group * 64,
                                   to(&maps.dk, p.dk, p.head_chunks, p.dk_step), p.store_rows,
                                   kOwnGroup + group);
    if (p.store_rows) ptx::barrier_sync(kOwnGroup + group, 128);
    if (thread == 0) {
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.kv_empty + 8 * slot);
    }
  }
}

/// One warpgroup: 64 keys of a tile. A step of queries:
///   s = k q^T | dp = v dout^T, p = exp(s) under it | dv += p dout, ds = p (dp - delta) under it | ds to
///   shared memory, both groups meet | dq = ds k, dk += ds q, dq leaves under it | the next s behind them.
/// p and ds are left factors as they stand, since keys are rows.
template <class C>
__device__ __forceinline__ void backward_products(const BackwardShared<C>& shared, const BackwardMaps& maps,
                                                  const BackwardParams& p, int group) {
  using T = typename C::T;
  constexpr int kDim = C::kDim, kKeys = C::kKeys, kQueries = C::kQueries;
  constexpr float kLog2e = 1.44269504088896341f;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  float dk[kDim / 2], dv[kDim / 2], s[kQueries / 2], dp[kQueries / 2];
  std::uint32_t weights[kQueries / 4], ds[kQueries / 4];
  std::uint32_t
      slants[C::kTerms ? kQueries / 4 : 1];  // terms: 1 - tanh^2 in pairs of f16, or s would stay alive
  [[maybe_unused]] const PairThread stand{group, warp, lane};
  [[maybe_unused]] PairDraws<C> draws;
  int used = 0;

#pragma unroll 1
  for (int tile = 0;; ++tile) {
    const int slot = tile % C::kSlots;
    const std::uint32_t info = shared.info_of(tile);
    ptx::mbarrier_wait(shared.kv_full + 8 * slot, (tile / C::kSlots) & 1);
    const int4 what = ptx::load_shared(info);
    if (what.x < 0) break;
    const int4 where = ptx::load_shared(info + 16);
    const int n = what.x, kv_tokens = where.x, q_tokens = where.y, q_start = where.z;
    const std::uint32_t k = shared.k + slot * C::kKeyBytes, v = shared.v + slot * C::kKeyBytes;
    const int steps = ptx::load_shared(info + 48).z * (what.z - what.y);
    const int first_key = n * kKeys + group * 64;
    int m = p.down ? what.z - 1 : what.y, head = what.w;
    float slope = 0.f;
    if constexpr (C::kTerms || C::kPairs)
      if (p.slopes.data) slope = kLog2e * number_of(p.slopes, head);
    if (p.clear_tail && kv_tokens - n * kKeys < kKeys) {
      clear_tile_rows<kDim>(k, kKeys, kv_tokens - n * kKeys, thread);
      clear_tile_rows<kDim>(v, kKeys, kv_tokens - n * kKeys, thread);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(kOwnGroup + group, 128);
    }

    const auto await_queries = [&](int use, int at) {
      ptx::mbarrier_wait(shared.full + 8 * (use & 1), (use >> 1) & 1);
      if (p.clear_tail && q_tokens - at * kQueries < kQueries) {
        clear_tile_rows<kDim>(shared.q + (use & 1) * C::kQBytes, kQueries, q_tokens - at * kQueries, thread);
        clear_tile_rows<kDim>(shared.dout + (use & 1) * C::kQBytes, kQueries, q_tokens - at * kQueries,
                              thread);
        ptx::fence_shared_for_async();
        ptx::barrier_sync(kOwnGroup + group, 128);
      }
    };
    const auto multiply_scores = [&](int use) {
      ptx::wgmma_fence();
      multiply_rows<kQueries, T, kDim / 16, kKeys, kQueries>(s, k + group * 64 * kPanelRowBytes,
                                                             shared.q + (use & 1) * C::kQBytes);
      ptx::wgmma_commit();
    };
    // Pairs: of the step to come, while products run.
    const auto draw = [&] {
      if constexpr (C::kPairs)
        if (p.drops) {
          const int sequence = ptx::load_shared(info + 64).x;
          const Index id = p.sequence_ids ? p.sequence_ids[sequence] : sequence;
          draws.draw(p.rule, id, head, q_start + m * kQueries + column0, first_key + warp * 16, stand);
        }
    };
    // Pairs: scale, bias and slopes. Numbers that are read one by one come before dp takes its registers.
    const auto add_numbers = [&] {
      if constexpr (C::kPairs)
        if (p.bias.data && !p.bias_tiles) {
          const int4 in = ptx::load_shared(info + 64);
          const Index first = in.x * p.bias.step[0] + head * p.bias.step[1] + in.y * p.bias.step[2] +
                              (in.z - n * kKeys) * p.bias.step[3];
          add_bias_numbers<C>(s, p.scale_log2, p.bias,
                              {first, m * kQueries + column0, q_tokens, n * kKeys + row0, kv_tokens});
        }
    };
    const auto weigh = [&](int st) {
      const int position = q_start + m * kQueries;
      const bool edge = first_key + 63 >= kv_tokens || first_key + 63 > position + p.ahead ||
                        first_key < position + kQueries - 1 - p.back;
      if constexpr (C::kPairs)
        add_pair_terms<C>(s, p, shared.score + st * C::kScoreBytes, stand, slope,
                          position + column0 - n * kKeys - row0);
      if (!C::kTerms && edge)
        each_closed<C>(p, n * kKeys + row0, kv_tokens, position + column0,
                       [&](int j, int r, bool closed0, bool closed1) {
                         if (closed0) s[4 * j + 2 * r] = -INFINITY;
                         if (closed1) s[4 * j + 2 * r + 1] = -INFINITY;
                       });
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 l = ptx::load_pair(shared.lse + st * C::kRowBytes + (8 * j + column0) * 4);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
          if constexpr (C::kTerms) {
            const int distance = position + column0 + 8 * j - (n * kKeys + row0 + 8 * r);
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
            continue;
          } else {
            x0 = ptx::exp2(fmaf(x0, p.scale_log2, -l.x)), x1 = ptx::exp2(fmaf(x1, p.scale_log2, -l.y));
          }
          weights[2 * j + r] = Number<T>::pack(x0, x1);
        }
      }
      if constexpr (C::kPairs) {
#pragma unroll
        for (int i = 0; i < kQueries / 4; ++i) weights[i] = ds[i];
        if (p.drops) draws.apply(weights, stand);
      }
      if (C::kTerms && edge)
        each_closed<C>(p, n * kKeys + row0, kv_tokens, position + column0,
                       [&](int j, int r, bool closed0, bool closed1) {
                         weights[2 * j + r] &= (closed0 ? 0u : 0xffffu) | (closed1 ? 0u : 0xffff0000u);
                       });
    };
    const auto step = [&](bool more) {
      const int st = used & 1;
      const std::uint32_t q = shared.q + st * C::kQBytes, dout = shared.dout + st * C::kQBytes;
      ptx::wgmma_wait<0>();
      ptx::pin(s), ptx::pin(dk), ptx::pin(dv);
      add_numbers();
      ptx::wgmma_fence();
      multiply_rows<kQueries, T, kDim / 16, kKeys, kQueries>(dp, v + group * 64 * kPanelRowBytes, dout);
      ptx::wgmma_commit();
      weigh(st);
      const std::uint64_t dout_columns = columns_descriptor(dout, kQueries);
      ptx::pin(dv), ptx::pin(weights);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i)
        Wgmma<kDim, T>::left_registers(dv, weights + 4 * i, advanced(dout_columns, kRowStep * i));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(dp);
      score_gradients<C>(ds, {s, dp, weights, slants}, shared.delta + st * C::kRowBytes + column0 * 4, p);
      // [queries keys], a panel of 64 keys for each group. Two slots: the other group may still read the
      // last.
      const std::uint32_t score = shared.score + st * C::kScoreBytes;
#pragma unroll
      for (int j = 0; j < kQueries / 16; ++j)
        ptx::store_matrices_turned(score + chunk_offset(kQueries, 16 * j + (lane >> 4) * 8 + (lane & 7),
                                                        group * 8 + warp * 2 + ((lane >> 3) & 1)),
                                   ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(kBothGroups, 256);
      if constexpr (C::kPairs)
        if (p.dbias && thread == 0) {
          ptx::store_tile(&maps.dbias, score + group * panel_bytes(kQueries), m * kQueries, 0, head,
                          ptx::load_shared(info + 64).x - p.first, first_key);
          ptx::commit_stores();
        }
      // 64 queries x 64 columns of dq for each group: its half of the columns, or of the queries.
      float dq[32];
      const std::uint64_t left = rows_descriptor(score + (kQueries == 128 ? group * 64 * kPanelRowBytes : 0)),
                          right =
                              columns_descriptor(k + (kDim == 128 ? group * panel_bytes(kKeys) : 0), kKeys);
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
      const std::uint64_t q_columns = columns_descriptor(q, kQueries);
      ptx::pin(dk), ptx::pin(ds);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kQueries / 16; ++i)
        Wgmma<kDim, T>::left_registers(dk, ds + 4 * i, advanced(q_columns, kRowStep * i));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(dq);
      ptx::barrier_sync(kSlabEmpty + group, 160);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        ptx::store_floats(shared.sum + group * C::kSlabBytes + i * 2048 + thread * 16, dq[4 * i],
                          dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
      ptx::fence_shared_for_async();
      ptx::barrier_arrive(kSlabFull + 2 * st + group, 160);

      m += p.down ? -1 : 1;
      if (p.down ? m < what.y : m == what.z) {
        m = p.down ? what.z - 1 : what.y, ++head;
        if constexpr (C::kTerms || C::kPairs)
          if (p.slopes.data && more) slope = kLog2e * number_of(p.slopes, head);
      }
      if (more) await_queries(used + 1, m);
      multiply_scores(used + 1);  // after the last step a dummy: no branch around wgmma
      if (more) draw();
      ptx::wgmma_wait<1>();
      ptx::pin(dv), ptx::pin(dk);
      if constexpr (C::kPairs)
        if (p.dbias && thread == 0) ptx::wait_stores_read();
      if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * st);
      ++used;
    };

#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) dk[i] = 0.f, dv[i] = 0.f;
    if (steps > 0) await_queries(used, m);
    multiply_scores(used);
    if (steps > 0) draw();
#pragma unroll 1
    for (int i = 1; i <= steps; ++i) step(i < steps);
    ptx::wgmma_wait<0>();
    ptx::pin(s);

    const int4 at = ptx::load_shared(info + 32);  // batch, row of q, row of k, part
    end_tile<C>(dk, dv, shared, maps, p, {slot, group, first_key, info, where, at});
  }
  if (thread == 0) ptx::wait_stores();
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
                int device, int processors, cudaStream_t stream) {
  constexpr const char* kName = "cuda/hopper_backward";
  const auto start = [&]<int HeadDim, BackwardPasses Passes>() {
    using C = BackwardConfig<T, HeadDim, Passes>;
    static bool allowed[64] = {};
    const Status status = allow_shared(kName, hopper_backward<C>, C::kShared, allowed, device);
    if (!status.ok()) return status;
    const auto grid = static_cast<unsigned>(params.tiles < processors ? params.tiles : processors);
    return launch({kName, dim3(grid), C::kThreads, C::kShared, stream, true}, hopper_backward<C>, maps,
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
