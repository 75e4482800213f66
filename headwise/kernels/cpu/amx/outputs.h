// f32 at the AMX level: scores are chains of fused multiply-adds, outputs products of tiles in three parts,
// those of one panel beside the exponentials of the next. Included by the AMX level; internal linkage
// throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/amx/stripes.h"
#include "headwise/kernels/cpu/tile/f32_stripes.h"

namespace headwise::cpu {
namespace {

/// Decode has to give the same bits. A score in parts takes vectors six products instead of one; so only
/// outputs are in parts, and decode waits for memory all the same.
struct AmxOutputs {
  using Amx = AmxCore<F32Operands>;
  using Turns = AmxStripes<F32Operands>;
  using Chains = F32Core<Lanes, 2, 8, F32Operands::kGranule>;
  using Scores = F32Stripes<Chains>;
  static constexpr int kPanel = Amx::kPanel;
  static_assert(Chains::kPanel == kPanel);

  static void run(const StripeTask& task) {
    const Stripe* list = task.list;
    const Index count = task.count, value_dim = task.value_dim;
    float* s = task.s;
    void* p = task.p;
    alignas(64) float used[kPanel], shrink[2][kPanel], tops[kPanel], old_top[kPanel], sum[kPanel];
    Index tiles = 0;
    for (Index i = 0; i < count; ++i)
      tiles += (list[i].to - list[i].from + Chains::kRows - 1) / Chains::kRows;
    typename Scores::Supply supply(task.next, tiles);
    typename Turns::Beside beside{};
    beside.value_dim = value_dim, beside.sums = beside.last = Amx::sums_of(p);
    for (Index i = 0; i < count; ++i) {
      const Stripe& t = list[i];
      Scores::scores_and_tops(t, task.keys, task.dim, supply, s, tops);
      if (t.open) {
        Passes<2>::select(s, t.from, t.to, t.open);
        for (int j = 0; j < kPanel; j += Amx::W) Lanes::store(tops + j, Lanes::set(kMinusInf));
        Amx::row_max(s, t.from, t.to, tops);
      }
      Amx::fill_rest(s, t.to, kMinusInf);
      for (int j = 0; j < kPanel; j += Amx::W) Lanes::store(old_top + j, Lanes::load(t.top + j));
      Passes<2>::advance(t.top, tops, t.factor, used, shrink[i & 1]);
      typename F32Operands::Exponent e(used, t.factor);
      char* weights = Amx::weights_of(p, i & 1);
      const Index to = rounded(t.to, Amx::kBlock);
      if (t.stats) {
        Passes<2>::rebase(t, old_top, used, shrink[i & 1]);
        typename Amx::template Stats<false> stats(*t.stats, t.q_distance, t.factor);
        Turns::weights(s, weights, t.from, to, e, stats, beside);
        stats.keep(*t.stats, t.key0);
      } else {
        typename Amx::Unseen none;
        Turns::weights(s, weights, t.from, to, e, none, beside);
      }
      e.total(sum);
      Passes<2>::add_sum(t.sum, shrink[i & 1], sum);
      beside.finish();
      beside.outputs = Amx::weigh_steps(weights, task.values, t.from, t.to, value_dim, beside.sums);
      beside.taken = 0, beside.begun = false, beside.last = beside.sums;
      beside.shrink = shrink[i & 1], beside.o = t.o;
    }
    beside.finish();
  }

  static constexpr Core table() {
    Core c = Amx::table();
    const Core chains = Chains::table();
    c.name = "f32/f32x3", c.key_group = chains.key_group, c.key_columns = chains.key_columns,
    c.key_pad = chains.key_pad;
    c.products.query_bytes = chains.products.query_bytes, c.products.key_bytes = chains.products.key_bytes;
    c.products.pack_queries = chains.products.pack_queries, c.products.pack_keys = chains.products.pack_keys;
    c.products.scores = chains.products.scores;
    c.products.stripes = run;
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
