// One warpgroup of the Hopper forward: where its threads stand, what they hold, and the steps of its work.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/hopper/forward/copy.cuh"
#include "headwise/kernels/cuda/hopper/forward/facts.cuh"
#include "headwise/kernels/cuda/hopper/forward/pairs.cuh"
#include "headwise/kernels/cuda/hopper/forward/row_sums.cuh"
#include "headwise/kernels/cuda/hopper/forward/rows.cuh"
#include "headwise/kernels/cuda/hopper/mend.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper::forward {

/// A tile of queries: its number, its facts, the ALiBi slope of its head in exponents of 2.
struct TileNow {
  int tile;
  FactLoader facts;
  float slope;
};

/// What a thread holds of its two rows, r = 0 and 1: sums of values, scores that become weights, and the
/// exponent weights are relative to. Then sums of weights, those of the last tile, and what sums before it
/// are multiplied with. References: a struct with arrays is not taken apart into registers.
template <class C>
struct GroupRegisters {
  float (&o)[C::kValueDim / 2], (&s)[C::kKeys / 2];
  float (&reference)[2], (&sum)[2], (&of_tile)[2], (&factor)[2];
  FewRowSums& few_sums;
  std::uint32_t (&weights)[C::kKeys / 4];  // packed: the left factor of the next product
  bool& rescale;                           // some factor is not 1
  int& used;                               // tiles of keys whose values were multiplied
};

/// Of a thread's two rows while a tile is weighed: -reference, by how much that has fallen, the highest
/// score, sums of weights in even and in odd columns.
struct TileWeights {
  float (&minus)[2], (&fall)[2], (&most)[2], (&even)[2], (&odd)[2];
};

/// 64 queries of a tile. Scores come into `s`, and pass through the functions of weights.cuh; products.cuh
/// has the products and their order, output.cuh the end of rows.
template <class C, Statistics kStatistics>
struct ForwardGroup : GroupRegisters<C> {
  using T = typename C::T;
  static constexpr int kDim = C::kHeadDim, kValueDim = C::kValueDim, kKeys = C::kKeys, kRows = C::kRows,
                       kGroups = C::kGroups;
  static constexpr bool kTerms = C::kPasses == TileTerms::terms, kFewSums = kStatistics == Statistics::few,
                        kAllSums = kStatistics == Statistics::all;
  static constexpr float kLn2 = 0.693147180559945309f, kLog2e = 1.44269504088896341f, kRise = C::kRise;
  // Where a thread stands. Registers are short: up to 128 columns it is made out where it is needed.
  static constexpr bool kKept = kTerms || kDim > 128, kReadAnew = C::kPasses == TileTerms::probes;

  using GroupRegisters<C>::o, GroupRegisters<C>::s, GroupRegisters<C>::reference, GroupRegisters<C>::sum,
      GroupRegisters<C>::of_tile, GroupRegisters<C>::factor, GroupRegisters<C>::few_sums,
      GroupRegisters<C>::weights, GroupRegisters<C>::rescale, GroupRegisters<C>::used;
  const ForwardShared<C>& shared;
  const CUtensorMap* out_map;
  const ForwardParams& p;
  int group;
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  int turn = 2 + group, next_turn = 2 + (group + 1) % kGroups, own_barrier = 2 + kGroups + group;
  bool termed = kTerms && p.terms, all = kAllSums && (!kTerms || p.probes.asked);
  float unit = termed ? 1.f : p.scale_log2;
  RowSums sums;

  __device__ __forceinline__ ForwardGroup(const GroupRegisters<C>& registers, const ForwardShared<C>& shared,
                                          const CUtensorMap* out_map, const ForwardParams& p, int group)
      : GroupRegisters<C>(registers), shared(shared), out_map(out_map), p(p), group(group) {
    if (group == 0) ptx::barrier_arrive(turn, 256);  // group 0 goes first
    // The first warpgroup copies. (Of two ways to say it, which one leaves registers ptxas alone knows.)
    sums.at = shared.sums +
              RowSums::kBytes * (kFewSums ? static_cast<int>(threadIdx.x) - 128 : group * 128 + thread);
  }

  __device__ __forceinline__ int thread_now() const {
    return kKept ? thread : static_cast<int>(ptx::thread_now() % 128);
  }
  __device__ __forceinline__ int row_of(int x) const { return group * 64 + x / 32 * 16 + x % 32 / 4; }
  __device__ __forceinline__ int first_row() const { return kReadAnew ? row_of(thread_now()) : row0; }
  __device__ __forceinline__ int first_column() const { return kReadAnew ? thread_now() % 4 * 2 : column0; }

  // Rings of keys and values: the tile in use, and the one that comes after it.
  __device__ __forceinline__ void await_keys() const {
    ptx::mbarrier_wait(shared.k_full + 8 * (used & 1), (used >> 1) & 1);
  }
  __device__ __forceinline__ void await_next_keys() const {
    ptx::mbarrier_wait(shared.k_full + 8 * ((used + 1) & 1), ((used + 1) >> 1) & 1);
  }
  __device__ __forceinline__ void await_values() const {
    ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
  }
  __device__ __forceinline__ void release_keys() const { release(shared.k_empty + 8 * (used & 1)); }
  __device__ __forceinline__ void release_next_keys() const {
    release(shared.k_empty + 8 * ((used + 1) & 1));
  }
  __device__ __forceinline__ void release_values() const { release(shared.v_empty + 8 * (used & 1)); }
  // Once a warp: waiting for a product covers the warp's own quarter only.
  __device__ __forceinline__ void release(std::uint32_t bar) const {
    if (lane == 0) ptx::mbarrier_arrive(bar);
  }
  /// The last tile of keys of a tile of queries, once that is there; -1: there is no such tile.
  __device__ __forceinline__ int await_tile(int tile) const {
    ptx::mbarrier_wait(shared.q_full + 8 * (tile % C::kQSlots), (tile / C::kQSlots) & 1);
    return FactLoader{shared.info_of(tile)}.bounds().last;
  }

  // weights.cuh
  __device__ __forceinline__ void apply_terms(int n, int use, const TileNow& now) const;
  __device__ __forceinline__ void drop(int n, FactLoader facts) const;
  template <int Keys>
  __device__ __forceinline__ void mask(int n, FactLoader facts) const;
  template <int Keys>
  __device__ __forceinline__ bool weigh(bool first, bool masked, bool looks, int n, FactLoader facts) const;
  template <int Keys>
  __device__ __forceinline__ void round_weights() const;
  __device__ __forceinline__ void scale_out() const;

  // products.cuh
  __device__ __forceinline__ void multiply_keys(int use, int tile) const;
  template <int Keys>
  __device__ __forceinline__ void multiply_values(int use) const;
  __device__ __forceinline__ bool begin_tile(int& last, const TileNow& now) const;
  __device__ __forceinline__ KeyBounds bounds(const TileNow& now) const;
  template <int Before>
  __device__ __forceinline__ bool step(int number, bool masked, bool looks, const TileNow& now) const;
  __device__ __forceinline__ void meet_listed(const TileNow& now) const;
  __device__ __forceinline__ void meet_band(int& n, const TileNow& now) const;
  __device__ __forceinline__ void pass_left(int& n, int first) const;
  __device__ __forceinline__ void await_sums() const;
  __device__ __forceinline__ int multiply_last(int last, int tile) const;

  // output.cuh
  __device__ __forceinline__ void end_tile(const TileNow& now) const;
  __device__ __forceinline__ void mend_rows() const;

 private:
  __device__ __forceinline__ void move_references(bool first, const TileWeights& w) const;
  template <class Seen>
  __device__ __forceinline__ void weigh_pair(int r, int j, const TileWeights& w, Seen&& seen) const;
  template <int Keys, class Finite>
  __device__ __forceinline__ void weigh_with_sums(bool masked, Finite&& finite, int n, FactLoader facts,
                                                  const TileWeights& w) const;
  template <int Keys, class Finite>
  __device__ __forceinline__ int weigh_pairs(Finite&& finite, bool looks, const TileWeights& w) const;

  __device__ __forceinline__ int entry_of(int use) const;
  __device__ __forceinline__ void weigh_again(int n, const TileNow& now) const;
  template <class Products, class Await>
  __device__ __forceinline__ void pass(Products&& products, Await&& await) const;
  __device__ __forceinline__ void pass_to(int& n, int end) const;
  __device__ __forceinline__ void pass_right(int& last, int end, int tile) const;
  template <int Keys>
  __device__ __forceinline__ void begin(int last, FactLoader facts) const;
  __device__ __forceinline__ void clear_tail(int n, FactLoader facts) const;

  struct OwnThread {
    int thread, lane, row;
  };
  __device__ __forceinline__ bool holds_lost() const;
  __device__ __forceinline__ void note_lost(const TileNow& now) const;
  template <class Location>
  __device__ __forceinline__ void end_row(int r, const OwnThread& own, Location&& location) const;
  __device__ __forceinline__ void store_rows(std::uint32_t staged, const TileLocation& at, int left) const;
  __device__ __forceinline__ void store_output(int slot, const OwnThread& own, const TileLocation& at) const;
};

}  // namespace headwise::cuda::hopper::forward
