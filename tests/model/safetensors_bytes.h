// file_of: the bytes of a safetensors file with this header and data, built by hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace headwise {

inline std::string length_of(std::uint64_t n) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(n >> (8 * i));
  return out;
}
inline std::string file_of(std::string_view header, std::string_view data) {
  return length_of(header.size()) + std::string(header) + std::string(data);
}

}  // namespace headwise
