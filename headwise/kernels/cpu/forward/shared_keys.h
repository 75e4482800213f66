// cpu/decode in two halves: the states that splits of keys leave, and rows made of the states of all splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::forward {

/// Numbers of one split's states: for every row [value_dim] sums, the largest logit and the sum of weights.
Index state_numbers(const AttentionProblem& p);
/// Workspace of both halves.
std::size_t shared_bytes(const AttentionProblem& p, int threads);

/// Splits first, first + step, ...: their states, one behind the other.
struct OwnSplits {
  Index first = 0, step = 1;
  float* states = nullptr;
};
void run_splits(const AttentionProblem& p, const AttentionArgs& args, const OwnSplits& own,
                std::span<std::byte> workspace, ThreadPool& pool) noexcept;
/// states[i]: those of split i. The bits are cpu/decode's.
void join_splits(const AttentionProblem& p, const AttentionArgs& args, std::span<const float* const> states,
                 std::span<std::byte> workspace, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::forward
