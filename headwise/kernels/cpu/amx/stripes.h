// Many panels against one granule on AMX. While the weights of panel i are made, slices of steps between them
// multiply the scores of panel i + 1 and the outputs of panel i - 1. Included by the AMX level; internal
// linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/core.h"

namespace headwise::cpu {
namespace {

template <class Operands>
struct AmxStripes {
  using Amx = AmxCore<Operands>;
  using Steps = typename Amx::Steps;
  static constexpr int kPanel = Amx::kPanel, kParts = Amx::kParts;

  /// What the tiles do beside the weights of one panel: the next panel's scores, then the last panel's
  /// outputs.
  struct Beside {
    Steps scores{}, outputs{};
    Index value_dim;
    const float* shrink;
    float *sums, *o, *last;
    Index taken = 0;
    bool stores = false, begun = false;

    Index left() const { return scores.left() + outputs.left(); }
    bool next(Step& s) {
      if (!scores.done()) {
        s = scores.next(last);
      } else if (!outputs.done()) {
        stores = outputs.block > taken;
        s = outputs.next(last);
      } else {
        return false;
      }
      begun = true;
      return true;
    }
    void after() {
      if (!stores) return;
      stores = false;
      Amx::take_sums(sums, taken++, value_dim, shrink, o);
    }
    void finish() {
      Step s;
      while (next(s)) whole_step<kParts>(s), after();
      if (begun) store_block(last);
      if (outputs.blocks > 0) Amx::take_sums(sums, taken, value_dim, shrink, o);
    }
  };

  /// Units I .. 7 of the weights of 8 keys, PerEight steps in slices beside them.
  template <int PerEight, int I = 0, class Look>
  static inline __attribute__((always_inline)) void eight(float* s, char* p, Index k,
                                                          typename Operands::Exponent& e, Look& look,
                                                          Beside& beside, Step& step) {
    constexpr int slices = 8 / PerEight, slice = I % slices;
    if (slice == 0) beside.next(step);
    e.template unit<I>(s, p, k, look, [&] { slice_step<kParts, 2 * slice, 2 * slices>(step); });
    slice_step<kParts, 2 * slice + 1, 2 * slices>(step);
    if (slice == slices - 1) beside.after();
    if constexpr (I < 7) eight<PerEight, I + 1>(s, p, k, e, look, beside, step);
  }
  template <int PerEight, class Look>
  static inline __attribute__((always_inline)) void weights(float* s, char* p, Index from, Index to,
                                                            typename Operands::Exponent& e, Look& look,
                                                            Beside& beside) {
    Index k = from;
    Step step;
    for (; k < to && beside.left() >= PerEight; k += 8) eight<PerEight>(s, p, k, e, look, beside, step);
    for (; k < to; k += 8) Amx::template eight<2>(s, p, k, e, look);
  }
  /// As few steps beside 8 keys as bring all of them in.
  template <class Look>
  static inline __attribute__((always_inline)) void weights(float* s, char* p, Index from, Index to,
                                                            typename Operands::Exponent& e, Look& look,
                                                            Beside& beside) {
    if (beside.left() * 8 <= to - from)
      weights<1>(s, p, from, to, e, look, beside);
    else
      weights<2>(s, p, from, to, e, look, beside);
  }
  static void run(const StripeTask& task) {
    const Stripe* list = task.list;
    const Index count = task.count, dim = task.dim, value_dim = task.value_dim;
    const void *keys = task.keys, *values = task.values;
    float* s = task.s;
    void* p = task.p;
    if (count == 0) return;
    alignas(64) float used[2][kPanel], shrink[2][kPanel], top[kPanel], old_top[kPanel], sum[kPanel];
    float* sums = Amx::sums_of(p);
    const auto prepare = [&](Index i) {
      const Stripe& t = list[i];
      float* at = Amx::scores_of(s, p, i & 1);
      Operands::mend_scores(t.queries, keys, t.from, t.to, dim, at);
      if (t.open) Passes<2>::select(at, t.from, t.to, t.open);
      Amx::fill_rest(at, t.to, kMinusInf);
      for (int j = 0; j < kPanel; j += Amx::W) Lanes::store(top + j, Lanes::set(kMinusInf));
      Amx::row_max(at, t.from, t.to, top);
      for (int j = 0; j < kPanel; j += Amx::W) Lanes::store(old_top + j, Lanes::load(t.top + j));
      Passes<2>::advance(t.top, top, t.factor, used[i & 1], shrink[i & 1]);
      if (t.stats) Passes<2>::rebase(t, old_top, used[i & 1], shrink[i & 1]);
    };
    const auto score_steps = [&](Index i) {
      return Amx::score_steps(list[i].queries, keys, list[i].from, list[i].to, dim,
                              Amx::scores_of(s, p, i & 1));
    };
    Beside beside{};
    beside.value_dim = value_dim, beside.sums = sums, beside.last = sums;
    beside.scores = score_steps(0);
    beside.finish();
    prepare(0);
    for (Index i = 0; i <= count; ++i) {
      beside.scores = i + 1 < count ? score_steps(i + 1) : Steps{};
      beside.outputs = Steps{};
      beside.taken = 0, beside.begun = false, beside.last = sums;
      if (i > 0) {
        const Stripe& t = list[i - 1];
        beside.outputs =
            Amx::weigh_steps(Amx::weights_of(p, (i + 1) & 1), values, t.from, t.to, value_dim, sums);
        beside.shrink = shrink[(i + 1) & 1], beside.o = t.o;
      }
      if (i < count) {
        const Stripe& t = list[i];
        const Index to = rounded(t.to, Amx::kBlock);
        typename Operands::Exponent e(used[i & 1], t.factor);
        float* at = Amx::scores_of(s, p, i & 1);
        char* out = Amx::weights_of(p, i & 1);
        if (t.stats) {
          typename Amx::template Stats<false> stats(*t.stats, t.q_distance, t.factor);
          weights(at, out, t.from, to, e, stats, beside);
          stats.keep(*t.stats, t.key0);
        } else {
          typename Amx::Unseen none;
          weights(at, out, t.from, to, e, none, beside);
        }
        e.total(sum);
        for (int j = 0; j < kPanel; j += Amx::W) {
          const F old = Lanes::load(t.sum + j), keep = Lanes::load(shrink[i & 1] + j);
          Lanes::store(t.sum + j, Lanes::fma(old, keep, Lanes::load(sum + j)));
        }
      }
      beside.finish();
      if (i + 1 < count) prepare(i + 1);
    }
  }
};

}  // namespace
}  // namespace headwise::cpu
