// ZipFile: the members of a zip file in memory, found by their names.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "headwise/base/index.h"

namespace headwise {

class ZipFile {
 public:
  /// Refuses what has no directory at its end; `name` begins sentences.
  ZipFile(std::string_view bytes, std::string name);
  /// A member unpacked, at most `most` bytes of it; none: there is no such member.
  std::optional<std::string> member(std::string_view path, Index most) const;

 private:
  struct Entry {
    std::size_t at = 0, packed = 0;
    int method = 0;
    std::uint32_t crc = 0;
    bool locked = false;
  };
  [[noreturn]] void refuse_damaged() const;
  std::size_t number(std::size_t at, int bytes) const;  // little-endian
  std::string_view piece(std::size_t at, std::size_t count) const;

  std::string_view bytes_;
  std::string name_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace headwise
