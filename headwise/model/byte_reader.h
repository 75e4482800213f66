// ByteReader: takes numbers out of the bytes of a file that may be cut short or hostile.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <span>
#include <string_view>

#include "headwise/base/error.h"
#include "headwise/base/index.h"

namespace headwise {

class ByteReader {
 protected:
  ByteReader(std::string_view op, std::span<const std::byte> bytes, std::string_view path)
      : op_(op), bytes_(bytes), path_(path) {}

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument, text(op_, ": ", path_, ": ", parts...));
  }
  Index left() const { return static_cast<Index>(bytes_.size()) - at_; }
  void take(void* to, Index n, std::string_view what) {
    if (n > left()) refuse("ends inside ", what, " at byte ", at_, "; it was cut short");
    std::memcpy(to, bytes_.data() + at_, static_cast<std::size_t>(n));
    at_ += n;
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    take(&value, sizeof value, what);
    return value;
  }

  std::string_view op_;
  std::span<const std::byte> bytes_;
  std::string_view path_;
  Index at_ = 0;
};

}  // namespace headwise
