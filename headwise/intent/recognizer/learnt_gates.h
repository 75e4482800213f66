// LearntGates: hard-concrete gates of all heads of an encoder: drawn while it learns, open or shut otherwise.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/layers/basic/module.h"
#include "headwise/train/gates.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One gate a head, the same for every token (Voita et al. 2019). Tensors are [blocks heads] with as many
/// heads as the block that has most.
class LearntGates {
 public:
  /// Declares gates.log_a, all at 2: gates of 0.957, so a trained model begins nearly as it was.
  LearntGates(ParamSet& params, std::vector<Index> heads);

  /// For Call::head_gates: 1 where P(1) > P(0), else 0; every block keeps its likeliest head at least.
  AnyView decided(StepMemory& memory) const;
  /// The heads whose gates are 0 then, by block.
  std::vector<std::vector<Index>> shut() const;
  /// For a step of training: gates drawn by the seed.
  AnyView drawn(std::uint64_t seed, StepMemory& memory) const;
  /// Adds what dgates [blocks rows heads], as Call::dhead_gates has them, and `lambda` times the expected
  /// number of open heads give to the gradient; returns that price. `weight` is the price's in the loss.
  double backward(const AnyView& dgates, std::uint64_t seed, double lambda, double weight) const;

  const std::vector<Index>& heads() const { return heads_; }
  Index most() const { return most_; }

 private:
  double log_a(Index block, Index head) const;
  double draw_of(Index block, Index head, std::uint64_t seed) const;

  HardConcrete shape_;
  std::vector<Index> heads_;
  Index most_ = 0;
  Learned log_a_;
};

}  // namespace headwise
#pragma GCC visibility pop
