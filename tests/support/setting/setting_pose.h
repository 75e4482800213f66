// Posed: the tensors of one setting, as the kernel gets them and as plain f64 copies for the truth.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <vector>

#include "tests/support/setting/setting.h"

namespace headwise::test {

/// A tensor in memory of its own with steps of its own; every byte that belongs to no element holds NaN.
struct Placed {
  Tensor memory;
  AnyView view;
};
struct Placement {
  std::vector<int> order = {};  // axes from the outermost in memory to the innermost; empty: as they are
  Index inner = 1;              // step of the innermost axis
  Index gap = 0;                // elements left out between runs of every other axis
  Index first = 0;              // elements before the first
  bool junk = false;            // nonsense steps on axes of size 1
};
Placed place(const InputView& plain, const Placement& how);
/// The first element of `memory` that belongs to no element of the view and is not what `before` holds; -1:
/// none.
Index touched_outside(const Placed& placed, const Tensor& before);

struct Posed {
  Choice choice;
  Sizes sizes;
  std::deque<Tensor> kept;  // addresses stay
  Mask mask;
  HeadSpec heads;
  ProbeSpec probe;
  AttentionArgs args;                        // without outputs
  AttentionArgs truth;                       // q, k, v as plain f64; the rest the same
  std::vector<Index> q_lengths, kv_lengths;  // per sequence

  Index q_rows() const { return sizes_ragged ? q_total : sizes.q_tokens; }
  Index kv_rows() const { return sizes_ragged ? kv_total : sizes.kv_tokens; }
  Index tensor_batch() const { return sizes_ragged ? 1 : sizes.batch; }
  bool sizes_ragged = false;
  Index q_total = 0, kv_total = 0;
  double most_logit = 0, most_product = 0, most_value = 0;  // for the a-priori bound
};
void pose(const Choice& c, const SettingOptions& options, Posed& p);

}  // namespace headwise::test
