// What ranks learn in tests of training: rows drawn from an example's number, and their sines.
#pragma once
#include <cmath>
#include <string>

#include "headwise/base/random.h"
#include "headwise/train/trainer.h"

namespace headwise {

/// Micro-batches are added in a tree; teams and their sizes are the caller's.
inline TrainerOptions options_of_sines(Index steps, const std::string& folder, bool slices) {
  return {.steps = steps,
          .rate = Schedule::constant(1e-2),
          .tree = true,
          .clip = 0.5,
          .seed = 3,
          .folder = folder,
          .checkpoints = {.slices = slices}};
}

/// Rows of the examples, as many numbers each.
inline void draw_examples(const AnyView& x, std::span<const Index> examples) {
  const Index each = x.count() / std::ssize(examples);
  for (Index i = 0; i < x.count(); ++i)
    static_cast<float*>(x.data)[i] =
        static_cast<float>(normal_at(9, examples[static_cast<std::size_t>(i / each)] * each + i % each));
}

/// The mean squared distance of y from the sines of x; dy is its gradient, `weight` times.
inline double distance_from_sines(const AnyView& x, const AnyView& y, const AnyView& dy, double weight) {
  double loss = 0;
  const auto count = static_cast<double>(x.count());
  for (Index i = 0; i < x.count(); ++i) {
    const double error = static_cast<double>(static_cast<float*>(y.data)[i]) -
                         std::sin(static_cast<double>(static_cast<float*>(x.data)[i]));
    loss += error * error / count;
    static_cast<float*>(dy.data)[i] = static_cast<float>(weight * 2 * error / count);
  }
  return loss;
}

}  // namespace headwise
