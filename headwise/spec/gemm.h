// GemmProblem: one product of matrices with what follows it in the same pass, and GemmArgs: its addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/device.h"
#include "headwise/base/view.h"

namespace headwise {

/// gelu is x * Phi(x), the exact form; gelu_tanh the approximation through tanh. none leaves x as it is.
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu, sigmoid };
inline constexpr std::string_view kActivationNames[] = {"none",      "relu", "gelu",
                                                        "gelu_tanh", "silu", "sigmoid"};
constexpr std::string_view name_of(Activation a) { return kActivationNames[static_cast<int>(a)]; }

/// One axis in two levels: index i stands at i / inner * outer_step + i % inner * step. [batch tokens] rows
/// and [heads dim] columns of a strided tensor are such axes, so nothing is copied to make them one.
struct MatrixAxis {
  Index size = 0, inner = 1, step = 0, outer_step = 0;

  Index at(Index i) const { return i / inner * outer_step + i % inner * step; }
};

struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  MatrixAxis rows, columns;

  bool given() const { return data != nullptr || rows.size > 0 || columns.size > 0; }
  Index at(Index row, Index column) const { return rows.at(row) + columns.at(column); }
  MatrixView transposed() const {
    MatrixView t = *this;
    t.rows = columns, t.columns = rows;
    return t;
  }
};

/// out [m n] = activation(a [m k] b [k n] + bias) * factor + residual, and slope [m n] = activation'(a b +
/// bias). Sizes and kinds alone: comparable, the whole key of a plan.
struct GemmProblem {
  Index m = 0, n = 0, k = 0;
  DType a = DType::f32, b = DType::f32, out = DType::f32;
  /// The sum over k starts at what out holds instead of 0: two runs over the halves of k are one run over k.
  bool accumulate = false;
  bool bias = false, residual = false, factor = false, slope = false;
  Activation activation = Activation::none;
  bool packed = false;  // b comes as a PackedMatrix
  /// f32 by f32 in three parts of bf16 where the ISA level has tiles for them: another numerics class, better
  /// from some rows on (training), worse for a few (docs/projection.md). So the caller says, and m never
  /// does.
  bool parts = false;
  Device device = {};  // where all of it lies
  friend constexpr bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

struct GemmArgs {
  MatrixView a = {}, b = {}, out = {}, residual = {}, factor = {}, slope = {};
  const void* packed = nullptr;  // b in the kernel's own layout, instead of b
  InputView bias = {};           // [n], any float
};

}  // namespace headwise
