// Head map: how far heads are apart, which stand together, and where they lie on a page of two dimensions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/base/threads.h"
#include "headwise/lab/matrix/small_matrix.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Maps of one text: rows, keys, and whether a row has the keys up to its own alone.
struct MapSize {
  Index rows = 0, keys = 0;
  bool causal = false;
};
/// Adds to sum [maps maps] the Jensen-Shannon divergences in nats between the rows of the maps; returns how
/// many rows there were. A pool shares the pairs; the sums have the same bits.
Index add_divergences(const std::vector<const float*>& maps, const MapSize& size, SmallMatrix& sum,
                      ThreadPool* pool = nullptr);
/// Numbers of clusters, from 0: the two with the smallest mean distance are joined until `clusters` are left.
std::vector<Index> clusters_of(const SmallMatrix& distance, Index clusters);
/// Classical scaling: [n][2], the first two axes of the doubly centred squared distances.
std::vector<std::pair<double, double>> places_of(const SmallMatrix& distance);

/// Where the names of dots are written, [n] middles on a page: boxes of the names' sizes that meet neither
/// each other nor a dot, as near to their own dot as there is room. Names of dots in a crowd move out.
struct LabelSizes {
  double wide = 0, high = 0, dot = 0;  // of a box; radius of a dot
};
std::vector<std::pair<double, double>> label_places(const std::vector<std::pair<double, double>>& dots,
                                                    const LabelSizes& sizes);

}  // namespace headwise
#pragma GCC visibility pop
