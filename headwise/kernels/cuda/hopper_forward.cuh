// Attention forward on Hopper: two threads copy tiles, two or three warpgroups of 64 queries multiply, in
// turns. SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "headwise/kernels/cuda/hopper_forward_copy.cuh"
#include "headwise/kernels/cuda/hopper_forward_pairs.cuh"
#include "headwise/kernels/cuda/hopper_row_sums.cuh"
#include "headwise/kernels/cuda/number.cuh"
#include "headwise/kernels/cuda/per_head.cuh"
#include "headwise/kernels/cuda/wgmma.inc"

namespace headwise::cuda {

/// One warpgroup: 64 queries of a tile, keys from right to left, two products a step in the order q k(n)^T,
/// p(n + 1) v(n + 1), so that the first is done while the second runs.
template <class C>
__device__ __forceinline__ void forward_products(const ForwardShared<C>& shared, const CUtensorMap* out_map,
                                                 const ForwardParams& p, int group) {
  using T = typename C::T;
  constexpr int kDim = C::kHeadDim, kValueDim = C::kValueDim, kKeys = C::kKeys, kRows = C::kRows,
                kGroups = C::kGroups;
  constexpr bool kTerms = C::kPasses == TilePasses::terms, kProbes = C::kProbes;
  constexpr float kLn2 = 0.693147180559945309f, kLog2e = 1.44269504088896341f;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  const int turn = 2 + group, next_turn = 2 + (group + 1) % kGroups, own_barrier = 2 + kGroups + group;
  const bool termed = kTerms && p.terms;
  const bool probed = kProbes && (!kTerms || p.probes.asked);
  const float unit = termed ? 1.f : p.scale_log2;
  if (group == 0) ptx::barrier_arrive(turn, 256);  // group 0 goes first

  float o[kValueDim / 2], s[kKeys / 2], top[2] = {}, sum[2] = {}, factor[2];
  FewRowSums few_sums;
  std::uint32_t weights[kKeys / 4];
  bool rescale = false;
  int used = 0;
  const RowSums sums(shared.sums, group * 128 + thread);

  const auto await_tile = [&](int tile) {
    ptx::mbarrier_wait(shared.q_full + 8 * (tile % C::kQSlots), (tile / C::kQSlots) & 1);
    return ptx::load_shared(shared.info_of(tile)).x;
  };
  // Once a warp: waiting for a product covers the warp's own quarter only.
  const auto release = [&](std::uint32_t bar) {
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  // Of these passes over a tile of keys: all of its keys, or the first few, a group's others being closed.
  using All = std::integral_constant<int, kKeys>;
  using Few = std::integral_constant<int, C::kFew>;
  using FewSums = std::integral_constant<Statistics, Statistics::few>;
  using AllSums = std::integral_constant<Statistics, kProbes ? Statistics::all : Statistics::none>;
  const auto multiply_keys = [&](int use, int tile) {
    const std::uint64_t k = rows_descriptor(shared.k + (use & 1) * C::kKeyBytes);
    const std::uint64_t q =
        rows_descriptor(shared.q + (tile % C::kQSlots) * C::kQBytes + group * 64 * kPanelRowBytes);
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
      Wgmma<kKeys, T>::both_shared(s, advanced(q, k_step(kRows, i)), advanced(k, k_step(kKeys, i)), i != 0);
    ptx::wgmma_commit();
  };
  const auto multiply_values = [&](int use, auto keys) {
    const std::uint64_t v = columns_descriptor(shared.v + (use & 1) * C::kValueBytes, kKeys);
    ptx::pin(o);
    ptx::pin(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
      Wgmma<kValueDim, T>::left_registers(o, weights + 4 * i, advanced(v, kRowStep * i));
    ptx::wgmma_commit();
  };
  const auto scale_out = [&] {
#pragma unroll
    for (int j = 0; j < kValueDim / 8; ++j) {
      o[4 * j] *= factor[0], o[4 * j + 1] *= factor[0];
      o[4 * j + 2] *= factor[1], o[4 * j + 3] *= factor[1];
    }
  };
  // s = softcap * tanh(scale * q.k / softcap) - slope * |q - k|, in exponents of 2
  const auto apply_terms = [&](int n, std::uint32_t info, float slope) {
    if (termed) {
      const int distance0 = ptx::load_shared(info + 32).y + row0 - n * kKeys - column0;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float x = s[i];
        if (p.cap > 0.f) {
          // tanh(y) = 1 - 2 / (1 + e^2y): exact at both ends, 1e-7 of the cap in between
          const float e = ptx::exp2(x * p.inverse_cap * (2.f * kLog2e));
          x = p.cap * fmaf(-2.f, ptx::reciprocal(1.f + e), 1.f);
        } else {
          x *= p.scale_log2;
        }
        const int distance = distance0 + 8 * ((i >> 1) & 1) - 8 * (i / 4) - (i & 1);
        s[i] = fmaf(-slope, static_cast<float>(abs(distance)), x);
      }
      if constexpr (kTerms)
        if (p.bias.data) add_bias<kKeys>(s, p.bias, info, row0, n * kKeys + column0);
    }
  };
  const auto mask = [&](int n, std::uint32_t info, auto keys) {
    const int4 at = ptx::load_shared(info + 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = at.y + row0 + 8 * r, end = min(at.x, position + p.ahead + 1),
                begin = position - p.back;
      // Bit 2 j + i: column 8 j + i of the thread's. One word a row, then one choice a score.
      const auto below = [&](int key) {
        const int x = min(max(key - n * kKeys - column0, 0), kKeys);
        return ptx::low_bits(2 * (x >> 3) + min(x & 7, 2));
      };
      std::uint32_t open = below(end);
      if constexpr (kTerms)
        if (p.blocks.lists) open &= open_blocks(p.blocks, at.y + row0 + 8 * r, n * kKeys, kKeys, below);
      open &= ~below(begin);
#pragma unroll
      for (int i = 0; i < keys / 4; ++i)
        if (!(open >> i & 1u)) s[4 * (i / 2) + 2 * r + (i & 1)] = -INFINITY;
    }
  };
  // s becomes weights relative to 2^(top * unit). The reference stays until a row's maximum grows by more
  // than 8 exponents, then weights are at most 256; the choice is each row's own and a row that keeps it has
  // factor 1.
  const auto weigh = [&](bool first, bool masked, int n, std::uint32_t info, auto keys, auto statistics) {
    constexpr bool kFewSums = statistics == Statistics::few;
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float c[4] = {s[2 * r], s[2 * r + 1], s[4 + 2 * r], s[4 + 2 * r + 1]};
#pragma unroll
      for (int j = 2; j < keys / 8; ++j) {
        c[2 * (j & 1)] = fmaxf(c[2 * (j & 1)], s[4 * j + 2 * r]);
        c[2 * (j & 1) + 1] = fmaxf(c[2 * (j & 1) + 1], s[4 * j + 2 * r + 1]);
      }
      most[r] = fmaxf(fmaxf(c[0], c[1]), fmaxf(c[2], c[3]));
    }
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], x));
      most[1] = fmaxf(most[1], __shfl_xor_sync(~0u, most[1], x));
    }
    rescale = false;
    const float old[2] = {top[0], top[1]};
    const bool all = statistics == Statistics::all && probed;
    if (kFewSums && !first) few_sums.load(sums);
    if constexpr (statistics == Statistics::all)
      if (all) sums.meet(first, most, s, n * kKeys + column0);
    float reference[2], even[2], odd[2];
    const auto refer = [&](int r) {
      const bool grown = first || (most[r] - old[r]) * unit > 8.f;
      top[r] = grown ? most[r] : old[r];
      if (!first) {
        factor[r] = grown ? ptx::exp2((old[r] - most[r]) * unit) : 1.f;
        rescale |= grown;
      }
      if constexpr (kFewSums)
        few_sums.meet(r, first, factor[r], grown ? (old[r] - most[r]) * unit : 0.f, sum[r], most[r]);
      reference[r] = top[r] == -INFINITY ? 0.f : top[r] * unit;
      even[r] = odd[r] = 0.f;
    };
    const auto weigh_pair = [&](int r, int j, auto&& seen) {
      float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
      const float e0 = fmaf(x0, unit, -reference[r]), e1 = fmaf(x1, unit, -reference[r]);
      x0 = ptx::exp2(e0), x1 = ptx::exp2(e1);
      even[r] += x0, odd[r] += x1;
      seen(x0, e0, static_cast<float>(8 * j)), seen(x1, e1, static_cast<float>(8 * j + 1));
    };
    const auto join = [&](int r) {
      sum[r] = first ? even[r] + odd[r] : fmaf(sum[r], factor[r], even[r] + odd[r]);
    };
    // Pair by pair: so ptxas makes out both references before it begins with weights.
    if (!kFewSums && !all) {
      refer(0), refer(1);
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) weigh_pair(i % 2, i / 2, [](float, float, float) {});
      join(0), join(1);
      return;
    }
    const auto weigh_row = [&](int r, auto&& seen) {
      refer(r);
#pragma unroll
      for (int j = 0; j < keys / 8; ++j) weigh_pair(r, j, seen);
    };
    // Exponents of -inf add nothing. Masks make them; without one, only inputs that are not finite.
    const auto finite = [&](float e) { return masked ? fmaxf(e, -1000.f) : e; };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kFewSums) {
        weigh_row(r, [&](float w, float e, float) { few_sums.add(r, w, finite(e)); });
      } else {
        RowSums::Tile tile;
        weigh_row(r, [&](float w, float e, float column) { tile.add(w, finite(e), column); });
        const bool lost = tile.exponents != tile.exponents;
        if (!masked && __any_sync(~0u, lost)) {
          const float again = exponents_of(s, r);
          if (lost) tile.exponents = again;
        }
        const int d = ptx::load_shared(info + 32).y + row0 + 8 * r - n * kKeys - column0;
        sums.join(r, !first && top[r] != old[r], factor[r], (old[r] - top[r]) * unit * sum[r], tile,
                  distances_of(s, r, static_cast<float>(d), p.ahead > 0, even[r] + odd[r], tile.columns));
      }
      join(r);
    }
  };
  const auto round_weights =
      [&](auto keys) {  // pairs of the accumulator are the left factor of the next product as they stand
#pragma unroll
        for (int i = 0; i < keys / 4; ++i) weights[i] = Number<T>::pack(s[2 * i], s[2 * i + 1]);
      };
  const auto clear_tail = [&](int n, std::uint32_t info) {
    ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
    clear_rows<C>(shared.v + (used & 1) * C::kValueBytes, max(ptx::load_shared(info + 32).x - n * kKeys, 0),
                  thread);
    ptx::barrier_sync(own_barrier, 128);
  };

  int last = await_tile(0);  // its last tile of keys; -1: there is no such tile of queries
  if constexpr (C::kAcross) {
    if (last >= 0) ptx::mbarrier_wait(shared.k_full, 0);  // ragged: there may be no tile for this block
    multiply_keys(0, 0);
  }
#pragma unroll 1
  for (int tile = 0; last >= 0; ++tile) {
    const int slot = tile % C::kQSlots;
    const std::uint32_t info = shared.info_of(tile);
    float slope = 0.f;
    if constexpr (kTerms)
      if (p.slopes.data) slope = kLog2e * number_of(p.slopes, ptx::load_shared(info + 16).x);

    // Listed: what the thread that copies keys says of a tile lies in shared memory, read when needed, as
    // above.
    const auto entry_of = [&](int use) {
      return static_cast<int>(ptx::load_word(shared.listed + 4 * (use & 3)));
    };
    // `before`: keys of the tile before
    const auto step = [&](int number, bool masked, auto before, auto statistics) {
      const auto n = [&] { return C::kListed ? entry_of(used + 1) >> 2 : number; };
      ptx::mbarrier_wait(shared.k_full + 8 * ((used + 1) & 1), ((used + 1) >> 1) & 1);
      ptx::barrier_sync(turn, 256);
      multiply_keys(used + 1, tile);
      ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
      multiply_values(used, before);
      ptx::barrier_arrive(next_turn, 256);
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release(shared.k_empty + 8 * ((used + 1) & 1));
      apply_terms(n(), info, slope);
      if (masked) mask(n(), info, All{});
      weigh(false, masked, n(), info, All{}, statistics);  // while the products of the other groups run
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release(shared.v_empty + 8 * (used & 1));
      round_weights(All{});
      if constexpr (kTerms)
        if (p.drops) drop_weights<kKeys>(weights, p, info, row0, n() * kKeys + column0);
      if constexpr (statistics == Statistics::few) {
        const bool lost = !masked && few_sums.lost();
        if (__any_sync(~0u, rescale || lost)) {
          scale_out();
          if (lost) few_sums.weigh_again(s);
        }
        few_sums.store(sums);
      } else if (__any_sync(~0u, rescale)) {
        scale_out();
      }
      ++used;
    };

    if constexpr (!C::kAcross) {
      ptx::mbarrier_wait(shared.k_full + 8 * (used & 1), (used >> 1) & 1);
      multiply_keys(used, tile);
    }
    int end = 0;  // the last tile of keys open to this group
    bool few = false;
    if constexpr (C::kOwnEnd) {
      end = static_cast<int>(ptx::load_word(shared.own_of(tile, group)));
      few = end & 1, end >>= 1;
    }
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    release(shared.k_empty + 8 * (used & 1));
    if (C::kAcross && tile > 0 && thread == 0) {  // the output of the tile before has left shared memory
      ptx::wait_stores_read();
      ptx::mbarrier_arrive(shared.q_empty + 8 * (slot ^ 1));
    }
    bool clear = p.clear_tail;
    // A tile of keys outside of what this group sees: it keeps its turn and releases them.
    const auto pass = [&](auto&& products, auto&& await) {
      ptx::mbarrier_wait(shared.k_full + 8 * ((used + 1) & 1), ((used + 1) >> 1) & 1);
      ptx::barrier_sync(turn, 256);
      products();
      ptx::barrier_arrive(next_turn, 256);
      ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
      await();
      release(shared.v_empty + 8 * (used & 1));
      ++used;
    };
    const auto pass_to = [&](int& n, int end) {
#pragma unroll 1
      for (; n > end; --n) {
        pass([] {}, [] {});
        release(shared.k_empty + 8 * (used & 1));
      }
    };
    if constexpr (C::kOwnEnd) {
      if (last > end) {
        clear = false;
        pass_to(last, end + 1);
        pass([&] { multiply_keys(used + 1, tile); }, [] {});
        --last;
        ptx::wgmma_wait<0>();
        ptx::pin(s);
        release(shared.k_empty + 8 * (used & 1));
      }
    }
#pragma unroll
    for (int i = 0; i < kValueDim / 2; ++i) o[i] = 0.f;
    const auto begin = [&](auto keys) {
      mask(last, info, keys);
      if (C::kFewProbes && p.probes.few) {
        weigh(true, true, last, info, keys, FewSums{});
        few_sums.store(sums);
      } else {
        weigh(true, true, last, info, keys, AllSums{});
      }
      round_weights(keys);
    };
    apply_terms(last, info, slope);
    if (C::kOwnEnd && few)
      begin(Few{});
    else
      begin(All{});
    if constexpr (kTerms)
      if (p.drops) drop_weights<kKeys>(weights, p, info, row0, last * kKeys + column0);
    if (clear) clear_tail(last, info);
    // Right to left; two loops: one with a branch around mask() measured about 3 % slower.
    int n = last - 1;
    // Last tile, first one, begin and end of the full ones: read when needed, registers are short.
    [[maybe_unused]] const auto bounds = [&] {
      return ptx::load_shared(C::kOwnEnd ? shared.own_of(tile, group) : info);
    };
    if (C::kOwnEnd && few) {
      const bool edge = n >= bounds().w || n < bounds().z;
      step(n--, edge, Few{}, AllSums{});
    }
    if constexpr (C::kListed) {  // the thread that copies keys says which tiles there are
      int entry = ptx::load_shared(info).y;
#pragma unroll 1
      for (;;) {
#pragma unroll 1
        for (; (entry & 3) == 3; entry = entry_of(used)) step(0, true, All{}, AllSums{});
        if (!(entry & 2)) break;
#pragma unroll 1
        for (; (entry & 3) == 2; entry = entry_of(used)) step(0, false, All{}, AllSums{});
      }
    } else {
      const auto walk = [&](auto statistics) {
        int stop = bounds().w;
#pragma unroll 1
        for (;;) {
#pragma unroll 1
          for (; n >= stop; --n) step(n, true, All{}, statistics);
          if (n < bounds().y) break;
          stop = bounds().z;
#pragma unroll 1
          for (; n >= stop; --n) step(n, false, All{}, statistics);
          stop = bounds().y;
        }
      };
      if (C::kFewProbes && p.probes.few)
        walk(FewSums{});
      else
        walk(AllSums{});
      if constexpr (C::kOwnEnd) {
        if (const int first = ptx::load_shared(info).y; n >= first) {
          pass(
              [&] {
                ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
                multiply_values(used, All{});
              },
              [&] {
                ptx::wgmma_wait<0>();
                ptx::pin(o);
              });
          release(shared.k_empty + 8 * (used & 1));
          pass_to(--n, first - 1);
#pragma unroll
          for (int i = 0; i < kKeys / 4; ++i) weights[i] = 0;  // of the last product, which all groups make
        }
      }
    }

    if constexpr (C::kAcross) {  // after the last tile the product is a dummy: no branch around wgmma
      last = await_tile(tile + 1);
      if (last >= 0) ptx::mbarrier_wait(shared.k_full + 8 * ((used + 1) & 1), ((used + 1) >> 1) & 1);
      ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
      ptx::barrier_sync(turn, 256);
      multiply_values(used, All{});
      multiply_keys(used + 1, tile + 1);
      ptx::barrier_arrive(next_turn, 256);
    } else {
      ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
      multiply_values(used, All{});
    }
    const auto await_values = [&] {
      ptx::wgmma_wait<C::kAcross ? 1 : 0>();
      ptx::pin(o);
      release(shared.v_empty + 8 * (used & 1));
    };
    if constexpr (kProbes) await_values();        // the last weights leave their registers to the statistics
    const int4 at = ptx::load_shared(info + 16);  // head, batch, row of the tensor, rows left in the sequence
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      sum[0] += __shfl_xor_sync(~0u, sum[0], x);
      sum[1] += __shfl_xor_sync(~0u, sum[1], x);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float reference = top[r] == -INFINITY ? 0.f : top[r] * unit, weight = 1.f;
      const float keys = sum[r], keys_reference = reference;
      float sink_part = 0.f, sink = -INFINITY;
      if (p.sinks.data) {
        sink = kLog2e * number_of(p.sinks, at.x);
        const float higher = top[r] == -INFINITY ? sink : fmaxf(reference, sink);
        weight = ptx::exp2(reference - higher);
        sink_part = sink == -INFINITY ? 0.f : ptx::exp2(sink - higher);
        sum[r] = (sum[r] > 0.f ? sum[r] * weight : sum[r]) + sink_part;
        reference = higher;
      }
      if constexpr (kProbes)
        if (probed)
          sums.finish(
              p.probes, r,
              {at, row0 + 8 * r, keys, reference, keys_reference - reference, sink_part, sink, sum[r]}, unit);
      // A row without keys keeps 0 and has -inf; one whose scores hold a NaN passes it on.
      factor[r] =
          sum[r] == 0.f || top[r] == -INFINITY && sum[r] == sum[r] ? 0.f : weight * ptx::reciprocal(sum[r]);
      const int row = row0 + 8 * r;
      if constexpr (kTerms) {  // a register short elsewhere
        if (p.gate.data && row < at.w && factor[r] != 0.f)
          factor[r] *= number_of(p.gate, at.y, at.z + row, at.x);
        factor[r] *= p.kept;
      }
      if (p.lse && lane % 4 == 0 && row < at.w)
        p.lse[at.y * p.lse_step[0] + at.x * p.lse_step[1] + (at.z + row) * p.lse_step[2]] =
            sum[r] == 0.f ? -INFINITY : (reference + log2f(sum[r])) * kLn2;
    }
    if constexpr (!kProbes) await_values();
    ++used;
    scale_out();

    // The output goes through this group's own rows of q, which nobody else reads, panel by panel.
    const std::uint32_t staged = shared.q + slot * C::kQBytes;
#pragma unroll
    for (int j = 0; j < kValueDim / 16; ++j)
      ptx::store_matrices(
          staged + chunk_offset(kRows, group * 64 + warp * 16 + (lane & 15), 2 * j + (lane >> 4)),
          Number<T>::pack(o[8 * j], o[8 * j + 1]), Number<T>::pack(o[8 * j + 2], o[8 * j + 3]),
          Number<T>::pack(o[8 * j + 4], o[8 * j + 5]), Number<T>::pack(o[8 * j + 6], o[8 * j + 7]));
    ptx::fence_shared_for_async();
    ptx::barrier_sync(own_barrier, 128);
    const int left = at.w - group * 64;
    if (p.store_rows && left < 64) {  // a bulk store would run into the next sequence
      auto* out = static_cast<std::uint16_t*>(p.out) + at.y * p.out_step[0] + at.x * p.out_step[2];
      for (int i = thread; i < left * (kValueDim / 8); i += 128) {
        const int row = i / (kValueDim / 8), chunk = i % (kValueDim / 8);
        *reinterpret_cast<int4*>(out + (at.z + group * 64 + row) * p.out_step[1] + chunk * 8) =
            ptx::load_shared(staged + chunk_offset(kRows, group * 64 + row, chunk));
      }
      ptx::barrier_sync(own_barrier, 128);
    } else if (thread == 0) {
#pragma unroll
      for (int c = 0; c < C::kValuePanels; ++c)
        ptx::store_tile(out_map, staged + c * panel_bytes(kRows) + group * 64 * kPanelRowBytes,
                        at.z + group * 64, kValueDim % 64 ? 0 : c, at.x, at.y, kValueDim % 64 ? 64 * c : 0);
      ptx::commit_stores();
    }
    if constexpr (!C::kAcross) {
      if (thread == 0) {
        ptx::wait_stores_read();
        ptx::mbarrier_arrive(shared.q_empty + 8 * slot);
      }
      last = await_tile(tile + 1);
    }
  }
  if constexpr (C::kAcross) {
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  }
  if (thread == 0) ptx::wait_stores();
}

}  // namespace headwise::cuda
