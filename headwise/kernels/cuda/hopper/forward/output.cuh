// The end of a group's rows: sinks, statistics, log-sum-exp, and the output on its way to memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward/group.cuh"

namespace headwise::cuda::hopper::forward {

/// Row r meets its sink; `factor` becomes what its sums of values are multiplied with.
template <class C, Statistics kStatistics>
template <class Location>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::end_row(int r, const OwnThread& own,
                                                                      Location&& location) const {
  const int row = own.row + 8 * r;
  const bool none = reference[r] == -INFINITY;
  const float of_keys = sum[r], from = none ? 0.f : reference[r];
  float top = from, weight = 1.f, sink_part = 0.f, sink = -INFINITY;
  if (p.sinks.data) {
    sink = kLog2e * number_of(p.sinks, location().head);
    top = none ? sink : fmaxf(from, sink);
    weight = ptx::exp2(from - top);
    sink_part = sink == -INFINITY ? 0.f : ptx::exp2(sink - top);
    sum[r] = (sum[r] > 0.f ? sum[r] * weight : sum[r]) + sink_part;
  }
  const auto end = [&] { return RowEnd{location(), row, of_keys, top, from - top, sink_part, sink, sum[r]}; };
  if constexpr (kFewSums) sums.finish_few(p.probes, r, end);
  if constexpr (kAllSums)
    if (all) sums.finish(p.probes, r, end(), unit);
  // A row without keys keeps 0 and has -inf; one whose scores hold a NaN passes it on.
  factor[r] = sum[r] == 0.f || none && sum[r] == sum[r] ? 0.f : weight * ptx::reciprocal(sum[r]);
  if constexpr (kTerms) {  // a register short elsewhere
    if (const TileLocation at = location(); p.gate.data && row < at.left && factor[r] != 0.f)
      factor[r] *= number_of(p.gate, at.batch, at.row + row, at.head);
    factor[r] *= p.kept;
  }
  if (const TileLocation at = location(); p.lse && own.lane % 4 == 0 && row < at.left)
    p.lse[at.batch * p.lse_step[0] + at.head * p.lse_step[1] + (at.row + row) * p.lse_step[2]] =
        sum[r] == 0.f ? -INFINITY : (top + log2f(sum[r])) * kLn2;
}

/// The rows that a sequence has left: a bulk store would run into the next one.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::store_rows(std::uint32_t staged,
                                                                         const TileLocation& at,
                                                                         int left) const {
  auto* out = static_cast<std::uint16_t*>(p.out) + at.batch * p.out_step[0] + at.head * p.out_step[2];
  for (int i = static_cast<int>(ptx::thread_now() % 128); i < left * (kValueDim / 8); i += 128) {
    const int row = i / (kValueDim / 8), chunk = i % (kValueDim / 8);
    if (chunk < p.out_chunks)
      *reinterpret_cast<int4*>(out + (at.row + group * 64 + row) * p.out_step[1] + chunk * 8) =
          ptx::load_shared(staged + chunk_offset(kRows, group * 64 + row, chunk));
  }
  ptx::barrier_sync(own_barrier, 128);
}

/// The output goes through this group's own rows of q, which nobody else reads, panel by panel.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::store_output(int slot, const OwnThread& own,
                                                                           const TileLocation& at) const {
  const std::uint32_t staged = shared.q + slot * C::kQBytes;
#pragma unroll
  for (int j = 0; j < kValueDim / 16; ++j)
    ptx::store_matrices(
        staged + chunk_offset(kRows, group * 64 + (kKept ? warp : own.thread / 32) * 16 + (own.lane & 15),
                              2 * j + (own.lane >> 4)),
        Number<T>::pack(o[8 * j], o[8 * j + 1]), Number<T>::pack(o[8 * j + 2], o[8 * j + 3]),
        Number<T>::pack(o[8 * j + 4], o[8 * j + 5]), Number<T>::pack(o[8 * j + 6], o[8 * j + 7]));
  ptx::fence_shared_for_async();
  ptx::barrier_sync(own_barrier, 128);
  const int left = at.left - group * 64;
  if (p.store_rows && left < 64) {
    store_rows(staged, at, left);
  } else if (own.thread == 0) {
#pragma unroll
    for (int c = 0; c < C::kValuePanels; ++c)
      ptx::store_tile(out_map, staged + c * panel_bytes(kRows) + group * 64 * kPanelRowBytes,
                      at.row + group * 64, 0, at.head, at.batch, 64 * c);
    ptx::commit_stores();
  }
  if constexpr (!C::kAcross)
    if (own.thread == 0) {
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.q_empty + 8 * slot);
    }
}

/// Some number of the output is NaN or infinite.
template <class C, Statistics kStatistics>
__device__ __forceinline__ bool ForwardGroup<C, kStatistics>::holds_lost() const {
  float nothing = 0.f;
#pragma unroll
  for (int i = 0; i < kValueDim / 2; ++i) nothing = fmaf(o[i], 0.f, nothing);
  return nothing != nothing;
}

/// A warp that holds such a number writes down where.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::note_lost(const TileNow& now) const {
  if (!__any_sync(~0u, holds_lost())) return;
  if (ptx::thread_now() % 32 != 0) return;
  const int n = ptx::add_shared(shared.lost_of(group), 1);
  if (n >= p.lost.each) return;
  const TileLocation at = now.facts.location();
  const int b = now.facts.sequence().sequence, first = p.places ? p.places[b].q_row : p.place.q_row;
  p.lost.found[(static_cast<int>(blockIdx.x) * kGroups + group) * p.lost.each + n] =
      make_int2(b * p.heads + at.head,
                at.row - first + group * 64 + static_cast<int>(ptx::thread_now()) % 128 / 32 * 16);
}

/// Weights of 0 times NaN of closed keys are NaN. Behind all tiles such numbers are made anew.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::mend_rows() const {
  ptx::barrier_sync(own_barrier, 128);
  const int count = min(static_cast<int>(ptx::load_word(shared.lost_of(group))), p.lost.each);
  const int2* found = p.lost.found + (static_cast<int>(blockIdx.x) * kGroups + group) * p.lost.each;
#pragma unroll 1
  for (int n = static_cast<int>(ptx::thread_now()) % 128 / 32; n < count; n += 4) {
    const int2 at = found[n];
    const int b = at.x / p.heads;
    const Place place = p.places ? p.places[b] : p.place;
#pragma unroll 1
    for (int row = at.y; row < min(at.y + 16, place.q_tokens); ++row)
      mend_query<2, false, T>(p, place, b, at.x - b * p.heads, row);
  }
}

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::end_tile(const TileNow& now) const {
  if constexpr (kAllSums) await_sums();  // the last weights leave their registers to the statistics
  // The location, or read when needed: with four registers more, few statistics are made while the last
  // weights meet their values.
  constexpr bool kAnew = kFewSums && kKeys == 128;
  const TileLocation known = kAnew ? TileLocation{} : now.facts.location();
  const auto location = [&] { return kAnew ? now.facts.location() : known; };
  const int thread = thread_now();
  const OwnThread own{thread, kKept ? lane : thread % 32, kKept ? row0 : row_of(thread)};
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) {
    sum[0] += __shfl_xor_sync(~0u, sum[0], x);
    sum[1] += __shfl_xor_sync(~0u, sum[1], x);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) end_row(r, own, location);
  if constexpr (!kAllSums) await_sums();
  ++used;
  scale_out();
  if constexpr (C::kMends) {
    if (p.lost.found) note_lost(now);
  } else if (p.lost_any && holds_lost()) {
    *p.lost_any = 1;
  }
  store_output(now.tile % C::kQSlots, own, location());
}

}  // namespace headwise::cuda::hopper::forward
