// The f32 core: one micro-kernel C[MR rows][panel] += A (broadcast) x B (lanes) serves scores and outputs.
// Scores: A = keys, B = queries [dim][panel]; outputs: A = values, B = weights S [keys][panel] as they lie.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/mix_passes.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu {
namespace {

/// NV vectors of queries a panel, MR broadcast rows a tile, Keys a granule: chosen so that S, Keys x NV
/// vectors, leaves half of L1 to the rows beside it. L is Lanes.
template <class L, int NV, int MR, int Keys>
struct F32Core {
  static constexpr int W = Lanes::width, kVectors = NV, kRows = MR, kPanel = NV * W, kGranule = Keys;
  static constexpr int kGroup = Lanes::multiplies_by_lane ? MR : 4;  // rows of A that lie together
  static_assert(MR % kGroup == 0);
  static constexpr bool kOwnTile = L::template own_tile<MR, NV>;

  static Index query_bytes(Index dim) { return kPanel * dim * 4; }
  static Index key_bytes(Index dim) { return kGranule * rounded(dim, 16) * 4; }
  static Index value_bytes(Index value_dim) {
    const Index tiles = (value_dim + MR - 1) / MR * MR, wide = rounded(value_dim, 16);
    return (tiles > wide ? tiles : wide) / kGroup * group_step() * 4;
  }
  static Index weight_bytes() { return 0; }
  /// Floats between a value and the same value of the next key, and between two groups of columns. Groups
  /// [value_dim / kGroup][keys][kGroup] are few streams, as the prefetcher needs (peak from rows and groups:
  /// AVX-512 70, 97 %; Neoverse N1 89, 95 %). The pad keeps groups out of one cache set.
  static Index value_step() { return kGroup; }
  static Index group_step() { return kGranule * kGroup + kPad; }

  static void pack_queries(const Rows* rows, const Index* row, int count, Index dim, void* out,
                           float* scratch) {
    const Index step = rounded(dim, 16);
    // A whole panel of neighbouring f32 rows of one head is transposed from where it lies.
    const Rows& r = rows[0];
    if (r.type == RowType::f32 && r.column_step == 1 && r.begin == 0 && r.end == dim && dim % 16 == 0 &&
        count == kPanel && rows[kPanel - 1].data == r.data && row[kPanel - 1] == row[0] + kPanel - 1)
      return transpose_panel<NV>(static_cast<const float*>(r.data) + row[0] * r.row_step, r.row_step, dim,
                                 static_cast<float*>(out));
    for (int lane = 0; lane < kPanel; ++lane) {
      if (lane < count)
        load_row(rows[lane], row[lane], step, scratch + lane * step);
      else
        for (Index c = 0; c < step; ++c) scratch[lane * step + c] = 0.0f;
    }
    transpose_panel<NV>(scratch, step, dim, static_cast<float*>(out));
  }
  /// Keys in groups [keys / kGroup][dim][kGroup]; the last tile is filled up with zeros.
  static void pack_keys(const Rows& rows, Index first, Index count, Index dim, void* out) {
    auto* to = static_cast<float*>(out);
    const Index wide = rounded(dim, 16);
    constexpr int kTaken = Lanes::multiplies_by_lane ? W : kGroup;  // rows joined at a time
    const Source source{rows, first, count, dim};
    for (Index k = 0; k < rounded(count, MR); k += kTaken)
      for (Index c0 = 0; c0 < dim; c0 += kLine) {
        alignas(64) float line[kTaken * kLine];
        const Index n = dim - c0 < kLine ? rounded(dim - c0, 16) : kLine;
        const RowsHere from = some_rows<kTaken>(source, k, c0, n, line);
        float* at = to + k / kGroup * kGroup * wide + c0 * kGroup + k % kGroup;
        if constexpr (Lanes::multiplies_by_lane) {
          for (Index c = 0; c < n; c += W) {
            F t[W];
            for (int i = 0; i < W; ++i) t[i] = Lanes::load(from.data + i * from.step + c);
            Lanes::transpose(t);
            for (int i = 0; i < W; ++i) Lanes::store(at + (c + i) * kGroup, t[i]);
          }
        } else {
          L::interleave4(from.data, from.step, n, at);
        }
      }
  }
  static bool pack_values(const Rows& rows, Index first, Index count, Index value_dim, void* out) {
    auto* to = static_cast<float*>(out);
    const Index wide = rounded(value_dim, 16), step = value_step();
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    constexpr int kTaken = 4;
    const Source source{rows, first, count, value_dim};
    for (Index k = 0; k < count; k += kTaken)
      for (Index c0 = 0; c0 < value_dim; c0 += kLine) {
        alignas(64) float line[kTaken * kLine];
        const Index n = value_dim - c0 < kLine ? rounded(value_dim - c0, 16) : kLine;
        const RowsHere from = some_rows<kTaken>(source, k, c0, n, line);
        unusual = L::template regroup<kGroup>(
            from.data, from.step, n, to + c0 / kGroup * group_step() + k * kGroup, group_step(), unusual);
      }
    if (!Lanes::any(Lanes::is_nan(unusual))) return true;
    for (Index k = 0; k < count; ++k)
      for (Index c = 0; c < wide; ++c) {
        float& x = to[c / kGroup * group_step() + k * step + c % kGroup];
        if (!(__builtin_fabsf(x) <= 3.4028235e38f)) x = 0.0f;
      }
    return false;
  }

  static inline __attribute__((always_inline)) void clear(F (&c)[MR][NV]) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) c[i][j] = Lanes::zero();
  }
  /// c[i][j] += over k, ascending, a(k, i) * b[k * kPanel + j * W], a(k, i) = a[i / kGroup * group + k
  /// * step + i % kGroup]
  static inline __attribute__((always_inline)) void multiply(const float* a, Index group, Index step,
                                                             const float* b, Index n, F (&c)[MR][NV]) {
#pragma GCC unroll 2
    for (Index k = 0; k < n; ++k) {
      F x[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) x[j] = Lanes::load(b + k * kPanel + j * W);
      if constexpr (L::multiplies_by_lane) {
        L::template add_products<MR, NV>(a + k * step, x, c);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
          const F y = Lanes::bcast(a + i / kGroup * group + k * step + i % kGroup);
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j) c[i][j] = Lanes::fma(y, x[j], c[i][j]);
        }
      }
    }
  }
  /// Scores of a panel with keys from .. to, both packed.
  struct ScoreTask {
    const void *queries, *keys;
    Index from, to, dim;
    float* s;
  };
  /// Scores of keys in tiles of MR; before(row) is called before each tile, and tops become the larger of
  /// themselves and every score of whole tiles.
  template <class Before>
  static inline __attribute__((always_inline)) void score_tiles(const ScoreTask& t, F (&top)[NV],
                                                                Before before) {
    const auto* q = static_cast<const float*>(t.queries);
    const auto* k = static_cast<const float*>(t.keys);
    const Index from = t.from, to = t.to, dim = t.dim;
    float* s = t.s;
    const Index wide = rounded(dim, 16), whole = from + (to - from) / MR * MR;
    for (Index row = from; row < to; row += MR) {
      before();
      F larger[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) larger[j] = top[j];
      if constexpr (kOwnTile) {
        L::Tile::scores(k + row * wide, q, dim, s + row * kPanel, larger[0], larger[1]);
      } else {
        F c[MR][NV];
        clear(c);
        multiply(k + row * wide, kGroup * wide, kGroup, q, dim, c);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j) {
            Lanes::store(s + (row + i) * kPanel + j * W, c[i][j]);
            larger[j] = Lanes::max(c[i][j], larger[j]);
          }
      }
      if (row >= whole) return;
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) top[j] = larger[j];
    }
  }
  static void scores(const void* queries, const void* keys, Index from, Index to, Index dim, float* s) {
    F top[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) top[j] = Lanes::zero();
    score_tiles({queries, keys, from, to, dim, s}, top, [] {});
  }
  /// Values of a group to come: a run of a few keys is too short for what looks ahead by itself.
  static void fetch_values(const float* values, Index floats) {
    if constexpr (Lanes::prefetches)
      for (Index n = 0; n < floats; n += 16) __builtin_prefetch(values + n);
  }
  /// Of the next panel, while this one is weighed.
  static void fetch_queries(const void* queries, Index dim) {
    if constexpr (Lanes::fetches_rows)
      for (Index at = 0; at < query_bytes(dim); at += 64)
        __builtin_prefetch(static_cast<const std::byte*>(queries) + at, 0, 2);
  }
  static void weigh(const Tile& t, const void* values, Index value_dim, const float* shrink, float* o) {
    const auto* v = static_cast<const float*>(values);
    const Index step = value_step();
    F keep[NV];
    for (int j = 0; j < NV; ++j) keep[j] = Lanes::load(shrink + j * W);
    for (Index d = 0; d < value_dim; d += MR) {
      if constexpr (kOwnTile) {
        L::Tile::weigh(v + d / kGroup * group_step() + t.from * step, t.s + t.from * kPanel, t.to - t.from,
                       o + d * kPanel, keep[0], keep[1]);
        continue;
      }
      F c[MR][NV];
      clear(c);
      fetch_values(v + (d / kGroup + 2) * group_step() + t.from * step, (t.to - t.from) * step);
      multiply(v + d / kGroup * group_step() + t.from * step, group_step(), step, t.s + t.from * kPanel,
               t.to - t.from, c);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
          float* at = o + (d + i) * kPanel + j * W;
          Lanes::store(at, Lanes::fma(Lanes::load(at), keep[j], c[i][j]));
        }
    }
  }
  static void weigh_on(const Tile& t, const void* values, Index value_dim, float* o) {
    const auto* v = static_cast<const float*>(values);
    const Index step = value_step();
    for (Index d = 0; d < value_dim; d += MR) {
      if constexpr (kOwnTile) {
        L::Tile::add(v + d / kGroup * group_step() + t.from * step, t.s + t.from * kPanel, t.to - t.from,
                     o + d * kPanel);
        continue;
      }
      F c[MR][NV];
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) c[i][j] = Lanes::load(o + (d + i) * kPanel + j * W);
      fetch_values(v + (d / kGroup + 2) * group_step() + t.from * step, (t.to - t.from) * step);
      multiply(v + d / kGroup * group_step() + t.from * step, group_step(), step, t.s + t.from * kPanel,
               t.to - t.from, c);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) Lanes::store(o + (d + i) * kPanel + j * W, c[i][j]);
    }
  }
  static void operand(const Tile&) {}
  static void nothing() {}

  static constexpr Core table() {
    Core c{};
    c.name = "f32", c.panel = kPanel, c.granule = kGranule, c.begin = nothing, c.end = nothing;
    c.products = {.query_bytes = query_bytes,
                  .key_bytes = key_bytes,
                  .value_bytes = value_bytes,
                  .weight_bytes = weight_bytes,
                  .pack_queries = pack_queries,
                  .pack_keys = pack_keys,
                  .pack_values = pack_values,
                  .scores = scores,
                  .operand = operand,
                  .weigh = weigh};
    c.passes = MixPasses<L, NV>::joined(Passes<NV>::table());
    c.gradients.weigh_on = weigh_on;
    return c;
  }

 private:
  static constexpr Index kLine = 512, kPad = 16;

  /// Rows first .. first + count of dim columns that are packed.
  struct Source {
    const Rows& rows;
    Index first, count, dim;
  };
  /// `Taken` rows from key k on, n columns from c0 on: where they lie if they are plain f32, else copied into
  /// `line`.
  struct RowsHere {
    const float* data;
    Index step;
  };
  template <int Taken>
  static RowsHere some_rows(const Source& from, Index k, Index c0, Index n, float* line) {
    const Rows& rows = from.rows;
    const Index first = from.first, count = from.count, dim = from.dim;
    const bool plain = rows.type == RowType::f32 && rows.column_step == 1 && rows.begin == 0 &&
                       rows.end == dim && dim % 16 == 0;
    if (plain && k + Taken <= count)
      return {static_cast<const float*>(rows.data) + (first + k) * rows.row_step + c0, rows.row_step};
    for (int i = 0; i < Taken; ++i) {
      if (k + i < count)
        load_row(columns_from(rows, c0, dim), first + k + i, n, line + i * kLine);
      else
        for (Index c = 0; c < n; ++c) line[i * kLine + c] = 0.0f;
    }
    return {line, kLine};
  }
};

/// FMA chains that never leave the registers; returns GFLOP done, the asm keeps the result alive.
inline double spin_fma(Index rounds) {
  constexpr int kChains = 12;  // latency 4 x 2 units, with room; fits 16 registers
  F c[kChains];
  const F a = Lanes::set(1.0000001f),
          b = Lanes::set(-0.0000001f);  // c is the addend: NEON would copy b otherwise
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) c[i] = Lanes::set(static_cast<float>(i));
  for (Index r = 0; r < rounds; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) c[i] = Lanes::fma(a, b, c[i]);
  float keep[Lanes::width];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    Lanes::store(keep, c[i]);
    asm volatile("" ::"r"(keep) : "memory");
  }
  return static_cast<double>(rounds) * kChains * 2 * Lanes::width * 1e-9;
}

}  // namespace
}  // namespace headwise::cpu
