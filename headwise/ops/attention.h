// attention: checks the problem, chooses a kernel, says why others were refused, runs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/kernels/candidate.h"
#include "headwise/spec/problem.h"

#pragma GCC visibility push(default)
namespace headwise {

struct Refusal {
  std::string kernel, why;
};

class AttentionPlan {
 public:
  /// Throws for what cannot work; chooses among ctx.kernels(), best first. A list without `ref` is strict:
  /// when every kernel of it refuses, the error holds all refusals.
  AttentionPlan(const AttentionProblem& problem, const Context& ctx)
      : AttentionPlan(problem, ctx.threads(), ctx.kernels()) {}
  /// The same for a pool of `threads` and a list of its own, without a context at hand.
  AttentionPlan(const AttentionProblem& problem, int threads, std::string kernels);

  const AttentionProblem& problem() const noexcept { return problem_; }
  const char* kernel() const noexcept { return kernel_->name; }
  /// Kernels that stand before the chosen one, each with its reason; written when asked.
  std::vector<Refusal> refusals() const;
  /// For runs with threads() threads.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  int threads() const noexcept { return threads_; }
  std::string numerics() const { return kernel_->numerics(problem_); }

  /// Checks that the views fit the problem, then runs; the context's workspace grows if it must.
  void run(const AttentionArgs& args, Context& ctx) const;
  /// The same on the caller's memory: allocates nothing. Too small a workspace is an error.
  void run(const AttentionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const;

 private:
  AttentionProblem problem_;
  const AttentionKernel* kernel_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  int threads_ = 1;
  std::string kernels_;
};

/// The problem these tensors pose: heads from q, kv heads from k and v by division, terms from what is given.
/// Layouts with a row (overlapped heads) come in `heads`; leave its layouts empty (heads 0) for plain
/// tensors.
AttentionProblem problem_of(const AttentionArgs& args, const ProbeSpec& probe = {},
                            const HeadSpec& heads = {});

/// Plans and runs in one call.
void attention(const AttentionArgs& args, Context& ctx, const ProbeSpec& probe = {},
               const HeadSpec& heads = {});

/// Every kernel headwise has, best first.
std::span<const AttentionKernel> attention_kernels();

}  // namespace headwise
#pragma GCC visibility pop
