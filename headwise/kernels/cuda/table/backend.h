// The CUDA library as libheadwise sees it: one versioned table of plain functions, found by dlopen.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "headwise/kernels/cuda/device/status.h"
#include "headwise/spec/backward.h"
#include "headwise/spec/gemm.h"

namespace headwise::cuda {

inline constexpr std::uint32_t kTableVersion = 3;
inline constexpr const char* kLibraryName = "libheadwise_cuda.so";
inline constexpr const char* kTableName = "headwise_cuda_table";
inline constexpr std::size_t kSentenceBytes = 256;

/// Where the library's kernels are entered: the functions behind one row of the choice list, which has the
/// name too.
template <class Problem, class Args>
struct Entries {
  const char* name;
  /// Leaves an empty sentence when it can, else writes why it cannot.
  void (*refuse)(const Problem&, char (&sentence)[kSentenceBytes]);
  /// Arguments were checked and `refuse` was content. Nothing waits for the device; memory is taken from a
  /// pool of the stream when the first run of a size needs it, never while a graph is captured.
  Status (*run)(const Problem&, const Args&, int device, void* stream);
  /// The class that fixes every rounding step.
  void (*numerics)(const Problem&, char (&words)[kSentenceBytes]);
};
using Kernel = Entries<AttentionProblem, AttentionArgs>;
using BackwardKernel = Entries<BackwardProblem, BackwardArgs>;
using GemmEntries = Entries<GemmProblem, GemmArgs>;

struct Table {
  // Two builds must mean the same structs.
  std::uint32_t version, problem_bytes, args_bytes, backward_problem_bytes, backward_args_bytes;
  int kernel_count, backward_count;
  const Kernel* kernels;           // in the order of attention_kernels()
  const BackwardKernel* backward;  // in the order of backward_kernels()
  int (*device_count)();
  /// "NVIDIA H200, 9.0, 132 SMs, 139 GiB, driver 13.0"; empty for a number that is no device.
  void (*describe)(int device, char (&words)[kSentenceBytes]);
};
using TableFunction = const Table* (*)();

}  // namespace headwise::cuda
