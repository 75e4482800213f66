#include "headwise/base/random.h"
#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

/// Threads over (row, eight columns).
struct Place {
  Index row, column;
  int count;
};
__device__ __forceinline__ Place place_of(Index columns) {
  const Index eights = (columns + 7) / 8, at = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x,
              row = at / eights, column = (at - row * eights) * 8;
  return {row, column, count8(columns, column)};
}

__global__ void __launch_bounds__(kThreads) activate(const __grid_constant__ ActivationTask t, bool wide) {
  const Place at = place_of(t.columns);
  if (at.row >= t.rows) return;
  const auto load = [&](const Rows& r, float(&to)[8]) { load8(r, at.row, at.column, at.count, wide, to); };
  const auto store = [&](const Rows& r, const float(&x)[8]) {
    store8(r, at.row, at.column, at.count, wide, x);
  };
  float x[8], gate[8], dout[8];
  load(t.x, x);
  if (t.gate.data) load(t.gate, gate);
  if (t.backward) load(t.dout, dout);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (!t.gate.data) {
      x[i] = t.backward ? dout[i] * slope_at(t.kind, x[i]) : value_at(t.kind, x[i]);
    } else if (!t.backward) {
      x[i] *= value_at(t.kind, gate[i]);
    } else {
      const float slope = dout[i] * x[i] * slope_at(t.kind, gate[i]);
      x[i] = dout[i] * value_at(t.kind, gate[i]), gate[i] = slope;
    }
  }
  store(t.out, x);
  if (t.gate.data && t.backward) store(t.dgate, gate);
}

__global__ void __launch_bounds__(kThreads) drop(const __grid_constant__ DropoutTask t, bool wide) {
  const Place at = place_of(t.columns);
  if (at.row >= t.rows) return;
  const auto number = static_cast<std::uint64_t>(at.row + t.first_row);
  float x[8], add[8] = {};
  load8(t.x, at.row, at.column, at.count, wide, x);
  if (t.residual.data) load8(t.residual, at.row, at.column, at.count, wide, add);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Philox::Block words = {~0u, ~0u, ~0u, ~0u};
    if (t.threshold)
      words = Philox::block(
          t.seed, {static_cast<std::uint32_t>(at.column / 4 + half), static_cast<std::uint32_t>(number),
                   static_cast<std::uint32_t>(number >> 32), t.site});
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 4 * half + j;
      // Selected, not multiplied by 0: a dropped infinity gives 0. In double, as on the CPU: equal bits.
      const double kept = words[static_cast<std::size_t>(j)] >= t.threshold && !t.none
                              ? static_cast<double>(x[i]) * t.scale
                              : 0.0;
      if (i < at.count)
        put_double(t.out.data, t.out.dtype, at.row * t.out.step + at.column + i,
                   t.residual.data ? kept + static_cast<double>(add[i]) : kept);
    }
  }
}

Launch over(const char* name, Index rows, Index columns, void* stream) {
  return {name, dim3(blocks_of(rows * ceil_div(columns, 8), kThreads)), kThreads, 0,
          static_cast<cudaStream_t>(stream)};
}

}  // namespace

Status activation(const ActivationTask& t, int device, void* stream) {
  if (t.rows == 0 || t.columns == 0) return {};
  return on_device(device, [&] {
    const bool all = wide(t.x) && wide(t.gate) && wide(t.dout) && wide(t.out) && wide(t.dgate);
    return launch(over("cuda/activation", t.rows, t.columns, stream), activate, t, all);
  });
}

Status dropout(const DropoutTask& t, int device, void* stream) {
  if (t.rows == 0 || t.columns == 0) return {};
  return on_device(device, [&] {
    return launch(over("cuda/dropout", t.rows, t.columns, stream), drop, t, wide(t.x) && wide(t.residual));
  });
}

}  // namespace headwise::cuda::row
