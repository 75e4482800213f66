// KernelOf: one row of a choice list: a kernel's name and device, what it takes, when it refuses, what
// workspace it needs, how it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <type_traits>

#include "headwise/base/threads.h"
#include "headwise/kernels/device_status.h"
#include "headwise/kernels/takes.h"

namespace headwise {

/// What a kernel reports; floor 3 turns anything but `ok` into an Error.
enum class Status { ok, out_of_memory };

/// Why kernels that go head by head refuse a mix.
inline constexpr const char* kHeadsAreMixed = "heads are mixed: a row needs all its heads at once";
/// What the others say of keys in pages.
inline constexpr const char* kKeysInPages = "keys lie in pages: cpu/decode, cpu/online and ref read them";

template <class Problem, class Args>
struct KernelOf {
  const char* name;
  Takes takes;
  /// Empty: nothing else stands in its way. Else one sentence what does.
  std::string (*limits)(const Problem&);
  std::size_t (*workspace_bytes)(const Problem&, int threads);
  /// Arguments were checked; workspace has workspace_bytes(problem, pool.threads()) or more, aligned to
  /// Arena::kAlign. Null where runs are started.
  Status (*run)(const Problem&, const Args&, std::span<std::byte> workspace, ThreadPool&) noexcept;
  /// The class that fixes every rounding step, e.g. "cpu/online avx512 f32 g256 s2048".
  std::string (*numerics)(const Problem&);
  Device::Kind device = Device::Kind::cpu;  // of the problems it is asked for
  bool by_name = false;                     // runs only where a list names it
  /// A CUDA device: starts the run on a stream and returns without waiting.
  DeviceStatus (*start)(const Problem&, const Args&, void* stream) = nullptr;

  /// Empty: it can. Else one sentence why it cannot.
  std::string refuse(const Problem& p) const {
    std::string why;
    if constexpr (std::is_same_v<Problem, BackwardProblem>) {
      why = takes.refuse(p.forward.heads);
      if (why.empty()) why = takes.refuse(p.wants);
    } else {
      why = takes.refuse(p.heads);
    }
    return why.empty() ? limits(p) : why;
  }
};
using AttentionKernel = KernelOf<AttentionProblem, AttentionArgs>;
using BackwardKernel = KernelOf<BackwardProblem, BackwardArgs>;

}  // namespace headwise
