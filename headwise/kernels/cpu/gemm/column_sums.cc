#include "headwise/kernels/cpu/gemm/column_sums.h"

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::gemm {
namespace {

constexpr Index kColumns = RowKernels::kSumColumns;  // one task

void sum_f32(const MatrixView& x, Index first, Index count, float* sum) noexcept {
  const GemmKernels& kernels = *chosen_isa().gemm();
  const RowType type = x.dtype == DType::bf16  ? RowType::bf16
                       : x.dtype == DType::f16 ? RowType::f16
                                               : RowType::f32;
  const bool one_run = x.rows.size == 0 || x.rows.inner == x.rows.size;
  if (type == RowType::f32 && x.columns.step == 1 && one_run &&
      first / x.columns.inner == (first + count - 1) / x.columns.inner)
    return kernels.rows.column_sums(static_cast<const float*>(x.data) + x.columns.at(first), x.rows.step,
                                    x.rows.size, count, sum);
  const Axis columns{x.columns.inner, x.columns.step, x.columns.outer_step};
  float row[kColumns];
  for (Index i = 0; i < x.rows.size; ++i) {
    const auto* at = static_cast<const std::byte*>(x.data) + x.rows.at(i) * size_of(x.dtype);
    kernels.load_stretch(at, type, columns, first, count, row);
    for (Index j = 0; j < count; ++j) sum[j] += row[j];
  }
}
void sum_f64(const MatrixView& x, Index first, Index count, double* sum) noexcept {
  for (Index i = 0; i < x.rows.size; ++i)
    for (Index j = 0; j < count; ++j) sum[j] += static_cast<const double*>(x.data)[x.at(i, first + j)];
}

template <class T, class Sum>
void add_with(const MatrixView& x, const AnyView& out, ThreadPool& pool, const Sum& sum_of) noexcept {
  pool.parallel_for(ceil_div(x.columns.size, kColumns), [&](Index task, int) noexcept {
    T sum[kColumns];
    const Index first = task * kColumns, count = min_of(kColumns, x.columns.size - first);
    for (Index j = 0; j < count; ++j)
      sum[j] = static_cast<T>(load_double(out.data, out.dtype, (first + j) * out.step[0]));
    sum_of(x, first, count, sum);
    for (Index j = 0; j < count; ++j)
      store_double(out.data, out.dtype, (first + j) * out.step[0], static_cast<double>(sum[j]));
  });
}

}  // namespace

void add_column_sums(const MatrixView& x, const AnyView& out, ThreadPool& pool) noexcept {
  if (x.dtype == DType::f64)
    add_with<double>(x, out, pool, sum_f64);
  else
    add_with<float>(x, out, pool, sum_f32);
}

}  // namespace headwise::cpu::gemm
