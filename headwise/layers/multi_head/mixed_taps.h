// Mixed taps: what multiplies the values where heads are mixed, after mixing: of any sign and sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/multi_head/taps.h"

#pragma GCC visibility push(default)
namespace headwise {

/// keep_weights of a run of mixed heads that is done.
void keep_mixed_weights(const AttentionProblem& problem, const AttentionArgs& run, const Sequences& q,
                        const Sequences& kv, Call& call, Taps& taps);

/// Weights as parts of their row, |w| / sum |w|, so that figures of mixed and of other heads mean the same.
void to_shares(Taps& taps);

}  // namespace headwise
#pragma GCC visibility pop
