// Memory and streams of the CUDA library: plain functions for what lies above it, which sees no CUDA header.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "headwise/kernels/cuda/device/status.h"

namespace headwise::cuda {

struct MemoryTable {
  Status (*allocate)(std::size_t bytes, int device, void** memory);
  Status (*release)(void* memory, int device);
  /// Between any two memories. From the CPU: `from` may be changed when this returns; wait for what ends
  /// there.
  Status (*copy)(const void* from, void* to, std::size_t bytes, int device, void* stream);
  Status (*clear)(void* memory, std::size_t bytes, int device, void* stream);
  Status (*wait)(int device, void* stream);
  /// Memory of the CPU that copies reach without a wait.
  Status (*pin)(std::size_t bytes, int device, void** memory);
  Status (*unpin)(void* memory, int device);
  /// A place in the stream, in *mark, which is made where it is null; reached waits for what was before it.
  Status (*mark)(int device, void* stream, void** mark);
  Status (*reached)(int device, void* mark);
  Status (*unmark)(int device, void* mark);
  /// Bytes that are left, and all.
  Status (*room)(int device, std::size_t* left, std::size_t* all);
};
/// Status::code of an allocation that failed for want of memory (cudaErrorMemoryAllocation).
inline constexpr int kNoMemory = 2;

namespace memory {
Status allocate(std::size_t bytes, int device, void** memory);
Status release(void* memory, int device);
Status copy(const void* from, void* to, std::size_t bytes, int device, void* stream);
Status clear(void* memory, std::size_t bytes, int device, void* stream);
Status wait(int device, void* stream);
Status pin(std::size_t bytes, int device, void** memory);
Status unpin(void* memory, int device);
Status mark(int device, void* stream, void** mark);
Status reached(int device, void* mark);
Status unmark(int device, void* mark);
Status room(int device, std::size_t* left, std::size_t* all);
}  // namespace memory

}  // namespace headwise::cuda
