// LateBytes: bytes that come from a device to the CPU without a wait, and are read later.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/ops/device/memory.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Move-only: memory of the CPU that copies reach without a wait, and a place in the stream.
class LateBytes {
 public:
  LateBytes() = default;
  LateBytes(std::size_t bytes, Device device);
  LateBytes(LateBytes&& other) noexcept;
  LateBytes& operator=(LateBytes&& other) noexcept;
  ~LateBytes();

  /// Begins a copy of as many bytes from there, on the context's stream, and returns.
  void start(const void* from, Context& ctx);
  /// Waits for that copy alone.
  const std::byte* wait() const;

 private:
  std::byte* data_ = nullptr;
  void* mark_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
};

}  // namespace headwise
#pragma GCC visibility pop
