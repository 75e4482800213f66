// Many panels against one granule with FMA: tops are taken from the registers of the scores, and the rows
// that are packed next are asked for between their products. Included by every ISA level after its Lanes;
// internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/f32_core.h"

namespace headwise::cpu {
namespace {

/// Base is an F32Core.
template <class Base>
struct F32Stripes {
  static constexpr int NV = Base::kVectors, MR = Base::kRows, W = Base::W, kPanel = Base::kPanel;
  using Pass = Passes<NV>;

  /// Gives out the lines of the next granule: as many with each tile of scores as bring all of them in.
  struct Supply {
    Fetch first, then;
    Index first_lines, then_lines, each = 0;

    Supply(const Next& next, Index tiles)
        : first(next.keys),
          then(next.values),
          first_lines(lines_of(next.keys) * next.keys.rows),
          then_lines(lines_of(next.values) * next.values.rows) {
      if (tiles > 0) each = (first_lines + then_lines + tiles - 1) / tiles;
    }
    void some() {
      Index n = each;
      for (; n > 0 && first_lines > 0; --n, --first_lines) first.next(1);
      for (; n > 0 && then_lines > 0; --n, --then_lines) then.next(1);
    }
  };

  /// Scores and the tops among them. Keys past `to` fill up the last tile and are no keys.
  static void scores_and_tops(const Stripe& t, const void* keys, Index dim, Supply& supply, float* s,
                              float* tops) {
    F top[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) top[j] = Lanes::set(kMinusInf);
    Base::score_tiles({t.queries, keys, t.from, t.to, dim, s}, top, [&] { supply.some(); });
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) Lanes::store(tops + j * W, top[j]);
    Pass::row_max(s, t.from + (t.to - t.from) / MR * MR, t.to, tops);
  }

  static void run(const StripeTask& task) {
    const Stripe* list = task.list;
    const Index count = task.count, dim = task.dim;
    float* s = task.s;
    alignas(64) float used[kPanel], shrink[kPanel], tops[kPanel], old_top[kPanel], sum[kPanel];
    Index tiles = 0;
    for (Index i = 0; i < count; ++i) tiles += (list[i].to - list[i].from + MR - 1) / MR;
    Supply supply(task.next, tiles);
    for (Index i = 0; i < count; ++i) {
      const Stripe& t = list[i];
      scores_and_tops(t, task.keys, dim, supply, s, tops);
      if (t.key_scales.at) Pass::scale_rows(s, t.from, t.to, t.key_scales, nullptr);
      if (t.open) Pass::select(s, t.from, t.to, t.open);
      if (t.key_scales.at || t.open) {
        for (int j = 0; j < kPanel; j += W) Lanes::store(tops + j, Lanes::set(kMinusInf));
        Pass::row_max(s, t.from, t.to, tops);
      }
      for (int j = 0; j < kPanel; j += W) Lanes::store(old_top + j, Lanes::load(t.top + j));
      Pass::advance(t.top, tops, t.factor, used, shrink);
      const Tile tile{s, task.p, t.from, t.to, used, t.factor, sum};
      if (t.stats) {
        Pass::rebase(t, old_top, used, shrink);
        Pass::weights_stats(tile, *t.stats, t.q_distance, t.key0);
      } else {
        Pass::template weights_of<true>(tile);
      }
      if (i + 1 < count) Base::fetch_queries(list[i + 1].queries, dim);
      Pass::add_sum(t.sum, shrink, sum);
      if (t.value_scales.at) Pass::scale_rows(s, t.from, t.to, t.value_scales, nullptr);
      Base::weigh(tile, task.values, task.value_dim, shrink, t.o);
    }
  }

  static constexpr Core table() {
    Core c = Base::table();
    c.products.stripes = run;
    // A panel that left L2 is asked for in time (Neoverse N1: 0.3 % faster, head_dim 64 0.7 %).
    if constexpr (Lanes::fetches_rows) c.task_rows = 2048;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
