// Context: threads, workspace and kernel preference of one caller; passed, never global, used by one thread
// at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/buffer.h"
#include "headwise/base/threads.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ContextOptions {
  int threads = 0;  // 0: HEADWISE_THREADS, else the CPUs this process may use
  std::string kernels =
      {};  // "cpu/online,ref": allowed kernels, best first; empty: HEADWISE_KERNELS, else all
};

class Context {
 public:
  explicit Context(ContextOptions options = {});
  ThreadPool& pool() noexcept { return pool_; }
  int threads() const noexcept { return pool_.threads(); }
  const std::string& kernels() const noexcept { return kernels_; }
  /// At least `bytes` of aligned memory, kept and grown between calls; its content is not kept.
  std::span<std::byte> workspace(std::size_t bytes);

 private:
  ThreadPool pool_;
  Buffer workspace_;
  std::string kernels_;
};

}  // namespace headwise
#pragma GCC visibility pop
