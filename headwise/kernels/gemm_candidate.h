// GemmKernel: one row of the choice list of products: name, when it refuses, workspace, run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>

#include "headwise/base/threads.h"
#include "headwise/spec/gemm.h"

namespace headwise {

struct GemmKernel {
  const char* name;
  /// Empty: it can. Else one sentence why it cannot.
  std::string (*refuse)(const GemmProblem&);
  std::size_t (*workspace_bytes)(const GemmProblem&, int threads);
  /// Arguments were checked; workspace has workspace_bytes(problem, pool.threads()) or more, aligned to
  /// Arena::kAlign.
  void (*run)(const GemmProblem&, const GemmArgs&, std::span<std::byte> workspace, ThreadPool&) noexcept;
  /// The class that fixes every rounding step, e.g. "cpu/packed avx512 f32".
  std::string (*numerics)(const GemmProblem&);
  /// Bytes of b in this kernel's own layout; 0: it reads b as it lies.
  std::size_t (*packed_bytes)(const GemmProblem&);
  /// What two problems share whose packed b is the same: its layout, by address.
  const void* (*layout)(const GemmProblem&);
  void (*pack)(const GemmProblem&, const MatrixView& b, void* out, ThreadPool&) noexcept;
  Device::Kind device = Device::Kind::cpu;
  bool by_name = false;  // runs only where a list names it
};

}  // namespace headwise
