// The gradients of f32 in three parts of bf16. Weights and dS are taken apart once, as rows of keys for dv
// and dk and as pairs of keys for dq. Sums are f32 tiles that start from what is stored. Included by the AMX
// level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/amx/few.h"
#include "headwise/kernels/cpu/amx/gradients.h"

namespace headwise::cpu {
namespace {

/// F32Operands whose queries may be as small as gradients are: a row of queries below 2^-40 is packed times a
/// power of 2, and its scores are divided by it. The powers lie behind the flags.
struct F32GradientOperands : F32OperandsOf<128> {
  using Base = F32OperandsOf<128>;
  static constexpr Index kFlags = 64 + kPanel * 4;

  static const std::uint32_t* flags_of(const void* queries, Index dim) {
    return reinterpret_cast<const std::uint32_t*>(static_cast<const char*>(queries) +
                                                  rounded(dim, 32) / 32 * 2 * kTile);
  }
  static bool is_scaled(const void* queries, Index dim) { return flags_of(queries, dim)[1] != 0; }
  static const float* powers_of(const void* queries, Index dim) {
    return reinterpret_cast<const float*>(flags_of(queries, dim)) + 16;
  }

  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out,
                           float* scratch) {
    Rows own[kPanel];
    Index place[kPanel];
    alignas(64) float power_of[kPanel];
    const Index wide = rounded(dim, 16);
    std::uint32_t scaled = 0;
    for (int lane = 0; lane < kPanel; ++lane) {
      own[lane] = rows[lane], place[lane] = row[lane], power_of[lane] = 1.0f;
      if (lane >= count) continue;
      __m512i most = _mm512_setzero_si512();
      for (Index c = 0; c < dim; c += 16)
        most = _mm512_max_epu32(most, magnitude(sixteen(rows[lane], row[lane], c, dim)));
      const std::uint32_t m = _mm512_reduce_max_epu32(most);
      if (m == 0 || m >= (127u - 40u) << 23) continue;
      const int up = 127 - static_cast<int>(m >> 23) < 120 ? 127 - static_cast<int>(m >> 23) : 120;
      const F by = _mm512_castsi512_ps(power(up));
      float* copy = scratch + lane * wide;
      for (Index c = 0; c < wide; c += 16)
        Lanes::store(copy + c, Lanes::mul(sixteen(rows[lane], row[lane], c, dim), by));
      own[lane] = Rows{.data = copy, .row_step = wide, .end = dim};
      place[lane] = 0, scaled |= 1u << lane;
      power_of[lane] = __builtin_bit_cast(float, static_cast<std::uint32_t>(127 - up) << 23);
    }
    Base::pack_queries(own, place, count, dim, out, scratch);
    auto* flags = const_cast<std::uint32_t*>(flags_of(out, dim));
    flags[1] = scaled;
    for (int j = 0; j < 2; ++j)
      Lanes::store(const_cast<float*>(powers_of(out, dim)) + j * 16, Lanes::load(power_of + j * 16));
  }
  static void mend_scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    Base::mend_scores(queries, keys, from, to, dim, s);
    if (!is_scaled(queries, dim)) return;
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < 2; ++j) {
        float* at = s + k * kPanel + j * 16;
        Lanes::store(at, Lanes::mul(Lanes::load(at), Lanes::load(powers_of(queries, dim) + j * 16)));
      }
  }
};

struct AmxF32Gradients {
  using Operands = F32GradientOperands;
  static constexpr int W = 16, kPanel = Operands::kPanel, kKeys = Operands::kGranule;
  static constexpr Index kTile = Operands::kTile, kOperand = kKeys / 16 * kTile;

  static Index columns(Index dim) { return rounded(dim, 32); }
  static Index row_bytes(Index dim) { return rounded(dim, 32) / 32 * 2 * kTile; }
  static Index operand_bytes() { return kOperand; }

  /// Pairs of queries (i, i + 16) [dim / 32][part][16][32 dims].
  static bool pack_rows(const Rows* rows, const Index* row, int count, Index dim, const float*, void* out) {
    __mmask16 unusual = 0;
    for (Index c = 0; c < dim; c += 32)
      for (int i = 0; i < 16; ++i)
        for (int h = 0; h < 2; ++h) {
          F x[2];
          for (int j = 0; j < 2; ++j) {
            const int lane = i + 16 * j;
            x[j] = lane < count ? sixteen(rows[lane], row[lane], c + h * 16, dim) : Lanes::zero();
            const __mmask16 usual = Operands::usual_lanes(x[j]);
            unusual = static_cast<__mmask16>(
                unusual | (~usual & _mm512_cmpneq_epu32_mask(magnitude(x[j]), _mm512_setzero_si512())));
            x[j] = _mm512_maskz_mov_ps(usual, x[j]);
          }
          store_parts(x[0], x[1], static_cast<char*>(out) + c / 32 * 2 * kTile + i * kLine + h * 64,
                      2 * kTileBytes);
        }
    return unusual == 0;
  }

  static void add_rows(const PanelRows* panels, Index count, Index from, Index to, Index dim, float* c) {
    const Index wide = rounded(dim, 32);
    free_tiles();
    for (Index k = from; k < to; k += 32)
      for (Index d = 0; d < wide; d += 16) {
        float* at = c + k * wide + d;
        load_column(at, wide * 4);
        for (Index p = 0; p < count; ++p)
          column_step<3>(static_cast<const char*>(panels[p].a) + k / 16 * kTile, kTile,
                         static_cast<const char*>(panels[p].b) + d / 32 * 2 * kTile + d % 32 * 4);
        keep_column(at, wide * 4);
      }
  }
  static void weigh_on(const Tile& t, const void* values, Index value_dim, float* o) {
    const Index tiles = rounded(value_dim, 32) / 16;
    free_tiles();
    for (Index d = 0; d < tiles; d += 2)
      for (Index j = 0; j < 2; ++j) {
        float* at = o + d * 16 * kPanel + j * 16;
        load_column(at, kLine);
        for (Index k = t.from; k < t.to; k += 32)
          column_step<3>(static_cast<const char*>(values) + (k / 32 * tiles + d) * kTile, kTile,
                         static_cast<const char*>(t.p) + k / 32 * 2 * kTile + j * 64);
        keep_column(at, kLine);
      }
  }

  /// What tiles add up for one key: see Flushing.
  [[gnu::noinline]] static void tile_dots(const char* o, const char* d, Index tiles, float* sum) {
    using P = Products<3>;
    const Flushing on;
    for (int j = 0; j < 2; ++j) {
      F total = Lanes::zero();
      for (Index c = 0; c < tiles; ++c)
        for (int p = 0; p < P::count; ++p) {
          const char *a = o + c * 2 * kTile + P::a[p] * 2 * kTileBytes + j * 64,
                     *b = d + c * 2 * kTile + P::b[p] * 2 * kTileBytes + j * 64;
          F first = Lanes::zero(), second = Lanes::zero();
          for (int i = 0; i < 16; ++i) {
            const __m512i x = _mm512_load_si512(a + i * kLine), y = _mm512_load_si512(b + i * kLine);
            first = Lanes::fma(AmxGradients::even_of(x), AmxGradients::even_of(y), first);
            second = Lanes::fma(AmxGradients::odd_of(x), AmxGradients::odd_of(y), second);
          }
          total = Lanes::add(total, Lanes::add(first, second));
        }
      Lanes::store(sum + j * W, total);
    }
  }
  static void dots(const void* outs, const void* douts, Index dim, float* sum) {
    const auto *o = static_cast<const char*>(outs), *d = static_cast<const char*>(douts);
    const Index tiles = rounded(dim, 32) / 32;
    tile_dots(o, d, tiles, sum);
    const std::uint32_t o_flags = *Operands::flags_of(outs, dim), d_flags = *Operands::flags_of(douts, dim);
    for (int j = 0; j < 2; ++j) {
      const auto plain_o = static_cast<__mmask16>(o_flags >> (16 * j)),
                 plain_d = static_cast<__mmask16>(d_flags >> (16 * j));
      F total = Lanes::load(sum + j * W);
      if (plain_o | plain_d) {
        F chain = Lanes::zero();
        for (Index c = 0; c < tiles; ++c)
          for (int h = 0; h < 2; ++h)
            for (int i = 0; i < 16; ++i) {
              const Index at = c * 2 * kTile + i * kLine + j * 64;
              F x[2], y[2];
              Operands::whole(o + at, 2 * kTileBytes, plain_o, x);
              Operands::whole(d + at, 2 * kTileBytes, plain_d, y);
              chain = AmxGradients::add_product(x[h], y[h], chain);
            }
        total = Lanes::select(static_cast<__mmask16>(plain_o | plain_d), chain, total);
      }
      total = Lanes::mul(total, Lanes::load(Operands::powers_of(outs, dim) + j * W));
      Lanes::store(sum + j * W, Lanes::mul(total, Lanes::load(Operands::powers_of(douts, dim) + j * W)));
    }
  }

  /// Rows of dS of two keys 16 apart, [key][half of the lanes], and the same taken apart. `factor` of the
  /// lanes; null: 1.
  static inline __attribute__((always_inline)) void store_rows(const F (&d)[2][2], const Parts& d00,
                                                               const Parts& d01, const Parts& d10,
                                                               const Parts& d11, const F* factor,
                                                               char* rows) {
    if (factor) {
      for (int i = 0; i < 2; ++i)
        store_parts(Lanes::mul(d[i][0], factor[0]), Lanes::mul(d[i][1], factor[1]), rows + i * kTile,
                    kTileBytes);
    } else {
      store_pairs(d00, d01, rows, kTileBytes), store_pairs(d10, d11, rows + kTile, kTileBytes);
    }
  }
  static void gradient_operands(const GradientOperands& t) {
    const float *s = t.s, *ds = t.ds, *row_factor = t.row_factor;
    const Index from = t.from, to = t.to, keys = t.keys;
    const int count = t.count;
    char *weights = static_cast<char*>(t.out), *rows = weights + kOperand, *pairs = rows + kOperand;
    const std::uint32_t lanes = count == 32 ? ~0u : (1u << count) - 1u;
    const F factor[2] = {Lanes::load(row_factor), Lanes::load(row_factor + W)};
    bool scaled = false;
    for (const F& x : factor)
      scaled = scaled || _mm512_cmpneq_epi32_mask(_mm512_castps_si512(x), power(0)) != 0;
    for (Index block = 0; block < rounded(keys, 32); block += 32)
      for (Index n = 0; n < 16; ++n) {
        F p[2][2], d[2][2];
        for (int i = 0; i < 2; ++i)
          for (int j = 0; j < 2; ++j) {
            const Index k = block + n + 16 * i, at = k * kPanel + j * W;
            const auto open = static_cast<__mmask16>(k >= from && k < to ? lanes >> (16 * j) : 0u);
            p[i][j] = _mm512_maskz_loadu_ps(open, s + at), d[i][j] = _mm512_maskz_loadu_ps(open, ds + at);
          }
        const Index line = block / 16 * kTile + n * 64;
        for (int i = 0; i < 2; ++i) store_parts(p[i][0], p[i][1], weights + line + i * kTile, kTileBytes);
        const Parts d00(d[0][0]), d01(d[0][1]), d10(d[1][0]), d11(d[1][1]);
        char* to_pairs = pairs + block / 32 * 2 * kTile + n * kLine;
        store_pairs(d00, d10, to_pairs, 2 * kTileBytes), store_pairs(d01, d11, to_pairs + 64, 2 * kTileBytes);
        store_rows(d, d00, d01, d10, d11, scaled ? factor : nullptr, rows + line);
      }
  }

  static constexpr Core joined(Core c) {
    GradientPasses g = GradientCore<Lanes, 2, 2, 4>::passes();
    g.step_keys = kKeys, g.step_rows = 128;
    g.columns = columns, g.row_bytes = row_bytes, g.pack_rows = pack_rows, g.add_rows = add_rows;
    g.weigh_on = weigh_on, g.dots = dots, g.operands = gradient_operands, g.operand_bytes = operand_bytes;
    c.gradients = g;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
