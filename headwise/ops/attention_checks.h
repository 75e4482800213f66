// Checks of attention: what a problem must be to plan, what views must be to run; each refusal a sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/problem.h"

namespace headwise {

/// The largest matrix a `scores` probe writes out.
inline constexpr Index kMaxScoreEntries = Index{64} << 20;
/// Widths of heads and of probe rows: what a panel needs of them stays an Index on any number of threads.
inline constexpr Index kMaxWidth = Index{1} << 31;
/// Positions of queries and keys stay inside +-2^62, so that sums and differences of two stay inside Index.
inline constexpr Index kMaxPosition = Index{1} << 62;

void check_problem(const AttentionProblem& problem);

/// Throws unless `args` fit the problem. Returns them as kernels get them: axes of size 1 have step 0 (the
/// last axis: 1), a bias repeated over an axis has that axis' full size with step 0.
AttentionArgs check_args(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace headwise
