// run_facts: what the kernels of a CUDA device choose by, read out of one run's arguments.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/spec/backward.h"

#pragma GCC visibility push(default)
namespace headwise {

/// All 0 where the problem is the CPU's. Reads the mask, scale, starts, offsets and steps of a run, never
/// what lies on the device; views without addresses are taken as fit.
RunFacts run_facts(const AttentionProblem& problem, const AttentionArgs& args);
RunFacts run_facts(const BackwardProblem& problem, const BackwardArgs& args);

/// Throws, in the name of `op`, unless a run is of the kind its plan was made for.
void require_planned(std::string_view op, const RunFacts& planned, const RunFacts& run);

}  // namespace headwise
#pragma GCC visibility pop
