// Attention forward on Hopper: two threads copy tiles, two or three warpgroups of 64 queries multiply.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/hopper/forward/copy.cuh"
#include "headwise/kernels/cuda/hopper/forward/pairs.cuh"
#include "headwise/kernels/cuda/hopper/forward/row_sums.cuh"
#include "headwise/kernels/cuda/hopper/forward/rows.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda {

/// One warpgroup: 64 queries of a tile, keys from right to left, two products a step in the order q k(n)^T,
/// p(n + 1) v(n + 1), so that the first is done while the second runs.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void forward_products(const ForwardShared<C>& shared, const CUtensorMap* out_map,
                                                 const ForwardParams& p, int group) {
  using T = typename C::T;
  constexpr int kDim = C::kHeadDim, kValueDim = C::kValueDim, kKeys = C::kKeys, kRows = C::kRows,
                kGroups = C::kGroups;
  constexpr bool kTerms = C::kPasses == TilePasses::terms, kFewSums = kStatistics == Statistics::few,
                 kAllSums = kStatistics == Statistics::all;
  constexpr float kLn2 = 0.693147180559945309f, kLog2e = 1.44269504088896341f, kRise = C::kRise;
  // Where a thread stands. Registers are short: up to 128 columns it is made out where it is needed.
  constexpr bool kKept = kTerms || kDim > 128, kReadAnew = C::kPasses == TilePasses::probes;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int row0 = group * 64 + warp * 16 + lane / 4, column0 = lane % 4 * 2;
  const auto thread_now = [&] { return kKept ? thread : static_cast<int>(ptx::thread_now() % 128); };
  const auto row_of = [&](int x) { return group * 64 + x / 32 * 16 + x % 32 / 4; };
  const auto first_row = [&] { return kReadAnew ? row_of(thread_now()) : row0; };
  const auto first_column = [&] { return kReadAnew ? thread_now() % 4 * 2 : column0; };
  const int turn = 2 + group, next_turn = 2 + (group + 1) % kGroups, own_barrier = 2 + kGroups + group;
  const bool termed = kTerms && p.terms, all = kAllSums && (!kTerms || p.probes.asked);
  const float unit = termed ? 1.f : p.scale_log2;
  if (group == 0) ptx::barrier_arrive(turn, 256);  // group 0 goes first

  float o[kValueDim / 2], s[kKeys / 2], reference[2] = {}, sum[2] = {}, of_tile[2], factor[2];
  FewRowSums few_sums;
  std::uint32_t weights[kKeys / 4];
  bool rescale = false;
  int used = 0;
  // The first warpgroup copies. (Of two ways to say it, which one leaves registers ptxas alone knows.)
  const RowSums sums(shared.sums, kFewSums ? static_cast<int>(threadIdx.x) - 128 : group * 128 + thread);

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
  const auto apply_terms = [&](int n, std::uint32_t info, float slope) {
    if constexpr (kTerms)
      if (termed) {
        cap_scores<kKeys>(s, p, slope,
                          ptx::load_shared(info + 32).y + first_row() - n * kKeys - first_column());
        if (p.bias.data) add_bias<kKeys>(s, p.bias, info, first_row(), n * kKeys + first_column());
      }
  };
  const auto mask = [&](int n, std::uint32_t info, auto keys) {
    const int4 at = ptx::load_shared(info + 32);
    const int row0 = first_row(), column0 = first_column();
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
  // s becomes weights 2^(s * unit - reference). A row's reference is the highest exponent of the tile it
  // began in, and moves to that of a tile with one more than kRise above it: the choice is each row's own,
  // and a row that keeps its reference has factor 1. `looks`: references are made out first. If not, weights
  // are made with those there are, and true is returned where one of the thread's may be above 2^kRise.
  const auto weigh = [&](bool first, bool masked, bool looks, int n, std::uint32_t info, auto keys) {
    float minus[2] = {-reference[0], -reference[1]}, fall[2] = {}, most[2];
    if (looks) {
      row_maxima<keys>(s, most);
      if constexpr (kAllSums)
        if (all) sums.meet(first, most, s, n * kKeys + first_column());
      rescale = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool moved = first || fmaf(most[r], unit, -reference[r]) > kRise;
        const float old = reference[r];
        if (moved) reference[r] = most[r] * unit;
        if (!first && moved) fall[r] = old - reference[r];
        factor[r] = first ? 0.f : ptx::exp2(fall[r]);
        rescale |= moved;
        if constexpr (kFewSums) few_sums.move(sums, r, factor[r], fall[r], first ? 0.f : sum[r]);
        minus[r] = reference[r] == -INFINITY ? 0.f : -reference[r];
      }
    }
    // Exponents of -inf add nothing. Masks make them; without one, only inputs that are not finite.
    const auto finite = [&](float e) { return masked ? fmaxf(e, -1000.f) : e; };
    float even[2], odd[2];
    int highest = 0;
    const auto weigh_pair = [&](int r, int j, auto&& seen) {
      float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
      const float e0 = fmaf(x0, unit, minus[r]), e1 = fmaf(x1, unit, minus[r]);
      x0 = ptx::exp2(e0), x1 = ptx::exp2(e1);
      if (j == 0)
        even[r] = x0, odd[r] = x1;
      else
        even[r] += x0, odd[r] += x1;
      seen(x0, e0, x1, e1);
    };
    if (all) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        RowSums::Tile tile;
#pragma unroll
        for (int j = 0; j < keys / 8; ++j)
          weigh_pair(r, j, [&](float w0, float e0, float w1, float e1) {
            tile.add(w0, finite(e0), static_cast<float>(8 * j));
            tile.add(w1, finite(e1), static_cast<float>(8 * j + 1));
          });
        const bool lost = tile.exponents != tile.exponents;
        if (!masked && __any_sync(~0u, lost)) {
          const float again = exponents_of(s, r);
          if (lost) tile.exponents = again;
        }
        const int d = ptx::load_shared(info + 32).y + first_row() + 8 * r - n * kKeys - first_column();
        sums.join(r, fall[r] < 0.f, factor[r], fall[r] * sum[r], tile,
                  distances_of(s, r, static_cast<float>(d), p.ahead > 0, even[r] + odd[r], tile.columns));
      }
    } else {
      if constexpr (kFewSums) few_sums.fetch(sums);
      [[maybe_unused]] FewPace pace{p.tiles >> 31};
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) {  // pair by pair: so ptxas begins with weights of both rows
        if (kFewSums && kKeys == 128 && !looks) pace.before(i, few_sums, odd, minus);
        weigh_pair(i % 2, i / 2, [&](float w0, float e0, float w1, float e1) {
          int& high = kFewSums ? few_sums.best[i % 2] : highest;
          if constexpr (kFewSums) few_sums.add(i % 2, w0, finite(e0), w1, finite(e1));
          if (!looks) high = kFewSums ? higher(high, w0, w1) : higher(high, e0, e1);
        });
      }
      if (kFewSums && looks)  // the highest weight is that of the highest score
#pragma unroll
        for (int r = 0; r < 2; ++r) few_sums.meet(r, ptx::exp2(fmaf(most[r], unit, minus[r])));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_tile[r] = even[r] + odd[r];
      if (looks) sum[r] = first ? of_tile[r] : fmaf(sum[r], factor[r], of_tile[r]);
    }
    if (!looks) ptx::pin(of_tile);  // added up before any branch, while exponents are made
    if constexpr (kFewSums) return few_sums.high(C::kRise);
    return highest > __float_as_int(kRise);
  };
  const auto round_weights = [&](auto keys) {  // pairs are the left factor of the next product as they stand
#pragma unroll
    for (int i = 0; i < keys / 4; ++i) weights[i] = Number<T>::pack(s[2 * i], s[2 * i + 1]);
  };
  const auto clear_tail = [&](int n, std::uint32_t info) {
    ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
    clear_rows<C>(shared.v + (used & 1) * C::kValueBytes, max(ptx::load_shared(info + 32).x - n * kKeys, 0),
                  thread_now());
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

    // Listed: what the thread that copies keys says of a tile, read when needed.
    const auto entry_of = [&](int use) {
      return static_cast<int>(ptx::load_word(shared.listed + 4 * (use & 3)));
    };
    // `before`: keys of the tile before. True: weigh_again() must end the step.
    const auto step = [&](int number, bool masked, bool looks, auto before) {
      const auto n = [&] { return C::kListed ? entry_of(used + 1) >> 2 : number; };
      ptx::mbarrier_wait(shared.k_full + 8 * ((used + 1) & 1), ((used + 1) >> 1) & 1);
      ptx::barrier_sync(turn, 256);
      multiply_keys(used + 1, tile);
      ptx::mbarrier_wait(shared.v_full + 8 * (used & 1), (used >> 1) & 1);
      multiply_values(used, before);
      ptx::barrier_arrive(next_turn, 256);
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      if (looks) release(shared.k_empty + 8 * ((used + 1) & 1));
      apply_terms(n(), info, slope);
      if (masked) mask(n(), info, All{});
      const bool high = weigh(false, masked, looks, n(), info, All{});  // others multiply
      const bool again = !looks && __any_sync(~0u, high);
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release(shared.v_empty + 8 * (used & 1));
      round_weights(All{});
      if constexpr (kTerms)
        if (p.drops) drop_weights<kKeys>(weights, p, info, first_row(), n() * kKeys + first_column());
      if (again) return true;
      if (looks) {
        if (__any_sync(~0u, rescale)) scale_out();
      } else {
        release(shared.k_empty + 8 * ((used + 1) & 1));
        sum[0] += of_tile[0], sum[1] += of_tile[1];
      }
      if constexpr (kFewSums) few_sums.put(sums);
      ++used;
      return false;
    };
    // A step's weights once more, with references that look: some were above 2^kRise, or are no numbers.
    const auto weigh_again = [&](int n) {
      scores_again<T, kDim, kRows, kKeys>(s, shared.q + slot * C::kQBytes,
                                          shared.k + ((used + 1) & 1) * C::kKeyBytes);
      release(shared.k_empty + 8 * ((used + 1) & 1));
      weigh(false, true, true, n, info, All{});
      round_weights(All{});
      scale_out();
      if constexpr (kFewSums) few_sums.put(sums);
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
    if (C::kAcross && tile > 0 && thread_now() == 0) {  // the output of the tile before has left
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
      weigh(true, true, true, last, info, keys);
      if constexpr (kFewSums) few_sums.put(sums);
      round_weights(keys);
    };
    apply_terms(last, info, slope);
    if (C::kNarrow && few)
      begin(Few{});
    else
      begin(All{});
    if constexpr (kTerms)
      if (p.drops) drop_weights<kKeys>(weights, p, info, first_row(), last * kKeys + first_column());
    if (clear) clear_tail(last, info);
    int n = last - 1;  // right to left; two loops: one with a branch around mask() measured 3 % slower
    // Last tile, first one, begin and end of the full ones: read when needed.
    [[maybe_unused]] const auto bounds = [&] {
      int now = tile;  // few sums: the address is made out anew, a register along the tiles is one too many
      if constexpr (kFewSums) asm volatile("mov.b32 %0, %0;" : "+r"(now));
      return ptx::load_shared(C::kOwnEnd ? shared.own_of(now, group) : info);
    };
    if (C::kNarrow && few) {
      const bool edge = n >= bounds().w || n < bounds().z;
      step(n--, edge, true, Few{});
    }
    if constexpr (C::kListed) {  // the thread that copies keys says which tiles there are
      int entry = ptx::load_shared(info).y;
#pragma unroll 1
      for (;;) {
#pragma unroll 1
        for (; (entry & 3) == 3; entry = entry_of(used)) step(0, true, true, All{});
        if (!(entry & 2)) break;
#pragma unroll 1
        for (; (entry & 3) == 2; entry = entry_of(used)) step(0, false, true, All{});
      }
    } else {
      int stop = bounds().w;
#pragma unroll 1
      for (;;) {
#pragma unroll 1
        for (; n >= stop; --n) step(n, true, true, All{});
        if (n < bounds().y) break;
        stop = bounds().z;
        if constexpr (C::kLooksFirst || kAllSums) {
#pragma unroll 1
          for (; n >= stop; --n) step(n, false, true, All{});
        } else {
          while (n >= stop) {
            bool again = false;
#pragma unroll 1
            for (; n >= stop && !again; --n) again = step(n, false, false, All{});
            if (again) weigh_again(n + 1);
          }
        }
        stop = bounds().y;
      }
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
    if constexpr (kAllSums) await_values();  // the last weights leave their registers to the statistics
    // Head, batch, row of the tensor, rows left in the sequence; or read when needed: with four registers
    // more, few statistics are made while the last weights meet their values.
    constexpr bool kPlaceAnew = kFewSums && kKeys == 128;
    const int4 place = kPlaceAnew ? int4{} : ptx::load_shared(info + 16);
    const auto place_now = [&] { return kPlaceAnew ? ptx::load_shared(info + 16) : place; };
    const int own = thread_now(), own_lane = kKept ? lane : own % 32, own_row = kKept ? row0 : row_of(own);
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      sum[0] += __shfl_xor_sync(~0u, sum[0], x);
      sum[1] += __shfl_xor_sync(~0u, sum[1], x);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own_row + 8 * r;
      const bool none = reference[r] == -INFINITY;
      const float of_keys = sum[r], from = none ? 0.f : reference[r];
      float top = from, weight = 1.f, sink_part = 0.f, sink = -INFINITY;
      if (p.sinks.data) {
        sink = kLog2e * number_of(p.sinks, place_now().x);
        top = none ? sink : fmaxf(from, sink);
        weight = ptx::exp2(from - top);
        sink_part = sink == -INFINITY ? 0.f : ptx::exp2(sink - top);
        sum[r] = (sum[r] > 0.f ? sum[r] * weight : sum[r]) + sink_part;
      }
      const auto end = [&] {
        return RowEnd{place_now(), row, of_keys, top, from - top, sink_part, sink, sum[r]};
      };
      if constexpr (kFewSums) sums.finish_few(p.probes, r, end);
      if constexpr (kAllSums)
        if (all) sums.finish(p.probes, r, end(), unit);
      // A row without keys keeps 0 and has -inf; one whose scores hold a NaN passes it on.
      factor[r] = sum[r] == 0.f || none && sum[r] == sum[r] ? 0.f : weight * ptx::reciprocal(sum[r]);
      if constexpr (kTerms) {  // a register short elsewhere
        if (const int4 at = place_now(); p.gate.data && row < at.w && factor[r] != 0.f)
          factor[r] *= number_of(p.gate, at.y, at.z + row, at.x);
        factor[r] *= p.kept;
      }
      if (const int4 at = place_now(); p.lse && own_lane % 4 == 0 && row < at.w)
        p.lse[at.y * p.lse_step[0] + at.x * p.lse_step[1] + (at.z + row) * p.lse_step[2]] =
            sum[r] == 0.f ? -INFINITY : (top + log2f(sum[r])) * kLn2;
    }
    if constexpr (!kAllSums) await_values();
    ++used;
    scale_out();
    const int4 at = place_now();

    // The output goes through this group's own rows of q, which nobody else reads, panel by panel.
    const std::uint32_t staged = shared.q + slot * C::kQBytes;
#pragma unroll
    for (int j = 0; j < kValueDim / 16; ++j)
      ptx::store_matrices(
          staged + chunk_offset(kRows, group * 64 + (kKept ? warp : own / 32) * 16 + (own_lane & 15),
                                2 * j + (own_lane >> 4)),
          Number<T>::pack(o[8 * j], o[8 * j + 1]), Number<T>::pack(o[8 * j + 2], o[8 * j + 3]),
          Number<T>::pack(o[8 * j + 4], o[8 * j + 5]), Number<T>::pack(o[8 * j + 6], o[8 * j + 7]));
    ptx::fence_shared_for_async();
    ptx::barrier_sync(own_barrier, 128);
    const int left = at.w - group * 64;
    if (p.store_rows && left < 64) {  // a bulk store would run into the next sequence
      auto* out = static_cast<std::uint16_t*>(p.out) + at.y * p.out_step[0] + at.x * p.out_step[2];
      for (int i = static_cast<int>(ptx::thread_now() % 128); i < left * (kValueDim / 8); i += 128) {
        const int row = i / (kValueDim / 8), chunk = i % (kValueDim / 8);
        *reinterpret_cast<int4*>(out + (at.z + group * 64 + row) * p.out_step[1] + chunk * 8) =
            ptx::load_shared(staged + chunk_offset(kRows, group * 64 + row, chunk));
      }
      ptx::barrier_sync(own_barrier, 128);
    } else if (own == 0) {
#pragma unroll
      for (int c = 0; c < C::kValuePanels; ++c)
        ptx::store_tile(out_map, staged + c * panel_bytes(kRows) + group * 64 * kPanelRowBytes,
                        at.z + group * 64, kValueDim % 64 ? 0 : c, at.x, at.y, kValueDim % 64 ? 64 * c : 0);
      ptx::commit_stores();
    }
    if constexpr (!C::kAcross) {
      if (own == 0) {
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
  if (thread_now() == 0) ptx::wait_stores();
}

}  // namespace headwise::cuda
