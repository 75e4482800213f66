// HeadFigures: what the weights of heads look like, as means over rows, and how far heads differ.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/multi_head/taps.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Means over all rows of all sequences (every row counts once). Rows of one key count nowhere: there is
/// nothing to choose.
struct HeadFigures {
  Index rows = 0;
  double entropy = 0;     // -sum w ln w, nats
  double spread = 0;      // entropy / ln keys: 0 one key, 1 all alike
  double confidence = 0;  // the largest weight
  double distance = 0;    // sum w |query - key|
  double self = 0;        // the weight on the own token

  void add(const HeadFigures& sums);
  /// Sums to means.
  HeadFigures mean() const;
};

/// Sums over the rows of one head, or map, of a tap.
HeadFigures sum_rows(const Tap& tap, Index head);

/// Sums over pairs of heads and rows of their Jensen-Shannon divergence in nats: 0 alike, ln 2 = 0.693 apart.
struct HeadsApart {
  Index rows = 0;
  double sum = 0;

  void add(const Tap& tap);
  double mean() const { return rows > 0 ? sum / static_cast<double>(rows) : 0; }
};

}  // namespace headwise
#pragma GCC visibility pop
