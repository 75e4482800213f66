// A step joined with a mask: what heads that see only some of the keys give to attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/error.h"
#include "headwise/spec/mask.h"

namespace headwise {

/// The mask, where it is open, and the step too.
inline MaskView with_step(std::string_view head, MaskView mask, const MaskStep& step) {
  require(mask.count + 2 <= MaskView::kMaxSteps, ErrorKind::unsupported, head, "the mask has ", mask.count,
          " steps, and a head of limited reach joins its window; use at most ", MaskView::kMaxSteps - 2);
  const bool joins = mask.count > 0;
  mask.steps[mask.count++] = step;
  if (joins) mask.steps[mask.count++] = {.op = MaskOp::both};
  return mask;
}

/// The mask, where it is open, and `keys` keys on each side of a query, its own counted.
inline MaskView with_window(std::string_view head, const MaskView& mask, Index keys) {
  return with_step(head, mask, MaskView::window(keys - 1, keys - 1).steps[0]);
}

}  // namespace headwise
