// The AMX core: bf16 operands, or f32 in parts of bf16, with f32 sums. Scores: A = keys as they lie, B =
// pairs of dims of a panel of 32 queries; outputs: A = values transposed, B = pairs of keys of the weights.
// Both are the same step over 2x2 tiles. Included by the AMX level after its Lanes; internal linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/tiles.h"
#include "headwise/kernels/cpu/tile/mix_passes.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu {
namespace {

/// 0, 1, 2, ... to be broadcast: made from an integer, each would cost three steps.
constexpr struct Numbers {
  float at[256];
  constexpr Numbers() : at() {
    for (int i = 0; i < 256; ++i) at[i] = static_cast<float>(i);
  }
} kNumbers;

/// Operands: how queries, keys, values and weights become tiles, in how many parts.
template <class Operands>
struct AmxCore {
  static constexpr int W = 16, kParts = Operands::kParts, kPanel = Operands::kPanel;
  static constexpr int kGranule = Operands::kGranule, kBlock = 32;
  static constexpr Index kBlockFloats = kBlock * kPanel, kTile = kParts * kTileBytes;

  static Index query_bytes(Index dim) { return rounded(dim, 32) / 32 * 2 * kTile + Operands::kFlags; }
  static Index key_bytes(Index dim) {
    return rounded(dim, 32) / 32 * (kGranule / 16) * kTile + Operands::kFlags;
  }
  static Index value_bytes(Index value_dim) { return rounded(value_dim, 32) / 16 * (kGranule / 32) * kTile; }
  /// Two operands of weigh, a second S, and two blocks of sums on their way to o: what `stripes` turns over.
  static Index weight_bytes() { return 2 * kWeights + kGranule * kPanel * 4 + 2 * kBlockFloats * 4; }

  /// The steps of one product, block after block.
  struct Steps {
    const char *a, *b;
    Index outer, inner, second;  // bytes from block to block, from step to step, to the second tile
    Index blocks, each;
    float* to;
    Index turn;  // the blocks at `to` are used in turn: block & turn
    Index block = 0, at = 0;

    bool done() const { return block == blocks; }
    Index left() const { return (blocks - block) * each - at; }
    /// `last` stands for where the sums now in C belong, before and after.
    Step next(float*& last) {
      const Step s{a + block * outer + at * inner, b + at * 2 * kTile, second, at == 0, last};
      last = to + (block & turn) * kBlockFloats;
      if (++at == each) at = 0, ++block;
      return s;
    }
  };
  static Steps score_steps(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    const Index tiles = rounded(dim, 32) / 32;
    const Index first = from / kBlock, blocks = rounded(to, kBlock) / kBlock - first;
    return {static_cast<const char*>(keys) + first * 2 * tiles * kTile,
            static_cast<const char*>(queries),
            2 * tiles * kTile,
            kTile,
            tiles * kTile,
            blocks,
            tiles,
            s + from * kPanel,
            kGranule / kBlock - 1};
  }
  /// `sums`: two blocks used in turn.
  static Steps weigh_steps(const void* p, const void* values, Index from, Index to, Index value_dim,
                           float* sums) {
    const Index tiles = rounded(value_dim, 32) / 16;
    const Index first = from / kBlock, blocks = rounded(to, kBlock) / kBlock - first;
    return {static_cast<const char*>(values) + first * tiles * kTile,
            static_cast<const char*>(p) + first * 2 * kTile,
            2 * kTile,
            tiles * kTile,
            kTile,
            tiles / 2,
            blocks,
            sums,
            1};
  }

  static void scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    Steps steps = score_steps(queries, keys, from, to, dim, s);
    float* last = s + from * kPanel;
    while (!steps.done()) whole_step<kParts>(steps.next(last));
    store_block(last);
    Operands::mend_scores(queries, keys, from, to, dim, s);
  }

  /// Keys from `to` to the end of their block get one score, or weight.
  static void fill_rest(float* s, Index to, float x) {
    for (Index k = to; k % kBlock != 0; ++k)
      for (int j = 0; j < 2; ++j) Lanes::store(s + k * kPanel + j * W, Lanes::set(x));
  }
  /// What looks at the weights on their way, one vector at a time: `p` in units of kWeightUnit, `d` = x -
  /// top.
  struct Unseen {
    void operator()(float*, Index, int, int, F, F, F) const {}
  };
  struct Kept {
    void operator()(float* s, Index k, int, int j, F, F, F p) const {
      Lanes::store(s + k * kPanel + j * W, Lanes::mul(p, Lanes::set(1.0f / Operands::kWeightUnit)));
    }
  };
  /// Halves: vectors of queries that are wanted.
  template <int Halves, int I = 0, class Look>
  static inline __attribute__((always_inline)) void eight(float* s, char* p, Index k,
                                                          typename Operands::Exponent& e, Look& look) {
    if (Halves == 2 || Operands::half_of(k, I) == 0) e.template unit<I>(s, p, k, look, [] {});
    if constexpr (I < 7) eight<Halves, I + 1>(s, p, k, e, look);
  }
  template <class Look>
  static void weights_seen(const Tile& t, Look& look) {
    typename Operands::Exponent e(t.top, t.factor);
    auto* p = static_cast<char*>(t.p);
    fill_rest(t.s, t.to, kMinusInf);
    const Index to = rounded(t.to, kBlock);
    if (t.lanes > W) {
      for (Index k = t.from; k < to; k += 8) eight<2>(t.s, p, k, e, look);
    } else {
      for (Index k = t.from; k < to; k += 8) eight<1>(t.s, p, k, e, look);
      for (Index line = t.from * kParts / 2; line < to * kParts / 2; ++line)
        _mm512_store_si512(p + line * kLine + 64, _mm512_setzero_si512());
    }
    e.total(t.sum);
  }
  static void weights(const Tile& t) {
    Unseen none;
    weights_seen(t, none);
  }
  static void weights_plain(const Tile& t) {
    Kept kept;
    weights_seen(t, kept);
  }
  /// Row statistics; `Keeps`: the weights stay in S besides. Two bests: either place in the pairs sees its
  /// keys in ascending order, so that the lowest of equals is kept.
  template <bool Keeps>
  struct Stats {
    static constexpr float kUnit = Operands::kWeightUnit;  // sums of weights are in it meanwhile, exactly
    F q[2], c[2], score[2], square[2], distance[2], best[2][2], best_key[2][2];

    Stats(const RowStats& r, const float* q_distance, const float* factor) {
      for (int j = 0; j < 2; ++j) {
        q[j] = Lanes::load(q_distance + j * W), c[j] = Lanes::load(factor + j * W);
        score[j] = in_units(r.weighted_score + j * W, kUnit),
        distance[j] = in_units(r.distance + j * W, kUnit);
        square[j] = in_units(r.square + j * W, kUnit * kUnit);
        for (int h = 0; h < 2; ++h)
          best[h][j] = Lanes::load(r.best + j * W), best_key[h][j] = Lanes::set(-1.0f);
      }
    }
    inline __attribute__((always_inline)) void operator()(float* s, Index k, int h, int j, F x, F d, F p) {
      const F key = Lanes::bcast(kNumbers.at + k);
      if constexpr (Keeps) Kept()(s, k, h, j, x, d, p);
      score[j] = Lanes::fma(p, Lanes::max(Lanes::set(-200.0f), Lanes::mul(d, c[j])), score[j]);
      square[j] = Lanes::fma(p, p, square[j]);
      distance[j] = Lanes::fma(p, Lanes::abs(Lanes::sub(q[j], key)), distance[j]);
      F &most = best[h][j], &which = best_key[h][j];
      const auto better = Lanes::greater(x, most);
      most = Lanes::select(better, x, most), which = Lanes::select(better, key, which);
    }
    static F in_units(const float* x, float unit) { return Lanes::mul(Lanes::load(x), Lanes::set(unit)); }
    void keep(const RowStats& r, Index key0) const {
      for (int j = 0; j < 2; ++j) {
        Lanes::store(r.weighted_score + j * W, Lanes::mul(score[j], Lanes::set(1 / kUnit)));
        Lanes::store(r.distance + j * W, Lanes::mul(distance[j], Lanes::set(1 / kUnit)));
        Lanes::store(r.square + j * W, Lanes::mul(square[j], Lanes::set(1 / kUnit / kUnit)));
        float most[2][W], which[2][W];
        for (int h = 0; h < 2; ++h) Lanes::store(most[h], best[h][j]), Lanes::store(which[h], best_key[h][j]);
        for (int i = 0; i < W; ++i) {
          const bool second =
              most[1][i] > most[0][i] || (most[1][i] == most[0][i] && which[1][i] >= 0.0f &&
                                          !(which[0][i] >= 0.0f && which[0][i] < which[1][i]));
          if (which[second][i] < 0.0f) continue;
          r.best[j * W + i] = most[second][i];
          r.best_key[j * W + i] = key0 + static_cast<Index>(which[second][i]);
        }
      }
    }
  };
  static void weights_stats(const Tile& t, const RowStats& r, const float* q_distance, Index key0) {
    Stats<true> stats(r, q_distance, t.factor);
    weights_seen(t, stats);
    stats.keep(r, key0);
  }
  static void operand(const Tile& t) {
    fill_rest(t.s, t.to, 0.0f);
    for (Index k = t.from; k < rounded(t.to, kBlock); k += kBlock)
      for (int n = 0; n < 16; ++n)
        for (int j = 0; j < 2; ++j) {
          const F unit = Lanes::set(Operands::kWeightUnit);
          const float* at = t.s + (k + Operands::first_of_pair(n)) * kPanel + j * W;
          Operands::store_pair(Lanes::mul(Lanes::load(at), unit),
                               Lanes::mul(Lanes::load(at + Operands::kApart * kPanel), unit),
                               static_cast<char*>(t.p) + k / kBlock * 2 * kTile + n * kLine + j * 64);
        }
  }

  /// o = o * shrink + sums for the rows of block `block`.
  static void take_sums(const float* sums, Index block, Index value_dim, const float* shrink, float* o) {
    const Index first = block * kBlock, left = rounded(value_dim, 16) - first,
                rows = left < kBlock ? left : kBlock;
    const float* from = sums + block % 2 * kBlockFloats;
    const F keep[2] = {Lanes::load(shrink), Lanes::load(shrink + W)};
    for (Index r = 0; r < rows; ++r)
      for (int j = 0; j < 2; ++j) {
        float* at = o + (first + r) * kPanel + j * W;
        F sum = Lanes::load(from + r * kPanel + j * W);
        if constexpr (Operands::kWeightUnit != 1.0f)
          sum = Lanes::mul(sum, Lanes::set(1.0f / Operands::kWeightUnit));
        Lanes::store(at, Lanes::fma(Lanes::load(at), keep[j], sum));
      }
  }
  static void weigh(const Tile& t, const void* values, Index value_dim, const float* shrink, float* o) {
    float* sums = sums_of(t.p);
    Steps steps = weigh_steps(t.p, values, t.from, t.to, value_dim, sums);
    float* last = sums;
    Index taken = 0;
    while (!steps.done()) {
      const bool stores = steps.block > taken;
      whole_step<kParts>(steps.next(last));
      if (stores) take_sums(sums, taken++, value_dim, shrink, o);
    }
    store_block(last);
    take_sums(sums, taken, value_dim, shrink, o);
  }
  static void row_max(const float* s, Index from, Index to, float* top) {
    F m[4][2];
    for (auto& chain : m)
      for (int j = 0; j < 2; ++j) chain[j] = Lanes::load(top + j * W);
    Index k = from;
    for (; k + 4 <= to; k += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) m[i][j] = Lanes::max(Lanes::load(s + (k + i) * kPanel + j * W), m[i][j]);
    for (; k < to; ++k)
      for (int j = 0; j < 2; ++j) m[0][j] = Lanes::max(Lanes::load(s + k * kPanel + j * W), m[0][j]);
    for (int j = 0; j < 2; ++j)
      Lanes::store(top + j * W, Lanes::max(Lanes::max(m[0][j], m[1][j]), Lanes::max(m[2][j], m[3][j])));
  }

  static constexpr Core table() {
    Core c{};
    c.name = Operands::kName, c.panel = kPanel, c.granule = kGranule, c.begin = tiles_on, c.end = tiles_off;
    c.value_low = Operands::kValueLow, c.value_high = Operands::kValueHigh;
    c.key_group = Operands::kKeyGroup, c.key_columns = 32, c.key_pad = 32;
    c.products = {.query_bytes = query_bytes,
                  .key_bytes = key_bytes,
                  .value_bytes = value_bytes,
                  .weight_bytes = weight_bytes,
                  .pack_queries = Operands::pack_queries,
                  .pack_keys = Operands::pack_keys,
                  .pack_values = Operands::pack_values,
                  .scores = scores,
                  .operand = operand,
                  .weigh = weigh};
    c.passes = MixPasses<Lanes, 2>::joined(Passes<2>::table());
    c.passes.weights = weights, c.passes.weights_plain = weights_plain;
    c.passes.weights_stats = weights_stats, c.passes.row_max = row_max;
    return c;
  }

  static constexpr Index kWeights = kGranule / 32 * 2 * kTile;
  static char* weights_of(void* p, int turn) { return static_cast<char*>(p) + turn * kWeights; }
  static float* scores_of(float* s, void* p, int turn) {
    return turn == 0 ? s : reinterpret_cast<float*>(weights_of(p, 2));
  }
  static float* sums_of(void* p) { return reinterpret_cast<float*>(weights_of(p, 2)) + kGranule * kPanel; }
};

}  // namespace
}  // namespace headwise::cpu
