// Exact products with weights as they are stored: numbers become f32 on the way, sums are chains over k.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/stored/widen.h"

namespace headwise::cpu::stored {
namespace {

/// L: Lanes. Rows, Vectors: of sums in one tile; where a column has few of them, a tile takes several
/// columns. Chains: sums of a tile of few rows, so that none waits for itself.
template <class L, int Rows, int Vectors, int Chains>
struct Tiles {
  static constexpr int W = Lanes::width, NV = kUnitColumns / W;
  static constexpr Index kAhead = 2048;  // bytes
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

  /// Some k of some columns: where their numbers lie, the first row's x and sums.
  struct Stretch {
    const std::byte* w;
    Index w_step;  // bytes from column to column
    Index depth;
    const float* x;
    float* c;
    bool add;
  };

  /// Ahead: all rows meet these numbers at once, so memory sets the pace; lines are asked for before they are
  /// due.
  template <int M, int Columns, class Numbers, bool Ahead = false>
  static inline __attribute__((always_inline)) void tile(const StoredBlock& t, const Stretch& s, Index row) {
    constexpr int N = Columns * NV;
    const float* x[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) x[i] = s.x + (row + i) * t.x_step;
    float* to = s.c + row * t.c_step;
    F c[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) c[i][j] = s.add ? Lanes::load(to + i * t.c_step + j * W) : Lanes::zero();
    const std::byte* w = s.w;
    Index k = 0;
    if constexpr (L::multiplies_by_lane && Columns == 1) {
      for (; k + 4 <= s.depth; k += 4) {
        F y[M];
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) y[i] = Lanes::load(x[i] + k);
        step<0, M, Numbers>(w, y, c), step<1, M, Numbers>(w, y, c);
        step<2, M, Numbers>(w, y, c), step<3, M, Numbers>(w, y, c);
        w += 4 * Numbers::kBytes;
        if constexpr (M <= 2)
          __builtin_prefetch(w + 1024), __builtin_prefetch(w + 1088);  // memory sets the pace
      }
    }
    for (; k < s.depth; ++k, w += Numbers::kBytes) {
      F n[N];
      if constexpr (Ahead)
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) __builtin_prefetch(w + j * s.w_step + kAhead);
#pragma GCC unroll 8
      for (int j = 0; j < Columns; ++j) Numbers::load(w + j * s.w_step, n + j * NV);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const F y = Lanes::bcast(x[i] + k);
#pragma GCC unroll 16
        for (int j = 0; j < N; ++j) c[i][j] = Lanes::fma(y, n[j], c[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) Lanes::store(to + i * t.c_step + j * W, c[i][j]);
  }
  template <int Lane, int M, class Numbers>
  static inline __attribute__((always_inline)) void step(const std::byte* w, const F (&y)[M], F (&c)[M][NV]) {
    asm volatile("" ::: "memory");  // loads of a later step would take the registers of sums
    F n[NV];
    Numbers::load(w + Lane * Numbers::kBytes, n);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) c[i][j] = L::template fma_lane<Lane>(n[j], y[i], c[i][j]);
  }
  /// All rows: whole tiles, then those that are left.
  template <int M, int Columns, class Numbers, bool Ahead>
  static void rest(const StoredBlock& t, const Stretch& s, Index row) {
    if constexpr (M > 0) {
      if (t.rows - row == M) return tile<M, Columns, Numbers, Ahead>(t, s, row);
      rest<M - 1, Columns, Numbers, Ahead>(t, s, row);
    }
  }
  template <int Columns, class Numbers, bool Ahead>
  static void rows(const StoredBlock& t, const Stretch& s) {
    Index row = 0;
    for (; row + Rows <= t.rows; row += Rows) tile<Rows, Columns, Numbers, Ahead>(t, s, row);
    rest<Rows - 1, Columns, Numbers, Ahead>(t, s, row);
  }

  /// Numbers that tiles read as they lie.
  template <class Numbers>
  struct InPlace {
    using Tile = Numbers;
    static constexpr bool in_place = true;
    template <int Columns>
    static Stretch stretch(const StoredBlock& t, Index column, Index k, Index depth) {
      return {t.unit + column * t.unit_bytes + k * Numbers::kBytes,
              t.unit_bytes,
              depth,
              t.x + k,
              t.c + column * kUnitColumns,
              t.add || k > 0};
    }
  };
  static Stretch widened(const StoredBlock& t, Index column, Index k, Index depth) {
    return {reinterpret_cast<const std::byte*>(t.scratch),
            depth * kUnitColumns * 4,
            depth,
            t.x + k,
            t.c + column * kUnitColumns,
            t.add || k > 0};
  }
  /// Numbers of 16 bits that many rows share.
  template <class Numbers>
  struct Shared {
    using Tile = Float;
    static constexpr bool in_place = false;
    template <int Columns>
    static Stretch stretch(const StoredBlock& t, Index column, Index k, Index depth) {
      float* out = t.scratch;
      for (int j = 0; j < Columns; ++j) {
        const std::byte* from = t.unit + (column + j) * t.unit_bytes + k * Numbers::kBytes;
        for (Index i = 0; i < depth; ++i, out += kUnitColumns) {
          F n[NV];
          Numbers::load(from + i * Numbers::kBytes, n);
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) Lanes::store(out + v * W, n[v]);
        }
      }
      return widened(t, column, k, depth);
    }
  };
  template <int Format>
  struct Units {
    using Tile = Float;
    static constexpr bool in_place = false;
    template <int Columns>
    static Stretch stretch(const StoredBlock& t, Index column, Index k, Index depth) {
      constexpr Index kBytes = kUnits[Format].bytes;
      float* out = t.scratch;
      for (int j = 0; j < Columns; ++j) {
        const std::byte* unit = t.unit + (column + j) * t.unit_bytes + k / kGroup * kBytes;
        for (Index i = 0; i < depth; i += kGroup, unit += kBytes, out += kGroup * kUnitColumns) {
          if constexpr (Lanes::prefetches)
            for (Index at = 0; at < kBytes; at += 64) Lanes::prefetch(unit + depth / kGroup * kBytes + at);
          widen_unit<Format>(unit, out);
        }
      }
      return widened(t, column, k, depth);
    }
  };

  static constexpr int kColumns = Vectors / (Rows * NV);  // of a whole tile
  /// Of a tile of few rows: enough sums to keep the units busy.
  static constexpr int columns_of(int rows) {
    const int most = Chains / (rows * NV);
    return most >= 8 ? 8 : most >= 4 ? 4 : kColumns;
  }
  /// Columns from j on, `Columns` at a time. M: rows, if fewer than a tile; else 0.
  template <class Numbers, int M, int Columns>
  static void columns(const StoredBlock& t, Index j) {
    constexpr Index kWide = kStoredWide / (Columns * kUnitColumns) / kGroup * kGroup;
    const Index most = Numbers::in_place && t.rows <= Rows ? t.k
                       : kWide < kStoredDepth              ? kWide
                                                           : kStoredDepth;
    for (; j + Columns <= t.columns; j += Columns)
      for (Index k = 0; k < t.k; k += most) {
        const Stretch s = Numbers::template stretch<Columns>(t, j, k, t.k - k < most ? t.k - k : most);
        constexpr bool ahead = Numbers::in_place && Lanes::prefetches && M != 1;
        using Tile = typename Numbers::Tile;
        if constexpr (M > 0)
          tile<M, Columns, Tile, ahead>(t, s, 0);
        else if (ahead && t.rows <= Rows)
          rows<Columns, Tile, ahead>(t, s);
        else
          rows<Columns, Tile, false>(t, s);
      }
    if constexpr (Columns > 1) columns<Numbers, M, Columns == 8 ? 4 : 1>(t, j);
  }
  template <class Numbers, int M = 1>
  static void run(const StoredBlock& t) {
    if constexpr (M < Rows && columns_of(M) > kColumns) {
      if (t.rows == M) return columns<Numbers, M, columns_of(M)>(t, 0);
      run<Numbers, M + 1>(t);
    } else {
      columns<Numbers, 0, kColumns>(t, 0);
    }
  }
  template <class Numbers>
  static void halves(const StoredBlock& t) {
    if (t.rows <= Rows) return run<InPlace<Numbers>>(t);
    columns<Shared<Numbers>, 0, kColumns>(t, 0);
  }

  static void multiply(const StoredBlock& t) {
    switch (static_cast<StoredFormat>(t.format)) {
      case StoredFormat::f32: return run<InPlace<Float>>(t);
      case StoredFormat::f16: return halves<Half>(t);
      case StoredFormat::bf16: return halves<Brain>(t);
      case StoredFormat::q4_0: return run<Units<3>>(t);
      case StoredFormat::q4_1: return run<Units<4>>(t);
      case StoredFormat::q5_0: return run<Units<5>>(t);
      case StoredFormat::q8_0: return run<Units<6>>(t);
      case StoredFormat::q4_k: return run<Units<7>>(t);
      case StoredFormat::q6_k: return run<Units<8>>(t);
    }
  }
};

}  // namespace
}  // namespace headwise::cpu::stored
