// Exact products with weights as they are stored: numbers become f32 on the way, sums are chains over k.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/stored/unit.h"

namespace headwise::cpu {
namespace {

/// L: Lanes. Rows: of one tile, so that its sums fill the registers.
template <class L, int Rows>
struct StoredTiles {
  static constexpr int W = Lanes::width, NV = kUnitColumns / W;
  using F = Lanes::F;

  struct Float {
    static constexpr Index kBytes = 64;
    static inline __attribute__((always_inline)) void load(const std::byte* p, F* x) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) x[j] = Lanes::load(reinterpret_cast<const float*>(p) + j * W);
    }
  };
  struct Half {
    static constexpr Index kBytes = 32;
    static inline __attribute__((always_inline)) void load(const std::byte* p, F* x) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) x[j] = Lanes::load_f16(reinterpret_cast<const std::uint16_t*>(p) + j * W);
    }
  };
  struct Brain {
    static constexpr Index kBytes = 32;
    static inline __attribute__((always_inline)) void load(const std::byte* p, F* x) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(p);
      if constexpr (L::multiplies_by_lane) {
        L::load_bf16s(from, x);
      } else {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) x[j] = Lanes::load_bf16(from + j * W);
      }
    }
  };

  template <int M, class Numbers>
  static inline __attribute__((always_inline)) void tile(const StoredBlock& t, const std::byte* w,
                                                         Index row) {
    const float* x = t.x + row * t.x_step;
    float* to = t.c + row * t.c_step;
    F c[M][NV];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) c[i][j] = t.add ? Lanes::load(to + i * t.c_step + j * W) : Lanes::zero();
    Index k = 0;
    if constexpr (L::multiplies_by_lane) {
      for (; k + 4 <= t.k; k += 4) {
        F y[M];
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) y[i] = Lanes::load(x + i * t.x_step + k);
        step<0, M, Numbers>(w, y, c), step<1, M, Numbers>(w, y, c);
        step<2, M, Numbers>(w, y, c), step<3, M, Numbers>(w, y, c);
        w += 4 * Numbers::kBytes;
      }
    }
    for (; k < t.k; ++k, w += Numbers::kBytes) {
      F n[NV];
      Numbers::load(w, n);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const F y = Lanes::bcast(x + i * t.x_step + k);
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) c[i][j] = Lanes::fma(y, n[j], c[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) Lanes::store(to + i * t.c_step + j * W, c[i][j]);
  }
  template <int Lane, int M, class Numbers>
  static inline __attribute__((always_inline)) void step(const std::byte* w, const F (&y)[M], F (&c)[M][NV]) {
    F n[NV];
    Numbers::load(w + Lane * Numbers::kBytes, n);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) c[i][j] = L::template fma_lane<Lane>(n[j], y[i], c[i][j]);
  }
  /// The rows that are left, fewer than a tile.
  template <int M, class Numbers>
  static void rest(const StoredBlock& t, const std::byte* w, Index row, Index left) {
    if constexpr (M > 0) {
      if (left == M) return tile<M, Numbers>(t, w, row);
      rest<M - 1, Numbers>(t, w, row, left);
    }
  }
  template <class Numbers>
  static void rows(const StoredBlock& t, const std::byte* w) {
    Index row = 0;
    for (; row + Rows <= t.rows; row += Rows) tile<Rows, Numbers>(t, w, row);
    rest<Rows - 1, Numbers>(t, w, row, t.rows - row);
  }

  /// One unit as f32 [32][16]. Products of scales and codes are exact in f32, so each number is rounded once
  /// at most.
  template <int Format>
  static void widen(const std::byte* unit, float* out) {
    using N = UnitNumbers<Format>;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const N n(unit, j);
#pragma GCC unroll 8
      for (int t = 0; t < 8; ++t) {
        const typename N::U word = n.word(t);
#pragma GCC unroll 4
        for (int b = 0; b < 4; ++b) {
          const F code =
              __builtin_bit_cast(F, __builtin_convertvector(N::byte(word, b) - N::u.offset, typename N::V));
          const F x = Lanes::mul(code, n.scale[t / 4]);
          Lanes::store(out + (4 * t + b) * 16 + j * W, N::u.minima > 0 ? Lanes::add(x, n.minimum) : x);
        }
      }
    }
  }
  template <int Format>
  static void widened(const StoredBlock& t) {
    for (Index k = 0; k < t.k; k += kGroup)
      widen<Format>(t.unit + k / kGroup * kUnits[Format].bytes, t.scratch + k * 16);
    rows<Float>(t, reinterpret_cast<const std::byte*>(t.scratch));
  }
  /// Few rows read numbers of 16 bits as they lie; more share what was widened.
  template <class Numbers>
  static void floats(const StoredBlock& t) {
    if (t.rows <= Rows) return rows<Numbers>(t, t.unit);
    for (Index k = 0; k < t.k; ++k) {
      F n[NV];
      Numbers::load(t.unit + k * Numbers::kBytes, n);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) Lanes::store(t.scratch + k * 16 + j * W, n[j]);
    }
    rows<Float>(t, reinterpret_cast<const std::byte*>(t.scratch));
  }

  static void multiply(const StoredBlock& t) {
    switch (static_cast<StoredFormat>(t.format)) {
      case StoredFormat::f32: return rows<Float>(t, t.unit);
      case StoredFormat::f16: return floats<Half>(t);
      case StoredFormat::bf16: return floats<Brain>(t);
      case StoredFormat::q4_0: return widened<3>(t);
      case StoredFormat::q4_1: return widened<4>(t);
      case StoredFormat::q5_0: return widened<5>(t);
      case StoredFormat::q8_0: return widened<6>(t);
      case StoredFormat::q4_k: return widened<7>(t);
      case StoredFormat::q6_k: return widened<8>(t);
    }
  }
};

}  // namespace
}  // namespace headwise::cpu
