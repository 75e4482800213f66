// Context: device, threads, workspace and kernel preference of one caller; passed, never global, used by one
// thread at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "headwise/base/buffer.h"
#include "headwise/base/device.h"
#include "headwise/base/threads.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ContextOptions {
  int threads = 0;  // 0: HEADWISE_THREADS, else the CPUs this process may use
  std::string kernels =
      {};  // "cpu/online,ref": allowed kernels, best first; empty: HEADWISE_KERNELS, else all
  /// Tensors that lie elsewhere are refused; none: each call runs where its tensors lie.
  std::optional<Device> device = {};
  void* stream = nullptr;  // of a CUDA device: the cudaStream_t its runs start on; null: the default stream
};

class Context {
 public:
  explicit Context(ContextOptions options = {});
  ThreadPool& pool() noexcept { return pool_; }
  int threads() const noexcept { return pool_.threads(); }
  const std::string& kernels() const noexcept { return kernels_; }
  const std::optional<Device>& device() const noexcept { return device_; }
  void* stream() const noexcept { return stream_; }
  void set_stream(void* stream) noexcept { stream_ = stream; }
  /// At least `bytes` of aligned memory, kept and grown between calls; its content is not kept.
  std::span<std::byte> workspace(std::size_t bytes);

 private:
  ThreadPool pool_;
  Buffer workspace_;
  std::string kernels_;
  std::optional<Device> device_;
  void* stream_;
};

}  // namespace headwise
#pragma GCC visibility pop
