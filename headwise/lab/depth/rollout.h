// rollout and flow: how much of each input token reaches a token through all layers (Abnar and Zuidema 2020).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/matrix/small_matrix.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Half of the mean over heads of maps [heads tokens tokens], half of the identity: the residual path.
SmallMatrix with_residual(const float* maps, Index heads, Index tokens);
/// The product of all layers, the last one in front: row i says where token i comes from. Rows sum to 1.
SmallMatrix rolled_out(const std::vector<SmallMatrix>& layers);
/// The largest flow from `token` behind the last layer to every input token, one at a time, through edges
/// that carry at most their weight; their sum is 1 in the end.
std::vector<double> flow_from(const std::vector<SmallMatrix>& layers, Index token);

}  // namespace headwise
#pragma GCC visibility pop
