// What layers ask of heads and masks before they cut them over ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/any_head.h"
#include "headwise/spec/mask.h"

namespace headwise {

/// Does the head read x itself, besides its projections?
inline bool reads_rows(const AnyHead& head) {
  for (const AnyHead::Stage& s : head.stages())
    if (s.table->prepare || s.table->finish) return true;
  return false;
}

/// A mask whose answer follows from the head.
inline bool knows_heads(const MaskSet& masks) {
  if (masks.count > 1) return true;
  for (int s = 0; masks.count == 1 && s < masks.views[0].count; ++s) {
    const MaskStep& step = masks.views[0].steps[s];
    if (step.op == MaskOp::dense && step.size[1] != 1) return true;
  }
  return false;
}

}  // namespace headwise
