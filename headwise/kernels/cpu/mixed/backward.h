// cpu/mixed_backward: gradients of attention with mixed heads, from its saved log-sum-exp.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/mixed/forward.h"

namespace headwise::cpu::mixed {

/// A task has a panel of queries and looks at all keys twice: for the deltas of its rows, then for every
/// gradient. Panels add to a block of keys in ascending order, each waiting for the one before, so every
/// gradient is one chain in absolute order and bits depend neither on threads nor on batch. Memory: keys and
/// values packed in three forms and the sums of dk and dv, linear in their tokens. The kept form is taken
/// while kKeptBytes hold it: it keeps scores, weights and slopes of a panel between its two looks.
extern const BackwardKernel kBackward;

std::size_t backward_bytes_as(Form form, const BackwardProblem& p, int threads);
/// Both forms give the same bits. worst, if given, becomes the larger of itself and the largest |sum_h
/// delta_h - sum_v dout_v . out_v| over rows, in units of the row's largest |dout_v . out_v|: the law deltas
/// obey.
Status run_backward_as(Form form, const BackwardProblem& p, const BackwardArgs& args,
                       std::span<std::byte> workspace, ThreadPool& pool, double* worst) noexcept;

}  // namespace headwise::cpu::mixed
