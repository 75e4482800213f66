// gguf_blocks: the number formats of GGUF tensors: how many numbers a block of bytes holds, and their values.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct GgufFormat {
  std::uint32_t type;  // the file's number for it
  std::string_view name;
  Index numbers, bytes;                                      // of one block
  void (*read)(const std::byte* block, float* to) noexcept;  // the block's numbers, rounded to f32 once
};

/// Every format headwise reads: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K.
std::span<const GgufFormat> gguf_formats();
/// Null for a type that is not among them.
const GgufFormat* find_gguf_format(std::uint32_t type);

}  // namespace headwise
#pragma GCC visibility pop
