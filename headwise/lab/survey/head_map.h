// Head map: how far heads are apart, which stand together, and where they lie on a page of two dimensions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/small_matrix.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Adds to sum [maps maps] the Jensen-Shannon divergences in nats between the rows of maps [tokens tokens];
/// returns how many rows there were.
Index add_divergences(const std::vector<const float*>& maps, Index tokens, bool causal, SmallMatrix& sum);
/// Numbers of clusters, from 0: the two with the smallest mean distance are joined until `clusters` are left.
std::vector<Index> clusters_of(const SmallMatrix& distance, Index clusters);
/// Classical scaling: [n][2], the first two axes of the doubly centred squared distances.
std::vector<std::pair<double, double>> places_of(const SmallMatrix& distance);

}  // namespace headwise
#pragma GCC visibility pop
