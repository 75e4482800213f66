#include "headwise/kernels/cpu/row/rope.h"

#include <cmath>

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"

namespace headwise::cpu {

void rope_turns(const double* frequency, Index pairs, Index position, double factor, double* cos,
                double* sin) noexcept {
  const double p = static_cast<double>(position);
  for (Index i = 0; i < pairs; ++i) {
    // At 2^31 one rounding of the product is 2^-22 radians, which a float shows. `rest` is what it cut off,
    // exactly, and |rest| < 2^-22, so the Taylor terms left out are below 2^-68.
    const double angle = p * frequency[i], rest = std::fma(p, frequency[i], -angle);
    const double c = std::cos(angle), s = std::sin(angle);
    cos[i] = (c - rest * (s + 0.5 * rest * c)) * factor;
    sin[i] = (s + rest * (c - 0.5 * rest * s)) * factor;
  }
}

namespace {

/// Halves that lie side by side.
void rotate_halves(View<const float, 2> x, View<float, 2> out, const RopePairs& turn) noexcept {
  const RowKernels& kernels = chosen_isa().gemm()->rows;
  const Index apart = turn.rotary_dim / 2;
  for (Index head = 0; head < x.size[0]; ++head) {
    const float* from = x.data + head * x.step[0] + turn.first;
    float* to = out.data + head * out.step[0] + turn.first;
    kernels.turn({from, from + apart, to, to + apart, turn.pairs, turn.cos, turn.sin, turn.inverse});
  }
}

}  // namespace

template <class T>
void rope_rotate(View<const T, 2> x, View<T, 2> out, const RopePairs& turn) noexcept {
  const bool half = turn.kind == RopeKind::half;
  if constexpr (std::is_same_v<T, float>)
    if (half && x.step[1] == 1 && out.step[1] == 1) return rotate_halves(x, out, turn);
  const Index apart = half ? turn.rotary_dim / 2 : 1, stride = half ? 1 : 2;
  const double sign = turn.inverse ? -1.0 : 1.0;
  for (Index begin = 0; begin < turn.pairs; begin += kRowBlock) {
    const Index count = min_of(kRowBlock, turn.pairs - begin), column = (turn.first + begin) * stride;
    const double *cos = turn.cos + begin, *sin = turn.sin + begin;
    for (Index head = 0; head < x.size[0]; ++head) {
      const T* from = x.data + head * x.step[0] + column * x.step[1];
      T* to = out.data + head * out.step[0] + column * out.step[1];
      double a[kRowBlock], b[kRowBlock], turned_a[kRowBlock], turned_b[kRowBlock];
      load_row(from, stride * x.step[1], count, a);
      load_row(from + apart * x.step[1], stride * x.step[1], count, b);
      for (Index i = 0; i < count; ++i) {
        const double s = sign * sin[i];
        turned_a[i] = a[i] * cos[i] - b[i] * s;
        turned_b[i] = b[i] * cos[i] + a[i] * s;
      }
      store_row(turned_a, count, to, stride * out.step[1]);
      store_row(turned_b, count, to + apart * out.step[1], stride * out.step[1]);
    }
  }
}

template <class T>
void copy_columns(View<const T, 2> x, View<T, 2> out, Index begin) noexcept {
  for (Index head = 0; head < x.size[0]; ++head) {
    const T* from = x.data + head * x.step[0];
    T* to = out.data + head * out.step[0];
    for (Index c = begin; c < x.size[1]; ++c) to[c * out.step[1]] = from[c * x.step[1]];
  }
}

template void rope_rotate(View<const float, 2>, View<float, 2>, const RopePairs&) noexcept;
template void rope_rotate(View<const bf16, 2>, View<bf16, 2>, const RopePairs&) noexcept;
template void rope_rotate(View<const f16, 2>, View<f16, 2>, const RopePairs&) noexcept;
template void rope_rotate(View<const double, 2>, View<double, 2>, const RopePairs&) noexcept;
template void copy_columns(View<const float, 2>, View<float, 2>, Index) noexcept;
template void copy_columns(View<const bf16, 2>, View<bf16, 2>, Index) noexcept;
template void copy_columns(View<const f16, 2>, View<f16, 2>, Index) noexcept;
template void copy_columns(View<const double, 2>, View<double, 2>, Index) noexcept;

}  // namespace headwise::cpu
