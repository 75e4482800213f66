// Fuzzes the safetensors reader: any bytes give a header whose tensors cover the data exactly, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto file_bytes = static_cast<Index>(size);
    const Index header_bytes = safetensors_header_bytes(bytes, file_bytes, "fuzz");
    const std::string_view text(reinterpret_cast<const char*>(data) + 8,
                                static_cast<std::size_t>(header_bytes));
    const Index left = file_bytes - 8 - header_bytes;
    const SafetensorsHeader header = parse_safetensors_header(text, left, "fuzz");
    Index covered = 0;
    for (const SafetensorsEntry& e : header.entries) {
      if (e.begin < 0 || e.end < e.begin || e.end > left || header.find(e.name) != &e) std::abort();
      covered += e.end - e.begin;
    }
    if (covered != left) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
