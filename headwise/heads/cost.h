// HeadCost: what a head costs in one layer: parameters, arithmetic of a forward, bytes a token keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/any_head.h"

#pragma GCC visibility push(default)
namespace headwise {

struct HeadCost {
  Index parameters = 0;        // W_Q, W_K, W_V, W_O without biases, and the head's own
  double attention_flops = 0;  // every pair open, mixing included
  double own_flops = 0;    // prepare and finish; 2 a token and own parameter, unless the head says otherwise
  double cache_bytes = 0;  // a token's keys and values, and what keys bring to a mix
};

/// sizes as for HeadRun; `own` is what the head declared.
HeadCost cost_of(const AnyHead& head, const ParamSet& own, const AttentionProblem& sizes, const Place& place);

}  // namespace headwise
#pragma GCC visibility pop
