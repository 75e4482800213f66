// The AMX core: bf16 operands, f32 sums. Scores: A = keys as they lie, B = pairs of dims of a panel of 32
// queries; outputs: A = values transposed, B = pairs of keys of the weights. Both are the same step over
// 2x2 tiles. Included by the AMX level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx_tiles.h"
#include "headwise/kernels/cpu/passes.h"
#include "headwise/kernels/cpu/rows.h"

namespace headwise::cpu {
namespace {

/// 2^x: the fraction above the floor through a polynomial with p(0) = 1 and p(1) = 2, 1.0e-7 off at most (the
/// sum, and so the log-sum-exp, is an f32 result), then scaled by the floor. -inf gives exactly +0 and NaN
/// stays NaN without a clamp.
inline __attribute__((always_inline)) F exp2_floor(F x) {
  const F f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  F p = Lanes::fma(f, Lanes::set(0.00187931862f), Lanes::set(0.00899099465f));
  p = Lanes::fma(p, f, Lanes::set(0.0558186769f));
  p = Lanes::fma(p, f, Lanes::set(0.240159273f));
  p = Lanes::fma(p, f, Lanes::set(0.693151712f));
  p = Lanes::fma(p, f, Lanes::set(1.0f));
  return _mm512_scalef_ps(p, x);
}
/// Two keys' weights of 16 queries as bf16 pairs, rounded to nearest (halves up).
inline __attribute__((always_inline)) __m512i pair_up(F even, F odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i a = _mm512_add_epi32(_mm512_castps_si512(even), half);
  const __m512i b = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_mask_mov_epi16(b, 0x55555555u, _mm512_srli_epi32(a, 16));
}

struct AmxCore {
  static constexpr int W = 16, kPanel = 32, kGranule = 256, kBlock = 32;
  static constexpr Index kBlockFloats = kBlock * kPanel;

  static Index query_bytes(Index dim) { return rounded(dim, 32) * kPanel * 2; }
  static Index key_bytes(Index dim) { return rounded(dim, 32) * kGranule * 2; }
  static Index value_bytes(Index value_dim) { return rounded(value_dim, 32) * kGranule * 2; }
  /// Two operands of weigh, a second S, and two blocks of sums on their way to o: what `stripes` turns over.
  static Index weight_bytes() { return 2 * kWeights + kGranule * kPanel * 4 + 2 * kBlockFloats * 4; }

  /// All columns exist, side by side, in whole tiles.
  static bool plain(const Rows& rows, Index dim) {
    return rows.column_step == 1 && rows.begin == 0 && rows.end >= dim && dim % 32 == 0;
  }
  static const char* address(const Rows& rows, Index row) {
    return static_cast<const char*>(rows.data) + row * rows.row_step * 2;
  }
  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out, float*) {
    auto* to = static_cast<char*>(out);
    const char* from = address(rows[0], row[0]);
    const Index step = address(rows[1], row[1]) - from;
    bool even = count == kPanel;  // full and evenly spaced: no copy on the way
    for (int i = 0; i < kPanel && even; ++i)
      even = plain(rows[i], dim) && address(rows[i], row[i]) == from + i * step;
    alignas(64) char block[16 * 64];
    for (Index c = 0; c < dim; c += 32)
      for (int lane = 0; lane < kPanel; lane += 16) {
        char* at = to + c / 2 * kLine + lane * 4;
        if (even) {
          transpose_pairs(from + lane * step + c * 2, step, at);
          continue;
        }
        for (int i = 0; i < 16; ++i)
          _mm512_store_si512(block + i * 64, lane + i < count ? piece(rows[lane + i], row[lane + i], c, dim)
                                                              : _mm512_setzero_si512());
        transpose_pairs(block, 64, at);
      }
  }
  /// Tiles [key / 16][dim / 32].
  static void pack_keys(const Rows& rows, Index first, Index count, Index dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index tiles = rounded(dim, 32) / 32, padded = rounded(count, kBlock), step = rows.row_step * 2;
    const bool direct = plain(rows, dim);
    for (Index k = 0; k < padded; k += 16)
      for (Index c = 0; c < tiles; ++c, to += kTileBytes) {
        const char* from = address(rows, first + k) + c * 64;
        if (direct && k + 16 <= count) {
#pragma GCC unroll 16
          for (Index i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, _mm512_loadu_si512(from + i * step));
          continue;
        }
        for (Index i = 0; i < 16; ++i)
          _mm512_store_si512(
              to + i * 64, k + i < count ? piece(rows, first + k + i, c * 32, dim) : _mm512_setzero_si512());
      }
  }
  /// Tiles [key / 32][value_dim / 16] of 16 dims x 32 keys.
  static bool pack_values(const Rows& rows, Index first, Index count, Index value_dim, void* out) {
    auto* to = static_cast<char*>(out);
    const Index wide = rounded(value_dim, 32), end = rows.end < value_dim ? rows.end : value_dim;
    __m512i most = _mm512_setzero_si512();
    alignas(64) char block[32 * 64];
    for (Index k = 0; k < count; k += 32)
      for (Index c = 0; c < wide; c += 32) {
        const char* from = static_cast<const char*>(rows.data) + ((first + k) * rows.row_step + c) * 2;
        Index step = rows.row_step * 2;
        if (rows.column_step != 1 || rows.begin > c || c + 32 > end || k + 32 > count) {
          for (Index i = 0; i < 32; ++i)
            _mm512_store_si512(block + i * 64, k + i < count ? piece(rows, first + k + i, c, value_dim)
                                                             : _mm512_setzero_si512());
          from = block, step = 64;
        }
        most = _mm512_max_epu16(most, transpose_halves(from, step, to + k * wide * 2 + c * 64));
      }
    const __m512i limit = _mm512_set1_epi16(0x7f80);
    if (_mm512_cmpeq_epi16_mask(most, limit) == 0) return true;
    for (Index i = 0; i < rounded(count, 32) * wide * 2; i += 64) {
      const __m512i x = _mm512_load_si512(to + i);
      const __mmask32 usual = _mm512_cmpneq_epi16_mask(_mm512_and_si512(x, limit), limit);
      _mm512_store_si512(to + i, _mm512_maskz_mov_epi16(usual, x));
    }
    return false;
  }

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
      const Step s{a + block * outer + at * inner, b + at * 2 * kTileBytes, second, at == 0, last};
      last = to + (block & turn) * kBlockFloats;
      if (++at == each) at = 0, ++block;
      return s;
    }
  };
  static Steps score_steps(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    const Index tiles = rounded(dim, 32) / 32;
    const Index first = from / kBlock, blocks = rounded(to, kBlock) / kBlock - first;
    return {static_cast<const char*>(keys) + first * 2 * tiles * kTileBytes,
            static_cast<const char*>(queries),
            2 * tiles * kTileBytes,
            kTileBytes,
            tiles * kTileBytes,
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
    return {static_cast<const char*>(values) + first * tiles * kTileBytes,
            static_cast<const char*>(p) + first * 2 * kTileBytes,
            2 * kTileBytes,
            tiles * kTileBytes,
            kTileBytes,
            tiles / 2,
            blocks,
            sums,
            1};
  }

  static void scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    Steps steps = score_steps(queries, keys, from, to, dim, s);
    float* last = s + from * kPanel;
    while (!steps.done()) whole_step(steps.next(last));
    store_block(last);
  }

  /// Weights against one top; chain i of the sum takes keys i, i + 4, ...
  struct Exponent {
    F c[2], top[2], sum[4][2];

    Exponent(const float* tops, const float* factors) {
      for (int j = 0; j < 2; ++j) {
        c[j] = Lanes::load(factors + j * W), top[j] = Lanes::load(tops + j * W);
        for (auto& chain : sum) chain[j] = Lanes::zero();
      }
    }
    /// The top is taken off before the factor: one fma would round top * factor, which is far from 0 when
    /// logits are huge.
    F distance(const float* s, int j) const {
      return Lanes::mul(Lanes::sub(Lanes::load(s + j * W), top[j]), c[j]);
    }
    F weight(const float* s, int j) const { return exp2_floor(distance(s, j)); }
    void total(float* to) const {
      for (int j = 0; j < 2; ++j)
        Lanes::store(to + j * W,
                     Lanes::add(Lanes::add(sum[0][j], sum[1][j]), Lanes::add(sum[2][j], sum[3][j])));
    }
    template <int Chain>
    inline __attribute__((always_inline)) void pair(const float* s, char* p) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const F even = weight(s, j), odd = weight(s + kPanel, j);
        sum[Chain][j] = Lanes::add(sum[Chain][j], even);
        sum[Chain + 1][j] = Lanes::add(sum[Chain + 1][j], odd);
        _mm512_store_si512(p + j * 64, pair_up(even, odd));
      }
    }
  };
  /// Keys from `to` to the end of their block are closed.
  static void close_rest(float* s, Index to) {
    for (Index k = to; k % kBlock != 0; ++k)
      for (int j = 0; j < 2; ++j) Lanes::store(s + k * kPanel + j * W, Lanes::set(kMinusInf));
  }
  static void weights(const Tile& t) {
    Exponent e(t.top, t.factor);
    close_rest(t.s, t.to);
    auto* p = static_cast<char*>(t.p);
    for (Index k = t.from; k < t.to; k += 4) {
      e.pair<0>(t.s + k * kPanel, p + k * 64);
      e.pair<2>(t.s + (k + 2) * kPanel, p + (k + 2) * 64);
    }
    zero_pairs(p, rounded(t.to, 4), rounded(t.to, kBlock));
    e.total(t.sum);
  }
  static void zero_pairs(char* p, Index from, Index to) {
    for (Index k = from; k < to; ++k) _mm512_store_si512(p + k * 64, _mm512_setzero_si512());
  }
  static void weights_plain(const Tile& t) {
    Exponent e(t.top, t.factor);
    for (Index k = t.from; k < t.to; ++k)
      for (int j = 0; j < 2; ++j) {
        const F p = e.weight(t.s + k * kPanel, j);
        Lanes::store(t.s + k * kPanel + j * W, p);
        e.sum[k & 3][j] = Lanes::add(e.sum[k & 3][j], p);
      }
    e.total(t.sum);
  }
  static void weights_stats(const Tile& t, const RowStats& r, const float* q_distance, Index key0) {
    Exponent e(t.top, t.factor);
    for (int j = 0; j < 2; ++j) {
      const F q = Lanes::load(q_distance + j * W), low = Lanes::set(-200.0f);
      F score = Lanes::load(r.weighted_score + j * W), square = Lanes::load(r.square + j * W);
      F distance = Lanes::load(r.distance + j * W), best = Lanes::load(r.best + j * W),
        best_key = Lanes::set(-1.0f);
      for (Index k = t.from; k < t.to; ++k) {
        float* at = t.s + k * kPanel;
        const F s = Lanes::load(at + j * W), x = e.distance(at, j), p = exp2_floor(x);
        const F key = Lanes::set(static_cast<float>(k));
        Lanes::store(at + j * W, p);
        e.sum[k & 3][j] = Lanes::add(e.sum[k & 3][j], p);
        score = Lanes::fma(p, Lanes::max(low, x), score);
        square = Lanes::fma(p, p, square);
        distance = Lanes::fma(p, Lanes::abs(Lanes::sub(q, key)), distance);
        const auto better = Lanes::greater(s, best);
        best = Lanes::select(better, s, best), best_key = Lanes::select(better, key, best_key);
      }
      Lanes::store(r.weighted_score + j * W, score), Lanes::store(r.square + j * W, square);
      Lanes::store(r.distance + j * W, distance), Lanes::store(r.best + j * W, best);
      float found[W];
      Lanes::store(found, best_key);
      for (int i = 0; i < W; ++i)
        if (found[i] >= 0.0f) r.best_key[j * W + i] = key0 + static_cast<Index>(found[i]);
    }
    e.total(t.sum);
  }
  static void operand(const Tile& t) {
    auto* p = static_cast<char*>(t.p);
    for (Index k = t.to; k % 2 != 0; ++k)
      for (int j = 0; j < 2; ++j) Lanes::store(t.s + k * kPanel + j * W, Lanes::zero());
    for (Index k = t.from; k < t.to; k += 2)
      for (int j = 0; j < 2; ++j) {
        const float* at = t.s + k * kPanel + j * W;
        _mm512_store_si512(p + k * 64 + j * 64, pair_up(Lanes::load(at), Lanes::load(at + kPanel)));
      }
    zero_pairs(p, rounded(t.to, 2), rounded(t.to, kBlock));
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
        Lanes::store(at, Lanes::fma(Lanes::load(at), keep[j], Lanes::load(from + r * kPanel + j * W)));
      }
  }
  static void weigh(const Tile& t, const void* values, Index value_dim, const float* shrink, float* o) {
    float* sums = sums_of(t.p);
    Steps steps = weigh_steps(t.p, values, t.from, t.to, value_dim, sums);
    float* last = sums;
    Index taken = 0;
    while (!steps.done()) {
      const bool stores = steps.block > taken;
      whole_step(steps.next(last));
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
    Core c = Passes<2>::table();
    c.name = "bf16", c.panel = kPanel, c.granule = kGranule, c.begin = tiles_on, c.end = tiles_off;
    c.key_group = 16, c.key_columns = 32, c.key_pad = 32;
    c.query_bytes = query_bytes, c.key_bytes = key_bytes, c.value_bytes = value_bytes,
    c.weight_bytes = weight_bytes;
    c.pack_queries = pack_queries, c.pack_keys = pack_keys, c.pack_values = pack_values, c.scores = scores;
    c.weights = weights, c.weights_plain = weights_plain, c.weights_stats = weights_stats,
    c.operand = operand;
    c.weigh = weigh, c.row_max = row_max;
    return c;
  }

  static constexpr Index kWeights = kGranule * kPanel * 2;
  static char* weights_of(void* p, int turn) { return static_cast<char*>(p) + turn * kWeights; }
  static float* scores_of(float* s, void* p, int turn) {
    return turn == 0 ? s : reinterpret_cast<float*>(weights_of(p, 2));
  }
  static float* sums_of(void* p) { return reinterpret_cast<float*>(weights_of(p, 2)) + kGranule * kPanel; }
};

}  // namespace
}  // namespace headwise::cpu
