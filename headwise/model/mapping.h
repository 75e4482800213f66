// Mapping: a read-only map of a file; a page that vanishes underneath reads as zeros and is remembered.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <span>
#include <string_view>

#include "headwise/model/file.h"

#pragma GCC visibility push(default)
namespace headwise {

/// While any lives, SIGBUS is ours: a fault inside a live map puts zeros there and marks the map; every other
/// fault goes to the handler that was set before the first map.
class Mapping {
 public:
  Mapping(const File& file, Index bytes, std::string_view op, std::string_view path);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  bool intact() const noexcept;
  /// Whole pages of these bytes leave this process's memory and come back from the file when they are read
  /// again. Bytes that lie in no live map stay.
  static void release(std::span<const std::byte> bytes) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int slot_ = -1;
};

}  // namespace headwise
#pragma GCC visibility pop
