// Random rows: reproducible lengths, offsets and small integer tensors for ragged batches and masks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/base/random.h"

namespace headwise::test {

/// n numbers from `low` to `high`, both included, the same for the same seed.
inline std::vector<Index> random_integers(Index n, Index low, Index high, std::uint64_t seed) {
  std::vector<Index> all;
  for (Index i = 0; i < n; ++i) {
    const std::uint32_t word = Philox::block(seed, {static_cast<std::uint32_t>(i), 7, 7, 7})[0];
    all.push_back(low + static_cast<Index>(word) % (high - low + 1));
  }
  return all;
}

/// Lengths to offsets: {3, 0, 2} to {0, 3, 3, 5}.
inline std::vector<Index> offsets_of(const std::vector<Index>& lengths) {
  std::vector<Index> offsets = {0};
  for (Index n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

inline Tensor tensor_of(const std::vector<Index>& values) {
  Tensor t(DType::i64, {static_cast<Index>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) t.values<std::int64_t>()[i] = values[i];
  return t;
}
inline Tensor floats_of(std::initializer_list<float> values) {
  Tensor t(DType::f32, {static_cast<Index>(values.size())});
  std::size_t i = 0;
  for (float x : values) t.values<float>()[i++] = x;
  return t;
}

}  // namespace headwise::test
