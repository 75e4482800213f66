// Products with weights as they are stored: packing them into units once, and out = activation(x W^T +
// bias) * factor + residual for any number of rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <span>

#include "headwise/base/threads.h"
#include "headwise/spec/gemm.h"
#include "headwise/spec/stored.h"

namespace headwise::cpu {
struct StoredParts;
}
namespace headwise::cpu::stored {

/// Of a matrix [n k]; k is a whole number of blocks.
std::size_t bytes_of(StoredFormat format, Index n, Index k);
/// Rows first .. first + count - 1 of the matrix, as `format` has them in files, into its units; `first` is a
/// multiple of 16, and so is count unless they are the last.
void pack(StoredFormat format, Index k, Index first, Index count, const std::byte* rows, std::byte* units);
/// Row `row` of the matrix, as f32.
void read_row(StoredFormat format, Index k, Index row, const std::byte* units, float* to);

/// x, out, factor and residual [m ...] are f32 with steps from row to row; null: not given.
struct Product {
  StoredFormat format = StoredFormat::f32;
  const std::byte* units = nullptr;
  Index m = 0, n = 0, k = 0;
  const float* x = nullptr;
  Index x_step = 0;
  const float *bias = nullptr, *factor = nullptr, *residual = nullptr;
  Index factor_step = 0, residual_step = 0;
  float* out = nullptr;
  Index out_step = 0;
  Activation activation = Activation::none;
  /// Rows of x are rounded to 8 bits, a scale for every 32 numbers of theirs; quantized formats alone.
  bool rounded = false;
  /// For tests: what multiplies rows in parts by bf16 weights; null: what the CPU has, if it has it.
  const StoredParts* parts = nullptr;
};
std::size_t workspace_of(const Product& p, int threads);
/// Bits of a row depend on that row and the weights alone.
void run(const Product& p, std::span<std::byte> workspace, ThreadPool& pool) noexcept;
/// Whether rows meet weights of this format in parts here: other bits than those of a chain.
bool in_parts(StoredFormat format);

}  // namespace headwise::cpu::stored
