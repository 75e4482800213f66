// Decode on Hopper: one warp copies keys and values, four own 16 keys of every tile each; splits merge in
// order. SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper_decode_copy.cuh"
#include "headwise/kernels/cuda/number.cuh"
#include "headwise/kernels/cuda/per_head.cuh"

namespace headwise::cuda {

/// Four numbers of a finished row: divided, rounded, stored.
template <class C>
__device__ __forceinline__ void decode_finish(const DecodeParams& p, const DecodeItem& d, int row, int column,
                                              float4 a, float top, float sum) {
  constexpr float kLog2e = 1.44269504088896341f;
  const int packed = d.row_block * C::kRows + row, token = packed / p.group;
  if (token >= d.place.q_tokens) return;
  const int head = d.kv_head * p.group + packed % p.group, batch = p.ragged ? 0 : d.b,
            at = d.place.q_row + token;
  float weight = 1.f, reference = top == -INFINITY ? 0.f : top;
  if (p.sinks.data) {
    const float sink = kLog2e * number_of(p.sinks, head),
                higher = top == -INFINITY ? sink : fmaxf(reference, sink);
    weight = ptx::exp2(reference - higher);
    sum = (sum > 0.f ? sum * weight : sum) + (sink == -INFINITY ? 0.f : ptx::exp2(sink - higher));
    reference = higher;
  }
  float f = sum == 0.f || top == -INFINITY && sum == sum ? 0.f : weight * ptx::reciprocal(sum);
  if (p.gate.data && f != 0.f) f *= number_of(p.gate, batch, at, head);
  using N = Number<typename C::T>;
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(p.out) + batch * p.out_step[0] + at * p.out_step[1] +
                            head * p.out_step[2] + column) =
      make_uint2(N::pack(a.x * f, a.y * f), N::pack(a.z * f, a.w * f));
  if (p.lse && column == 0)
    p.lse[batch * p.lse_step[0] + head * p.lse_step[1] + at * p.lse_step[2]] = natural_lse(reference, sum);
}

/// The partial results of a row block begin here, [split row ...].
template <class C>
__device__ __forceinline__ Index decode_parts_at(const DecodeParams& p, const DecodeItem& d) {
  return static_cast<Index>(d.rows_at(p)) * p.splits * C::kRows;
}

/// All splits of a row block, in ascending order: the block that finished last does it.
template <class C>
__device__ __forceinline__ void decode_merge_parts(const DecodeParams& p, const DecodeItem& d, int thread) {
  constexpr int kQuads = C::kHeadDim / 4;
  for (int i = thread; i < C::kRows * kQuads; i += C::kConsumers) {
    const int row = i / kQuads, column = i % kQuads * 4;
    if ((d.row_block * C::kRows + row) / p.group >= d.place.q_tokens) break;
    const float* stats = p.part_stats + (decode_parts_at<C>(p, d) + row) * 2;
    const float* parts = p.parts + (decode_parts_at<C>(p, d) + row) * C::kHeadDim + column;
    float top = -INFINITY, sum = 0.f;
#pragma unroll 8
    for (int s = 0; s < d.parts; ++s) top = fmaxf(top, __ldcg(stats + static_cast<Index>(s) * C::kRows * 2));
    float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
    for (int s = 0; s < d.parts; ++s) {
      const float2 stat =
          __ldcg(reinterpret_cast<const float2*>(stats + static_cast<Index>(s) * C::kRows * 2));
      const float4 x =
          __ldcg(reinterpret_cast<const float4*>(parts + static_cast<Index>(s) * C::kRows * C::kHeadDim));
      const float f = stat.x == -INFINITY ? 0.f : ptx::exp2(stat.x - top);
      sum = fmaf(f, stat.y, sum);
      a.x = fmaf(f, x.x, a.x), a.y = fmaf(f, x.y, a.y), a.z = fmaf(f, x.z, a.z), a.w = fmaf(f, x.w, a.w);
    }
    decode_finish<C>(p, d, row, column, a, top, sum);
  }
  if (thread == 0) p.arrived[d.rows_at(p)] = 0;
}

/// What a warp holds of its rows: the left factor, limits, slopes.
template <class C>
struct DecodeRows {
  std::uint32_t q[C::kHoldsQ ? C::kHeadDim / 16 : 1][4];
  int begin[C::kHalves], end[C::kHalves];
  float slope[C::kHalves];

  __device__ __forceinline__ void load(const DecodeParams& p, const DecodeItem& d, std::uint32_t from,
                                       int first, int lane) {
    constexpr float kLog2e = 1.44269504088896341f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // row lane / 4 (+ 8), columns 16 i + 2 (lane % 4) (+ 8)
      const int row = first + lane / 4 + 8 * r, packed = d.row_block * C::kRows + row,
                token = packed / p.group;
      const int head = d.kv_head * p.group + packed % p.group, position = d.place.q_start + token;
      const bool there = r < C::kHalves && token < d.place.q_tokens;
      if (r < C::kHalves) {
        begin[r] = position - p.back, end[r] = there ? min(d.place.kv_tokens, position + p.ahead + 1) : 0;
        slope[r] = there && p.slopes.data ? kLog2e * number_of(p.slopes, head) : 0.f;
      }
      if constexpr (C::kHoldsQ) {
        const std::uint32_t at = from + row * C::kQPitch + 4 * (lane % 4);
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 16; ++i) {
          q[i][r] = there ? ptx::load_word(at + 32 * i) : 0u;
          q[i][r + 2] = there ? ptx::load_word(at + 32 * i + 16) : 0u;
        }
      }
    }
  }
};

/// The softmax state of a warp's rows over its own keys.
template <class C>
struct DecodeState {
  using T = typename C::T;
  static constexpr int kDim = C::kHeadDim, kHalves = C::kHalves;
  float o[kDim / 8][4], top[kHalves], sum[kHalves];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.f;
#pragma unroll
    for (int r = 0; r < kHalves; ++r) top[r] = -INFINITY, sum[r] = 0.f;
  }

  /// s [rows, 16 keys from `column` on] -> weights, with limits where the tile is not open to all rows.
  __device__ __forceinline__ void weigh(const DecodeParams& p, const DecodeRows<C>& rows, float (&s)[2][4],
                                        int column, bool masked, std::uint32_t (&weights)[4]) {
    constexpr float kLog2e = 1.44269504088896341f;
    float factor[kHalves];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < kHalves; ++r) {
      float most = top[r], x[4] = {s[0][2 * r], s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1]};
      if (p.cap > 0.f) {
#pragma unroll
        for (float& y : x)
          y = p.cap * fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(y * p.inverse_cap * (2.f * kLog2e))), 1.f);
      } else {
#pragma unroll
        for (float& y : x) y *= p.scale_log2;
      }
      if (p.slopes.data) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          x[j] = fmaf(-rows.slope[r],
                      static_cast<float>(abs(rows.begin[r] + p.back - column - 8 * (j / 2) - (j & 1))), x[j]);
      }
      if (masked) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int key = column + 8 * (j / 2) + (j & 1);
          if (key < rows.begin[r] || key >= rows.end[r]) x[j] = -INFINITY;
        }
      }
      most = fmaxf(most, fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float reference = most == -INFINITY ? 0.f : most;
      factor[r] = most == top[r] ? 1.f : ptx::exp2(top[r] - reference);
      rescale |= most != top[r];
      top[r] = most;
#pragma unroll
      for (float& y : x) y = ptx::exp2(y - reference);
      sum[r] = fmaf(sum[r], factor[r], (x[0] + x[1]) + (x[2] + x[3]));
      weights[r] = Number<T>::pack(x[0], x[1]), weights[2 + r] = Number<T>::pack(x[2], x[3]);
    }
    if (kHalves == 1) weights[1] = weights[3] = 0u;
    if (__any_sync(~0u, rescale)) {
#pragma unroll
      for (int r = 0; r < kHalves; ++r)
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) o[n][2 * r] *= factor[r], o[n][2 * r + 1] *= factor[r];
    }
  }
};

template <class C>
__device__ __forceinline__ void decode_products(const DecodeShared<C>& shared, const DecodeParams& p) {
  using T = typename C::T;
  constexpr int kDim = C::kHeadDim;
  const int lane = threadIdx.x % 32, thread = threadIdx.x;
  const int warp = threadIdx.x / 32 % C::kKeyWarps, first = threadIdx.x / 32 / C::kKeyWarps * 16;
  int slot = 0, phase = 0;
  const auto merged = [&](int row, float& most, float& total) {
    most = -INFINITY, total = 0.f;
#pragma unroll
    for (int w = 0; w < C::kKeyWarps; ++w) most = fmaxf(most, shared.stats[(w * C::kRows + row) * 2]);
#pragma unroll
    for (int w = 0; w < C::kKeyWarps; ++w) {
      const float* stat = shared.stats + (w * C::kRows + row) * 2;
      total = fmaf(stat[0] == -INFINITY ? 0.f : ptx::exp2(stat[0] - most), stat[1], total);
    }
  };

  // Two items are under way behind the one in work: `written` has its part in memory, `counted` has been
  // added to its row block's arrivals. Each step waits for an item's keys, so that nobody waits for memory.
  int written = -1, written_parts = 0, written_at = 0, counted = -1, missing = 0;
  const auto settle = [&] {
    if (thread == 0) {
      *shared.last = counted >= 0 && missing == 0;
      if (written >= 0 || counted >= 0) ptx::fence_device();
    }
    ptx::barrier_sync(1, C::kConsumers);
    if (*shared.last) decode_merge_parts<C>(p, decode_item<C>(p, counted), thread);
    if (thread == 0 && written >= 0) missing = written_parts - 1 - atomicAdd(p.arrived + written_at, 1);
    counted = written, written = -1;
  };
  DecodeItem d;
  int q_phase = 0;
  for (int item = static_cast<int>(blockIdx.x); (item = decode_next<C>(p, item, d)) < p.items;
       item += static_cast<int>(gridDim.x)) {
    DecodeRows<C> rows;
    ptx::mbarrier_wait(shared.q_full, q_phase);
    q_phase ^= 1;
    rows.load(p, d, shared.q, first, lane);
    const auto release_q = [&] {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(shared.q_empty);
    };
    if constexpr (C::kHoldsQ) release_q();
    DecodeState<C> state;
    state.clear();
#pragma unroll 1
    for (int t = d.begin; t < d.end; ++t) {
      const std::uint32_t k = shared.ring + slot * 2 * C::kTileBytes, v = k + C::kTileBytes;
      ptx::mbarrier_wait(shared.full + 8 * slot, phase);
      const int first_key = t * kDecodeKeys + warp * C::kWarpKeys;
      float s[2][4] = {};
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {  // rows of k are keys: matrices as they lie are the right factor
        std::uint32_t b[4];
        ptx::load_matrices(
            k + chunk_offset(kDecodeKeys, warp * C::kWarpKeys + (lane & 7) + ((lane >> 4) & 1) * 8,
                             2 * i + ((lane >> 3) & 1)),
            b);
        // Rows that are not there hold anything: rows do not meet, and these are closed to every key.
        if constexpr (!C::kHoldsQ)
          ptx::load_matrices(shared.q + (first + (lane & 15)) * C::kQPitch + 32 * i + 16 * (lane >> 4),
                             rows.q[0]);
        Number<T>::multiply_add(s[0], rows.q[C::kHoldsQ ? i : 0], b[0], b[1]);
        Number<T>::multiply_add(s[1], rows.q[C::kHoldsQ ? i : 0], b[2], b[3]);
      }
      std::uint32_t weights[4];
      state.weigh(p, rows, s, first_key + 2 * (lane % 4), t < d.full_begin || t >= d.full_end, weights);
      const int past = first_key + C::kWarpKeys - d.place.kv_tokens;
      if (p.clear_tail && past > 0) {  // a NaN past the last key survives a weight of 0
        const int count = min(past, C::kWarpKeys);
        for (int i = lane; i < count * (kDim / 8); i += 32)
          ptx::store_shared(
              v + chunk_offset(kDecodeKeys, (warp + 1) * C::kWarpKeys - 1 - i / (kDim / 8), i % (kDim / 8)),
              0, 0, 0, 0);
        ptx::fence_shared_for_async();
        __syncwarp();
      }
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {  // rows of v are keys: turned, they are the right factor
        std::uint32_t b[4];
        ptx::load_matrices_turned(
            v + chunk_offset(kDecodeKeys, warp * C::kWarpKeys + (lane & 15), 2 * n + (lane >> 4)), b);
        Number<T>::multiply_add(state.o[2 * n], weights, b[0], b[1]);
        Number<T>::multiply_add(state.o[2 * n + 1], weights, b[2], b[3]);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * slot);
      if (++slot == C::kSlots) slot = 0, phase ^= 1;
    }

    if constexpr (!C::kHoldsQ) release_q();
      // The warps' states become one: maxima first, then some columns at a time, warps in order.
#pragma unroll
    for (int r = 0; r < C::kHalves; ++r) {
      state.sum[r] += __shfl_xor_sync(~0u, state.sum[r], 1);
      state.sum[r] += __shfl_xor_sync(~0u, state.sum[r], 2);
      if (lane % 4 == 0)
        *reinterpret_cast<float2*>(shared.stats + (warp * C::kRows + first + lane / 4 + 8 * r) * 2) =
            make_float2(state.top[r], state.sum[r]);
    }
    settle();
#pragma unroll
    for (int r = 0; r < C::kHalves; ++r) {
      float most, total;
      merged(first + lane / 4 + 8 * r, most, total);
      const float f = state.top[r] == -INFINITY ? 0.f : ptx::exp2(state.top[r] - most);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) state.o[n][2 * r] *= f, state.o[n][2 * r + 1] *= f;
    }
#pragma unroll
    for (int c = 0; c < kDim / C::kColumns; ++c) {
#pragma unroll
      for (int n = 0; n < C::kColumns / 8; ++n)
#pragma unroll
        for (int r = 0; r < C::kHalves; ++r)
          *reinterpret_cast<float2*>(shared.merge + (warp * C::kRows + first + lane / 4 + 8 * r) * C::kPitch +
                                     8 * n + 2 * (lane % 4)) =
              make_float2(state.o[c * C::kColumns / 8 + n][2 * r],
                          state.o[c * C::kColumns / 8 + n][2 * r + 1]);
      ptx::barrier_sync(1, C::kConsumers);
      constexpr int kQuads = C::kColumns / 4;
      const int row = thread / kQuads, quad = thread % kQuads * 4, column = c * C::kColumns + quad;
      static_assert(C::kConsumers / kQuads == C::kRows, "a thread merges one quad");
      if ((d.row_block * C::kRows + row) / p.group < d.place.q_tokens) {
        float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int w = 0; w < C::kKeyWarps; ++w) {
          const float4 x =
              *reinterpret_cast<const float4*>(shared.merge + (w * C::kRows + row) * C::kPitch + quad);
          a.x += x.x, a.y += x.y, a.z += x.z, a.w += x.w;
        }
        float most, total;
        merged(row, most, total);
        if (d.parts == 1) {
          decode_finish<C>(p, d, row, column, a, most, total);
        } else {
          const Index at = decode_parts_at<C>(p, d) + (d.split - d.first_part) * C::kRows + row;
          *reinterpret_cast<float4*>(p.parts + at * kDim + column) = a;
          if (column == 0) *reinterpret_cast<float2*>(p.part_stats + at * 2) = make_float2(most, total);
        }
      }
      ptx::barrier_sync(1, C::kConsumers);
    }
    if (d.parts > 1) written = item, written_parts = d.parts, written_at = d.rows_at(p);
  }
  settle();
  ptx::barrier_sync(1, C::kConsumers);
  settle();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    hopper_decode(const __grid_constant__ DecodeMaps maps, const __grid_constant__ DecodeParams params) {
  extern __shared__ std::uint8_t raw[];
  const DecodeShared<C> shared(raw);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&maps.k), ptx::prefetch_map(&maps.v);
    for (int s = 0; s < C::kSlots; ++s) {
      ptx::mbarrier_init(shared.full + 8 * s, 1);
      ptx::mbarrier_init(shared.empty + 8 * s, C::kWarps);
    }
    ptx::mbarrier_init(shared.q_full, 1);
    ptx::mbarrier_init(shared.q_empty, C::kWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= C::kConsumers) {
    if (params.pages)
      decode_copy_pages<C>(shared, maps, params);
    else if (ptx::elect_one())
      decode_copy<C>(shared, maps, params);
  } else {
    decode_products<C>(shared, params);
  }
}

template <class C>
Status start_decode(const DecodeMaps& maps, const DecodeParams& params, int device, int processors,
                    cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/hopper_decode";
  const Status status = allow_shared(kName, hopper_decode<C>, C::kShared, allowed, device);
  if (!status.ok()) return status;
  const int most = processors * C::kResident;
  const auto grid = static_cast<unsigned>(params.items < most ? params.items : most);
  return launch({kName, dim3(grid), C::kThreads, C::kShared, stream}, hopper_decode<C>, maps, params);
}

template <class T>
Status decode(int head_dim, int rows, const DecodeMaps& maps, const DecodeParams& params, int device,
              int processors, cudaStream_t stream) {
  const auto start = [&]<class C>(C*) { return start_decode<C>(maps, params, device, processors, stream); };
  switch (head_dim + rows) {
    case 64 + 16: return start(static_cast<DecodeConfig<T, 64, 16>*>(nullptr));
    case 64 + 32: return start(static_cast<DecodeConfig<T, 64, 32>*>(nullptr));
    case 128 + 8: return start(static_cast<DecodeConfig<T, 128, 8>*>(nullptr));
    case 128 + 16: return start(static_cast<DecodeConfig<T, 128, 16>*>(nullptr));
    case 128 + 32: return start(static_cast<DecodeConfig<T, 128, 32>*>(nullptr));
    case 256 + 16: return start(static_cast<DecodeConfig<T, 256, 16>*>(nullptr));
    default: return {"cuda/hopper_decode", 1, "no instance of this head_dim"};
  }
}

}  // namespace headwise::cuda
