// explain: a plan in words: kernel, refusals, numerics, workspace, positions, cost against measured roofs. A
// plan for a CUDA device names it instead of roofs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/ops/attention/backward.h"
#include "headwise/ops/explain/roofline.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ExplainOptions {
  bool shapes = false;                 // the way of the dimensions as a text tree
  bool mermaid = false;                // the same as a mermaid flowchart
  const Roofline* roofline = nullptr;  // of the CPU; null: measured now, about 100 ms
};

/// Work of one forward with every pair open; a mask lowers the FLOPs by the share of tiles it empties.
struct AttentionCost {
  double flops = 0;  // 2 q_tokens kv_tokens (head_dim + value_dim) a head; ragged: an upper bound by the
                     // longest sequences
  double bytes = 0;  // q, k, v read once, out and lse written once
  double flops_per_byte() const { return bytes > 0 ? flops / bytes : 0; }
};
AttentionCost cost_of(const AttentionProblem& problem);
/// Work of its gradients: q.k, dout.v, dv, dk and dq are one product each, 2 q_tokens kv_tokens (3 head_dim +
/// 2 value_dim) a head. q, k, v, out, lse and dout are read once; what is asked of dq, dk, dv is written
/// once.
AttentionCost cost_of(const BackwardProblem& problem);

/// Where queries stand when there are more or fewer of them than keys; empty when both are equal.
std::string alignment_words(const AttentionProblem& problem);

std::string explain(const AttentionPlan& plan, const ExplainOptions& options = {});
std::string explain(const BackwardPlan& plan, const ExplainOptions& options = {});
/// The same facts as one JSON object.
std::string explain_json(const AttentionPlan& plan, const ExplainOptions& options = {});
std::string explain_json(const BackwardPlan& plan, const ExplainOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
