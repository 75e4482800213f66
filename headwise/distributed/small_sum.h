// Which sums go to all ranks at once, and what sums send whose results are rounded before they are gathered.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/distributed/communicator.h"

namespace headwise {

/// Bytes of a sum up to which every rank gets all partials and adds them itself.
inline constexpr Index kSmallSum = 1 << 12;

/// sum_bytes where partial sums have `width` bytes a number and what is gathered has `out_width`: in order
/// tree Communicator::sum takes an `out` of 16 bits for partial sums of f32.
inline Index rounded_sum_bytes(Index count, Index width, Index out_width, int ranks) {
  if (ranks == 1) return 0;
  if (count * width <= kSmallSum) return count * width * (ranks - 1);
  // Pieces to their owners, then the sums to all: what one rank sends, where pieces are equal.
  return (count - count / ranks) * (width + out_width);
}

}  // namespace headwise
