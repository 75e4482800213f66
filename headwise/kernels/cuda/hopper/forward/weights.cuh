// Scores of a group become weights: terms, mask, references, sums; all of a tile's keys, or the first few.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward/group.cuh"

namespace headwise::cuda::hopper::forward {

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::apply_terms(int n, int use,
                                                                          const TileNow& now) const {
  if constexpr (kTerms)
    if (termed) {
      const bool tiles = C::kBiasTiles && p.bias_tiles, alone = tiles && p.cap == 0.f && !p.slopes.data;
      if (!alone)
        cap_scores<kKeys>(s, p, now.slope,
                          now.facts.sequence().position + first_row() - n * kKeys - first_column());
      if constexpr (C::kBiasTiles)
        if (tiles)
          return add_bias_tile<T, kRows, kKeys>(s, alone ? p.scale_log2 : 1.f,
                                                shared.bias + (use & 1) * C::kBiasBytes,
                                                group * 64 + warp * 16, lane);
      if (p.bias.data) add_bias<kKeys>(s, p.bias, now.facts, first_row(), n * kKeys + first_column());
    }
}

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::drop(int n, FactLoader facts) const {
  if constexpr (kTerms)
    if (p.drops) {
      if constexpr (kDim > 128 || kKeys == 128)
        return drop_weights<kKeys>(weights, p, facts, first_row(), n * kKeys + first_column());
      TileDraws<kKeys> draws;
      draws.draw(p, facts, first_row(), n * kKeys + first_column());
      draws.apply(weights);
    }
}

template <class C, Statistics kStatistics>
template <int Keys>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::mask(int n, FactLoader facts) const {
  const TileSequence at = facts.sequence();
  const int row0 = first_row(), column0 = first_column();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = at.position + row0 + 8 * r, end = min(at.kv_tokens, position + p.ahead + 1),
              begin = position - p.back;
    // Bit 2 j + i: column 8 j + i of the thread's. One word a row, then one choice a score.
    const auto below = [&](int key) {
      const int x = min(max(key - n * kKeys - column0, 0), kKeys);
      return ptx::low_bits(2 * (x >> 3) + min(x & 7, 2));
    };
    std::uint32_t open = below(end);
    if constexpr (kTerms)
      if (p.blocks.lists) open &= open_blocks(p.blocks, at.position + row0 + 8 * r, n * kKeys, kKeys, below);
    open &= ~below(begin);
#pragma unroll
    for (int i = 0; i < Keys / 4; ++i)
      if (!(open >> i & 1u)) s[4 * (i / 2) + 2 * r + (i & 1)] = -INFINITY;
  }
}

/// A row's reference is the highest exponent of the tile it began in, and moves to that of a tile with one
/// more than kRise above it. The choice is each row's own; a row that keeps its reference has factor 1.
template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::move_references(bool first,
                                                                              const TileWeights& w) const {
  rescale = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool moved = first || fmaf(w.most[r], unit, -reference[r]) > kRise;
    const float old = reference[r];
    if (moved) reference[r] = w.most[r] * unit;
    if (!first && moved) w.fall[r] = old - reference[r];
    factor[r] = first ? 0.f : ptx::exp2(w.fall[r]);
    rescale |= moved;
    if constexpr (kFewSums) few_sums.move(sums, r, factor[r], w.fall[r], first ? 0.f : sum[r]);
    w.minus[r] = reference[r] == -INFINITY ? 0.f : -reference[r];
  }
}

template <class C, Statistics kStatistics>
template <class Seen>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::weigh_pair(int r, int j, const TileWeights& w,
                                                                         Seen&& seen) const {
  float &x0 = s[4 * j + 2 * r], &x1 = s[4 * j + 2 * r + 1];
  const float e0 = fmaf(x0, unit, w.minus[r]), e1 = fmaf(x1, unit, w.minus[r]);
  x0 = ptx::exp2(e0), x1 = ptx::exp2(e1);
  if (j == 0)
    w.even[r] = x0, w.odd[r] = x1;
  else
    w.even[r] += x0, w.odd[r] += x1;
  seen(x0, e0, x1, e1);
}

/// Row by row, with all statistics of a row.
template <class C, Statistics kStatistics>
template <int Keys, class Finite>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::weigh_with_sums(bool masked, Finite&& finite,
                                                                              int n, FactLoader facts,
                                                                              const TileWeights& w) const {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    RowSums::Tile tile;
#pragma unroll
    for (int j = 0; j < Keys / 8; ++j)
      weigh_pair(r, j, w, [&](float w0, float e0, float w1, float e1) {
        tile.add(w0, finite(e0), static_cast<float>(8 * j));
        tile.add(w1, finite(e1), static_cast<float>(8 * j + 1));
      });
    const bool lost = tile.exponents != tile.exponents;
    if (!masked && __any_sync(~0u, lost)) {
      const float again = exponents_of(s, r);
      if (lost) tile.exponents = again;
    }
    const int d = facts.sequence().position + first_row() + 8 * r - n * kKeys - first_column();
    sums.join(r, w.fall[r] < 0.f, factor[r], w.fall[r] * sum[r], tile,
              distances_of(s, r, static_cast<float>(d), p.ahead > 0, w.even[r] + w.odd[r], tile.columns));
  }
}

/// Pair by pair: so ptxas begins with weights of both rows. Gives the bits of the highest exponent.
template <class C, Statistics kStatistics>
template <int Keys, class Finite>
__device__ __forceinline__ int ForwardGroup<C, kStatistics>::weigh_pairs(Finite&& finite, bool looks,
                                                                         const TileWeights& w) const {
  int highest = 0;
  if constexpr (kFewSums) few_sums.fetch(sums);
  [[maybe_unused]] FewPace pace{p.tiles >> 31};
#pragma unroll
  for (int i = 0; i < Keys / 4; ++i) {
    if (kFewSums && kKeys == 128 && !looks) pace.before(i, few_sums, w.odd, w.minus);
    weigh_pair(i % 2, i / 2, w, [&](float w0, float e0, float w1, float e1) {
      int& high = kFewSums ? few_sums.best[i % 2] : highest;
      if constexpr (kFewSums) few_sums.add(i % 2, w0, finite(e0), w1, finite(e1));
      if (!looks) high = kFewSums ? higher(high, w0, w1) : higher(high, e0, e1);
    });
  }
  if (kFewSums && looks)  // the highest weight is that of the highest score
#pragma unroll
    for (int r = 0; r < 2; ++r) few_sums.meet(r, ptx::exp2(fmaf(w.most[r], unit, w.minus[r])));
  return highest;
}

/// s becomes weights 2^(s * unit - reference). Where references are not made out first, weights are made with
/// those there are, and true is returned where one of the thread's may be above 2^kRise.
template <class C, Statistics kStatistics>
template <int Keys>
__device__ __forceinline__ bool ForwardGroup<C, kStatistics>::weigh(bool first, bool masked, bool looks,
                                                                    int n, FactLoader facts) const {
  float minus[2] = {-reference[0], -reference[1]}, fall[2] = {}, most[2], even[2], odd[2];
  const TileWeights w{minus, fall, most, even, odd};
  if (looks) {
    row_maxima<Keys>(s, most);
    if constexpr (kAllSums)
      if (all) sums.meet(first, most, s, n * kKeys + first_column());
    move_references(first, w);
  }
  // Exponents of -inf add nothing. Masks make them; without one, only inputs that are not finite.
  const auto finite = [&](float e) { return masked ? fmaxf(e, -1000.f) : e; };
  int highest = 0;
  if (all)
    weigh_with_sums<Keys>(masked, finite, n, facts, w);
  else
    highest = weigh_pairs<Keys>(finite, looks, w);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    of_tile[r] = even[r] + odd[r];
    if (looks) sum[r] = first ? of_tile[r] : fmaf(sum[r], factor[r], of_tile[r]);
  }
  if (!looks) ptx::pin(of_tile);  // added up before any branch, while exponents are made
  if constexpr (kFewSums) return few_sums.high(C::kRise);
  return highest > __float_as_int(kRise);
}

template <class C, Statistics kStatistics>
template <int Keys>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::round_weights() const {
#pragma unroll
  for (int i = 0; i < Keys / 4; ++i) weights[i] = Number<T>::pack(s[2 * i], s[2 * i + 1]);
}

template <class C, Statistics kStatistics>
__device__ __forceinline__ void ForwardGroup<C, kStatistics>::scale_out() const {
#pragma unroll
  for (int j = 0; j < kValueDim / 8; ++j) {
    o[4 * j] *= factor[0], o[4 * j + 1] *= factor[0];
    o[4 * j + 2] *= factor[1], o[4 * j + 3] *= factor[1];
  }
}

}  // namespace headwise::cuda::hopper::forward
