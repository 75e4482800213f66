// Arena: one buffer, handed out in named, aligned pieces. The same code path measures or hands out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "headwise/base/device.h"
#include "headwise/base/error.h"
#include "headwise/base/index.h"

namespace headwise {

class Arena {
 public:
  static constexpr std::size_t kAlign =
      128;  // two cache lines: the adjacent-line prefetcher makes pairs of them shared

  static Arena measuring() { return Arena({}, true); }
  /// device: where the memory lies.
  explicit Arena(std::span<std::byte> memory, Device device = {}) : Arena(memory, false) { device_ = device; }

  /// Next `count` items of T, aligned to kAlign from the buffer's start. Null while measuring.
  template <class T>
  T* take(std::string_view name, Index count) {
    const Checked bytes = Checked(count) * Checked(static_cast<Index>(sizeof(T)));
    const Checked end = Checked(static_cast<Index>(round_up_bytes(used_))) + bytes;
    require(count >= 0 && end.ok && end.value <= kMostBytes, ErrorKind::out_of_memory, name, "needs ", count,
            " items of ", sizeof(T), " bytes, more than any address space holds; use smaller sizes");
    const std::size_t begin = round_up_bytes(used_);
    used_ = static_cast<std::size_t>(end.value);
    if (measuring_) return nullptr;
    require(used_ <= memory_.size(), ErrorKind::out_of_workspace, name, "needs ", bytes.value,
            " bytes at offset ", begin, " but the workspace has ", memory_.size(),
            "; size it with plan.workspace_bytes()");
    return reinterpret_cast<T*>(memory_.data() + begin);
  }
  std::size_t used() const noexcept { return used_; }
  Device device() const noexcept { return device_; }

 private:
  static constexpr Index kMostBytes =
      std::numeric_limits<Index>::max() - Index{kAlign};  // the next round-up fits
  Arena(std::span<std::byte> memory, bool measuring) : memory_(memory), measuring_(measuring) {}
  static std::size_t round_up_bytes(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
  bool measuring_;
  Device device_;
};

}  // namespace headwise
