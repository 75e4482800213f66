// share_scores: heads with queries and keys of their own made to share one space: MHA to collaborative heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/model/lab_model.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SharedScores {
  EditedModel edited = {};
  /// By layer: the share of |W_Q^T W_K|^2 of all heads that the shared space keeps.
  std::vector<double> energy = {};
};

/// Every layer with `shared` query/key columns that all heads weigh (Cordonnier et al. 2020). As many as
/// heads * dim: the same function but for rounding. Below, the decomposition of all heads' W_Q^T W_K into so
/// many terms, in at most `steps` steps of least squares. Values and W_O stay. Layers of other heads than mha
/// and gqa, and models with RoPE, which turns queries and keys before they meet, are refused.
SharedScores share_scores(const LabModel& model, Index shared, int steps, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
