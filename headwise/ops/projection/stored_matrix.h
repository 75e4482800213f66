// StoredMatrix: weights [out in] kept in the format a file has them in, and products with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <span>

#include "headwise/base/buffer.h"
#include "headwise/base/view.h"
#include "headwise/spec/gemm.h"
#include "headwise/spec/stored.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Rows of f32 with a step from row to row; null: not given.
struct StoredRows {
  float* data = nullptr;
  Index step = 0;
};
/// out = activation(x W^T + bias) * factor + residual.
struct StoredProductArgs {
  Index rows = 0;
  StoredRows x = {}, out = {}, factor = {}, residual = {};
  const float* bias = nullptr;  // [out]
  Activation activation = Activation::none;
  /// Rows of x are rounded to 8 bits, with a scale for every 32 numbers of their own: a numerics class of its
  /// own, for quantized formats alone.
  bool rounded = false;
};

/// Exact products: every number is widened to f32, and an output is one chain of fused products over `in`. So
/// the bits are those of the same weights in f32; bf16 at level amx is multiplied in parts and has its own.
/// They depend on the row and the weights alone, rounded or not.
class StoredMatrix {
 public:
  StoredMatrix() = default;
  /// `read` fills `to` with `count` rows from `first` on, in the format's own bytes; it is asked in ascending
  /// order.
  using Reader = std::function<void(Index first, Index count, std::byte* to)>;
  StoredMatrix(StoredFormat format, Index out, Index in, const Reader& read);

  StoredFormat format() const noexcept { return format_; }
  /// Whether rows are multiplied in parts here, which is a numerics class of its own.
  bool in_parts() const noexcept;
  Index out() const noexcept { return out_; }
  Index in() const noexcept { return in_; }
  Index bytes() const noexcept { return static_cast<Index>(memory_.size()); }
  /// Of sizes, format and every byte: equal matrices have equal ones.
  std::uint64_t fingerprint() const noexcept;
  /// Row `row` as f32, `in` numbers.
  void read_row(Index row, float* to) const;
  void multiply(const StoredProductArgs& args, Context& ctx) const;

 private:
  const std::byte* units() const noexcept;
  StoredFormat format_ = StoredFormat::f32;
  Index out_ = 0, in_ = 0;
  Buffer memory_;
};

}  // namespace headwise
#pragma GCC visibility pop
