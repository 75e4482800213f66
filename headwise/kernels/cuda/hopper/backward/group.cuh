// One warpgroup of Hopper's gradients: 64 keys of a tile, what its threads hold, the steps of its work.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/backward/pairs.cuh"
#include "headwise/kernels/cuda/hopper/backward/tiles.cuh"

namespace headwise::cuda::hopper::backward {

/// What a thread holds: sums of its keys, scores that become weights, dout.v, weights and gradients of scores
/// as left factors, slopes of the softcap. References: a struct with arrays is not taken apart into
/// registers.
template <class C>
struct BackwardRegisters {
  float (&dk)[C::kDim / 2], (&dv)[C::kDim / 2], (&s)[C::kQueries / 2], (&dp)[C::kQueries / 2];
  std::uint32_t (&weights)[C::kQueries / 4], (&ds)[C::kQueries / 4];
  // terms: 1 - tanh^2 in pairs of f16, or s would stay alive
  std::uint32_t (&slants)[C::kTerms ? C::kQueries / 4 : 1];
  PairDraws<C>& draws;
  int& used;  // tiles of queries that were met
};

/// A tile of keys: its facts, where it lies, and the tile of queries that it meets now.
struct KeyTile {
  int slot, first_key;  // of this group
  std::uint32_t info, k, v;
  int4 what, where;  // as BackwardShared::info_of lists them
  int steps, m, head;
  float slope;

  __device__ __forceinline__ int n() const { return what.x; }
  __device__ __forceinline__ int kv_tokens() const { return where.x; }
  __device__ __forceinline__ int q_tokens() const { return where.y; }
  __device__ __forceinline__ int q_start() const { return where.z; }
};

template <class C>
struct BackwardGroup : BackwardRegisters<C> {
  using T = typename C::T;
  static constexpr int kDim = C::kDim, kKeys = C::kKeys, kQueries = C::kQueries;
  static constexpr float kLog2e = 1.44269504088896341f;
  using BackwardRegisters<C>::dk, BackwardRegisters<C>::dv, BackwardRegisters<C>::s, BackwardRegisters<C>::dp,
      BackwardRegisters<C>::weights, BackwardRegisters<C>::ds, BackwardRegisters<C>::slants,
      BackwardRegisters<C>::draws, BackwardRegisters<C>::used;
  const BackwardShared<C>& shared;
  const BackwardMaps& maps;
  const BackwardParams& p;
  int group;
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  PairThread stand{group, warp, lane};

  /// Once that is there. False: there is no further tile.
  __device__ __forceinline__ bool begin_tile(int tile, KeyTile& now) const {
    now.slot = tile % C::kSlots;
    now.info = shared.info_of(tile);
    ptx::mbarrier_wait(shared.kv_full + 8 * now.slot, (tile / C::kSlots) & 1);
    now.what = ptx::load_shared(now.info);
    if (now.what.x < 0) return false;
    now.where = ptx::load_shared(now.info + 16);
    now.k = shared.k + now.slot * C::kKeyBytes, now.v = shared.v + now.slot * C::kKeyBytes;
    now.steps = ptx::load_shared(now.info + 48).z * (now.what.z - now.what.y);
    now.first_key = now.n() * kKeys + group * 64;
    now.m = p.down ? now.what.z - 1 : now.what.y, now.head = now.what.w;
    now.slope = 0.f;
    read_slope(true, now);
    const int keys = now.kv_tokens() - now.n() * kKeys;
    if (p.clear_tail && keys < kKeys) {
      clear_tile_rows<kDim>(now.k, kKeys, keys, thread);
      clear_tile_rows<kDim>(now.v, kKeys, keys, thread);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(kOwnGroup + group, 128);
    }
    return true;
  }
  __device__ __forceinline__ void read_slope(bool reads, KeyTile& now) const {
    if constexpr (C::kTerms || C::kPairs)
      if (p.slopes.data && reads) now.slope = kLog2e * number_of(p.slopes, now.head);
  }
  __device__ __forceinline__ void await_queries(int use, int at, const KeyTile& now) const {
    ptx::mbarrier_wait(shared.full + 8 * (use & 1), (use >> 1) & 1);
    if (p.clear_tail && now.q_tokens() - at * kQueries < kQueries) {
      const int queries = now.q_tokens() - at * kQueries;
      clear_tile_rows<kDim>(shared.q + (use & 1) * C::kQBytes, kQueries, queries, thread);
      clear_tile_rows<kDim>(shared.dout + (use & 1) * C::kQBytes, kQueries, queries, thread);
      ptx::fence_shared_for_async();
      ptx::barrier_sync(kOwnGroup + group, 128);
    }
  }
  __device__ __forceinline__ void multiply_scores(int use, const KeyTile& now) const {
    ptx::wgmma_fence();
    multiply_rows<kQueries, T, kDim / 16, kKeys, kQueries>(s, now.k + group * 64 * kPanelRowBytes,
                                                           shared.q + (use & 1) * C::kQBytes);
    ptx::wgmma_commit();
  }
  /// Pairs: of the step to come, while products run.
  __device__ __forceinline__ void draw(const KeyTile& now) const {
    if constexpr (C::kPairs)
      if (p.drops) {
        const int sequence = ptx::load_shared(now.info + 64).x;
        const Index id = p.sequence_ids ? p.sequence_ids[sequence] : sequence;
        draws.draw(p.rule, id, now.head, now.q_start() + now.m * kQueries + column0,
                   now.first_key + warp * 16, stand);
      }
  }
  /// Pairs: scale, bias and slopes. Numbers that are read one by one come before dp takes its registers.
  __device__ __forceinline__ void add_numbers(const KeyTile& now) const {
    if constexpr (C::kPairs)
      if (p.bias.data && !p.bias_tiles) {
        const int4 in = ptx::load_shared(now.info + 64);
        const Index first = in.x * p.bias.step[0] + now.head * p.bias.step[1] + in.y * p.bias.step[2] +
                            (in.z - now.n() * kKeys) * p.bias.step[3];
        add_bias_numbers<C>(
            s, p.scale_log2, p.bias,
            {first, now.m * kQueries + column0, now.q_tokens(), now.n() * kKeys + row0, now.kv_tokens()});
      }
  }

  __device__ __forceinline__ void weigh(int st, const KeyTile& now) const;
  __device__ __forceinline__ void add_values(std::uint32_t dout) const;
  __device__ __forceinline__ void share_gradients(std::uint32_t score, const KeyTile& now) const;
  __device__ __forceinline__ void add_keys(std::uint32_t q) const;
  __device__ __forceinline__ void step(bool more, KeyTile& now) const;
  __device__ __forceinline__ void meet_queries(KeyTile& now) const;
  __device__ __forceinline__ void end_tile(const KeyTile& now) const;

 private:
  __device__ __forceinline__ void weigh_pair(int j, int r, const float2& l, int distance, float slope) const;
  __device__ __forceinline__ void multiply_queries(float (&dq)[32], std::uint32_t score,
                                                   const KeyTile& now) const;
};

}  // namespace headwise::cuda::hopper::backward
