// What becomes of the partials of a row in decode on Hopper: merged in order, divided, rounded, stored.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/decode/query_rows.cuh"

namespace headwise::cuda::hopper::decode {

/// A finished row: what its sums are multiplied by, and where they go.
struct Finished {
  std::uint16_t* to;  // null: there is no such row
  float factor;

  template <class T>
  __device__ __forceinline__ void store(int column, float4 a, int* lost) const {
    using N = Number<T>;
    if (lost) {  // 0 x NaN is NaN, and 0 x inf
      const float nothing = fmaf(a.x, 0.f, fmaf(a.y, 0.f, fmaf(a.z, 0.f, a.w * 0.f)));
      if (to && nothing != nothing) *lost = 1;
    }
    if (to)
      *reinterpret_cast<uint2*>(to + column) =
          make_uint2(N::pack(a.x * factor, a.y * factor), N::pack(a.z * factor, a.w * factor));
  }
};

/// Of a row's threads the one that is `first` writes its lse.
template <class C>
__device__ __forceinline__ Finished finish(const Params& p, const Item& d, int row, bool first, float top,
                                           float sum) {
  constexpr float kLog2e = 1.44269504088896341f;
  const int packed = d.row_block * C::kRows + row, token = quotient<C>(p.by_group, packed);
  if (token >= d.place.q_tokens) return {nullptr, 0.f};
  const int head = d.kv_head * p.group + packed - token * p.group, batch = p.ragged ? 0 : d.b,
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
  if (p.lse && first)
    p.lse[batch * p.lse_step[0] + head * p.lse_step[1] + at * p.lse_step[2]] = natural_lse(reference, sum);
  return {
      static_cast<std::uint16_t*>(p.out) + batch * p.out_step[0] + at * p.out_step[1] + head * p.out_step[2],
      f};
}

/// The partial results of a row block begin here, [split row ...].
template <class C>
__device__ __forceinline__ Index partials_at(const Params& p, const Item& d) {
  return static_cast<Index>(d.rows_at(p)) * p.splits * C::kRows;
}

/// A row over all splits, in ascending order, its reference moved after every eighth: `Together` times four
/// of its columns.
template <class C, int Together>
__device__ __forceinline__ void merge_row(const Params& p, const Item& d, int row, int quad) {
  // As many in flight as there are registers for: all of a short sequence come at once.
  constexpr int kPace = 8, kAtOnce = Together == 1 && !C::kEight ? 2 * kPace : kPace,
                kApart = C::kOwnQuads / Together * 4;
  const int share = own_share<C>(), column = share * C::kOwnColumns + quad * 4;
  const Index at = partials_at<C>(p, d) + row;
  const float *stats = p.partial_stats + (at * C::kShares + share) * 2,
              *from = p.partials + at * C::kHeadDim + column;
  float top = -INFINITY, sum = 0.f;
  float4 a[Together] = {};
#pragma unroll 1
  for (int first = 0; first < d.partials; first += kAtOnce) {
    float2 stat[kAtOnce];
    float4 x[Together][kAtOnce];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const bool there = first + s < d.partials;
      const Index down = static_cast<Index>(first + s) * C::kRows;
      stat[s] = make_float2(-INFINITY, 0.f);
      if (there) stat[s] = __ldcg(reinterpret_cast<const float2*>(stats + down * C::kShares * 2));
#pragma unroll
      for (int n = 0; n < Together; ++n) {
        x[n][s] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (there) x[n][s] = __ldcg(reinterpret_cast<const float4*>(from + down * C::kHeadDim + n * kApart));
      }
    }
#pragma unroll
    for (int pace = 0; pace < kAtOnce; pace += kPace) {
      float most = top;
#pragma unroll
      for (int s = pace; s < pace + kPace; ++s) most = fmaxf(most, stat[s].x);
      const float old = top == most ? 1.f : ptx::exp2(top - most);
      top = most, sum *= old;
#pragma unroll
      for (int n = 0; n < Together; ++n) a[n].x *= old, a[n].y *= old, a[n].z *= old, a[n].w *= old;
#pragma unroll
      for (int s = pace; s < pace + kPace; ++s) {
        const float f = stat[s].x == -INFINITY ? 0.f : ptx::exp2(stat[s].x - most);
        sum = fmaf(f, stat[s].y, sum);
#pragma unroll
        for (int n = 0; n < Together; ++n) {
          a[n].x = fmaf(f, x[n][s].x, a[n].x), a[n].y = fmaf(f, x[n][s].y, a[n].y);
          a[n].z = fmaf(f, x[n][s].z, a[n].z), a[n].w = fmaf(f, x[n][s].w, a[n].w);
        }
      }
    }
  }
  const Finished finished = finish<C>(p, d, row, column == 0, top, sum);
#pragma unroll
  for (int n = 0; n < Together; ++n) finished.store<typename C::T>(column + n * kApart, a[n], p.lost);
}

/// All splits of a row block: the block that finished last does it.
template <class C>
__device__ __forceinline__ void merge_partials(const Params& p, const Item& d) {
  // Where there are registers a thread has all that is its own of a row at once.
  constexpr int kAll = C::kRows * C::kOwnQuads / C::kConsumers, kTogether = C::kEight || kAll < 2 ? 1 : kAll,
                kEach = C::kOwnQuads / kTogether;
  const int live = min(C::kRows, d.place.q_tokens * p.group - d.row_block * C::kRows),
            thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < live * kEach; i += C::kConsumers)
    merge_row<C, kTogether>(p, d, i / kEach, i % kEach);
  if (thread == 0) p.arrived[d.rows_at(p) * C::kShares + own_share<C>()] = 0;
}

}  // namespace headwise::cuda::hopper::decode
