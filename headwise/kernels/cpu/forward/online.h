// cpu/online: attention forward with an online softmax over key tiles; skips tiles the mask closes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#include "headwise/kernels/candidate.h"

namespace headwise::cpu::forward {

extern const AttentionKernel kOnline;
/// kOnline.run that also adds to `visits` one for every tile, a panel of queries x a granule of keys, it
/// works on.
Status run_counting(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                    ThreadPool& pool, std::atomic<Index>& visits) noexcept;
/// Queries in a panel and keys in a granule for this problem at the chosen ISA level.
Index panel_of(const AttentionProblem& p);
Index granule_of(const AttentionProblem& p);

/// Keys after which the state is folded into the total by `merge`, counted from key 0; a multiple of every
/// granule.
inline constexpr Index kSplit = 2048;

}  // namespace headwise::cpu::forward
