// AMX tiles: the step C[2x2 tiles] += A[2 tiles] x B[2 tiles] in pairs of bf16, and rows packed as its
// operands. Included by the AMX level alone; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include "headwise/kernels/cpu/tile.h"

namespace headwise::cpu {
namespace {

constexpr Index kTileBytes = 1024;  // 16 rows of 64 bytes

/// All eight tiles as 16 rows of 64 bytes; other code in this thread may have its own shape, so every task
/// sets it. The compiler's own intrinsic names 8 of the 64 bytes as read and lets the rest be optimised away,
/// hence the clobber.
inline void tiles_on() {
  struct alignas(64) {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  asm volatile("ldtilecfg (%0)" ::"r"(&shape) : "memory");
}
inline void tiles_off() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void tile_load(const void* from, Index step) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(step) : "memory");
}
template <int T>
inline void tile_store(void* to, Index step) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(step) : "memory");
}
template <int C, int A, int B>
inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

/// One step: A is a pair of contiguous tiles a, a + second; B two tiles side by side in lines of 128 bytes; C
/// 32 x 32 floats. The sums a block leaves in C are stored while the next block starts, when they have long
/// arrived.
struct Step {
  const char *a, *b;
  Index second;
  bool first;   // of its block: C starts at 0
  float* last;  // where the sums now in C belong; read when first
};

constexpr Index kLine = 128;  // bytes of one row of a panel of 32 floats

/// A quarter of a step: vector work between quarters keeps both units busy, and a tile operation that waits
/// for a free tile register holds up everything behind it (measured: spread 12 cycles a vector of weights, in
/// one piece 18 to 28).
template <int Quarter>
inline __attribute__((always_inline)) void quarter_step(const Step& s) {
  constexpr int i = Quarter / 2, j = Quarter % 2;
  if (s.first) {
    tile_store<Quarter>(s.last + i * 16 * 32 + j * 16, kLine);
    tile_zero<Quarter>();
  }
  if constexpr (Quarter == 0) tile_load<4>(s.a, 64), tile_load<6>(s.b, kLine);
  if constexpr (Quarter == 1) tile_load<7>(s.b + 64, kLine);
  if constexpr (Quarter == 2) tile_load<5>(s.a + s.second, 64);
  tile_multiply<Quarter, 4 + i, 6 + j>();
  // A zeroed tile gives its register back: 5 % (dim 64) to 17 % (dim 128) where a busy sibling thread leaves
  // few of them.
  if constexpr (Quarter == 1) tile_zero<4>();
  if constexpr (Quarter == 2) tile_zero<6>();
  if constexpr (Quarter == 3) tile_zero<5>(), tile_zero<7>();
}
inline void whole_step(const Step& s) {
  quarter_step<0>(s), quarter_step<1>(s), quarter_step<2>(s), quarter_step<3>(s);
}
inline void store_block(float* to) {
  tile_store<0>(to, kLine), tile_store<1>(to + 16, kLine);
  tile_store<2>(to + 512, kLine), tile_store<3>(to + 528, kLine);
}

/// Columns c0 .. c0 + 31 of one row of bf16; what does not exist is 0.
inline __m512i piece(const Rows& rows, Index row, Index c0, Index dim) {
  const Index end = rows.end < dim ? rows.end : dim;
  const auto* at = static_cast<const std::uint16_t*>(rows.data) + row * rows.row_step + c0 * rows.column_step;
  if (rows.column_step == 1 && rows.begin <= c0 && c0 + 32 <= end) return _mm512_loadu_si512(at);
  const Index from = rows.begin > c0 ? rows.begin - c0 : 0, to = end - c0 < 32 ? end - c0 : 32;
  if (from >= to) return _mm512_setzero_si512();
  if (rows.column_step == 1) {
    const std::uint32_t open = (~0u >> (32 - (to - from))) << from;
    return _mm512_maskz_loadu_epi16(open, at);
  }
  alignas(64) std::uint16_t spare[32] = {};
  for (Index c = from; c < to; ++c) spare[c] = at[c * rows.column_step];
  return _mm512_load_si512(spare);
}

inline __m512i gather_lanes(const char* at, Index step) {
  const auto lane = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * step)); };
  __m512i x = _mm512_castsi128_si512(lane(0));
  x = _mm512_inserti32x4(x, lane(1), 1);
  x = _mm512_inserti32x4(x, lane(2), 2);
  return _mm512_inserti32x4(x, lane(3), 3);
}

/// 16 rows of 16 pairs of bf16 -> [pair][row], lines of kLine bytes.
inline void transpose_pairs(const char* in, Index step, char* out) {
  for (int c = 0; c < 16; c += 4) {
    __m512i a[4];
    for (int i = 0; i < 4; ++i) a[i] = gather_lanes(in + i * step + c * 4, 4 * step);
    const __m512i b0 = _mm512_unpacklo_epi32(a[0], a[1]), b1 = _mm512_unpackhi_epi32(a[0], a[1]);
    const __m512i b2 = _mm512_unpacklo_epi32(a[2], a[3]), b3 = _mm512_unpackhi_epi32(a[2], a[3]);
    _mm512_storeu_si512(out + c * kLine, _mm512_unpacklo_epi64(b0, b2));
    _mm512_storeu_si512(out + (c + 1) * kLine, _mm512_unpackhi_epi64(b0, b2));
    _mm512_storeu_si512(out + (c + 2) * kLine, _mm512_unpacklo_epi64(b1, b3));
    _mm512_storeu_si512(out + (c + 3) * kLine, _mm512_unpackhi_epi64(b1, b3));
  }
}

/// 32 rows of 32 bf16 -> [column][row], lines of 64 bytes; returns the largest exponent field met, in place.
inline __m512i transpose_halves(const char* in, Index step, char* out) {
  __m512i most = _mm512_setzero_si512();
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (int c = 0; c < 32; c += 8) {
    __m512i a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = gather_lanes(in + i * step + c * 2, 8 * step);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        a[i + 2 * j] = _mm512_unpacklo_epi32(b[i + j], b[i + j + 2]);
        a[i + 2 * j + 1] = _mm512_unpackhi_epi32(b[i + j], b[i + j + 2]);
      }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i x = _mm512_unpacklo_epi64(a[j], a[4 + j]), y = _mm512_unpackhi_epi64(a[j], a[4 + j]);
      _mm512_storeu_si512(out + (c + 2 * j) * 64, x);
      _mm512_storeu_si512(out + (c + 2 * j + 1) * 64, y);
      most = _mm512_max_epu16(most, _mm512_and_si512(x, exponent));
      most = _mm512_max_epu16(most, _mm512_and_si512(y, exponent));
    }
  }
  return most;
}

}  // namespace
}  // namespace headwise::cpu
