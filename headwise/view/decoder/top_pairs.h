// top_pairs: the largest products of two lists of vectors, without a matrix of all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/base/index.h"
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

struct IndexPair {
  Index row = 0, column = 0;
  float score = 0;
};

/// Vectors [count dim] of rows and of columns.
struct VectorLists {
  std::span<const float> rows, columns;
  Index count = 0, dim = 0;
};

/// Up to this many vectors every pair is looked at.
constexpr Index kAllPairs = 4096;
/// Beyond, all pairs of as many rows, and of as many columns, whose products are largest in the mean square.
/// That mean needs the [dim dim] product of the other list with itself alone.
constexpr Index kStandOut = 512;

/// The `most` largest a_i . b_j, the largest first, ties by row and column.
std::vector<IndexPair> top_pairs(const VectorLists& lists, Index most, Context& ctx,
                                 Index all_up_to = kAllPairs);

}  // namespace headwise
#pragma GCC visibility pop
