// PackedWeights: weights of layers as their products read them, packed once for inference.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>

#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;
class PackedMatrix;

/// Packs a weight when it is first asked for and keeps it: the weights must live and must not change as long
/// as this is in use. Many threads may share one. Results have the same bits with and without it.
class PackedWeights {
 public:
  PackedWeights();
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  /// The weight [out in] for rows of that dtype; null where the context's kernels are others than those of
  /// the first call, and where products read weights as they are.
  const PackedMatrix* find(const AnyView& weight, DType rows, Context& ctx);
  /// What is packed so far.
  std::size_t bytes() const;
  std::size_t count() const;

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace headwise
#pragma GCC visibility pop
