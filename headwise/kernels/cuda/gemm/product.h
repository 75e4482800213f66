// Product: one GemmProblem with its addresses, as kernels on the device read them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/half.h"
#include "headwise/spec/gemm.h"

namespace headwise::cuda::gemm {

/// MatrixAxis for the device; one level of steps wherever the two are one.
struct Axis {
  Index inner = 0, step = 0, outer = 0;  // inner 0: one level

  HW_FN Index at(Index i) const { return inner ? i / inner * outer + i % inner * step : i * step; }
  constexpr bool flat() const { return inner == 0; }
};

constexpr Axis axis_of(const MatrixAxis& x) {
  if (x.size <= 1) return {};
  if (x.inner >= x.size || x.outer_step == x.inner * x.step) return {0, x.step, 0};
  if (x.inner <= 1) return {0, x.outer_step, 0};
  return {x.inner, x.step, x.outer_step};
}

struct Operand {
  void* data = nullptr;
  DType dtype = DType::f32;
  bool wide = false;  // eight numbers of a row from a column that is a multiple of 8 on lie on 16 bytes
  Axis rows = {}, columns = {};

  HW_FN Index at(Index row, Index column) const { return rows.at(row) + columns.at(column); }
};

struct Product {
  Index m = 0, n = 0, k = 0;
  Operand a = {}, b = {}, out = {}, residual = {}, factor = {}, slope = {};
  const void* bias = nullptr;
  DType bias_dtype = DType::f32;
  Index bias_step = 0;
  Activation activation = Activation::none;
  bool accumulate = false;
};

/// Numbers of 16 bits that lie side by side along `along`, in lines that begin on 16 bytes: what copies of 16
/// bytes and tensor maps read. Sizes: of the axes, since one of 1 has no step.
constexpr bool in_lines(const Operand& x, const Axis& along, Index length, const Axis& across, Index lines) {
  return size_of(x.dtype) == 2 && along.flat() && (along.step == 1 || length <= 1) && across.flat() &&
         (lines <= 1 || (across.step > 0 && across.step % 8 == 0));
}
inline bool on_16_bytes(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

inline Operand operand_of(const MatrixView& x) {
  Operand r;
  r.data = x.data, r.dtype = x.dtype, r.rows = axis_of(x.rows), r.columns = axis_of(x.columns);
  r.wide =
      r.columns.flat() && r.columns.step == 1 && r.rows.flat() && r.rows.step % 8 == 0 && on_16_bytes(x.data);
  return r;
}

inline Product product_of(const GemmProblem& p, const GemmArgs& a) {
  Product r;
  r.m = p.m, r.n = p.n, r.k = p.k;
  r.a = operand_of(a.a), r.b = operand_of(a.b), r.out = operand_of(a.out);
  if (p.residual) r.residual = operand_of(a.residual);
  if (p.factor) r.factor = operand_of(a.factor);
  if (p.slope) r.slope = operand_of(a.slope);
  if (p.bias) r.bias = a.bias.data, r.bias_dtype = a.bias.dtype, r.bias_step = a.bias.step[0];
  r.activation = p.activation, r.accumulate = p.accumulate;
  return r;
}

/// How the lines of a and b lie: along k, or across it (turned). False: neither; elements are gathered.
struct Lines {
  bool there = false, turn_a = false, turn_b = false;
};
inline Lines lines_of(const Product& p) {
  if (!on_16_bytes(p.a.data) || !on_16_bytes(p.b.data)) return {};
  Lines r;
  const bool a_k = in_lines(p.a, p.a.columns, p.k, p.a.rows, p.m),
             a_m = in_lines(p.a, p.a.rows, p.m, p.a.columns, p.k),
             b_k = in_lines(p.b, p.b.rows, p.k, p.b.columns, p.n),
             b_n = in_lines(p.b, p.b.columns, p.n, p.b.rows, p.k);
  r.there = (a_k || a_m) && (b_k || b_n), r.turn_a = !a_k, r.turn_b = !b_k;
  return r;
}

/// What no kernel of this room takes, in words; empty: nothing.
constexpr const char* never(const GemmProblem& p) {
  if (p.packed) return "b is packed for a CPU kernel; give it as it lies";
  for (const DType t : {p.a, p.b, p.out})
    if (t != DType::f32 && t != DType::bf16 && t != DType::f16)
      return "products on the GPU are of f32, bf16 and f16; f64 ones run on the CPU";
  return "";
}
constexpr bool halves(const GemmProblem& p) { return p.a == p.b && size_of(p.a) == 2; }

}  // namespace headwise::cuda::gemm
