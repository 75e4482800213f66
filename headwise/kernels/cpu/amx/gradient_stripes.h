// The backward of f32 in parts, panels one after another: the products of one panel run beside the
// exponentials of another. Included by the AMX level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32_gradients.h"

namespace headwise::cpu {
namespace {

/// Products of tiles that wait to be run, a quarter of a step at a time.
class TileQueue {
 public:
  static constexpr Index kTile = F32GradientOperands::kTile, kBlock = 32 * 32;
  /// Blocks of 32 x 32 sums at `to`; `adds`: they start from what lies there, else from 0.
  struct Job {
    const char *a, *b;
    Index outer, inner, second;  // bytes of a from block to block, from step to step, to the second tile
    Index blocks, each;          // steps of a block
    float* to;
    bool adds;
  };

  void push(const Job& job) {
    if (job.blocks > 0 && job.each > 0) jobs_[count_++] = job;
  }
  bool empty() const { return now_ == count_; }
  Index steps() const {
    Index n = -at_ - block_ * (empty() ? 0 : jobs_[now_].each);
    for (int i = now_; i < count_; ++i) n += jobs_[i].blocks * jobs_[i].each;
    return n;
  }
  /// Product T of the 24 of a step, each in turn.
  template <int T>
  inline __attribute__((always_inline)) void product() {
    if constexpr (T == 0) begin_step();
    tile_step<3, T>(step_);
    if constexpr (T == 23) end_step();
  }
  /// Everything that waits; all sums lie where they belong afterwards.
  void drain() {
    while (!empty()) begin_step(), whole_step<3>(step_), end_step();
    if (last_) store_block(last_);
    last_ = nullptr, now_ = count_ = 0;
  }

 private:
  void begin_step() {
    const Job& j = jobs_[now_];
    float* to = j.to + block_ * kBlock;
    const bool first = at_ == 0;
    step_ = {j.a + block_ * j.outer + at_ * j.inner, j.b + at_ * 2 * kTile, j.second, first && !j.adds,
             last_ ? last_ : to};
    if (!first) return;
    if (j.adds) {
      if (last_) store_block(last_);
      AmxGradients::load_block(to, kLine);
    }
    last_ = to;
  }
  void end_step() {
    const Job& j = jobs_[now_];
    if (++at_ < j.each) return;
    at_ = 0;
    if (++block_ == j.blocks) block_ = 0, ++now_;
  }

  Job jobs_[3];
  int count_ = 0, now_ = 0;
  Index block_ = 0, at_ = 0;
  Step step_{};
  float* last_ = nullptr;  // where the sums now in C belong
};

struct AmxGradientStripes {
  using Own = AmxF32Gradients;
  using Operands = F32GradientOperands;
  static constexpr int kPanel = Own::kPanel, W = 16;
  static constexpr Index kTile = Own::kTile;

  static TileQueue::Job scores_of(const void* queries, const void* keys, Index from, Index to, Index dim,
                                  float* s) {
    const Index tiles = rounded(dim, 32) / 32, first = from / 32;
    return {static_cast<const char*>(keys) + first * 2 * tiles * kTile,
            static_cast<const char*>(queries),
            2 * tiles * kTile,
            kTile,
            tiles * kTile,
            rounded(to, 32) / 32 - first,
            tiles,
            s + from * kPanel,
            false};
  }
  static TileQueue::Job weigh_of(const GradientStripe& t, const void* key_values, Index dim) {
    const Index tiles = rounded(dim, 32) / 16, first = t.from / 32;
    const char* pairs = static_cast<const char*>(t.operands) + 2 * Own::kOperand;
    return {static_cast<const char*>(key_values) + first * tiles * kTile,
            pairs + first * 2 * kTile,
            2 * kTile,
            tiles * kTile,
            kTile,
            tiles / 2,
            rounded(t.to, 32) / 32 - first,
            t.dq,
            true};
  }

  /// Weights and dS of two keys 16 apart, taken apart.
  struct Sweep {
    F top[2], c[2], low[2], delta[2], factor[2];
    std::uint32_t lanes;
    bool scaled = false;

    explicit Sweep(const GradientStripe& t) : lanes(t.count == 32 ? ~0u : (1u << t.count) - 1u) {
      for (int j = 0; j < 2; ++j) {
        top[j] = Lanes::load(t.top + j * W), c[j] = Lanes::load(t.factor + j * W), low[j] = lowest_for(c[j]);
        delta[j] = Lanes::load(t.delta + j * W), factor[j] = Lanes::load(t.row_factor + j * W);
        scaled = scaled || _mm512_cmpneq_epi32_mask(_mm512_castps_si512(factor[j]), power(0)) != 0;
      }
    }
    /// A vector of weights and of dS: the bits of GradientCore's sweep under a mask.
    inline __attribute__((always_inline)) void one(const GradientStripe& t, Index k, int j, F& p,
                                                   F& ds) const {
      const std::uint32_t bits = t.open ? static_cast<std::uint32_t>(t.open[k]) & lanes : lanes;
      const auto open = static_cast<__mmask16>(k >= t.from && k < t.to ? bits >> (16 * j) : 0u);
      const F s = Lanes::load(t.s + k * kPanel + j * W), dp = Lanes::load(t.ds + k * kPanel + j * W);
      GradientCore<Lanes, 2, 2, 4>::weight_and_slope(s, dp, {top[j], c[j], low[j], delta[j]}, p, ds);
      p = _mm512_maskz_mov_ps(open, p), ds = _mm512_maskz_mov_ps(open, ds);
    }
    /// Unit u: keys u and u + 16 of a block of 32. `between` stands at kPlaces places.
    template <class Between>
    inline __attribute__((always_inline)) void unit(const GradientStripe& t, Index u,
                                                    Between&& between) const {
      const Index block = u / 16 * 32, n = u % 16;
      auto* weights = static_cast<char*>(t.operands) + block / 16 * kTile + n * 64;
      char *rows = weights + Own::kOperand,
           *pairs = static_cast<char*>(t.operands) + 2 * Own::kOperand + block / 32 * 2 * kTile + n * kLine;
      F p[2][2], d[2][2];
      one(t, block + n, 0, p[0][0], d[0][0]), between(Number<0>{});
      one(t, block + n, 1, p[0][1], d[0][1]), between(Number<1>{});
      store_parts(p[0][0], p[0][1], weights, kTileBytes), between(Number<2>{});
      one(t, block + n + 16, 0, p[1][0], d[1][0]), between(Number<3>{});
      one(t, block + n + 16, 1, p[1][1], d[1][1]), between(Number<4>{});
      store_parts(p[1][0], p[1][1], weights + kTile, kTileBytes), between(Number<5>{});
      const Parts d00(d[0][0]), d01(d[0][1]), d10(d[1][0]), d11(d[1][1]);
      store_pairs(d00, d10, pairs, 2 * kTileBytes), store_pairs(d01, d11, pairs + 64, 2 * kTileBytes);
      between(Number<6>{});
      Own::store_rows(d, d00, d01, d10, d11, scaled ? factor : nullptr, rows), between(Number<7>{});
    }
  };
  template <int N>
  struct Number {
    static constexpr int value = N;
  };
  static constexpr int kPlaces = 8;

  /// Three units beside PerPlace steps: PerPlace products of tiles at each of their 24 places. Longer runs of
  /// products would wait for free tile registers, and everything behind them with them.
  template <int PerPlace>
  static void three_units(const Sweep& sweep, const GradientStripe& t, Index u, TileQueue& queue) {
    const auto with = [&]<int I>(Number<I>) {
      sweep.unit(
          t, u + I, [&]<int Place>(Number<Place>) __attribute__((always_inline)) {
            constexpr int at = (I * kPlaces + Place) * PerPlace;
            queue.product<at % 24>();
            if constexpr (PerPlace == 2) queue.product<(at + 1) % 24>();
          });
    };
    with(Number<0>{}), with(Number<1>{}), with(Number<2>{});
  }

  static void run(const GradientStripe* list, Index count, const void* keys, const void* values,
                  const void* key_values, Index dim, Index value_dim) {
    TileQueue queue;
    const auto push_scores = [&](const GradientStripe& t) {
      queue.push(scores_of(t.queries, keys, t.from, t.to, dim, t.s));
      queue.push(scores_of(t.douts, values, t.from, t.to, value_dim, t.ds));
    };
    const auto finish_scores = [&](const GradientStripe& t) {
      queue.drain();
      Operands::mend_scores(t.queries, keys, t.from, t.to, dim, t.s);
      Operands::mend_scores(t.douts, values, t.from, t.to, value_dim, t.ds);
    };
    push_scores(list[0]);
    finish_scores(list[0]);
    for (Index i = 0; i < count; ++i) {
      const GradientStripe& t = list[i];
      if (i > 0 && list[i - 1].dq) queue.push(weigh_of(list[i - 1], key_values, dim));
      if (i + 1 < count) push_scores(list[i + 1]);
      const Sweep sweep(t);
      const Index units = rounded(t.keys, 32) / 2;
      Index u = 0;
      for (; u + 3 <= units && queue.steps() > 1; u += 3)
        if (2 * queue.steps() > units - u)
          three_units<2>(sweep, t, u, queue);
        else
          three_units<1>(sweep, t, u, queue);
      for (; u < units; ++u) sweep.unit(t, u, [](auto) {});
      if (i + 1 < count) finish_scores(list[i + 1]);
    }
    if (list[count - 1].dq) queue.push(weigh_of(list[count - 1], key_values, dim));
    queue.drain();
  }
};

}  // namespace
}  // namespace headwise::cpu
