// cpu/mixed_backward: gradients of attention with mixed heads, from its saved log-sum-exp.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu {

/// Three sweeps, no tile ever stored: a row's deltas; dq, queries' coefficients and matrices by rows; dk, dv
/// and keys' coefficients by keys. Every gradient is one chain in absolute order, so bits depend neither on
/// threads nor on batch. Memory: queries and dout packed in four forms, linear in their tokens.
extern const BackwardKernel kMixedBackward;

/// kMixedBackward.run that also leaves in `worst` the largest |sum_h delta_h - sum_v dout_v . out_v| over
/// rows, in units of the row's largest |dout_v . out_v|: the law deltas obey.
Status run_mixed_backward_checking(const BackwardProblem& p, const BackwardArgs& args,
                                   std::span<std::byte> workspace, ThreadPool& pool, double& worst) noexcept;

}  // namespace headwise::cpu
