// The f32 product: tiles of 4 G rows (broadcast) x NV vectors of columns, sums in registers over one block
// of k. Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/gemm/stretch.h"
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu::gemm {
namespace {

/// Rows lie in groups [rows / 4][k][4], columns in panels [k][NV vectors]. A panel of b over Depth stays in
/// L1 or L2 while the rows of a pass go by. AVX-512, alone: 99 % of the FMA peak with Depth 256, 98 % with
/// 512, which comes back to c half as often.
template <class L, int G, int NV, int Depth>
struct F32 {
  static constexpr int W = Lanes::width, kColumns = NV * W;
  using F = Lanes::F;

  static Index a_bytes(Index rows, Index k) { return rounded(rows, 4) * rounded(k, 16) * 4; }
  static Index panel_bytes(Index k) { return kColumns * k * 4; }

  static void pack_a(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<float*>(out);
    if (lies_across(side)) return regroup(side, first, count, k0, k, to);
    const bool direct = side.type == RowType::f32 && side.k.step == 1;
    for (Index r = 0; r < count; r += 4) {
      const bool even =
          direct && r + 4 <= count && (first + r) / side.line.inner == (first + r + 3) / side.line.inner;
      const auto* from = static_cast<const float*>(side.data) + offset_of(side.line, first + r);
      for (Index c = 0, n; c < k; c += n) {
        // What lies side by side is taken from where it lies.
        const Index run = side.k.inner - (k0 + c) % side.k.inner;
        n = (run < k - c ? run : k - c) / 16 * 16;
        if (even && n > 0) {
          L::interleave4(from + offset_of(side.k, k0 + c), side.line.step, n, to + r * k + c * 4);
          continue;
        }
        alignas(64) float line[4 * kLine], rest[4 * kLine];
        n = k - c < kLine ? k - c : kLine;
        const Index wide = rounded(n, 16);
        for (Index i = 0; i < 4; ++i)
          load_line(side, first + (r + i < count ? r + i : r), k0 + c, r + i < count ? n : 0, wide,
                    line + i * kLine);
        L::interleave4(line, kLine, wide, n == wide ? to + r * k + c * 4 : rest);
        if (n != wide)
          for (Index i = 0; i < 4 * n; ++i) to[r * k + c * 4 + i] = rest[i];
      }
    }
  }
  static void pack_b(const Side& side, Index first, Index count, Index k0, Index k, void* out) {
    auto* to = static_cast<float*>(out);
    if (lies_across(side)) {
      const bool direct = side.type == RowType::f32 && count == kColumns &&
                          first / side.line.inner == (first + count - 1) / side.line.inner;
      const Index at = offset_of(side.line, first);
      for (Index i = 0; i < k; ++i) {
        if (!direct) {
          load_across(side, first, count, k0 + i, kColumns, to + i * kColumns);
          continue;
        }
        const auto* from = static_cast<const float*>(side.data) + offset_of(side.k, k0 + i) + at;
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) Lanes::store(to + i * kColumns + j * W, Lanes::load(from + j * W));
      }
      return;
    }
    // A whole panel of evenly spaced f32 lines is transposed from where it lies.
    const bool even = side.type == RowType::f32 && side.k.step == 1 && count == kColumns &&
                      k0 / side.k.inner == (k0 + k - 1) / side.k.inner &&
                      first / side.line.inner == (first + count - 1) / side.line.inner;
    const Index whole = even ? k / W * W : 0;
    const auto* from = static_cast<const float*>(side.data) + offset_of(side.line, even ? first : 0) +
                       offset_of(side.k, even ? k0 : 0);
    transpose_panel<NV>(from, side.line.step, whole, to);
    for (Index c = whole; c < k; c += kSlice) {
      alignas(64) float line[kColumns * kSlice];
      const Index n = k - c < kSlice ? k - c : kSlice;
      for (Index i = 0; i < kColumns; ++i)
        load_line(side, first + (i < count ? i : 0), k0 + c, i < count ? n : 0, rounded(n, 16),
                  line + i * kSlice);
      transpose_panel<NV>(line, kSlice, n, to + c * kColumns);
    }
  }

  /// Rows of a, a panel of b and the c they go to; `ahead`: what is fetched meanwhile, `pace` bytes with
  /// every step of k.
  struct TileTask {
    const float* a;
    Index group;
    const float* b;
    Index k;
    float* to;
    Index step;
    bool add;
    const char* ahead;
    Index pace;
  };
  template <int Groups>
  using TileSums = F[Groups][4][NV];
  /// visit(sum, its place from the first one of rows `step` apart)
  template <int Groups, class Visit>
  static inline __attribute__((always_inline)) void each_sum(TileSums<Groups>& c, Index step, Visit&& visit) {
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) visit(c[g][i][j], (4 * g + i) * step + j * W);
  }
  /// The chains of c go on over t's k.
  template <int Groups, bool Packed>
  static inline __attribute__((always_inline)) void chain(const TileTask& t, TileSums<Groups>& c) {
    const float *a = t.a, *b = t.b;
    const Index group = t.group, k = t.k, pace = t.pace;
    const char* ahead = t.ahead;
#pragma GCC unroll 2
    for (Index l = 0; l < k; ++l) {
      __builtin_prefetch(ahead + l * pace, 0, 2);
      F x[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) x[j] = Lanes::load(b + l * kColumns + j * W);
#pragma GCC unroll 4
      for (int g = 0; g < Groups; ++g) {
        const float* at = Packed ? a + g * group + l * 4 : a + 4 * g * group + l;
        if constexpr (L::multiplies_by_lane) {
          L::template add_products<4, NV>(at, x, c[g]);
        } else {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const F y = Lanes::bcast(Packed ? at + i : at + i * group);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) c[g][i][j] = Lanes::fma(y, x[j], c[g][i][j]);
          }
        }
      }
    }
  }
  /// c (4 Groups rows) continues its chains over k. Packed: groups of a lie `group` apart; else rows do.
  template <int Groups, bool Packed>
  static inline __attribute__((always_inline)) void tile(const TileTask& t) {
    TileSums<Groups> c;
    each_sum<Groups>(c, t.step, [&](F& x, Index at) { x = t.add ? Lanes::load(t.to + at) : Lanes::zero(); });
    chain<Groups, Packed>(t, c);
    each_sum<Groups>(c, t.step, [&](F& x, Index at) { Lanes::store(t.to + at, x); });
  }
  /// The same where k is leaves, whose sums wait in L1 for their neighbours; `out` is where this tile's sums
  /// go.
  template <int Groups, bool Packed>
  static inline __attribute__((always_inline)) void tile_of_leaves(const TileTask& t, const GemmBlock& of,
                                                                   float* out) {
    constexpr Index kLevels = 3, kEach = Index{4} * Groups * kColumns;
    alignas(64) float waiting[kLevels * kEach];
    float* top = waiting;
    const Index leaves = t.k / of.leaf;
    TileTask leaf = t;
    leaf.k = of.leaf;
    for (Index n = 0;; ++n) {
      TileSums<Groups> c;
      if (t.add)  // one leaf in several blocks
        each_sum<Groups>(c, t.step, [&](F& x, Index at) { x = Lanes::load(t.to + at); });
      else
        each_sum<Groups>(c, 0, [](F& x, Index) { x = Lanes::zero(); });
      chain<Groups, Packed>(leaf, c);
      for (Index left = n; left & 1; left >>= 1) {
        top -= kEach;
        each_sum<Groups>(c, kColumns, [&](F& x, Index at) { x = Lanes::add(Lanes::load(top + at), x); });
      }
      if (n + 1 == leaves) {
        for (Index m = 1; m <= of.merges; ++m)
          each_sum<Groups>(c, t.step,
                           [&](F& x, Index at) { x = Lanes::add(Lanes::load(t.to - m * of.plane + at), x); });
        return each_sum<Groups>(c, of.out_step, [&](F& x, Index at) { Lanes::store(out + at, x); });
      }
      each_sum<Groups>(c, kColumns, [&](F& x, Index at) { Lanes::store(top + at, x); });
      top += kEach;
      leaf.a += Packed ? 4 * of.leaf : of.leaf, leaf.b += of.leaf * kColumns, leaf.ahead += of.leaf * t.pace;
    }
  }
  static void multiply(const GemmBlock& t) {
    if constexpr (!L::multiplies_by_lane)
      if (t.a_step > 0) return t.leaf > 0 ? multiply_with<false, true>(t) : multiply_with<false, false>(t);
    t.leaf > 0 ? multiply_with<true, true>(t) : multiply_with<true, false>(t);
  }
  template <bool Packed, bool Leaves>
  static void multiply_with(const GemmBlock& t) {
    const auto* a = static_cast<const float*>(t.a);
    const Index group = Packed ? 4 * t.k : t.a_step, groups = rounded(t.rows, 4) / 4;
    const Index apart = Packed ? group : 4 * group;  // from group to group
    // The next panel of b comes while this one is used, a few bytes with every step of k: asked for at once
    // its lines would hold up those of the tile.
    const Index pace = 4 * kColumns * G / (groups > G ? groups : G);
    for (Index j = 0; j < t.columns; j += kColumns) {
      const auto* b = reinterpret_cast<const float*>(static_cast<const char*>(t.b) + j / kColumns * t.b_step);
      const char* ahead = reinterpret_cast<const char*>(b) + (j + kColumns < t.columns ? t.b_step : 0);
      const auto task = [&](Index g, Index some) {
        return TileTask{a + g * apart, group, b,     t.k, t.c + g * 4 * t.c_step + j,
                        t.c_step,      t.add, ahead, some};
      };
      const auto out = [&](Index g) { return t.out + g * 4 * t.out_step + j; };
      Index g = 0;
      for (; g + G <= groups; g += G, ahead += pace * t.k)
        if constexpr (Leaves)
          tile_of_leaves<G, Packed>(task(g, pace), t, out(g));
        else
          tile<G, Packed>(task(g, pace));
      for (; g < groups; ++g)
        if constexpr (Leaves)
          tile_of_leaves<1, Packed>(task(g, 0), t, out(g));
        else
          tile<1, Packed>(task(g, 0));
    }
  }
  static void nothing() {}

  static constexpr GemmCore table() {
    return {"f32",   4,           kColumns, Depth,  nothing,  nothing,
            a_bytes, panel_bytes, pack_a,   pack_b, multiply, !L::multiplies_by_lane};
  }

 private:
  static constexpr Index kLine = 128, kSlice = 64;

  /// Lines that lie side by side at each k: four k of some lines at a time.
  static void regroup(const Side& side, Index first, Index count, Index k0, Index k, float* to) {
    // Evenly spaced f32 lines are regrouped from where they lie, as far as they lie side by side.
    const bool even = side.type == RowType::f32 && k0 / side.k.inner == (k0 + k - 1) / side.k.inner;
    for (Index r = 0, n; r < count; r += n) {
      n = count - r < kLine ? count - r : kLine;
      const Index run = side.line.inner - (first + r) % side.line.inner;
      const bool whole_lines = even && run >= 16;
      if (whole_lines && n > 16) n = (n < run ? n : run) / 16 * 16;
      const Index wide = rounded(n, 16);
      const auto* from =
          static_cast<const float*>(side.data) + offset_of(side.line, first + r) + offset_of(side.k, k0);
      for (Index l = 0; l < k; l += 4) {
        if (whole_lines && n == wide && l + 4 <= k) {
          L::template regroup<4>(from + l * side.k.step, side.k.step, wide, to + r * k + l * 4, 4 * k,
                                 Lanes::zero());
          continue;
        }
        alignas(64) float line[4 * kLine], rest[4 * kLine];
        for (Index i = 0; i < 4; ++i)
          load_across(side, first + r, l + i < k ? n : 0, k0 + (l + i < k ? l + i : l), wide,
                      line + i * kLine);
        const bool whole = l + 4 <= k && rounded(n, 4) == wide;
        L::template regroup<4>(line, kLine, wide, whole ? to + r * k + l * 4 : rest, whole ? 4 * k : 16,
                               Lanes::zero());
        if (whole) continue;
        for (Index g = 0; g < rounded(n, 4) / 4; ++g)
          for (Index i = 0; i < 4 * (k - l < 4 ? k - l : 4); ++i)
            to[(r + 4 * g) * k + l * 4 + i] = rest[16 * g + i];
      }
    }
  }
};

}  // namespace
}  // namespace headwise::cpu::gemm
