// The f32 product on AMX in three parts of bf16: 32 rows x 32 columns in 2x2 tiles, six products of parts for
// every 32 k. Included by the AMX level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/gemm/stretch.h"

namespace headwise::cpu::gemm {
namespace {

/// Blocks of 32 lines x 32 k in pairs (k i, k i + 16). Rows lie as [rows / 32][k / 32][16 rows][part],
/// columns as panels [k / 32][part][16 pairs][32 columns], a word of flags behind each block. k is padded
/// with zeros.
///
/// Tiles flush what is below 2^-126, and 2^128 is inf. So 32 k of a line are *ordinary* when each is 0 or in
/// [2^-100, 2^50): every part is then kept, and a sum loses at most 2^-125 a product. Where either line is
/// not (large, tiny, inf, NaN), its flag is set and its f32 lies in place of the first two parts. The 32
/// products are then added by one chain of fused multiply-adds, ascending: no other sum notices.
struct InParts {
  static constexpr Index kSide = 32, kHalf = 3 * kTileBytes, kFlagsAt = 2 * kHalf, kBlock = kFlagsAt + 64;
  static constexpr Index kFew = 16;  // rows of one tile

  static Index blocks(Index n) { return rounded(n, kSide) / kSide; }
  static Index a_bytes(Index rows, Index k) { return blocks(rows) * blocks(k) * kBlock; }
  static Index panel_bytes(Index k) { return blocks(k) * kBlock; }
  static std::uint32_t& flags(char* block) { return *reinterpret_cast<std::uint32_t*>(block + kFlagsAt); }
  static std::uint32_t flags(const char* block) {
    return *reinterpret_cast<const std::uint32_t*>(block + kFlagsAt);
  }

  /// Lanes that are not ordinary, or 0.
  static __mmask16 suspect(F x) {
    const __m512i low = _mm512_slli_epi32(power(-100), 1), high = _mm512_slli_epi32(power(50), 1),
                  twice = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_castps_si512(x));  // no sign
    return _mm512_cmpge_epu32_mask(_mm512_sub_epi32(twice, low), _mm512_sub_epi32(high, low));
  }
  static __mmask16 unusual(F x) {
    const __m512i m = magnitude(x);
    return static_cast<__mmask16>(suspect(x) & _mm512_test_epi32_mask(m, m));
  }
  static inline __attribute__((always_inline)) void put_row(char* block, Index row, F even, F odd) {
    char* at = block + row / 16 * kHalf + row % 16 * 64;
    store_parts(even, odd, at, kTileBytes);
    if (__builtin_expect(suspect(even) | suspect(odd), 0) && (unusual(even) | unusual(odd))) {
      flags(block) |= 1u << row;
      _mm512_store_ps(at, even), _mm512_store_ps(at + kTileBytes, odd);
    }
  }

  static bool one_run(const Axis& axis, Index first, Index count) {
    return first / axis.inner == (first + count - 1) / axis.inner;
  }
  static const char* address(const Side& side, Index line, Index k) {
    return static_cast<const char*>(side.data) + (offset_of(side.line, line) + offset_of(side.k, k)) * 4;
  }
  /// 32 lines x 32 k as they lie, lines or k (`across`) being the rows; what does not exist is 0.
  struct Square {
    const char* at;
    Index step;
    alignas(64) float copy[kSide * kSide];

    Square(const Side& side, bool across, Index first, Index lines, Index k0, Index k) {
      if (side.type == RowType::f32 && lines == kSide && k == kSide && one_run(side.line, first, lines) &&
          one_run(side.k, k0, k) && (across ? side.line : side.k).step == 1) {
        at = address(side, first, k0), step = (across ? side.k : side.line).step * 4;
        return;
      }
      at = reinterpret_cast<const char*>(copy), step = kSide * 4;
      for (Index i = 0; i < kSide; ++i)
        if (across)
          load_across(side, first, i < k ? lines : 0, i < k ? k0 + i : k0, kSide, copy + i * kSide);
        else
          load_line(side, i < lines ? first + i : first, k0, i < lines ? k : 0, kSide, copy + i * kSide);
    }
    F sixteen(Index row, Index half) const { return _mm512_loadu_ps(at + row * step + half * 64); }
  };

  /// The first n of 16, or all; then zeros.
  static F sixteen_of(const float* from, Index n) {
    if (n >= 16) return Lanes::load(from);
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(n > 0 ? 0xffffu >> (16 - n) : 0u), from);
  }
  /// Rows that do not exist are left as they are: they meet sums that nobody reads.
  static void pack_a(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<char*>(out);
    for (Index b = 0; b < blocks(count) * blocks(k); ++b) flags(to + b * kBlock) = 0;
    if (lies_across(side)) {
      for (Index r = 0; r < count; r += kSide)
        for (Index c = 0; c < k; c += kSide, to += kBlock) {
          const Square s(side, true, first + r, least(count - r, kSide), k0 + c, least(k - c, kSide));
          for (Index h = 0; h < 2; ++h)
            in_pairs(s.at + h * 64, s.step, s.at + h * 64 + 16 * s.step,
                     [&](F even, F odd, int i) { put_row(to, h * 16 + i, even, odd); });
        }
      return;
    }
    const bool direct = side.type == RowType::f32 && side.k.step == 1 && one_run(side.k, k0, k);
    for (Index r = 0; r < count; ++r) {
      const auto* from = reinterpret_cast<const float*>(direct ? address(side, first + r, k0) : nullptr);
      char* block = to + r / kSide * blocks(k) * kBlock;
      for (Index c = 0; c < k; c += kSide, block += kBlock) {
        if (direct) {
          put_row(block, r % kSide, sixteen_of(from + c, k - c), sixteen_of(from + c + 16, k - c - 16));
          continue;
        }
        alignas(64) float spare[kSide];
        load_line(side, first + r, k0 + c, least(k - c, kSide), kSide, spare);
        put_row(block, r % kSide, Lanes::load(spare), Lanes::load(spare + 16));
      }
    }
  }
  static void pack_b(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<char*>(out);
    const bool across = lies_across(side);
    for (Index c = 0; c < k; c += kSide, to += kBlock) {
      const Square s(side, across, first, count, k0 + c, least(k - c, kSide));
      std::uint32_t all = 0;
      for (Index h = 0; h < 2; ++h) {
        const auto each = [&](auto&& put) {
          if (!across)
            return in_pairs(s.at + 16 * h * s.step, s.step, s.at + 16 * h * s.step + 64,
                            [&](F even, F odd, int i) { put(even, odd, to + i * kLine + h * 64); });
          for (Index i = 0; i < 16; ++i) put(s.sixteen(i, h), s.sixteen(i + 16, h), to + i * kLine + h * 64);
        };
        __mmask16 looked = 0, others = 0;
        each([&](F even, F odd, char* at) {
          looked = static_cast<__mmask16>(looked | suspect(even) | suspect(odd));
          store_parts(even, odd, at, 2 * kTileBytes);
        });
        if (looked)
          each([&](F even, F odd, char*) {
            others = static_cast<__mmask16>(others | unusual(even) | unusual(odd));
          });
        if (others)
          each([&](F even, F odd, char* at) {
            _mm512_mask_storeu_ps(at, others, even);
            _mm512_mask_storeu_ps(at + 2 * kTileBytes, others, odd);
          });
        all |= static_cast<std::uint32_t>(others) << (16 * h);
      }
      flags(to) = all;
    }
  }

  /// The sums of `rows` x 32 columns where one of the lines is not ordinary, from what they were before.
  [[gnu::noinline]] static void mend(const char* a, const char* b, Index rows, Index k, const float* before,
                                     float* after, Index step) {
    alignas(64) float x[kSide], y[kSide][kSide];
    const std::uint32_t a_flags = flags(a), b_flags = flags(b);
    F pair[2];
    for (Index i = 0; i < 16; ++i)
      for (Index h = 0; h < 2; ++h) {
        F32Operands::whole(b + i * kLine + h * 64, 2 * kTileBytes, b_flags >> (16 * h) & 0xffffu, pair);
        for (Index e = 0; e < 2; ++e) Lanes::store(y[i + 16 * e] + h * 16, pair[e]);
      }
    for (Index i = 0; i < rows; ++i) {
      const bool own = a_flags >> i & 1u;
      if (!own && b_flags == 0) continue;
      F32Operands::whole(a + i / 16 * kHalf + i % 16 * 64, kTileBytes, own ? 0xffffu : 0u, pair);
      Lanes::store(x, pair[0]), Lanes::store(x + 16, pair[1]);
      for (Index h = 0; h < 2; ++h) {
        F sum = Lanes::load(before + i * step + h * 16);
        for (Index l = 0; l < k; ++l) sum = Lanes::fma(Lanes::set(x[l]), Lanes::load(y[l] + h * 16), sum);
        _mm512_mask_storeu_ps(after + i * step + h * 16,
                              own ? __mmask16{0xffff} : static_cast<__mmask16>(b_flags >> (16 * h)), sum);
      }
    }
  }

  /// Tile T of a block of c: the sums of one block stay in the tiles until the next starts: by then they have
  /// long arrived.
  template <int T>
  static inline __attribute__((always_inline)) void turn(float* last, float* next, Index step, bool add) {
    const Index at = T / 2 * 16 * step + T % 2 * 16;
    if (last) tile_store<T>(last + at, step * 4);
    if (!next) return;
    if (add)
      tile_load<T>(next + at, step * 4);
    else
      tile_zero<T>();
  }
  template <int T = 0>
  static inline __attribute__((always_inline)) void turn_all(float* last, float* next, Index step, bool add) {
    turn<T>(last, next, step, add);
    if constexpr (T < 3) turn_all<T + 1>(last, next, step, add);
  }
  /// Products T .. 23 of a step; with each, a few lines of the next step's rows are asked for: all at once
  /// they hold up the tiles (213 against 179 ns a step, 168 from L1).
  template <int T = 0>
  static inline __attribute__((always_inline)) void steps_from(const Step& s) {
    tile_step<3, T>(s);
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) __builtin_prefetch(s.a + kBlock + (4 * T + l) * 64);
    if constexpr (T < 23) steps_from<T + 1>(s);
  }
  template <int T = 0>
  static inline __attribute__((always_inline)) void first_step(const Step& s, float* last, float* next,
                                                               Index step, bool add) {
    turn<T>(last, next, step, add);
    tile_step<3, T>(s);
    if constexpr (T < 3)
      first_step<T + 1>(s, last, next, step, add);
    else
      steps_from<4>(s);
  }
  /// A step in which a line is not ordinary.
  [[gnu::noinline]] static void step_with_mending(const Step& s, Index k) {
    alignas(64) float before[kSide * kSide], after[kSide * kSide];
    turn_all(before, nullptr, kSide, false);
    whole_step<3>(s);
    turn_all(after, nullptr, kSide, false);
    mend(s.a, s.b, kSide, k, before, after, kSide);
    turn_all(nullptr, after, kSide, true);
  }
  static void multiply_blocks(const GemmBlock& t, Index rows) {
    const Index steps = blocks(t.k), high = blocks(rows);
    const Index pace = rounded(kBlock / 64, high) / high;  // lines of the next panel with every step
    float* last = nullptr;
    for (Index j = 0; j < t.columns; j += kSide) {
      const char* const panel = static_cast<const char*>(t.b) + j / kSide * t.b_step;
      const char* ahead = j + kSide < t.columns ? panel + t.b_step : panel;
      for (Index i = 0; i < rows; i += kSide) {
        const char *a = static_cast<const char*>(t.a) + i / kSide * steps * kBlock, *b = panel;
        float* c = t.c + i * t.c_step + j;
        const float* next = i + kSide < rows ? c + kSide * t.c_step : t.c + j + kSide;
        for (Index s = 0; s < steps; ++s, a += kBlock, b += kBlock) {
          const Step step{a, b, kHalf, false, nullptr};
          for (Index l = 0; l < pace; ++l, ahead += 64) __builtin_prefetch(ahead, 0, 2);
          for (Index r = s * 4; r < s * 4 + 4 && r < kSide; ++r)
            __builtin_prefetch(next + r * t.c_step, 1), __builtin_prefetch(next + r * t.c_step + 16, 1);
          const bool ordinary = (flags(a) | flags(b)) == 0;
          if (__builtin_expect(!ordinary, 0)) {
            if (s == 0) turn_all(last, c, t.c_step, t.add);
            step_with_mending(step, least(t.k - s * kSide, kSide));
          } else if (s == 0) {
            first_step(step, last, c, t.c_step, t.add);
          } else {
            steps_from(step);
          }
        }
        last = c;
      }
    }
    turn_all(last, nullptr, t.c_step, false);
  }

  /// Up to 16 rows: one tile of them against 2 Panels tiles of columns, whose sums wait for one another less.
  template <int Panels, int Phase = 0, int J = 0>
  static inline __attribute__((always_inline)) void few_step(const char* a, const char* b, Index panel) {
    constexpr int part = Phase % 3;  // of b: 0, 1, 2 and 0 again, in the order of Products
    if constexpr (Phase == 0 && J == 0)
      tile_load<4>(a, 64), tile_load<5>(a + kTileBytes, 64), tile_load<6>(a + 2 * kTileBytes, 64);
    tile_load<7>(b + J / 2 * panel + part * 2 * kTileBytes + J % 2 * 64, kLine);
    if constexpr (Phase == 0) tile_multiply<J, 6, 7>();
    if constexpr (Phase <= 1) tile_multiply<J, 5, 7>();
    if constexpr (Phase >= 1) tile_multiply<J, 4, 7>();
    if constexpr (J + 1 < 2 * Panels)
      few_step<Panels, Phase, J + 1>(a, b, panel);
    else if constexpr (Phase < 3)
      few_step<Panels, Phase + 1>(a, b, panel);
  }
  template <int Panels, int J = 0>
  static inline __attribute__((always_inline)) void few_sums(float* c, Index step, int how) {
    if (how == 0) tile_zero<J>();
    if (how == 1) tile_load<J>(c + J * 16, step * 4);
    if (how == 2) tile_store<J>(c + J * 16, step * 4);
    if constexpr (J + 1 < 2 * Panels) few_sums<Panels, J + 1>(c, step, how);
  }
  template <int Panels>
  static void few_columns(const GemmBlock& t, const char* a, Index rows, const char* b, float* c) {
    few_sums<Panels>(c, t.c_step, t.add ? 1 : 0);
    for (Index k = 0; k < t.k; k += kSide, a += kBlock, b += kBlock) {
      bool ordinary = flags(a) == 0;
      for (int p = 0; p < Panels; ++p) ordinary = ordinary && flags(b + p * t.b_step) == 0;
      if (__builtin_expect(ordinary, 1)) {
        few_step<Panels>(a, b, t.b_step);
        continue;
      }
      constexpr Index kWide = Panels * kSide;
      alignas(64) float before[kFew * kWide], after[kFew * kWide];
      few_sums<Panels>(before, kWide, 2);
      few_step<Panels>(a, b, t.b_step);
      few_sums<Panels>(after, kWide, 2);
      for (int p = 0; p < Panels; ++p)
        mend(a, b + p * t.b_step, rows, least(t.k - k, kSide), before + p * kSide, after + p * kSide, kWide);
      few_sums<Panels>(after, kWide, 1);
    }
    few_sums<Panels>(c, t.c_step, 2);
  }
  static void multiply(const GemmBlock& t) {
    const Index few = t.live % kSide <= kFew ? t.live % kSide : 0, rows = t.live - few;
    if (rows > 0) multiply_blocks(t, rows);
    if (few == 0) return;
    tiles_of_rows(few < 8 ? 8 : static_cast<int>(few));
    const char* a = static_cast<const char*>(t.a) + rows / kSide * blocks(t.k) * kBlock;
    for (Index j = 0; j < t.columns; j += 2 * kSide) {
      const char* b = static_cast<const char*>(t.b) + j / kSide * t.b_step;
      float* c = t.c + rows * t.c_step + j;
      if (j + kSide < t.columns)
        few_columns<2>(t, a, few, b, c);
      else
        few_columns<1>(t, a, few, b, c);
    }
    tiles_on();
  }

  static constexpr GemmCore table() {
    return {"f32x3", kSide,       kSide,  256,    tiles_on, tiles_off,
            a_bytes, panel_bytes, pack_a, pack_b, multiply, false};
  }

 private:
  static Index least(Index a, Index b) { return a < b ? a : b; }
};

}  // namespace
}  // namespace headwise::cpu::gemm
