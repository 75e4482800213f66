// LostRows: what a forward kernel tells the mending behind it: some number of the output is NaN.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise::cuda {

/// Two counters of a stream, zero between launches.
struct LostRows {
  int* found = nullptr;  // not 0: some number of the output is NaN
  int* done = nullptr;   // blocks that have mended
};
inline constexpr Index kLostCounters = 2;
inline LostRows lost_rows(int* counters) { return {counters, counters + 1}; }

}  // namespace headwise::cuda
