#include "headwise/kernels/cpu/stored/columns.h"

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/stored/layout.h"

namespace headwise::cpu::stored {

/// Few rows read columns to their end, as they lie; of more rows one depth stays near while columns pass.
void chain_columns(const StoredCore& with, const Product& p, const ColumnsTask& t) noexcept {
  const Index unit = kUnits[static_cast<int>(p.format)].bytes, group = is_quantized(p.format) ? kGroup : 1;
  const Index depth = t.rows <= kFewRows ? p.k : kStoredDepth;
  for (Index k0 = 0; k0 < p.k; k0 += depth)
    with.multiply({.format = static_cast<int>(p.format),
                   .unit = t.first + k0 / group * unit,
                   .k = min_of(depth, p.k - k0),
                   .x = p.x + t.row0 * p.x_step + k0,
                   .x_step = p.x_step,
                   .rows = t.rows,
                   .c = t.c,
                   .c_step = t.c_step,
                   .add = k0 > 0,
                   .scratch = t.scratch,
                   .columns = t.columns,
                   .unit_bytes = t.column_bytes});
}

void finish(const Product& p, const float* c, Index c_step, Index row0, Index rows, Index column0) noexcept {
  const GemmKernels& kernels = *chosen_isa().gemm();
  const Index columns = min_of(c_step, p.n - column0);
  const auto at = [&](const float* all, Index row, Index step) {
    return all ? all + row * step + column0 : nullptr;
  };
  for (Index i = 0; i < rows; ++i) {
    const Index row = row0 + i;
    kernels.finish(
        static_cast<int>(p.activation),
        {c + i * c_step, at(p.bias, 0, 0), at(p.factor, row, p.factor_step),
         at(p.residual, row, p.residual_step), nullptr, p.out + row * p.out_step + column0, columns});
  }
}

}  // namespace headwise::cpu::stored
