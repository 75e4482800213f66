// Fuzzes the reader of CTranslate2's model.bin: any bytes give variables that lie inside them, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>

#include "headwise/base/error.h"
#include "headwise/model/ct2_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)begins_like_ct2(bytes);
  try {
    const Ct2Header header = parse_ct2(bytes, "fuzz");
    for (const Ct2Variable& v : header.variables) {
      Index numbers = 1;
      for (int i = 0; i < v.rank; ++i) numbers *= v.size[i];
      if (numbers != v.numbers || v.begin < 0 || v.bytes < 1 || v.begin + v.bytes > static_cast<Index>(size))
        std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
