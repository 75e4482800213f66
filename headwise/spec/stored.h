// StoredFormat: how the numbers of a weight matrix are kept, and how many bytes of a file hold how many of
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>

#include "headwise/base/index.h"

namespace headwise {

/// The names are GGUF's. For each 32 numbers: q4_0 d (q - 8), q4_1 d q + m, q5_0 d (q - 16), q8_0 d q.
/// For each 256: q4_k d s q - e m, with s and m for each 32 of them,
/// and q6_k d s (q - 32), with s for each 16 of them.
enum class StoredFormat : std::uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q8_0, q4_k, q6_k };

struct StoredFacts {
  std::string_view name;
  Index numbers, bytes;  // of one block, as files have it
};
inline constexpr StoredFacts kStoredFacts[] = {{"f32", 1, 4},    {"f16", 1, 2},      {"bf16", 1, 2},
                                               {"q4_0", 32, 18}, {"q4_1", 32, 20},   {"q5_0", 32, 22},
                                               {"q8_0", 32, 34}, {"q4_k", 256, 144}, {"q6_k", 256, 210}};
constexpr const StoredFacts& facts_of(StoredFormat f) { return kStoredFacts[static_cast<int>(f)]; }
constexpr std::string_view name_of(StoredFormat f) { return facts_of(f).name; }
constexpr bool is_quantized(StoredFormat f) { return facts_of(f).numbers > 1; }

}  // namespace headwise
