// Fuzzes the GGUF reader: any bytes give tensors that lie inside them and apart, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>

#include "headwise/base/error.h"
#include "headwise/model/gguf/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const GgufHeader header = parse_gguf(bytes, "fuzz");
    for (const GgufSetting& s : header.settings)
      if (s.begin < 0 || s.begin + s.count > static_cast<Index>(size)) std::abort();
    float block[256];
    for (const GgufTensor& t : header.tensors) {
      if (t.begin < 0 || t.bytes <= 0 || t.begin + t.bytes > static_cast<Index>(size)) std::abort();
      for (Index at = 0; at < t.bytes; at += t.format->bytes)
        t.format->read(bytes.data() + t.begin + at, block);
    }
  } catch (const Error&) {
  }
  return 0;
}
