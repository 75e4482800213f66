// cpu/mixed: attention forward with mixed heads: all heads of a tile together, log-sum-exps first.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::mixed {

/// Both forms give the same bits. kept: the logits of a task's queries stay in scratch, linear in kv_tokens,
/// between the two looks at them. twice: the first blocks of keys stay, as many as fit a room of fixed size,
/// the others are computed again, and memory does not depend on kv_tokens.
enum class Form { kept, twice };
/// What the kept form may take for logits, a thread, and the room of the other one.
inline constexpr Index kKeptBytes = Index{64} << 20, kFirstBytes = Index{8} << 20;

extern const AttentionKernel kKept;   // kept; refuses what kKeptBytes do not hold
extern const AttentionKernel kTwice;  // twice

std::size_t bytes_as(Form form, const AttentionProblem& p, int threads, Index first_bytes = kFirstBytes);
Status run_as(Form form, const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
              ThreadPool& pool, Index first_bytes = kFirstBytes) noexcept;

}  // namespace headwise::cpu::mixed
