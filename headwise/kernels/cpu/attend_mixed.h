// cpu/mixed: attention forward with mixed heads: all heads of a tile together, log-sum-exps first.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu {

/// Both forms give the same bits. kept: the logits of a task's queries stay in scratch, linear in kv_tokens,
/// between the two looks at them. twice: they are computed again, and memory does not depend on kv_tokens.
enum class MixForm { kept, twice };
/// What the kept form may take for logits, a thread.
inline constexpr Index kKeptBytes = Index{64} << 20;

extern const AttentionKernel kMixed;       // kept; refuses what kKeptBytes do not hold
extern const AttentionKernel kMixedTwice;  // twice

std::size_t mixed_bytes_as(MixForm form, const AttentionProblem& p, int threads);
Status run_mixed_as(MixForm form, const AttentionProblem& p, const AttentionArgs& args,
                    std::span<std::byte> workspace, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu
