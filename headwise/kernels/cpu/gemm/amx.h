// The bf16 product on AMX: 32 rows x 32 columns in 2x2 tiles, pairs of k, f32 sums. Included by the AMX level
// after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/bf16.h"
#include "headwise/kernels/cpu/gemm/stretch.h"

namespace headwise::cpu::gemm {
namespace {

/// Rows lie as [rows / 32][k / 32][32 rows][32 k], columns as panels [k / 2][32 columns][2 k]. One
/// instruction adds 32 k: an even and an odd chain of 16, then both to the sum. k is padded with zeros to
/// that.
struct Amx {
  static constexpr Index kSide = 32, kBlockBytes = 2 * kTileBytes;

  static Index a_bytes(Index rows, Index k) { return rounded(rows, kSide) * rounded(k, kSide) * 2; }
  static Index panel_bytes(Index k) { return rounded(k, kSide) * kSide * 2; }

  /// Where `side` has 32 k of a line side by side from k0 on.
  static bool along(const Side& side, Index k0, Index k) {
    return side.k.step == 1 && k0 / side.k.inner == (k0 + k - 1) / side.k.inner;
  }
  static const char* address(const Side& side, Index line, Index k) {
    return static_cast<const char*>(side.data) + (offset_of(side.line, line) + offset_of(side.k, k)) * 2;
  }
  static __m512i piece(const char* at, Index n) {
    if (n >= 32) return _mm512_loadu_si512(at);
    return _mm512_maskz_loadu_epi16(n > 0 ? ~0u >> (32 - n) : 0u, at);
  }
  /// 32 lines of 32 k from (first, k0) on, what does not exist as 0.
  static void gather(const Side& side, Index first, Index count, Index k0, Index k, char* block) {
    const bool whole = along(side, k0, k);
    for (Index i = 0; i < kSide; ++i) {
      auto* to = reinterpret_cast<std::uint16_t*>(block + i * 64);
      if (i < count && whole) {
        _mm512_store_si512(to, piece(address(side, first + i, k0), k));
        continue;
      }
      _mm512_store_si512(to, _mm512_setzero_si512());
      for (Index c = 0; i < count && c < k; ++c)
        to[c] = *reinterpret_cast<const std::uint16_t*>(address(side, first + i, k0 + c));
    }
  }
  static Side swapped(const Side& side) { return {side.data, side.type, side.k, side.line}; }

  static void pack_a(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<char*>(out);
    const bool across = lies_across(side), direct = !across && along(side, k0, k);
    alignas(64) char block[kBlockBytes];
    for (Index r = 0; r < count; r += kSide) {
      const Index rows = count - r < kSide ? count - r : kSide;
      char* at = to + r * rounded(k, kSide) * 2;
      if (direct) {
        for (Index i = 0; i < kSide; ++i) {
          const char* from = address(side, first + r + (i < rows ? i : 0), k0);
          for (Index c = 0; c < k; c += kSide)
            _mm512_store_si512(at + c * 64 + i * 64, piece(from + c * 2, i < rows ? k - c : 0));
        }
        continue;
      }
      for (Index c = 0; c < k; c += kSide) {
        const Index n = k - c < kSide ? k - c : kSide;
        if (across) {
          gather(swapped(side), k0 + c, n, first + r, rows, block);
          transpose_halves(block, 64, at + c * 64);
        } else {
          gather(side, first + r, rows, k0 + c, n, at + c * 64);
        }
      }
    }
  }
  /// Whole panels of evenly spaced lines are packed from where they lie.
  static void pack_b(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<char*>(out);
    const bool across = lies_across(side);
    const Side rows = across ? swapped(side) : side;  // what is read along
    const Index line0 = across ? k0 : first, lines = across ? k : count, at0 = across ? first : k0;
    const bool even = along(rows, at0, across ? count : k) &&
                      line0 / rows.line.inner == (line0 + lines - 1) / rows.line.inner;
    const char* from = even ? address(rows, line0, at0) : nullptr;
    const Index step = rows.line.step * 2;
    alignas(64) char block[kBlockBytes];
    for (Index c = 0; c < k; c += kSide, to += kBlockBytes) {
      const Index n = k - c < kSide ? k - c : kSide;
      if (even && n == kSide && count == kSide) {
        const char* at = from + (across ? c * step : c * 2);
        if (across)
          for (Index i = 0; i < kSide; i += 2) join(at + i * step, at + (i + 1) * step, to + i * 64);
        else
          transpose_pairs(at, step, to), transpose_pairs(at + 16 * step, step, to + 64);
        continue;
      }
      if (across) {
        gather(rows, k0 + c, n, first, count, block);
        for (Index i = 0; i < kSide; i += 2) join(block + i * 64, block + i * 64 + 64, to + i * 64);
      } else {
        gather(rows, first, count, k0 + c, n, block);
        transpose_pairs(block, 64, to), transpose_pairs(block + 16 * 64, 64, to + 64);
      }
    }
  }
  /// Two lines of 32 columns as 32 pairs.
  static void join(const char* first, const char* second, char* to) {
    const __m512i even = _mm512_loadu_si512(first), odd = _mm512_loadu_si512(second);
    alignas(64) static constexpr auto kOrder = [] {
      struct {
        std::uint16_t at[64];
      } o{};
      for (int i = 0; i < 32; ++i)
        o.at[2 * i] = static_cast<std::uint16_t>(i), o.at[2 * i + 1] = static_cast<std::uint16_t>(32 + i);
      return o;
    }();
    _mm512_store_si512(to, _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.at), odd));
    _mm512_store_si512(to + 64, _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.at + 32), odd));
  }

  /// Sums of one block of c stay in the tiles until the next block starts: by then they have long arrived.
  template <int Quarter>
  static inline __attribute__((always_inline)) void turn(float* last, float* next, Index step, bool add) {
    const Index at = Quarter / 2 * 16 * step + Quarter % 2 * 16;
    if (last) tile_store<Quarter>(last + at, step * 4);
    if (!next) return;
    if (add)
      tile_load<Quarter>(next + at, step * 4);
    else
      tile_zero<Quarter>();
  }
  static void multiply(const GemmBlock& t) {
    const Index steps = rounded(t.k, kSide) / kSide;
    float* last = nullptr;
    for (Index j = 0; j < t.columns; j += kSide)
      for (Index i = 0; i < t.rows; i += kSide) {
        const char* a = static_cast<const char*>(t.a) + i * steps * 64;
        const char* b = static_cast<const char*>(t.b) + j / kSide * t.b_step;
        float* c = t.c + i * t.c_step + j;
        for (Index s = 0; s < steps; ++s, a += kBlockBytes, b += kBlockBytes) {
          if (s == 0) turn<0>(last, c, t.c_step, t.add);
#pragma GCC unroll 32
          for (int l = 0; l < 32; ++l) __builtin_prefetch(a + 2 * kBlockBytes + l * 64);
          tile_load<4>(a, 64), tile_load<6>(b, kLine);
          tile_multiply<0, 4, 6>();
          if (s == 0) turn<1>(last, c, t.c_step, t.add);
          tile_load<7>(b + 64, kLine);
          tile_multiply<1, 4, 7>();
          tile_zero<4>();  // a zeroed tile gives its register back, see quarter_step
          if (s == 0) turn<2>(last, c, t.c_step, t.add);
          tile_load<5>(a + kTileBytes, 64);
          tile_multiply<2, 5, 6>();
          tile_zero<6>();
          if (s == 0) turn<3>(last, c, t.c_step, t.add);
          tile_multiply<3, 5, 7>();
          tile_zero<5>(), tile_zero<7>();
        }
        last = c;
      }
    turn<0>(last, nullptr, t.c_step, false), turn<1>(last, nullptr, t.c_step, false);
    turn<2>(last, nullptr, t.c_step, false), turn<3>(last, nullptr, t.c_step, false);
  }

  static constexpr GemmCore table() {
    return {"bf16",  kSide,       kSide,  512,    tiles_on, tiles_off,
            a_bytes, panel_bytes, pack_a, pack_b, multiply, false};
  }
};

}  // namespace
}  // namespace headwise::cpu::gemm
