// KeyShare: which keys of a text a rank has where ranks share them out, in whole splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise {

/// Keys of one split, whose state attention keeps apart from those of other splits.
inline constexpr Index kSplitKeys = 2048;
/// Rank r of R has splits r, r + R, ...
struct KeyShare {
  int rank = 0, ranks = 1;
  bool has(Index key) const { return key / kSplitKeys % ranks == rank; }
  /// Of the splits of so many keys.
  Index splits(Index keys) const { return ceil_div(max_of(0, ceil_div(keys, kSplitKeys) - rank), ranks); }
};

}  // namespace headwise
