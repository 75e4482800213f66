#include "headwise/kernels/cpu/row/norm.h"

#include <cmath>

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"

namespace headwise::cpu {

template <class T>
double sum_squares(const T* x, Index step, Index dim) noexcept {
  if constexpr (std::is_same_v<T, float>)
    if (step == 1) return chosen_isa().gemm()->rows.sum_squares(x, dim);
  constexpr Index kChains = 8;
  static_assert(kRowBlock % kChains == 0);  // element i of a block belongs to chain i % 8 of the row
  double chain[kChains] = {};
  for (Index begin = 0; begin < dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, dim - begin), whole = count / kChains * kChains;
    double block[kRowBlock];
    load_row(x + begin * step, step, count, block);
    for (Index i = 0; i < whole; i += kChains)
      for (Index j = 0; j < kChains; ++j) chain[j] += block[i + j] * block[i + j];
    for (Index i = whole; i < count; ++i) chain[i - whole] += block[i] * block[i];
  }
  return ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

double rms_factor(double sum, Index dim, double eps) noexcept {
  const double mean = sum / static_cast<double>(dim) + eps;
  return mean == 0 ? 0.0 : 1.0 / std::sqrt(mean);
}

double l2_factor(double sum, double eps) noexcept {
  const double length = std::sqrt(sum), divisor = length < eps ? eps : length;  // a NaN length stays
  return divisor == 0 ? 0.0 : 1.0 / divisor;
}

template <class T>
void scale_row(const T* x, Index x_step, T* out, Index out_step, Index dim, double factor,
               const double* weight) noexcept {
  if constexpr (std::is_same_v<T, float>)
    if (x_step == 1 && out_step == 1) return chosen_isa().gemm()->rows.scale(x, out, dim, factor, weight);
  for (Index begin = 0; begin < dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, dim - begin);
    double block[kRowBlock];
    load_row(x + begin * x_step, x_step, count, block);
    for (Index i = 0; i < count; ++i) block[i] *= factor;
    if (weight)
      for (Index i = 0; i < count; ++i) block[i] *= weight[begin + i];
    store_row(block, count, out + begin * out_step, out_step);
  }
}

template <class T>
double sum_products(const NormRow<T>& row) noexcept {
  constexpr Index kChains = 8;
  double chain[kChains] = {};
  for (Index begin = 0; begin < row.dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, row.dim - begin), whole = count / kChains * kChains;
    double x[kRowBlock], g[kRowBlock];
    load_row(row.x + begin * row.x_step, row.x_step, count, x);
    load_row(row.dout + begin * row.dout_step, row.dout_step, count, g);
    if (row.weight)
      for (Index i = 0; i < count; ++i) g[i] *= row.weight[begin + i];
    for (Index i = 0; i < whole; i += kChains)
      for (Index j = 0; j < kChains; ++j) chain[j] += g[i + j] * x[i + j];
    for (Index i = whole; i < count; ++i) chain[i - whole] += g[i] * x[i];
  }
  return ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

template <class T>
void norm_backward(const NormRow<T>& row, const NormSlope& slope) noexcept {
  for (Index begin = 0; begin < row.dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, row.dim - begin);
    double x[kRowBlock], g[kRowBlock];
    load_row(row.x + begin * row.x_step, row.x_step, count, x);
    load_row(row.dout + begin * row.dout_step, row.dout_step, count, g);
    for (Index i = 0; i < count; ++i) x[i] *= slope.factor;
    if (row.dweight)
      for (Index i = 0; i < count; ++i) row.dweight[begin + i] += g[i] * x[i];
    if (!row.dx) continue;
    if (row.weight)
      for (Index i = 0; i < count; ++i) g[i] *= row.weight[begin + i];
    for (Index i = 0; i < count; ++i) g[i] = slope.factor * (g[i] - x[i] * slope.along);
    store_row(g, count, row.dx + begin * row.dx_step, row.dx_step);
  }
}

template double sum_products(const NormRow<float>&) noexcept;
template double sum_products(const NormRow<bf16>&) noexcept;
template double sum_products(const NormRow<f16>&) noexcept;
template double sum_products(const NormRow<double>&) noexcept;
template void norm_backward(const NormRow<float>&, const NormSlope&) noexcept;
template void norm_backward(const NormRow<bf16>&, const NormSlope&) noexcept;
template void norm_backward(const NormRow<f16>&, const NormSlope&) noexcept;
template void norm_backward(const NormRow<double>&, const NormSlope&) noexcept;
template double sum_squares(const float*, Index, Index) noexcept;
template double sum_squares(const bf16*, Index, Index) noexcept;
template double sum_squares(const f16*, Index, Index) noexcept;
template double sum_squares(const double*, Index, Index) noexcept;
template void scale_row(const float*, Index, float*, Index, Index, double, const double*) noexcept;
template void scale_row(const bf16*, Index, bf16*, Index, Index, double, const double*) noexcept;
template void scale_row(const f16*, Index, f16*, Index, Index, double, const double*) noexcept;
template void scale_row(const double*, Index, double*, Index, Index, double, const double*) noexcept;

}  // namespace headwise::cpu
