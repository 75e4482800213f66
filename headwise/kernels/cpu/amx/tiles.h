// AMX tiles: the step C[2x2 tiles] += A[2 tiles] x B[2 tiles] in pairs of bf16, one product or several of
// parts. Included by the AMX level alone; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::cpu {
namespace {

constexpr Index kTileBytes = 1024;  // 16 rows of 64 bytes

/// All eight tiles as 16 rows of 64 bytes, or those before `whole` as fewer rows; other code in this thread
/// may have its own shape, so every task sets it. The compiler's own intrinsic names 8 of the 64 bytes as
/// read and lets the rest be optimised away, hence the clobber.
inline void tiles_of_rows(int rows, int whole = 7) {
  const auto n = static_cast<std::uint8_t>(rows);
  struct alignas(64) {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16];
  } shape{.rows = {n, n, n, n, n, n, n, n}};
  for (int i = whole; i < 8; ++i) shape.rows[i] = 16;
  asm volatile("ldtilecfg (%0)" ::"r"(&shape) : "memory");
}
inline void tiles_on() { tiles_of_rows(16); }
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

/// Which part of A meets which part of B in one step, part 0 the largest. Of three parts, what is below 2^-23
/// of the product of the wholes is left out and the largest comes last. Each product takes one operand over
/// from the one before it: 14 tile loads for 24 products of tiles.
template <int Parts>
struct Products;
template <>
struct Products<1> {
  static constexpr int count = 1, a[] = {0}, b[] = {0};
};
template <>
struct Products<3> {
  static constexpr int count = 6, a[] = {2, 1, 1, 0, 0, 0}, b[] = {0, 0, 1, 1, 2, 0};
};

/// One step: A is a pair of contiguous tiles a, a + second; B two tiles side by side in lines of 128 bytes; C
/// 32 x 32 floats. The parts of an operand follow one another. The sums a block leaves in C are stored while
/// the next block starts, when they have long arrived.
struct Step {
  const char *a, *b;
  Index second;
  bool first;   // of its block: C starts at 0
  float* last;  // where the sums now in C belong; read when first
};

constexpr Index kLine = 128;  // bytes of one row of a panel of 32 floats

/// Product T of the 4 * count products of tiles in a step.
template <int Parts, int T>
inline __attribute__((always_inline)) void tile_step(const Step& s) {
  using P = Products<Parts>;
  constexpr int n = T / 4, i = T % 4 / 2, j = T % 2, a = P::a[n], b = P::b[n];
  constexpr bool opens = n == 0, closes = n == P::count - 1;
  constexpr bool loads_a = opens || P::a[opens ? 0 : n - 1] != a,
                 loads_b = opens || P::b[opens ? 0 : n - 1] != b;
  constexpr bool drops_a = closes || P::a[closes ? n : n + 1] != a,
                 drops_b = closes || P::b[closes ? n : n + 1] != b;
  const char *from_a = s.a + a * kTileBytes, *from_b = s.b + b * 2 * kTileBytes;
  if (opens && s.first) {
    tile_store<T % 4>(s.last + i * 16 * 32 + j * 16, kLine);
    tile_zero<T % 4>();
  }
  if constexpr (loads_a && j == 0) tile_load<4 + i>(from_a + (i ? s.second : 0), 64);
  if constexpr (loads_b && i == 0) tile_load<6 + j>(from_b + j * 64, kLine);
  tile_multiply<T % 4, 4 + i, 6 + j>();
  // A zeroed tile gives its register back: 5 % (dim 64) to 17 % (dim 128) where a busy sibling thread leaves
  // few of them.
  if constexpr (drops_a && j == 1) tile_zero<4 + i>();
  if constexpr (drops_b && i == 1) tile_zero<6 + j>();
}
template <int Parts, int From, int To>
inline __attribute__((always_inline)) void tile_steps(const Step& s) {
  tile_step<Parts, From>(s);
  if constexpr (From + 1 < To) tile_steps<Parts, From + 1, To>(s);
}
/// Slice I of a step in Of slices: vector work between slices keeps both units busy. A tile operation that
/// waits for a free tile register holds up everything behind it. (Measured with one part: spread 12 cycles a
/// vector of weights, in one piece 18 to 28.)
template <int Parts, int I, int Of>
inline __attribute__((always_inline)) void slice_step(const Step& s) {
  constexpr int all = 4 * Products<Parts>::count, from = I * all / Of, to = (I + 1) * all / Of;
  if constexpr (from < to) tile_steps<Parts, from, to>(s);
}
template <int Parts>
inline void whole_step(const Step& s) {
  tile_steps<Parts, 0, 4 * Products<Parts>::count>(s);
}

/// Half a step onto C of 32 x 16, one tile of B, product T and those behind it. Five registers instead of
/// eight: where a busy sibling thread leaves few, the next tiles are loaded meanwhile (three parts from L1,
/// cycles a product: 29 instead of 45; alone 19 instead of 18).
template <int Parts, int T = 0>
inline __attribute__((always_inline)) void column_step(const char* a, Index second, const char* b) {
  using P = Products<Parts>;
  constexpr int n = T / 2, i = T % 2, part_a = P::a[n], part_b = P::b[n];
  constexpr bool opens = n == 0, closes = n == P::count - 1;
  if constexpr (opens || P::a[opens ? 0 : n - 1] != part_a)
    tile_load<4 + i>(a + part_a * kTileBytes + (i ? second : 0), 64);
  if constexpr (i == 0 && (opens || P::b[opens ? 0 : n - 1] != part_b))
    tile_load<6>(b + part_b * 2 * kTileBytes, kLine);
  tile_multiply<i, 4 + i, 6>();
  if constexpr (closes || P::a[closes ? n : n + 1] != part_a) tile_zero<4 + i>();
  if constexpr (i == 1 && (closes || P::b[closes ? n : n + 1] != part_b)) tile_zero<6>();
  if constexpr (!closes || i == 0) column_step<Parts, T + 1>(a, second, b);
}
/// What steps of four sums leave in the registers that columns do not use.
inline void free_tiles() { tile_zero<2>(), tile_zero<3>(), tile_zero<7>(); }
inline void load_column(const float* from, Index step) {
  tile_load<0>(from, step), tile_load<1>(from + 4 * step, step);
}
/// The registers are free afterwards.
inline void keep_column(float* to, Index step) {
  tile_store<0>(to, step), tile_store<1>(to + 4 * step, step);
  tile_zero<0>(), tile_zero<1>();
}
inline void store_block(float* to) {
  tile_store<0>(to, kLine), tile_store<1>(to + 16, kLine);
  tile_store<2>(to + 512, kLine), tile_store<3>(to + 528, kLine);
}

inline __m512i gather_lanes(const char* at, Index step) {
  const auto lane = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * step)); };
  __m512i x = _mm512_castsi128_si512(lane(0));
  x = _mm512_inserti32x4(x, lane(1), 1);
  x = _mm512_inserti32x4(x, lane(2), 2);
  return _mm512_inserti32x4(x, lane(3), 3);
}

/// Columns 0 .. 3 of 16 rows of words.
inline __attribute__((always_inline)) void four_columns(const char* in, Index step, __m512i (&x)[4]) {
  __m512i a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = gather_lanes(in + i * step, 4 * step);
  const __m512i b0 = _mm512_unpacklo_epi32(a[0], a[1]), b1 = _mm512_unpackhi_epi32(a[0], a[1]);
  const __m512i b2 = _mm512_unpacklo_epi32(a[2], a[3]), b3 = _mm512_unpackhi_epi32(a[2], a[3]);
  x[0] = _mm512_unpacklo_epi64(b0, b2), x[1] = _mm512_unpackhi_epi64(b0, b2);
  x[2] = _mm512_unpacklo_epi64(b1, b3), x[3] = _mm512_unpackhi_epi64(b1, b3);
}

}  // namespace
}  // namespace headwise::cpu
