// attention: checks the problem, chooses a kernel, says why others were refused, runs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/kernels/candidate.h"
#include "headwise/spec/problem.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

struct Refusal {
  std::string kernel, why;
};

/// The problem with the device of the context, where that has one; throws when the two contradict each other.
AttentionProblem in_context(AttentionProblem problem, const Context& ctx, std::string_view op = "attention");

class AttentionPlan {
 public:
  /// Throws for what cannot work; chooses among ctx.kernels(), best first. A list without `ref` is strict:
  /// when every kernel of it refuses, the error holds all refusals. A problem made by hand takes its device
  /// from the context.
  AttentionPlan(const AttentionProblem& problem, const Context& ctx);
  /// The same for a pool of `threads` and a list of its own, without a context at hand.
  AttentionPlan(const AttentionProblem& problem, int threads, std::string kernels);

  const AttentionProblem& problem() const noexcept { return problem_; }
  const char* kernel() const noexcept { return kernel_->name; }
  /// Kernels that stand before the chosen one, each with its reason; written when asked.
  std::vector<Refusal> refusals() const;
  /// For runs with threads() threads. 0 on a CUDA device: memory there comes from the stream's own pool.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  int threads() const noexcept { return threads_; }
  std::string numerics() const { return kernel_->numerics(problem_); }

  /// Checks that the views fit the problem, then runs; the context's workspace grows if it must. On a CUDA
  /// device it starts the work on ctx.stream() and returns without waiting.
  void run(const AttentionArgs& args, Context& ctx) const;
  /// The same on the caller's memory, on the CPU: allocates nothing. Too small a workspace is an error.
  void run(const AttentionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const;

 private:
  void start(const AttentionArgs& args, void* stream) const;

  AttentionProblem problem_;
  const AttentionKernel* kernel_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  int threads_ = 1;
  std::string kernels_;
};

/// The problem these tensors pose: heads from q, kv heads from k and v by division, terms from
/// what is given, the device from q. On a CUDA device q, k, v, out, lse, slopes, sinks, bias,
/// relative, gate, alpha, mix_* and probes lie there too. scale, q_start, offsets, page
/// lengths and sequence_ids lie on the CPU: they are read before a run returns. Layouts with a
/// row (overlapped heads) come in `heads`; leave its layouts empty (heads 0) for plain
/// tensors.
AttentionProblem problem_of(const AttentionArgs& args, const ProbeSpec& probe = {},
                            const HeadSpec& heads = {});

/// What these outputs ask for: the spec of a run whose probes were given without one.
ProbeSpec probe_of(const ProbeOut& out);

/// Plans and runs in one call, where the tensors lie.
void attention(const AttentionArgs& args, Context& ctx, const ProbeSpec& probe = {},
               const HeadSpec& heads = {});

/// Every kernel headwise has on every device, best first; a problem asks those of its own device.
std::span<const AttentionKernel> attention_kernels();
/// Those of one kind of device, which stand together.
std::span<const AttentionKernel> attention_kernels(Device::Kind device);

}  // namespace headwise
#pragma GCC visibility pop
