// Products of rows rounded to 8 bits with quantized weights: integers inside a group of 32, f32 from group
// to group. Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/stored/unit.h"

namespace headwise::cpu::stored {
namespace {

/// Four products a lane in any C++: sum + over b of byte b of `codes` times x[b]. kMoved: what a level adds
/// to codes with a sign before it multiplies.
struct PlainDot {
  using X = const std::int8_t*;
  static constexpr int kMoved = 0;
  static X load(const std::int8_t* p) { return p; }
  template <int Lane, bool Signed, class I, class U>
  static inline __attribute__((always_inline)) I add(I sum, U codes, X x) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) sum += ((I)(codes << (24 - 8 * b)) >> 24) * static_cast<int>(x[4 * Lane + b]);
    return sum;
  }
};

/// Most: rows at once.
template <class Dot, int Most>
struct Dots {
  static constexpr int W = Lanes::width, NV = kUnitColumns / W;
  static constexpr Index kAhead = 2048;
  using F = Lanes::F;

  /// Rows first .. first + M - 1 times one column of units. Two sums for each row where halves of a group
  /// count apart, or where one row alone would wait for its own sums.
  template <int Format, int M>
  static void column(const DotBlock& t, Index row) {
    using N = UnitNumbers<Format>;
    constexpr int Sums = N::two_scales || M == 1 ? 2 : 1;
    const Index k = t.x.groups * kGroup;
    F c[M][NV];
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < NV; ++j) c[i][j] = Lanes::zero();
    const std::byte* unit = t.unit;
    for (Index g = 0; g < t.x.groups; ++g, unit += N::u.bytes) {
      if constexpr (Lanes::prefetches && M <= 2)  // memory sets the pace
        for (Index at = 0; at < N::u.bytes; at += 64) Lanes::prefetch(unit + kAhead + at);
      typename N::I sum[M][Sums][NV] = {};
      const std::int8_t* q = t.x.q + (t.first + row) * k + g * kGroup;
      half<Format, M, Sums, 0>(unit, q, k, sum);
      half<Format, M, Sums, 1>(unit, q, k, sum);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const Index at = (t.first + row + i) * t.x.groups + g;
        add_group<Format, Sums>(unit, sum[i], t.x, at, c[i]);
      }
    }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < NV; ++j) Lanes::store(t.c + (row + i) * t.c_step + j * W, c[i][j]);
  }
  template <int Format, int M, int Sums, int Half, class I>
  static inline __attribute__((always_inline)) void half(const std::byte* unit, const std::int8_t* q, Index k,
                                                         I (&sum)[M][Sums][NV]) {
    typename Dot::X x[M];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) x[i] = Dot::load(q + i * k + 16 * Half);
    quarter<Format, M, Sums, Half, 0>(unit, x, sum), quarter<Format, M, Sums, Half, 1>(unit, x, sum);
    quarter<Format, M, Sums, Half, 2>(unit, x, sum), quarter<Format, M, Sums, Half, 3>(unit, x, sum);
  }
  template <int Format, int M, int Sums, int Half, int Lane, class X, class I>
  static inline __attribute__((always_inline)) void quarter(const std::byte* unit, const X (&x)[M],
                                                            I (&sum)[M][Sums][NV]) {
    using N = UnitNumbers<Format>;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const typename N::U codes = N::word_of(unit + j * 4 * W, 4 * Half + Lane);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        I& to = sum[i][Sums == 2 ? Half : 0][j];
        to = Dot::template add<Lane, N::whole_bytes>(to, codes, x[i]);
      }
    }
  }
  /// c += scale * x_scale * (integers), then the minima times what the row's numbers sum to.
  template <int Format, int Sums, class I>
  static inline __attribute__((always_inline)) void add_group(const std::byte* unit, const I (&sum)[Sums][NV],
                                                              const RoundedRows& x, Index at, F (&c)[NV]) {
    using N = UnitNumbers<Format>;
    constexpr int kOffset = N::u.offset + (N::whole_bytes ? Dot::kMoved : 0);
    const F scale = Lanes::bcast(x.scale + at);
    const std::int32_t* halves = x.sum + 2 * at;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      F d = N::halves(unit, j);
      I dots;
      if constexpr (N::two_scales) {
        dots = (sum[0][j] - N::u.offset * halves[0]) * N::whole_steps(unit, j, 0) +
               (sum[1][j] - N::u.offset * halves[1]) * N::whole_steps(unit, j, 1);
      } else {
        dots = sum[0][j];
        if constexpr (Sums == 2) dots += sum[1][j];
        if constexpr (kOffset > 0) dots -= kOffset * (halves[0] + halves[1]);
      }
      if constexpr (N::stepped_minima) d = Lanes::mul(d, N::steps(unit, j, 0));
      const F value = __builtin_bit_cast(F, __builtin_convertvector(dots, typename N::V));
      c[j] = Lanes::fma(value, Lanes::mul(d, scale), c[j]);
      if constexpr (N::u.minima > 0) {
        F m = N::halves(unit + N::u.minima, j);
        if constexpr (N::stepped_minima) m = Lanes::sub(Lanes::zero(), Lanes::mul(m, N::steps(unit, j, 1)));
        c[j] = Lanes::fma(m, Lanes::bcast(x.whole + at), c[j]);
      }
    }
  }

  template <int Format>
  static void rows(const DotBlock& t) {
    constexpr int M = UnitNumbers<Format>::two_scales ? Most / 2 : Most;
    Index row = 0;
    for (; row + M <= t.rows; row += M) column<Format, M>(t, row);
    rest<Format, M / 2>(t, row);
  }
  template <int Format, int M>
  static void rest(const DotBlock& t, Index row) {
    if (row + M <= t.rows) column<Format, M>(t, row), row += M;
    if constexpr (M > 1) rest<Format, M / 2>(t, row);
  }
  static void dots(const DotBlock& t) {
    switch (static_cast<StoredFormat>(t.format)) {
      case StoredFormat::q4_0: return rows<3>(t);
      case StoredFormat::q4_1: return rows<4>(t);
      case StoredFormat::q5_0: return rows<5>(t);
      case StoredFormat::q8_0: return rows<6>(t);
      case StoredFormat::q4_k: return rows<7>(t);
      case StoredFormat::q6_k: return rows<8>(t);
      default: return;  // floats are not rounded
    }
  }
};

}  // namespace
}  // namespace headwise::cpu::stored
