// Gradients on Hopper: two warpgroups of 64 keys each make scores, dv, dk and half of dq, step by step of q.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/tiles.cuh"

namespace headwise::cuda {

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
  constexpr bool kRoundedWeights = C::kTerms || kDim == 64;  // registers are short: ds from p as dv reads it
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  float dk[kDim / 2], dv[kDim / 2], s[kQueries / 2], dp[kQueries / 2];
  std::uint32_t weights[kQueries / 4], ds[kQueries / 4];
  std::uint32_t
      slants[C::kTerms ? kQueries / 4 : 1];  // terms: 1 - tanh^2 in pairs of f16, or s would stay alive
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
    if constexpr (C::kTerms)
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
    const auto weigh = [&](int st) {
      const int position = q_start + m * kQueries;
      const bool edge = first_key + 63 >= kv_tokens || first_key + 63 > position + p.ahead ||
                        first_key < position + kQueries - 1 - p.back;
      const auto each_closed = [&](auto&& close) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int key = n * kKeys + row0 + 8 * r;
          const int low = key >= kv_tokens ? 1 << 30 : key - p.ahead - position - column0;
          const int high = key + p.back - position - column0;
#pragma unroll
          for (int j = 0; j < kQueries / 8; ++j)
            close(j, r, 8 * j < low || 8 * j > high, 8 * j + 1 < low || 8 * j + 1 > high);
        }
      };
      if (!C::kTerms && edge)
        each_closed([&](int j, int r, bool closed0, bool closed1) {
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
          } else {
            x0 = ptx::exp2(fmaf(x0, p.scale_log2, -l.x)), x1 = ptx::exp2(fmaf(x1, p.scale_log2, -l.y));
          }
          weights[2 * j + r] = Number<T>::pack(x0, x1);
        }
      }
      if (C::kTerms && edge)
        each_closed([&](int j, int r, bool closed0, bool closed1) {
          weights[2 * j + r] &= (closed0 ? 0u : 0xffffu) | (closed1 ? 0u : 0xffff0000u);
        });
    };
    const auto step = [&](bool more) {
      const int st = used & 1;
      const std::uint32_t q = shared.q + st * C::kQBytes, dout = shared.dout + st * C::kQBytes;
      ptx::wgmma_wait<0>();
      ptx::pin(s), ptx::pin(dk), ptx::pin(dv);
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
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 l = ptx::load_pair(shared.delta + st * C::kRowBytes + (8 * j + column0) * 4);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int x = 4 * j + 2 * r;
          float w0 = kRoundedWeights ? Number<T>::low(weights[2 * j + r]) : s[x],
                w1 = kRoundedWeights ? Number<T>::high(weights[2 * j + r]) : s[x + 1];
          if constexpr (C::kTerms)
            w0 *= Number<f16>::low(slants[2 * j + r]), w1 *= Number<f16>::high(slants[2 * j + r]);
          ds[2 * j + r] = Number<T>::pack(w0 * (dp[x] - l.x), w1 * (dp[x + 1] - l.y));
        }
      }
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
        if constexpr (C::kTerms)
          if (p.slopes.data && more) slope = kLog2e * number_of(p.slopes, head);
      }
      if (more) await_queries(used + 1, m);
      multiply_scores(used + 1);  // after the last step a dummy: no branch around wgmma
      ptx::wgmma_wait<1>();
      ptx::pin(dv), ptx::pin(dk);
      if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * st);
      ++used;
    };

#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) dk[i] = 0.f, dv[i] = 0.f;
    if (steps > 0) await_queries(used, m);
    multiply_scores(used);
#pragma unroll 1
    for (int i = 1; i <= steps; ++i) step(i < steps);
    ptx::wgmma_wait<0>();
    ptx::pin(s);

    const int4 at = ptx::load_shared(info + 32);  // batch, row of q, row of k, part
    if (p.parts > 1) {  // fragments as they stand, added up later in the order of parts
      const Index block = static_cast<Index>((at.w * p.kv_heads + where.w) * p.kv_padded +
                                             ptx::load_shared(info + 48).y + first_key) *
                          kDim;
      const auto put = [&](const float(&d)[kDim / 2], float* to) {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
          reinterpret_cast<float4*>(to + block)[i * 128 + thread] =
              make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
      };
      put(dv, p.dv_parts);
      put(dk, p.dk_parts);
      ptx::barrier_sync(kOwnGroup + group, 128);
      if (thread == 0) ptx::mbarrier_arrive(shared.kv_empty + 8 * slot);
    } else {
      // dv leaves over this group's rows of v; dk over its rows of k, once the other group has made its dq.
      const auto to = [&](const CUtensorMap* map, void* data, int chunks, const Index(&step)[3]) {
        return GradientRows{map, data, chunks, step, at.z + first_key, kv_tokens - first_key, where.w, at.x};
      };
      store_gradient<T, kDim, kKeys>(dv, 1.f, v, group * 64, to(&maps.dv, p.dv, p.value_chunks, p.dv_step),
                                     p.store_rows, kOwnGroup + group);
      ptx::barrier_sync(kBothGroups, 256);
      store_gradient<T, kDim, kKeys>(dk, p.scale, k, group * 64, to(&maps.dk, p.dk, p.head_chunks, p.dk_step),
                                     p.store_rows, kOwnGroup + group);
      if (p.store_rows) ptx::barrier_sync(kOwnGroup + group, 128);
      if (thread == 0) {
        ptx::wait_stores_read();
        ptx::mbarrier_arrive(shared.kv_empty + 8 * slot);
      }
    }
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
Status backward(int width, bool terms, const BackwardMaps& maps, const BackwardParams& params, int device,
                int processors, cudaStream_t stream) {
  constexpr const char* kName = "cuda/hopper_backward";
  const auto start = [&]<int HeadDim, bool Terms>() {
    using C = BackwardConfig<T, HeadDim, Terms>;
    static bool allowed[64] = {};
    const Status status = allow_shared(kName, hopper_backward<C>, C::kShared, allowed, device);
    if (!status.ok()) return status;
    const auto grid = static_cast<unsigned>(params.tiles < processors ? params.tiles : processors);
    return launch({kName, dim3(grid), C::kThreads, C::kShared, stream, true}, hopper_backward<C>, maps,
                  params);
  };
  if (width == 64)
    return terms ? start.template operator()<64, true>() : start.template operator()<64, false>();
  return terms ? start.template operator()<128, true>() : start.template operator()<128, false>();
}

}  // namespace headwise::cuda
