#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

struct RowSums {
  float mean = 0, inverse = 0;
};
/// Of a row, by one warp: lane l adds the columns 8 l .. 8 l + 7 of every 256, then lanes pair up.
__device__ __forceinline__ RowSums sums_of(const NormTask& t, Index row, int lane, bool wide) {
  RowSums r;
  const auto width = static_cast<float>(t.columns);
  float x[8], sum = 0;
  if (t.layer) {
    for (Index c = 8 * lane; c < t.columns; c += 256) {
      load8(t.x, row, c, count8(t.columns, c), wide, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += x[i];
    }
    r.mean = warp_sum(sum) / width;
  }
  sum = 0;
  for (Index c = 8 * lane; c < t.columns; c += 256) {
    const int count = count8(t.columns, c);
    load8(t.x, row, c, count, wide, x);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (const float off = x[i] - r.mean; i < count) sum = fmaf(off, off, sum);
  }
  const float square = warp_sum(sum) / width + t.eps;
  r.inverse = square == 0 ? 0.0f : __fdiv_rn(1.0f, __fsqrt_rn(square));
  return r;
}

__global__ void __launch_bounds__(kThreads)
    norm_rows(const __grid_constant__ NormTask t, bool wide_x, bool wide_out, bool wide_weight) {
  const Index row = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= t.rows) return;
  const RowSums s = sums_of(t, row, lane, wide_x);
  for (Index c = 8 * lane; t.out.data && c < t.columns; c += 256) {
    const int count = count8(t.columns, c);
    float x[8], w[8];
    load8(t.x, row, c, count, wide_x, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = (x[i] - s.mean) * s.inverse;
    if (t.weight.data) {
      load8(t.weight.data, t.weight.dtype, c, count, wide_weight, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= t.added + w[i];
    }
    if (t.bias.data) {
      load8(t.bias.data, t.bias.dtype, c, count, wide_weight, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += w[i];
    }
    store8(t.out, row, c, count, wide_out, x);
  }
  if (lane == 0) {
    if (t.mean) t.mean[row] = s.mean;
    if (t.inverse) t.inverse[row] = s.inverse;
  }
}

/// g = dout * weight and n = (x - mean) * inverse of eight columns.
struct Slopes {
  float g[8], n[8];
};
__device__ __forceinline__ Slopes slopes_at(const NormGradTask& t, Index row, Index c, float2 moments,
                                            bool wide) {
  Slopes s;
  const int count = count8(t.columns, c);
  float w[8];
  load8(t.dout, row, c, count, wide, s.g);
  load8(t.x, row, c, count, wide, s.n);
#pragma unroll
  for (int i = 0; i < 8; ++i) s.n[i] = i < count ? (s.n[i] - moments.x) * moments.y : 0.0f;
  if (t.weight.data) {
    load8(t.weight.data, t.weight.dtype, c, count, wide, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) s.g[i] *= t.added + w[i];
  }
  return s;
}
__device__ __forceinline__ float2 moments_of(const NormGradTask& t, Index row) {
  return make_float2(t.layer ? t.mean[row] : 0.0f, t.inverse[row]);
}

__global__ void __launch_bounds__(kThreads) norm_dx(const __grid_constant__ NormGradTask t, bool wide) {
  const Index row = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= t.rows) return;
  const float2 moments = moments_of(t, row);
  float sum = 0, along = 0;
  for (Index c = 8 * lane; c < t.columns; c += 256) {
    const Slopes s = slopes_at(t, row, c, moments, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += s.g[i], along = fmaf(s.g[i], s.n[i], along);
  }
  const auto width = static_cast<float>(t.columns);
  sum = t.layer ? warp_sum(sum) / width : 0.0f, along = warp_sum(along) / width;
  for (Index c = 8 * lane; c < t.columns; c += 256) {
    const int count = count8(t.columns, c);
    const Slopes s = slopes_at(t, row, c, moments, wide);
    float dx[8], add[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) dx[i] = moments.y * (s.g[i] - sum - s.n[i] * along);
    if (t.residual.data) {
      load8(t.residual, row, c, count, wide, add);
#pragma unroll
      for (int i = 0; i < 8; ++i) dx[i] += add[i];
    }
    store8(t.dx, row, c, count, wide, dx);
  }
}

/// Leaves [2 leaves columns]: sums of dout n and of dout over kLeafRows rows, ascending. Without moments n is
/// 0.
__global__ void __launch_bounds__(kThreads)
    norm_leaves(const __grid_constant__ NormGradTask t, float* leaves) {
  const Index column = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x,
              first = blockIdx.y * kLeafRows;
  if (column >= t.columns) return;
  float weight = 0, bias = 0;
#pragma unroll 8
  for (Index row = first; row < min(first + kLeafRows, t.rows); ++row) {
    const float g = number_at(t.dout.data, t.dout.dtype, row * t.dout.step + column);
    bias += g;
    if (!t.inverse) continue;
    const float2 m = moments_of(t, row);
    const float n = (number_at(t.x.data, t.x.dtype, row * t.x.step + column) - m.x) * m.y;
    weight = fmaf(g, n, weight);
  }
  leaves[blockIdx.y * t.columns + column] = weight;
  leaves[(gridDim.y + blockIdx.y) * t.columns + column] = bias;
}
__global__ void __launch_bounds__(64)
    fold_leaves(const __grid_constant__ NormGradTask t, const float* leaves, int count) {
  const Index column = static_cast<Index>(blockIdx.x) * 64 + threadIdx.x;
  float* to = blockIdx.y ? t.dbias : t.dweight;
  if (column >= t.columns || !to) return;
  leaves += blockIdx.y * count * t.columns + column;
  float sum = to[column];
#pragma unroll 8
  for (int leaf = 0; leaf < count; ++leaf) sum += leaves[leaf * t.columns];
  to[column] = sum;
}

}  // namespace

Status norm(const NormTask& t, int device, void* stream) {
  if (t.rows == 0 || t.columns == 0) return {};
  return on_device(device, [&] {
    return launch(
        {"cuda/norm", dim3(blocks_of(t.rows, kWarps)), kThreads, 0, static_cast<cudaStream_t>(stream)},
        norm_rows, t, wide(t.x), wide(t.out), wide(t.weight.data, 0) && wide(t.bias.data, 0));
  });
}

Status norm_backward(const NormGradTask& t, int device, void* stream) {
  if (t.rows == 0 || t.columns == 0) return {};
  return on_device(device, [&]() -> Status {
    const auto on = static_cast<cudaStream_t>(stream);
    Status status;
    if (t.dweight || t.dbias) {
      StreamState* state = state_of(device, on);
      if (!state) return kNoState;
      const std::lock_guard lock(state->mutex);
      const auto leaves = blocks_of(t.rows, kLeafRows);
      status = state->reserve(0, 2 * sizeof(float) * leaves * static_cast<std::size_t>(t.columns));
      auto* memory = reinterpret_cast<float*>(state->scratch);
      if (status.ok())
        status = launch({"cuda/norm_leaves", dim3(blocks_of(t.columns, kThreads), leaves), kThreads, 0, on},
                        norm_leaves, t, memory);
      if (status.ok())
        status = launch({"cuda/fold_leaves", dim3(blocks_of(t.columns, 64), 2), 64, 0, on}, fold_leaves, t,
                        static_cast<const float*>(memory), static_cast<int>(leaves));
    }
    if (!status.ok() || !t.dx.data) return status;
    const bool all = wide(t.x) && wide(t.dout) && wide(t.residual) && wide(t.dx) && wide(t.weight.data, 0);
    return launch({"cuda/norm_dx", dim3(blocks_of(t.rows, kWarps)), kThreads, 0, on}, norm_dx, t, all);
  });
}

Status column_sums(const ColumnSumTask& t, int device, void* stream) {
  NormGradTask sums;
  sums.dout = t.x, sums.dbias = t.sums, sums.rows = t.rows, sums.columns = t.columns;
  return norm_backward(sums, device, stream);
}

}  // namespace headwise::cuda::row
