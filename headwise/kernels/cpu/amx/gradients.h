// The gradients of the AMX core. Weights and dS are rounded to bf16 once, as rows of keys for dv and dk and
// as pairs of keys for dq. Sums are f32 tiles that start from what is stored. Included by the AMX level after
// its core; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/bf16.h"
#include "headwise/kernels/cpu/tile/gradient_core.h"

namespace headwise::cpu {
namespace {

struct AmxGradients {
  static constexpr int W = 16, kPanel = Bf16Operands::kPanel, kKeys = 128;
  static constexpr Index kOperand = kKeys * kPanel * 2;

  static Index columns(Index dim) { return rounded(dim, 32); }
  static Index row_bytes(Index dim) { return rounded(dim, 32) * kPanel * 2; }
  static Index operand_bytes() { return kOperand; }

  /// Words 0 .. 15 and 16 .. 31 of two vectors, in turn.
  static inline __attribute__((always_inline)) void interleave(__m512i x, __m512i y, void* low, void* high) {
    alignas(64) static constexpr std::uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                           37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                           11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    alignas(64) static constexpr std::uint16_t kHigh[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                            53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                            27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    _mm512_store_si512(low, _mm512_permutex2var_epi16(x, _mm512_load_si512(kLow), y));
    _mm512_store_si512(high, _mm512_permutex2var_epi16(x, _mm512_load_si512(kHigh), y));
  }
  /// Pairs of queries [dim / 32][pair][32 dims].
  static bool pack_rows(const Rows* rows, const Index* row, int count, Index dim, const float*, void* out) {
    auto* to = static_cast<char*>(out);
    const __m512i limit = _mm512_set1_epi16(0x7f80);
    __mmask32 unusual = 0;
    for (Index c = 0; c < dim; c += 32)
      for (int i = 0; i < kPanel; i += 2, to += kLine) {
        __m512i x[2];
        for (int j = 0; j < 2; ++j) {
          x[j] = i + j < count ? piece(rows[i + j], row[i + j], c, dim) : _mm512_setzero_si512();
          const __mmask32 bad = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x[j], limit), limit);
          unusual |= bad;
          x[j] = _mm512_maskz_mov_epi16(~bad, x[j]);
        }
        interleave(x[0], x[1], to, to + 64);
      }
    return unusual == 0;
  }

  static void load_block(const float* from, Index step) {
    tile_load<0>(from, step), tile_load<1>(from + 16, step);
    tile_load<2>(from + 4 * step, step), tile_load<3>(from + 4 * step + 16, step);
  }
  static void keep_block(float* to, Index step) {
    tile_store<0>(to, step), tile_store<1>(to + 16, step);
    tile_store<2>(to + 4 * step, step), tile_store<3>(to + 4 * step + 16, step);
  }
  /// C[32][32] += A[32 rows of 64 bytes][32] x B[16 pairs][32].
  static void add_block(const char* a, const char* b) { whole_step<1>({a, b, kTileBytes, false, nullptr}); }
  static void add_rows(const PanelRows* panels, Index count, Index from, Index to, Index dim, float* c) {
    const Index wide = rounded(dim, 32);
    for (Index d = 0; d < wide; d += 32)
      for (Index k = from; k < to; k += 32) {
        float* at = c + k * wide + d;
        load_block(at, wide * 4);
        for (Index p = 0; p < count; ++p) {
          const char* a = static_cast<const char*>(panels[p].a) + k * 64;
          add_block(a, static_cast<const char*>(panels[p].b) + d / 32 * 16 * kLine);
        }
        keep_block(at, wide * 4);
      }
  }
  static void weigh_on(const Tile& t, const void* values, Index value_dim, float* o) {
    const Index tiles = rounded(value_dim, 32) / 16;
    for (Index d = 0; d < tiles; d += 2) {
      float* at = o + d * 16 * kPanel;
      load_block(at, kLine);
      for (Index k = t.from; k < t.to; k += 32) {
        const char* a = static_cast<const char*>(values) + (k / 32 * tiles + d) * kTileBytes;
        add_block(a, static_cast<const char*>(t.p) + k * 64);
      }
      keep_block(at, kLine);
    }
  }

  /// Bits of bf16 pairs as floats: word 0 and word 1.
  static F even_of(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F odd_of(__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F add_product(F x, F y, F total) {
    const F more = Lanes::fma(x, y, total);
    return Lanes::select(Lanes::greater(Lanes::abs(x), Lanes::zero()), more,
                         Lanes::select(Lanes::is_nan(x), more, total));
  }
  static void dots(const void* outs, const void* douts, Index dim, float* sum) {
    for (int j = 0; j < 2; ++j) {
      const char *o = static_cast<const char*>(outs) + j * 64, *d = static_cast<const char*>(douts) + j * 64;
      F total = Lanes::zero();
      for (Index c = 0; c < dim; c += 2) {
        const __m512i x = _mm512_load_si512(o + c / 2 * kLine), y = _mm512_load_si512(d + c / 2 * kLine);
        total = add_product(even_of(x), even_of(y), total);
        total = add_product(odd_of(x), odd_of(y), total);
      }
      Lanes::store(sum + j * W, total);
    }
  }

  static void zero_pairs(char* p, Index from, Index to) {
    for (Index k = from; k < to; ++k) _mm512_store_si512(p + k * 64, _mm512_setzero_si512());
  }
  /// 32 lanes of one key as a row of bf16.
  static __m512i row_of(const float* at, F factor0, F factor1, __mmask32 lanes) {
    const F x = Lanes::mul(Lanes::load(at), factor0), y = Lanes::mul(Lanes::load(at + W), factor1);
    return _mm512_maskz_mov_epi16(lanes, (__m512i)_mm512_cvtne2ps_pbh(y, x));
  }
  static void gradient_operands(const GradientOperands& t) {
    const float *s = t.s, *ds = t.ds, *row_factor = t.row_factor;
    const Index from = t.from, to = t.to, keys = t.keys;
    const int count = t.count;
    char *weights = static_cast<char*>(t.out), *rows = weights + kOperand, *pairs = rows + kOperand;
    const Index end = rounded(keys, 32), whole = rounded(to, 2);
    for (int i = 0; i < 3; ++i) {
      zero_pairs(weights + i * kOperand, 0, from);
      zero_pairs(weights + i * kOperand, whole, end);
    }
    const __mmask32 lanes = count == 32 ? ~0u : (1u << count) - 1u;
    const F one = Lanes::set(1.0f), f0 = Lanes::load(row_factor), f1 = Lanes::load(row_factor + W);
    for (Index k = from; k < to; k += 2) {
      const __mmask32 second = k + 1 < to ? lanes : 0;
      const float *p = s + k * kPanel, *d = ds + k * kPanel;
      _mm512_store_si512(weights + k * 64, row_of(p, one, one, lanes));
      _mm512_store_si512(weights + k * 64 + 64, row_of(p + kPanel, one, one, second));
      _mm512_store_si512(rows + k * 64, row_of(d, f0, f1, lanes));
      _mm512_store_si512(rows + k * 64 + 64, row_of(d + kPanel, f0, f1, second));
      interleave(row_of(d, one, one, lanes), row_of(d + kPanel, one, one, second), pairs + k * 64,
                 pairs + k * 64 + 64);
    }
  }

  static constexpr Core joined(Core c) {
    GradientPasses g = GradientCore<Lanes, 2, 2, 4>::passes();
    g.step_keys = kKeys, g.step_rows = 256;
    g.columns = columns, g.row_bytes = row_bytes, g.pack_rows = pack_rows, g.add_rows = add_rows;
    g.weigh_on = weigh_on, g.dots = dots, g.operands = gradient_operands, g.operand_bytes = operand_bytes;
    c.gradients = g;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
