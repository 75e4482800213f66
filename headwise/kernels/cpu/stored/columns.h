// Some rows times some columns of units: chains of fused products, and what follows a product.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/stored_kernels.h"
#include "headwise/kernels/cpu/stored/stored.h"

namespace headwise::cpu::stored {

constexpr Index kFewRows = 8;  // read columns to their end, as they lie

/// Into c [rows][c_step].
struct ColumnsTask {
  const std::byte* first;
  Index column_bytes, columns, row0, rows;
  float* c;
  Index c_step;
  float* scratch;  // kStoredWide
};
void chain_columns(const StoredCore& with, const Product& p, const ColumnsTask& t) noexcept;
/// out = activation(c + bias) * factor + residual for outputs of columns from `column0` on.
void finish(const Product& p, const float* c, Index c_step, Index row0, Index rows, Index column0) noexcept;

}  // namespace headwise::cpu::stored
