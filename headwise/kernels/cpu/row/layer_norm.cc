#include "headwise/kernels/cpu/row/layer_norm.h"

#include <cmath>

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"

namespace headwise::cpu {
namespace {

constexpr Index kChains = 32;
static_assert(kRowBlock % kChains == 0);  // element i of a block belongs to chain i % 32 of the row

/// Element i goes to chain i % 32 in ascending order; the chains are folded in one order, that of
/// row_passes.h.
struct Chains {
  double sum[kChains] = {};
  template <class At>
  void add(Index count, const At& at) {
    const Index whole = count / kChains * kChains;
    for (Index i = 0; i < whole; i += kChains)
      for (Index j = 0; j < kChains; ++j) sum[j] += at(i + j);
    for (Index i = whole; i < count; ++i) sum[i - whole] += at(i);
  }
  double fold() const {
    double s[8];
    for (Index j = 0; j < 8; ++j) s[j] = (sum[j] + sum[8 + j]) + (sum[16 + j] + sum[24 + j]);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
};

template <class T>
RowMoments moments_of(const T* x, Index step, Index dim, double eps) {
  double block[kRowBlock];
  const auto length = static_cast<double>(dim);
  Chains sum, square;
  for (Index begin = 0; begin < dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, dim - begin);
    load_row(x + begin * step, step, count, block);
    sum.add(count, [&](Index i) { return block[i]; });
  }
  const double mean = sum.fold() / length;
  for (Index begin = 0; begin < dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, dim - begin);
    load_row(x + begin * step, step, count, block);
    square.add(count, [&](Index i) { return (block[i] - mean) * (block[i] - mean); });
  }
  const double variance = square.fold() / length + eps;
  return {mean, variance == 0 ? 0.0 : 1.0 / std::sqrt(variance)};
}

}  // namespace

template <class T>
void layer_norm_row(const LayerNormRow<T>& r) noexcept {
  if constexpr (std::is_same_v<T, float>)
    if (r.x_step == 1 && r.out_step == 1 && r.dim % 8 == 0)
      return chosen_isa().gemm()->rows.layer_norm({r.x, r.out, r.dim, r.weight, r.bias, r.eps, r.moments});
  const RowMoments m = moments_of(r.x, r.x_step, r.dim, r.eps);
  if (r.moments) *r.moments = m;
  for (Index begin = 0; begin < r.dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, r.dim - begin);
    double block[kRowBlock];
    load_row(r.x + begin * r.x_step, r.x_step, count, block);
    for (Index i = 0; i < count; ++i) block[i] = (block[i] - m.mean) * m.inverse;
    if (r.weight)
      for (Index i = 0; i < count; ++i) block[i] *= r.weight[begin + i];
    if (r.bias)
      for (Index i = 0; i < count; ++i) block[i] += r.bias[begin + i];
    store_row(block, count, r.out + begin * r.out_step, r.out_step);
  }
}

template <class T>
void layer_norm_row_backward(const LayerNormSlope<T>& r) noexcept {
  if constexpr (std::is_same_v<T, float>)
    if (r.dim % 8 == 0 && r.x_step == 1 && r.dout_step == 1 && (!r.dx || r.dx_step == 1) &&
        (!r.residual || r.residual_step == 1))
      return chosen_isa().gemm()->rows.layer_norm_backward(
          {r.x, r.dout, r.residual, r.dx, r.dim, r.weight, r.dweight, r.dbias, r.eps, r.moments});
  const RowMoments m = r.moments ? *r.moments : moments_of(r.x, r.x_step, r.dim, r.eps);
  double n[kRowBlock], g[kRowBlock];
  // n = (x - mean) inverse, g = dout * weight; dweight += dout n and dbias += dout on the first visit.
  const auto load = [&](Index begin, Index count, bool first) {
    load_row(r.x + begin * r.x_step, r.x_step, count, n);
    load_row(r.dout + begin * r.dout_step, r.dout_step, count, g);
    for (Index i = 0; i < count; ++i) n[i] = (n[i] - m.mean) * m.inverse;
    if (first && r.dweight)
      for (Index i = 0; i < count; ++i) r.dweight[begin + i] += g[i] * n[i];
    if (first && r.dbias)
      for (Index i = 0; i < count; ++i) r.dbias[begin + i] += g[i];
    if (r.weight)
      for (Index i = 0; i < count; ++i) g[i] *= r.weight[begin + i];
  };
  Chains sum, product;
  for (Index begin = 0; begin < r.dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, r.dim - begin);
    load(begin, count, true);
    sum.add(count, [&](Index i) { return g[i]; });
    product.add(count, [&](Index i) { return g[i] * n[i]; });
  }
  if (!r.dx) return;
  const auto length = static_cast<double>(r.dim);
  const double mean = sum.fold() / length, along = product.fold() / length;
  for (Index begin = 0; begin < r.dim; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, r.dim - begin);
    load(begin, count, false);
    for (Index i = 0; i < count; ++i) g[i] = m.inverse * (g[i] - mean - n[i] * along);
    if (r.residual) {
      load_row(r.residual + begin * r.residual_step, r.residual_step, count, n);
      for (Index i = 0; i < count; ++i) g[i] += n[i];
    }
    store_row(g, count, r.dx + begin * r.dx_step, r.dx_step);
  }
}

template void layer_norm_row(const LayerNormRow<float>&) noexcept;
template void layer_norm_row(const LayerNormRow<bf16>&) noexcept;
template void layer_norm_row(const LayerNormRow<f16>&) noexcept;
template void layer_norm_row(const LayerNormRow<double>&) noexcept;
template void layer_norm_row_backward(const LayerNormSlope<float>&) noexcept;
template void layer_norm_row_backward(const LayerNormSlope<bf16>&) noexcept;
template void layer_norm_row_backward(const LayerNormSlope<f16>&) noexcept;
template void layer_norm_row_backward(const LayerNormSlope<double>&) noexcept;

}  // namespace headwise::cpu
