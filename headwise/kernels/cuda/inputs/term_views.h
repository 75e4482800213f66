// Views of the terms of a run as kernels read them: numbers of heads, a gate, a bias, statistics of rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/dtype.h"
#include "headwise/base/index.h"

namespace headwise::cuda {

/// A view of one number per head, in any float format.
struct PerHead {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index step = 0;
};

/// The gate of a run, [batch q heads], in any float format; ragged: [1 tokens heads].
struct RowGate {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index step[3] = {};
};

/// A bias of scores, [batch heads q kv]: f32, bf16 or f16.
struct PairBias {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index step[4] = {};
};

/// A statistic of rows, [batch heads q].
struct RowsView {
  void* data;
  Index step[3];
  HW_FN Index at(Index b, Index h, Index i) const { return b * step[0] + h * step[1] + i * step[2]; }
};
/// The statistics of rows a run asks for: those with an address.
struct RowProbes {
  bool asked;
  bool few;  // nothing but entropy, top_weight and sink_mass, for which a weight costs one product
  RowsView entropy, top_weight, top_position, second_moment, mean_distance, sink_mass;
};

}  // namespace headwise::cuda
