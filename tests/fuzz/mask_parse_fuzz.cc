// Fuzzes the mask parser: any bytes give a mask that prints and parses back to itself, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/masks/mask.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  try {
    const Mask mask = parse_mask({reinterpret_cast<const char*>(data), size});
    if (!(parse_mask(to_text(mask)) == mask)) std::abort();
    const MaskSubject at{.sequence = 1, .head = mask.heads() - 1};
    const TileKind kind = mask.tile(5, 9, 60, 70, at);
    for (Index q = 5; q < 9; ++q)
      for (Index k = 60; k < 70; ++k)
        if (kind != TileKind::mixed && mask.may_attend(q, k, at) != (kind == TileKind::full)) std::abort();
    if (mask.set().given()) {
      std::uint64_t row[2];
      mask.set().of(at.head).row_bits(7, 3, 2, row, at);
      for (Index j = 0; j < 128; ++j)
        if ((row[j / 64] >> (j % 64) & 1) != mask.may_attend(7, 3 + j, at)) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
