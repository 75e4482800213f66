// Many panels against one granule on AMX: while the weights of panel i are made, quarter steps between them
// multiply the scores of panel i + 1 and the outputs of panel i - 1. Included by the AMX level; internal
// linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx_core.h"

namespace headwise::cpu {
namespace {

struct AmxStripes {
  static constexpr int kPanel = AmxCore::kPanel;
  using Steps = AmxCore::Steps;

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
      AmxCore::take_sums(sums, taken++, value_dim, shrink, o);
    }
    void finish() {
      Step s;
      while (next(s)) whole_step(s), after();
      if (begun) store_block(last);
      if (outputs.blocks > 0) AmxCore::take_sums(sums, taken, value_dim, shrink, o);
    }
  };

  /// Weights of 8 keys at a time, PerEight steps beside them.
  template <int PerEight>
  static inline __attribute__((always_inline)) void weights(const float* s, char* p, Index from, Index to,
                                                            AmxCore::Exponent& e, Beside& beside) {
    Index k = from;
    for (; k < to && beside.left() >= PerEight; k += 8) {
      const float* at = s + k * kPanel;
      char* out = p + k * 64;
      Step step;
      beside.next(step);
      if constexpr (PerEight == 1) {
        e.pair<0>(at, out), quarter_step<0>(step);
        e.pair<2>(at + 2 * kPanel, out + 128), quarter_step<1>(step);
        e.pair<0>(at + 4 * kPanel, out + 256), quarter_step<2>(step);
        e.pair<2>(at + 6 * kPanel, out + 384), quarter_step<3>(step);
        beside.after();
      } else {
        e.pair<0>(at, out), quarter_step<0>(step), quarter_step<1>(step);
        e.pair<2>(at + 2 * kPanel, out + 128), quarter_step<2>(step), quarter_step<3>(step);
        beside.after();
        beside.next(step);
        e.pair<0>(at + 4 * kPanel, out + 256), quarter_step<0>(step), quarter_step<1>(step);
        e.pair<2>(at + 6 * kPanel, out + 384), quarter_step<2>(step), quarter_step<3>(step);
        beside.after();
      }
    }
    for (; k < to; k += 4) {
      e.pair<0>(s + k * kPanel, p + k * 64);
      e.pair<2>(s + (k + 2) * kPanel, p + (k + 2) * 64);
    }
  }

  static void run(const Stripe* list, Index count, const void* keys, const void* values, Index dim,
                  Index value_dim, float* s, void* p) {
    if (count == 0) return;
    alignas(64) float used[2][kPanel], shrink[2][kPanel], top[kPanel], sum[kPanel];
    float* sums = AmxCore::sums_of(p);
    const auto prepare = [&](Index i) {
      const Stripe& t = list[i];
      float* at = AmxCore::scores_of(s, p, i & 1);
      if (t.open) Passes<2>::select(at, t.from, t.to, t.open);
      AmxCore::close_rest(at, t.to);
      for (int j = 0; j < kPanel; j += AmxCore::W) Lanes::store(top + j, Lanes::set(kMinusInf));
      AmxCore::row_max(at, t.from, t.to, top);
      Passes<2>::advance(t.top, top, t.factor, used[i & 1], shrink[i & 1]);
    };
    const auto score_steps = [&](Index i) {
      return AmxCore::score_steps(list[i].queries, keys, list[i].from, list[i].to, dim,
                                  AmxCore::scores_of(s, p, i & 1));
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
            AmxCore::weigh_steps(AmxCore::weights_of(p, (i + 1) & 1), values, t.from, t.to, value_dim, sums);
        beside.shrink = shrink[(i + 1) & 1], beside.o = t.o;
      }
      if (i < count) {
        const Stripe& t = list[i];
        const Index to = rounded(t.to, AmxCore::kBlock);
        AmxCore::Exponent e(used[i & 1], t.factor);
        const float* at = AmxCore::scores_of(s, p, i & 1);
        char* out = AmxCore::weights_of(p, i & 1);
        if (beside.left() * 8 <= to - t.from)
          weights<1>(at, out, t.from, to, e, beside);
        else
          weights<2>(at, out, t.from, to, e, beside);
        e.total(sum);
        for (int j = 0; j < kPanel; j += AmxCore::W) {
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
