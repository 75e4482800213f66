// The CUDA library as libheadwise sees it: one versioned table of plain functions, found by dlopen.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "headwise/kernels/cuda/device/status.h"
#include "headwise/spec/backward.h"

namespace headwise::cuda {

inline constexpr std::uint32_t kTableVersion = 2;
inline constexpr const char* kLibraryName = "libheadwise_cuda.so";
inline constexpr const char* kTableName = "headwise_cuda_table";
inline constexpr std::size_t kSentenceBytes = 256;

/// One row of the choice list, as headwise::AttentionKernel on the CPU. The mask is known here: it comes with
/// the arguments, and tiles depend on it.
struct Kernel {
  const char* name;
  /// Leaves an empty sentence when it can, else writes why it cannot. `args` may lack addresses: what only
  /// addresses decide (alignment) is then taken as fit.
  void (*refuse)(const AttentionProblem&, const AttentionArgs&, int device, char (&sentence)[kSentenceBytes]);
  /// Arguments were checked and `refuse` was content. Nothing waits for the device; memory is taken from a
  /// pool of the stream when the first run of a size needs it, never while a graph is captured.
  Status (*run)(const AttentionProblem&, const AttentionArgs&, int device, void* stream);
  /// The class that fixes every rounding step.
  void (*numerics)(const AttentionProblem&, char (&words)[kSentenceBytes]);
};

/// The same for gradients.
struct BackwardKernel {
  const char* name;
  void (*refuse)(const BackwardProblem&, const BackwardArgs&, int device, char (&sentence)[kSentenceBytes]);
  Status (*run)(const BackwardProblem&, const BackwardArgs&, int device, void* stream);
  void (*numerics)(const BackwardProblem&, char (&words)[kSentenceBytes]);
};

struct Table {
  // Two builds must mean the same structs.
  std::uint32_t version, problem_bytes, args_bytes, backward_problem_bytes, backward_args_bytes;
  int kernel_count, backward_count;
  const Kernel* kernels;  // best first
  const BackwardKernel* backward;
  int (*device_count)();
  /// "NVIDIA H200, 9.0, 132 SMs, 139 GiB, driver 13.0"; empty for a number that is no device.
  void (*describe)(int device, char (&words)[kSentenceBytes]);
};
using TableFunction = const Table* (*)();

}  // namespace headwise::cuda
