// Candidate: one row of a choice list: a kernel's name, when it refuses, what workspace it needs, how it
// runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>

#include "headwise/base/threads.h"
#include "headwise/spec/backward.h"

namespace headwise {

/// What a kernel reports; floor 3 turns anything but `ok` into an Error.
enum class Status { ok, out_of_memory };

/// Why kernels that go head by head refuse a mix.
inline constexpr const char* kHeadsAreMixed = "heads are mixed: a row needs all its heads at once";
/// What the others say of keys in pages.
inline constexpr const char* kKeysInPages = "keys lie in pages: cpu/decode and ref read them";

struct AttentionKernel {
  const char* name;
  /// Empty: it can. Else one sentence why it cannot.
  std::string (*refuse)(const AttentionProblem&);
  std::size_t (*workspace_bytes)(const AttentionProblem&, int threads);
  /// Arguments were checked; workspace has workspace_bytes(problem, pool.threads()) or more, aligned to
  /// Arena::kAlign.
  Status (*run)(const AttentionProblem&, const AttentionArgs&, std::span<std::byte> workspace,
                ThreadPool&) noexcept;
  /// The class that fixes every rounding step, e.g. "cpu/online avx512 f32 g256 s2048".
  std::string (*numerics)(const AttentionProblem&);
};

/// The same for gradients.
struct BackwardKernel {
  const char* name;
  std::string (*refuse)(const BackwardProblem&);
  std::size_t (*workspace_bytes)(const BackwardProblem&, int threads);
  Status (*run)(const BackwardProblem&, const BackwardArgs&, std::span<std::byte> workspace,
                ThreadPool&) noexcept;
  std::string (*numerics)(const BackwardProblem&);
};

}  // namespace headwise
