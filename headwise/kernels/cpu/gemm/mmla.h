// The bf16 product of aarch64: BFMMLA tiles of 8 rows x 12 columns, k by four, sums in f32. Included after
// lanes_neon.h; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/gemm/stretch.h"
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu::gemm {
namespace {

/// A vector holds 2 x 2 sums, so lines lie in pairs: [k / 4][pairs][2 lines x 4 k]. One instruction adds four
/// k with its own rounding (to odd, denormals as 0): part of the bf16 class. k is padded with zeros to that.
struct Mmla {
  static constexpr int kRowPairs = 4, kColumnPairs = 6, kRows = 2 * kRowPairs, kColumns = 2 * kColumnPairs;
  using Half = std::uint16_t;

  static Index a_bytes(Index rows, Index k) { return rounded(rows, kRows) * rounded(k, 4) * 2; }
  static Index panel_bytes(Index k) { return kColumns * rounded(k, 4) * 2; }

  /// 2 * Pairs lines from `first` on, `count` of them real.
  template <int Pairs>
  static void pack_lines(const Side& side, Index first, Index count, Index k0, Index k, Half* out) {
    Half line[2 * Pairs][kSlice];
    for (Index c0 = 0; c0 < k; c0 += kSlice) {
      const Index n = k - c0 < kSlice ? k - c0 : kSlice, wide = rounded(n, 4);
      for (Index i = 0; i < 2 * Pairs; ++i) {
        Half* to = line[i];
        const Index real = i < count ? n : 0;
        const auto* from =
            static_cast<const Half*>(side.data) + offset_of(side.line, first + (i < count ? i : 0));
        each_piece(side.k, k0 + c0, real, [&](Index offset, Index some, Index done) {
          for (Index c = 0; c < some; ++c) to[done + c] = from[offset + c * side.k.step];
        });
        for (Index c = real; c < wide; ++c) to[c] = 0;
      }
      for (Index c = 0; c < wide; c += 4)
        for (int i = 0; i < Pairs; ++i)
          vst1q_u16(out + ((c0 + c) / 4 * Pairs + i) * 8,
                    vcombine_u16(vld1_u16(line[2 * i] + c), vld1_u16(line[2 * i + 1] + c)));
    }
  }
  static void pack_a(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<Half*>(out);
    for (Index r = 0; r < count; r += kRows)
      pack_lines<kRowPairs>(side, first + r, count - r, k0, k, to + r * rounded(k, 4));
  }
  static void pack_b(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    pack_lines<kColumnPairs>(side, first, count, k0, k, static_cast<Half*>(out));
  }

  static bfloat16x8_t load(const Half* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
  /// n >= 1 fours of k.
  static inline __attribute__((always_inline)) void tile(const Half* a, const Half* b, Index n, float* to,
                                                         Index step, bool add) {
    F c[kRowPairs][kColumnPairs];
#pragma GCC unroll 8
    for (int i = 0; i < kRowPairs; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kColumnPairs; ++j) {
        const float* at = to + 2 * i * step + 2 * j;
        c[i][j] = add ? vcombine_f32(vld1_f32(at), vld1_f32(at + step)) : Lanes::zero();
      }
    do {
      bfloat16x8_t x[kRowPairs];
#pragma GCC unroll 8
      for (int i = 0; i < kRowPairs; ++i) x[i] = load(a + i * 8);
#pragma GCC unroll 8
      for (int j = 0; j < kColumnPairs; j += 2) {
        const bfloat16x8_t y = load(b + j * 8), z = load(b + j * 8 + 8);
#pragma GCC unroll 8
        for (int i = 0; i < kRowPairs; ++i) c[i][j] = vbfmmlaq_f32(c[i][j], x[i], y);
#pragma GCC unroll 8
        for (int i = 0; i < kRowPairs; ++i) c[i][j + 1] = vbfmmlaq_f32(c[i][j + 1], x[i], z);
        // b waits for these products: g++ 12 would load all of b first and spill three sums.
        asm(""
            : "+r"(b)
            : "w"(c[0][j]), "w"(c[1][j]), "w"(c[2][j]), "w"(c[3][j]), "w"(c[0][j + 1]), "w"(c[1][j + 1]),
              "w"(c[2][j + 1]), "w"(c[3][j + 1]));
      }
      a += kRowPairs * 8, b += kColumnPairs * 8;
    } while (--n != 0);
#pragma GCC unroll 8
    for (int i = 0; i < kRowPairs; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kColumnPairs; ++j) {
        float* at = to + 2 * i * step + 2 * j;
        vst1_f32(at, vget_low_f32(c[i][j])), vst1_f32(at + step, vget_high_f32(c[i][j]));
      }
  }
  static void multiply(const GemmBlock& t) {
    const auto* a = static_cast<const Half*>(t.a);
    const Index fours = rounded(t.k, 4) / 4;
    for (Index j = 0; j < t.columns; j += kColumns) {
      const auto* b = reinterpret_cast<const Half*>(static_cast<const char*>(t.b) + j / kColumns * t.b_step);
      for (Index i = 0; i < t.rows; i += kRows)
        tile(a + i * fours * 4, b, fours, t.c + i * t.c_step + j, t.c_step, t.add);
    }
  }
  static void nothing() {}

  static constexpr GemmCore table() {
    return {"bf16",  kRows,       kColumns, 512,    nothing,  nothing,
            a_bytes, panel_bytes, pack_a,   pack_b, multiply, false};
  }

 private:
  static constexpr Index kSlice = 256;
};

}  // namespace
}  // namespace headwise::cpu::gemm
