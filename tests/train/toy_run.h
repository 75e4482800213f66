// ToyRun: a small regression whose draws hang on counters alone, for tests that stop, kill and resume.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/context.h"
#include "headwise/train/checkpoints/checkpoint.h"
#include "headwise/train/gates.h"

namespace headwise {

/// y = W x for a hidden W; example e is drawn from (seed, e).
struct ToyRun {
  Context ctx;
  ParamSet params{DType::f32, 11};
  Learned w = params.add("layer.w", {6, 9}, Init::normal(0.5)), b = params.add("layer.b", {6});
  Optimizer optimizer{params, AdamWOptions{}};
  TrainState state{.seed = 77};

  explicit ToyRun(int threads = 1) : ctx({.threads = threads}) {}

  TrainingIdentity identity() const { return {"toy rows=6 columns=9", numerics_id(ctx)}; }

  /// One step over four examples; returns the loss before it.
  double step() {
    params.zero_grads();
    auto* weight = static_cast<float*>(w.value().data);
    auto* bias = static_cast<float*>(b.value().data);
    auto *dw = static_cast<float*>(w.grad().data), *db = static_cast<float*>(b.grad().data);
    double loss = 0;
    for (Index n = 0; n < 4; ++n) {
      const std::uint64_t key = state.seed + static_cast<std::uint64_t>(state.examples++) * 1000;
      for (Index i = 0; i < 6; ++i) {
        float y = bias[i];
        for (Index j = 0; j < 9; ++j)
          y += weight[i * 9 + j] * static_cast<float>(normal_at(key, j)) -
               static_cast<float>(0.1 * normal_at(key, j));
        loss += static_cast<double>(y * y);
        db[i] += 2 * y;
        for (Index j = 0; j < 9; ++j) dw[i * 9 + j] += 2 * y * static_cast<float>(normal_at(key, j));
      }
    }
    clip_grads(params, 10, ctx);
    optimizer.step(0.01, ctx);
    ++state.step;
    return loss;
  }

  /// Weights, moments and counters as bytes.
  std::string bytes() const {
    std::string out = text(state.step, ' ', state.seed, ' ', state.examples, ' ', optimizer.steps(), ' ');
    const auto add = [&](const InputView& v) {
      out.append(static_cast<const char*>(v.data), static_cast<std::size_t>(v.count() * size_of(v.dtype)));
    };
    for (const Param& p : params.all()) add(p.value);
    for (const Optimizer::Moment& m : optimizer.moments()) add(m.value);
    return out;
  }
  bool resume(const Checkpoints& from) {
    const auto restored = from.restore(optimizer, identity());
    if (restored) state = restored->state;
    return restored.has_value();
  }
};

}  // namespace headwise
