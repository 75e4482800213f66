// cpu/backward: gradients of attention from its saved log-sum-exp; no tile of weights is ever stored.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::backward {

extern const BackwardKernel kBackward;

/// Both forms give the same bits. joined: a task makes dq, dk and dv of the heads that share keys and values
/// from one step, five products. split: dk and dv by blocks of keys, then dq by blocks of queries; seven
/// products, but work for any number of threads.
enum class Form { joined, split };
/// The quicker one for this many threads: what kBackward runs.
Form form_of(const BackwardProblem& p, int threads);

std::size_t bytes_as(Form form, const BackwardProblem& p, int threads);
Status run_as(Form form, const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
              ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::backward
