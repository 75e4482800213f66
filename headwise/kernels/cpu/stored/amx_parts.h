// Rows of f32 in three parts of bf16 times stored bf16 weights, by AMX tiles. Included by the AMX level after
// its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/isa/stored_kernels.h"

namespace headwise::cpu::stored {
namespace {

/// One tile of 16 rows against up to four columns of units, whose sums stay in tiles. Weights lie as [k][16]
/// and become pairs (k, k + 1) on the way, since tiles want those: a permutation for every line of 64 bytes.
struct AmxParts {
  static constexpr Index kSteps = 8;  // of many rows, whose weights stay in L1
  static constexpr int kMost = 4;     // columns
  static_assert(kSteps * kMost * kTileBytes <= kPartsScratch);

  /// The first n of 16, or all; then zeros.
  static F sixteen_of(const float* from, Index n) {
    if (n >= 16) return Lanes::load(from);
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(n > 0 ? 0xffffu >> (16 - n) : 0u), from);
  }
  static bool split(const float* x, Index k, Index rows, std::byte* to) {
    alignas(64) static constexpr auto kUpper = [] {
      struct {
        std::uint16_t at[32];
      } o{};
      for (int i = 0; i < 32; ++i) o.at[i] = static_cast<std::uint16_t>(2 * i + 1);
      return o;
    }();
    const __m512i upper = _mm512_load_si512(kUpper.at);
    const Index part = rows * kPartsLine;
    __m512i most = _mm512_setzero_si512();
    for (Index c = 0; c < k; c += kPartsDepth) {
      const F low = sixteen_of(x + c, k - c), high = sixteen_of(x + c + 16, k - c - 16);
      most = _mm512_max_epu32(most, _mm512_max_epu32(magnitude(low), magnitude(high)));
      const Parts a(low), b(high);
      std::byte* line = to + c / kPartsDepth * 3 * part;
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i)
        _mm512_storeu_si512(line + i * part, _mm512_permutex2var_epi16(a.word[i], upper, b.word[i]));
    }
    if (is_ordinary(_mm512_reduce_max_epu32(most))) return true;
    for (Index c = 0; c < 3 * ((k + kPartsDepth - 1) / kPartsDepth); ++c)
      _mm512_storeu_si512(to + c * part, _mm512_setzero_si512());
    return false;
  }

  /// Step s of N columns as tiles of pairs. most: of the sizes of all weights so far.
  template <int N>
  static inline __attribute__((always_inline)) void pair_up(const PartsBlock& t, Index first, Index s,
                                                            std::byte* to, __m512i (&most)[N]) {
    alignas(64) static constexpr auto kPairs = [] {
      struct {
        std::uint16_t at[32];
      } o{};
      for (int i = 0; i < 32; ++i) o.at[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 16);
      return o;
    }();
    constexpr Index kAhead = N <= 2 ? 4096 : 2048;  // bytes of a column
    const __m512i pairs = _mm512_load_si512(kPairs.at), size = _mm512_set1_epi16(0x7fff);
    const Index left = t.k - s * kPartsDepth;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const std::byte* w = t.unit + (first + j) * t.unit_bytes + s * kTileBytes;
      std::byte* tile = to + j * kTileBytes;
      const auto put = [&](__m512i v, Index at) {
        most[j] = _mm512_max_epu16(most[j], _mm512_and_si512(v, size));
        _mm512_store_si512(tile + at, _mm512_permutexvar_epi16(pairs, v));
      };
      if (__builtin_expect(left >= kPartsDepth, 1)) {
#pragma GCC unroll 16
        for (Index at = 0; at < kTileBytes; at += 64) {
          Lanes::prefetch(w + at + kAhead);
          put(_mm512_loadu_si512(w + at), at);
        }
        continue;
      }
      for (Index at = 0; at < kTileBytes; at += 64) {
        const Index n = 16 * left - at / 2;  // weights that exist from here on
        put(_mm512_maskz_loadu_epi16(n >= 32 ? ~0u : n > 0 ? 0xffffu : 0u, w + at), at);
      }
    }
  }
  static std::uint16_t apart(__m512i most) {
    alignas(64) std::uint16_t at[32];
    _mm512_store_si512(at, most);
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) {
      const unsigned top = at[i] > at[i + 16] ? at[i] : at[i + 16];
      bits |= static_cast<unsigned>(!is_ordinary(top << 16)) << i;
    }
    return static_cast<std::uint16_t>(bits);
  }

  /// All products of 32 of k. Ahead: lines of the next rows are asked for with each product.
  template <int N, bool Ahead, int T = 0>
  static inline __attribute__((always_inline)) void step(const std::byte* a, Index part, const std::byte* b) {
    constexpr int kPart = 2 - T / N, j = T % N;
    if constexpr (T == 0)
      tile_load<4>(a + 2 * part, kPartsLine), tile_load<5>(a + part, kPartsLine), tile_load<6>(a, kPartsLine);
    if constexpr (N > 1 || T == 0) tile_load<7>(b + j * kTileBytes, 64);
    tile_multiply<j, 6 - kPart, 7>();
    if constexpr (Ahead)
#pragma GCC unroll 16
      for (int l = 0; l < 16 / N; ++l) __builtin_prefetch(a + 3 * part + (16 / N * T + l) * 64);
    if constexpr (T + 1 < 3 * N) step<N, Ahead, T + 1>(a, part, b);
  }
  enum class Do { zero, load, store };
  template <int N, int J = 0>
  static inline __attribute__((always_inline)) void sums(float* c, Index c_step, Do what) {
    if (what == Do::zero) tile_zero<J>();
    if (what == Do::load) tile_load<J>(c + J * 16, c_step * 4);
    if (what == Do::store) tile_store<J>(c + J * 16, c_step * 4);
    if constexpr (J + 1 < N) sums<N, J + 1>(c, c_step, what);
  }

  /// Rows of one tile meet weights once: pairs of a step are made while the one before is multiplied.
  template <int N>
  static void few(const PartsBlock& t, Index first, __m512i (&most)[N]) {
    const Index steps = (t.k + kPartsDepth - 1) / kPartsDepth, part = t.rows * kPartsLine;
    float* c = t.c + first * kUnitColumns;
    const auto slot = [&](Index s) { return t.scratch + s % 2 * N * kTileBytes; };
    sums<N>(c, t.c_step, Do::zero);
    pair_up<N>(t, first, 0, slot(0), most);
    for (Index s = 0; s < steps; ++s) {
      if (s + 1 < steps) pair_up<N>(t, first, s + 1, slot(s + 1), most);
      step<N, false>(t.x + s * 3 * part, part, slot(s));
    }
    sums<N>(c, t.c_step, Do::store);
  }
  /// Pairs of some steps meet all rows, group by group; sums wait in c meanwhile, as they are.
  template <int N>
  static void many(const PartsBlock& t, Index first, __m512i (&most)[N]) {
    const Index steps = (t.k + kPartsDepth - 1) / kPartsDepth;
    for (Index s0 = 0; s0 < steps; s0 += kSteps) {
      const Index n = steps - s0 < kSteps ? steps - s0 : kSteps;
      for (Index s = 0; s < n; ++s) pair_up<N>(t, first, s0 + s, t.scratch + s * N * kTileBytes, most);
      for (Index row = 0; row < t.rows; row += kPartsGroup) {
        const Index live = t.rows - row < kPartsGroup ? t.rows - row : kPartsGroup, part = live * kPartsLine;
        if (live < kPartsGroup) tiles_of_rows(static_cast<int>(live));
        float* c = t.c + row * t.c_step + first * kUnitColumns;
        sums<N>(c, t.c_step, s0 > 0 ? Do::load : Do::zero);
        const std::byte* a = t.x + row * bytes_in_parts(t.k) + s0 * 3 * part;
        for (Index s = 0; s < n; ++s) step<N, true>(a + s * 3 * part, part, t.scratch + s * N * kTileBytes);
        sums<N>(c, t.c_step, Do::store);
        if (live < kPartsGroup) tiles_on();
      }
    }
  }
  template <int N>
  static void columns(const PartsBlock& t, Index first) {
    __m512i most[N];
    for (__m512i& m : most) m = _mm512_setzero_si512();
    if (t.rows <= kPartsGroup)
      few<N>(t, first, most);
    else
      many<N>(t, first, most);
    for (int j = 0; j < N; ++j) t.apart[first + j] = apart(most[j]);
  }
  static void multiply(const PartsBlock& t) {
    tiles_of_rows(static_cast<int>(t.rows < kPartsGroup ? t.rows : kPartsGroup));
    Index j = 0;
    for (; j + kMost <= t.columns; j += kMost) columns<kMost>(t, j);
    if (t.columns - j == 3) columns<3>(t, j);
    if (t.columns - j == 2) columns<2>(t, j);
    if (t.columns - j == 1) columns<1>(t, j);
    tiles_off();
  }
};

}  // namespace
}  // namespace headwise::cpu::stored
