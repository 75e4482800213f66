// The bf16 core of aarch64: BFMMLA tiles of 8 rows x one panel of queries, sums in f32.
// Included after lanes_neon.h; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/mix_passes.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu {
namespace {

/// One micro-kernel serves both products. Scores: rows = keys, chain over dim by four; outputs: rows = dims
/// of V, chain over keys by four. A vector holds 2 x 2 sums, so operands lie in pairs of rows,
/// [4 of row 0 | 4 of row 1], and the store puts the rows side by side.
/// Products with a weight of 0 leave a sum as it is (a -0 may become +0, as finish makes it anyway), so keys
/// that no lane sees may be left out. BFMMLA rounds to odd and takes denormals as 0: part of the bf16 class.
/// Q pairs of queries a panel, Keys a granule. Q = 6 keeps 24 of 32 registers as sums.
template <int Q, int Keys>
struct MmlaCore {
  static_assert(Q % 2 == 0 && Keys % 32 == 0);
  static constexpr int kPanel = 2 * Q, kGranule = Keys, kVectors = Q / 2, kRows = 8, kPairs = kRows / 2;
  using P = Passes<kVectors>;
  using Half = std::uint16_t;

  static Index query_bytes(Index dim) { return kPanel * rounded(dim, 8) * 2; }
  static Index key_bytes(Index dim) { return kGranule * rounded(dim, 8) * 2; }
  static Index value_bytes(Index value_dim) { return kGranule * rounded(value_dim, 8) * 2; }
  static Index weight_bytes() { return kGranule * kPanel * 2; }

  /// Columns c0 .. c0 + n of a row side by side: in place where they lie so, else gathered into `line`,
  /// missing ones as 0.
  static const Half* part_of(const Rows& rows, Index row, Index c0, Index n, Half* line) {
    const Half* from = static_cast<const Half*>(rows.data) + row * rows.row_step;
    if (rows.column_step == 1 && c0 >= rows.begin && c0 + n <= rows.end) return from + c0;
    const Index begin = rows.begin > c0 ? (rows.begin < c0 + n ? rows.begin - c0 : n) : 0;
    const Index end = rows.end < c0 + n ? (rows.end > c0 + begin ? rows.end - c0 : begin) : n;
    for (Index c = 0; c < begin; ++c) line[c] = 0;
    if (rows.column_step == 1)
      for (Index c = begin; c < end; ++c) line[c] = from[c0 + c];
    else
      for (Index c = begin; c < end; ++c) line[c] = from[(c0 + c) * rows.column_step];
    for (Index c = end; c < n; ++c) line[c] = 0;
    return line;
  }
  static const Half* no_row(Index n, Half* line) {
    for (Index c = 0; c < n; ++c) line[c] = 0;
    return line;
  }
  /// 2 * N rows of n columns -> [n / 4][N][2 rows x 4 columns]
  template <int N>
  static void pack_pairs(const Half* const (&row)[2 * N], Index n, Half* out) {
    for (Index c = 0; c < n; c += 8)
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(row[2 * i] + c));
        const uint64x2_t y = vreinterpretq_u64_u16(vld1q_u16(row[2 * i + 1] + c));
        vst1q_u16(out + (c / 4 * N + i) * 8, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
        vst1q_u16(out + ((c / 4 + 1) * N + i) * 8, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
      }
  }
  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out, float*) {
    auto* to = static_cast<Half*>(out);
    Half line[kPanel][kLine];
    for (Index c0 = 0; c0 < dim; c0 += kLine) {
      const Index n = dim - c0 < kLine ? rounded(dim - c0, 8) : kLine;
      const Half* part[kPanel];
      for (int i = 0; i < kPanel; ++i)
        part[i] = i < count ? part_of(rows[i], row[i], c0, n, line[i]) : no_row(n, line[i]);
      pack_pairs<Q>(part, n, to + c0 * kPanel);
    }
  }
  static void pack_keys(const Rows& rows, Index first, Index count, Index dim, void* out) {
    auto* to = static_cast<Half*>(out);
    const Index wide = rounded(dim, 8);
    Half line[kRows][kLine];
    for (Index k = 0; k < count; k += kRows)
      for (Index c0 = 0; c0 < dim; c0 += kLine) {
        const Index n = dim - c0 < kLine ? rounded(dim - c0, 8) : kLine;
        const Half* part[kRows];
        for (int i = 0; i < kRows; ++i)
          part[i] = k + i < count ? part_of(rows, first + k + i, c0, n, line[i]) : no_row(n, line[i]);
        pack_pairs<kPairs>(part, n, to + k * wide + c0 * kRows);
      }
  }
  /// Values as [value_dim / 8][Keys / 4][4 pairs][2 dims x 4 keys].
  static bool pack_values(const Rows& rows, Index first, Index count, Index value_dim, void* out) {
    auto* to = static_cast<Half*>(out);
    Half line[4][kLine];
    uint16x8_t largest = vdupq_n_u16(0);  // of |x| as an integer: 0x7f80 and above is not finite
    for (Index k = 0; k < count; k += 4)
      for (Index c0 = 0; c0 < value_dim; c0 += kLine) {
        const Index n = value_dim - c0 < kLine ? rounded(value_dim - c0, 8) : kLine;
        const Half* part[4];
        for (int i = 0; i < 4; ++i)
          part[i] = k + i < count ? part_of(rows, first + k + i, c0, n, line[i]) : no_row(n, line[i]);
        for (Index c = 0; c < n; c += 8) {
          uint16x8_t r[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            r[i] = vld1q_u16(part[i] + c);
            largest = vmaxq_u16(largest, vandq_u16(r[i], vdupq_n_u16(0x7fff)));
          }
          const uint16x8_t even0 = vzip1q_u16(r[0], r[2]), even1 = vzip2q_u16(r[0], r[2]);
          const uint16x8_t odd0 = vzip1q_u16(r[1], r[3]), odd1 = vzip2q_u16(r[1], r[3]);
          Half* at = to + (c0 + c) * kGranule + k * 8;
          vst1q_u16(at, vzip1q_u16(even0, odd0)), vst1q_u16(at + 8, vzip2q_u16(even0, odd0));
          vst1q_u16(at + 16, vzip1q_u16(even1, odd1)), vst1q_u16(at + 24, vzip2q_u16(even1, odd1));
        }
      }
    if (vmaxvq_u16(largest) < 0x7f80) return true;
    for (Index c = 0; c < value_dim; c += 8)
      for (Index k = 0; k < rounded(count, 4); ++k) {
        Half* at = to + c * kGranule + k * 8;
        const uint16x8_t x = vld1q_u16(at), top = vdupq_n_u16(0x7f80);
        vst1q_u16(at, vbicq_u16(x, vceqq_u16(vandq_u16(x, top), top)));
      }
    return false;
  }

  static bfloat16x8_t load(const Half* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
  /// c[i][j] = 2 x 2 sums of rows 2i, 2i + 1 and queries 2j, 2j + 1: one chain over n >= 1 fours, from 0.
  static inline __attribute__((always_inline)) void multiply(const Half* a, const Half* b, Index n,
                                                             F (&c)[kPairs][Q]) {
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < Q; ++j) c[i][j] = Lanes::zero();
    do {
      bfloat16x8_t x[kPairs];
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) x[i] = load(a + i * 8);
#pragma GCC unroll 8
      for (int j = 0; j < Q; j += 2) {
        const bfloat16x8_t y = load(b + j * 8), z = load(b + j * 8 + 8);
#pragma GCC unroll 8
        for (int i = 0; i < kPairs; ++i) c[i][j] = vbfmmlaq_f32(c[i][j], x[i], y);
#pragma GCC unroll 8
        for (int i = 0; i < kPairs; ++i) c[i][j + 1] = vbfmmlaq_f32(c[i][j + 1], x[i], z);
        // b waits for these products: g++ 12 would load all of b first and spill three sums.
        asm(""
            : "+r"(b)
            : "w"(c[0][j]), "w"(c[1][j]), "w"(c[2][j]), "w"(c[3][j]), "w"(c[0][j + 1]), "w"(c[1][j + 1]),
              "w"(c[2][j + 1]), "w"(c[3][j + 1]));
      }
      a += kPairs * 8, b += Q * 8;
    } while (--n != 0);
  }
  static F first_row(F x, F y) {
    return as_f32(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  }
  static F second_row(F x, F y) {
    return as_f32(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  }
  static F as_f32(float64x2_t x) { return vreinterpretq_f32_f64(x); }

  static void scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    const auto* q = static_cast<const Half*>(queries);
    const auto* k = static_cast<const Half*>(keys);
    const Index wide = rounded(dim, 8), fours = (dim + 3) / 4;
    for (Index row = from; row < to; row += kRows) {
      F c[kPairs][Q];
      multiply(k + row * wide, q, fours, c);
      float* at = s + row * kPanel;
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) {
          Lanes::store(at + 2 * i * kPanel + j * 4, first_row(c[i][2 * j], c[i][2 * j + 1]));
          Lanes::store(at + (2 * i + 1) * kPanel + j * 4, second_row(c[i][2 * j], c[i][2 * j + 1]));
        }
    }
  }
  static void weigh(const Tile& t, const void* values, Index value_dim, const float* shrink, float* o) {
    const Half* v = static_cast<const Half*>(values) + t.from * 8;
    const Half* p = static_cast<const Half*>(t.p) + t.from * kPanel;
    const Index fours = (t.to - t.from + 3) / 4;
    for (Index d = 0; d < value_dim; d += kRows) {
      F c[kPairs][Q];
      multiply(v + d * kGranule, p, fours, c);
      float* at = o + d * kPanel;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const F keep = Lanes::load(shrink + j * 4);
#pragma GCC unroll 8
        for (int i = 0; i < kPairs; ++i) {
          float *x = at + 2 * i * kPanel + j * 4, *y = x + kPanel;
          Lanes::store(x, Lanes::fma(Lanes::load(x), keep, first_row(c[i][2 * j], c[i][2 * j + 1])));
          Lanes::store(y, Lanes::fma(Lanes::load(y), keep, second_row(c[i][2 * j], c[i][2 * j + 1])));
        }
      }
    }
  }

  /// Weights of four keys x four queries, rounded to bf16 (ties upward): two pairs [k0..k3 of q0 | of q1].
  /// A NaN may lose its mark here; its row is NaN through the sum.
  static void store_operand(const F (&p)[4], Half* out) {
    uint32x4_t r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) r[i] = vaddq_u32(vreinterpretq_u32_f32(p[i]), vdupq_n_u32(0x8000));
    const uint32x4_t low = vsriq_n_u32(r[1], r[0], 16), high = vsriq_n_u32(r[3], r[2], 16);
    vst1q_u16(out, vreinterpretq_u16_u32(vzip1q_u32(low, high)));
    vst1q_u16(out + 8, vreinterpretq_u16_u32(vzip2q_u32(low, high)));
  }
  static void weights(const Tile& t) {
    F top[kVectors], c[kVectors], lowest[kVectors], sum[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      top[j] = Lanes::load(t.top + j * 4), c[j] = Lanes::load(t.factor + j * 4);
      lowest[j] = lowest_for(c[j]), sum[j] = Lanes::zero();
    }
    auto* out = static_cast<Half*>(t.p);
    Index k = t.from;
    for (; k + 4 <= t.to; k += 4)
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        const float* s = t.s + k * kPanel + j * 4;
        F p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          p[i] = exp2_product(Lanes::sub(Lanes::load(s + i * kPanel), top[j]), c[j], lowest[j]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[j] = Lanes::add(sum[j], p[i]);
        store_operand(p, out + k * kPanel + j * 16);
      }
    if (k < t.to)
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        const float* s = t.s + k * kPanel + j * 4;
        F p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          p[i] = Lanes::zero();
          if (k + i >= t.to) continue;
          p[i] = exp2_product(Lanes::sub(Lanes::load(s + i * kPanel), top[j]), c[j], lowest[j]);
          sum[j] = Lanes::add(sum[j], p[i]);
        }
        store_operand(p, out + k * kPanel + j * 16);
      }
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) Lanes::store(t.sum + j * 4, sum[j]);
  }
  static void operand(const Tile& t) {
    auto* out = static_cast<Half*>(t.p);
    for (Index k = t.from; k < t.to; k += 4)
      for (int j = 0; j < kVectors; ++j) {
        F p[4];
        for (int i = 0; i < 4; ++i)
          p[i] = k + i < t.to ? Lanes::load(t.s + (k + i) * kPanel + j * 4) : Lanes::zero();
        store_operand(p, out + k * kPanel + j * 16);
      }
  }

  static void weights_plain(const Tile& t) {
    P::template weights_of<true>(t);
    operand(t);
  }
  static void weights_stats(const Tile& t, const RowStats& r, const float* q_distance, Index key0) {
    P::weights_stats(t, r, q_distance, key0);
    operand(t);
  }

  static void nothing() {}

  static constexpr Core table() {
    Core c{};
    c.name = "bf16", c.panel = kPanel, c.granule = kGranule, c.begin = nothing, c.end = nothing;
    c.key_group = kRows, c.key_columns = 4, c.key_pad = 8;
    c.products = {.query_bytes = query_bytes,
                  .key_bytes = key_bytes,
                  .value_bytes = value_bytes,
                  .weight_bytes = weight_bytes,
                  .pack_queries = pack_queries,
                  .pack_keys = pack_keys,
                  .pack_values = pack_values,
                  .scores = scores,
                  .operand = operand,
                  .weigh = weigh};
    c.passes = MixPasses<Lanes, kVectors>::joined(P::table());
    c.passes.weights = weights, c.passes.weights_plain = weights_plain;
    c.passes.weights_stats = weights_stats;
    return c;
  }

 private:
  static constexpr Index kLine = 512;
};

}  // namespace
}  // namespace headwise::cpu
