// Attention forward on Hopper: two threads copy tiles, two or three warpgroups of 64 queries multiply.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward/output.cuh"
#include "headwise/kernels/cuda/hopper/forward/weights.cuh"

namespace headwise::cuda::hopper::forward {

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::multiply_keys(int use, int tile) const {
  const std::uint64_t k = rows_descriptor(shared.k + (use & 1) * C::kKeyBytes);
  const std::uint64_t q =
      rows_descriptor(shared.q + (tile % C::kQSlots) * C::kQBytes + group * 64 * kPanelRowBytes);
  ptx::pin(s);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    Wgmma<kKeys, T>::both_shared(s, advanced(q, k_step(kRows, i)), advanced(k, k_step(kKeys, i)), i != 0);
  ptx::wgmma_commit();
}

template <class C, Statistics kStatistics>
template <int Keys>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::multiply_values(int use) const {
  const std::uint64_t v = columns_descriptor(shared.v + (use & 1) * C::kValueBytes, kKeys);
  ptx::pin(o);
  ptx::pin(weights);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < Keys / 16; ++i)
    Wgmma<kValueDim, T>::left_registers(o, weights + 4 * i, advanced(v, kRowStep * i));
  ptx::wgmma_commit();
}

/// Waits for the last product with values, but not for the next tile's first one.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::await_sums() const {
  ptx::wgmma_wait<C::kAcross ? 1 : 0>();
  ptx::pin(o);
  release_values();
}

/// Listed: what the thread that copies keys says of a tile, read when needed.
template <class C, Statistics kStatistics>
__device__ __forceinline__ int ForwardGroup<C, kStatistics>::entry_of(int use) const {
  return static_cast<int>(ptx::load_word(shared.listed + 4 * (use & 3)));
}

/// Of this group where it has its own, read when needed.
template <class C, Statistics kStatistics>
__device__ __forceinline__ KeyBounds ForwardGroup<C, kStatistics>::bounds(const TileNow& now) const {
  int tile = now.tile;  // few sums: the address is made out anew, a register along the tiles is one too many
  if constexpr (kFewSums) asm volatile("mov.b32 %0, %0;" : "+r"(tile));
  return FactLoader::bounds_at(C::kOwnEnd ? shared.own_of(tile, group) : now.facts.at);
}

/// One tile of keys: two products in the order q k(n)^T, p(n + 1) v(n + 1), so that the first is done while
/// the second runs. `Before`: keys of the tile before. True: weigh_again() must end the step.
template <class C, Statistics kStatistics>
template <int Before>
__device__ __forceinline__ bool ForwardGroup<C, kStatistics>::step(int number, bool masked, bool looks,
                                                                   const TileNow& now) const {
  const auto n = [&] { return C::kListed ? entry_of(used + 1) >> 2 : number; };
  await_next_keys();
  ptx::barrier_sync(turn, 256);
  multiply_keys(used + 1, now.tile);
  await_values();
  multiply_values<Before>(used);
  ptx::barrier_arrive(next_turn, 256);
  ptx::wgmma_wait<1>();
  ptx::pin(s);
  if (looks && !C::kBiasTiles) release_next_keys();
  apply_terms(n(), used + 1, now);
  if (looks && C::kBiasTiles) release_next_keys();  // a bias goes with its keys
  if (masked) mask<kKeys>(n(), now.facts);
  const bool high = weigh<kKeys>(false, masked, looks, n(), now.facts);  // others multiply
  const bool again = !looks && __any_sync(~0u, high);
  ptx::wgmma_wait<0>();
  ptx::pin(o);
  release_values();
  round_weights<kKeys>();
  drop(n(), now.facts);
  if (again) return true;
  if (looks) {
    if (__any_sync(~0u, rescale)) scale_out();
  } else {
    release_next_keys();
    sum[0] += of_tile[0], sum[1] += of_tile[1];
  }
  if constexpr (kFewSums) few_sums.put(sums);
  ++used;
  return false;
}

/// A step's weights once more, with references that look: some were above 2^kRise, or are no numbers.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::weigh_again(int n, const TileNow& now) const {
  scores_again<T, kDim, kRows, kKeys>(s, shared.q + now.tile % C::kQSlots * C::kQBytes,
                                      shared.k + ((used + 1) & 1) * C::kKeyBytes);
  release_next_keys();
  weigh<kKeys>(false, true, true, n, now.facts);
  round_weights<kKeys>();
  scale_out();
  if constexpr (kFewSums) few_sums.put(sums);
  ++used;
}

/// A tile of keys outside of what this group sees: it keeps its turn and releases them.
template <class C, Statistics kStatistics>
template <class Products, class Await>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::pass(Products&& products, Await&& await) const {
  await_next_keys();
  ptx::barrier_sync(turn, 256);
  products();
  ptx::barrier_arrive(next_turn, 256);
  await_values();
  await();
  release_values();
  ++used;
}
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::pass_to(int& n, int end) const {
#pragma unroll 1
  for (; n > end; --n) {
    pass([] {}, [] {});
    release_keys();
  }
}

/// Tiles of keys to the right of those this group sees, and scores of the last that it does.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::pass_right(int& last, int end, int tile) const {
  pass_to(last, end + 1);
  pass([&] { multiply_keys(used + 1, tile); }, [] {});
  --last;
  ptx::wgmma_wait<0>();
  ptx::pin(s);
  release_keys();
}

/// Values of the first tile this group sees, and tiles to the left of it.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::pass_left(int& n, int first) const {
  pass(
      [&] {
        await_values();
        multiply_values<kKeys>(used);
      },
      [&] {
        ptx::wgmma_wait<0>();
        ptx::pin(o);
      });
  release_keys();
  pass_to(--n, first - 1);
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) weights[i] = 0;  // of the last product, which all groups make
}

template <class C, Statistics kStatistics>
template <int Keys>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::begin(int last, FactLoader facts) const {
  mask<Keys>(last, facts);
  weigh<Keys>(true, true, true, last, facts);
  if constexpr (kFewSums) few_sums.put(sums);
  round_weights<Keys>();
}

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::clear_tail(int n, FactLoader facts) const {
  await_values();
  clear_rows<C>(shared.v + (used & 1) * C::kValueBytes, max(facts.sequence().kv_tokens - n * kKeys, 0),
                thread_now());
  ptx::barrier_sync(own_barrier, 128);
}

/// The thread that copies keys says which tiles there are.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::meet_listed(const TileNow& now) const {
  int entry = now.facts.bounds().first;
#pragma unroll 1
  for (;;) {
#pragma unroll 1
    for (; (entry & 3) == 3; entry = entry_of(used)) step<kKeys>(0, true, true, now);
    if (!(entry & 2)) break;
#pragma unroll 1
    for (; (entry & 3) == 2; entry = entry_of(used)) step<kKeys>(0, false, true, now);
  }
}

/// Right to left; two loops: one with a branch around mask() measured 3 % slower.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::meet_band(int& n, const TileNow& now) const {
  int stop = bounds(now).full_end;
#pragma unroll 1
  for (;;) {
#pragma unroll 1
    for (; n >= stop; --n) step<kKeys>(n, true, true, now);
    if (n < bounds(now).first) break;
    stop = bounds(now).full_begin;
    if constexpr (C::kLooksFirst || kAllSums) {
#pragma unroll 1
      for (; n >= stop; --n) step<kKeys>(n, false, true, now);
    } else {
      while (n >= stop) {
        bool again = false;
#pragma unroll 1
        for (; n >= stop && !again; --n) again = step<kKeys>(n, false, false, now);
        if (again) weigh_again(n + 1, now);
      }
    }
    stop = bounds(now).first;
  }
}

/// Weights of the first tile of keys met, the rightmost: `last`, which becomes that of this group. True: they
/// are those of its first kFew keys.
template <class C, Statistics kStatistics>
__device__ __forceinline__ bool ForwardGroup<C, kStatistics>::begin_tile(int& last,
                                                                         const TileNow& now) const {
  if constexpr (!C::kAcross) {
    await_keys();
    multiply_keys(used, now.tile);
  }
  int end = 0;  // the last tile of keys open to this group
  bool few = false;
  if constexpr (C::kOwnEnd) {
    end = static_cast<int>(ptx::load_word(shared.own_of(now.tile, group)));
    few = end & 1, end >>= 1;
  }
  ptx::wgmma_wait<0>();
  ptx::pin(s);
  if constexpr (!C::kBiasTiles) release_keys();
  if (C::kAcross && now.tile > 0 && thread_now() == 0) {  // the output of the tile before has left
    ptx::wait_stores_read();
    ptx::mbarrier_arrive(shared.q_empty + 8 * (now.tile % C::kQSlots ^ 1));
  }
  bool clear = p.clear_tail;
  if constexpr (C::kOwnEnd)
    if (last > end) {
      clear = false;
      pass_right(last, end, now.tile);
    }
#pragma unroll
  for (int i = 0; i < kValueDim / 2; ++i) o[i] = 0.f;
  apply_terms(last, used, now);
  if constexpr (C::kBiasTiles) release_keys();
  if (C::kNarrow && few)
    begin<C::kFew>(last, now.facts);
  else
    begin<kKeys>(last, now.facts);
  drop(last, now.facts);
  if (clear) clear_tail(last, now.facts);
  return few;
}

/// The last product with values and, across tiles, the next tile's first one; gives that tile's last tile of
/// keys.
template <class C, Statistics kStatistics>
__device__ __forceinline__ int ForwardGroup<C, kStatistics>::multiply_last(int last, int tile) const {
  if constexpr (C::kAcross) {  // after the last tile the product is a dummy: no branch around wgmma
    last = await_tile(tile + 1);
    if (last >= 0) await_next_keys();
    await_values();
    ptx::barrier_sync(turn, 256);
    multiply_values<kKeys>(used);
    multiply_keys(used + 1, tile + 1);
    ptx::barrier_arrive(next_turn, 256);
  } else {
    await_values();
    multiply_values<kKeys>(used);
  }
  return last;
}

/// One warpgroup: 64 queries of each tile of the block, one tile after another.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void forward_products(const ForwardShared<C>& shared, const CUtensorMap* out_map,
                                                 const ForwardParams& p, int group) {
  using Group = ForwardGroup<C, kStatistics>;
  float o[C::kValueDim / 2], s[C::kKeys / 2], reference[2] = {}, sum[2] = {}, of_tile[2], factor[2];
  FewRowSums few_sums;
  std::uint32_t weights[C::kKeys / 4];
  bool rescale = false;
  int used = 0;
  const Group g({o, s, reference, sum, of_tile, factor, few_sums, weights, rescale, used}, shared, out_map, p,
                group);
  int last = g.await_tile(0);
  if constexpr (C::kAcross) {
    if (last >= 0) ptx::mbarrier_wait(shared.k_full, 0);  // ragged: there may be no tile for this block
    g.multiply_keys(0, 0);
  }
#pragma unroll 1
  for (int tile = 0; last >= 0; ++tile) {
    TileNow now{tile, {shared.info_of(tile)}, 0.f};
    if constexpr (Group::kTerms)
      if (p.slopes.data) now.slope = Group::kLog2e * number_of(p.slopes, now.facts.location().head);
    const bool few = g.begin_tile(last, now);
    int n = last - 1;
    if (C::kNarrow && few) {  // not in a function of its own: there `edge` took five instructions more
      const bool edge = n >= g.bounds(now).full_end || n < g.bounds(now).full_begin;
      g.template step<C::kFew>(n--, edge, true, now);
    }
    if constexpr (C::kListed)
      g.meet_listed(now);
    else
      g.meet_band(n, now);
    if constexpr (C::kOwnEnd)
      if (const int first = now.facts.bounds().first; n >= first) g.pass_left(n, first);
    last = g.multiply_last(last, tile);
    g.end_tile(now);
    if constexpr (!C::kAcross) last = g.await_tile(tile + 1);
  }
  if constexpr (C::kAcross) {
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  }
  if (g.thread_now() == 0) ptx::wait_stores();
  if constexpr (C::kMends)
    if (p.lost.found) g.mend_rows();
}

}  // namespace headwise::cuda::hopper::forward
