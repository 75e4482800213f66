// Checks of attention_backward: what may be differentiated and where gradients may go; each refusal a
// sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/spec/backward.h"

namespace headwise {

inline constexpr std::string_view kBackwardOp = "attention_backward";

void check_backward_problem(const BackwardProblem& problem);

/// Throws when any view of a probe is given: probes have no gradient.
void refuse_probes(const ProbeOut& probe);

/// Throws unless every view lies where the problem does, but those that are read on the CPU.
void check_backward_places(const BackwardProblem& problem, const BackwardArgs& args);

/// Throws unless `args` fit the problem. Returns them as kernels get them: the forward's as by check_args, a
/// gradient with its own sizes: an axis of size 1 where the problem's is longer is summed over.
BackwardArgs check_backward_args(const BackwardProblem& problem, const BackwardArgs& args);

}  // namespace headwise
