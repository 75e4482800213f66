// Schedule: the learning rate of every step as a value: warm-up, then constant, cosine, linear or
// inverse-sqrt.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Steps count from 0. During warm-up the rate is peak (step + 1) / warm_up; afterwards, with p from 0 at its
/// end to 1 at `total`:
///   constant      peak
///   cosine        low + (peak - low) (1 + cos(pi p)) / 2, then low
///   linear        peak + (low - peak) p, then low
///   inverse_sqrt  peak sqrt(w / (step + 1)), w = max(1, warm_up); no total
class Schedule {
 public:
  static Schedule constant(double peak, Index warm_up = 0);
  static Schedule cosine(double peak, Index warm_up, Index total, double low = 0);
  static Schedule linear(double peak, Index warm_up, Index total, double low = 0);
  static Schedule inverse_sqrt(double peak, Index warm_up);

  double at(Index step) const;
  /// "cosine peak=0.001 warm_up=100 total=2000 low=0": what a checkpoint compares.
  std::string describe() const;
  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  enum class Kind : unsigned char { constant, cosine, linear, inverse_sqrt };
  Schedule(Kind kind, double peak, double low, Index warm_up, Index total);
  Kind kind_;
  double peak_, low_;
  Index warm_up_, total_;
};

}  // namespace headwise
#pragma GCC visibility pop
