// Rows of texts to their evidence: attention of a few learned queries over each text's rows, or their mean.
#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

__device__ __forceinline__ float number_of(const Rows& r, Index row, Index c) {
  return number_at(r.data, r.dtype, row * r.step + c);
}

/// By a warp: x[row] . other.
__device__ __forceinline__ float dot(const PoolTask& t, Index row, const Rows& other, Index other_row,
                                     Index other_column) {
  float sum = 0;
  for (Index c = threadIdx.x % 32; c < t.columns; c += 32)
    sum = fmaf(number_of(t.x, row, c), number_of(other, other_row, other_column + c), sum);
  return warp_sum(sum);
}

/// A text and one of its outputs by a block. Its scores stand where its weights will.
__global__ void __launch_bounds__(kThreads) pool_rows(const __grid_constant__ PoolTask t) {
  __shared__ float of_all[2];  // the largest score, 1 / sum
  const Index text = blockIdx.x, output = blockIdx.y;
  const std::int32_t begin = t.offsets[text], end = t.offsets[text + 1];
  float* a = t.weights + output * t.pooled;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (t.queries) {
    for (std::int32_t i = begin + warp; i < end; i += kWarps) {
      const float score = t.scale * dot(t, t.rows[i], t.query, output, 0);
      if (lane == 0) a[i] = score;
    }
    __syncthreads();
    if (warp == 0) {
      float top = -INFINITY, sum = 0;
      for (std::int32_t i = begin + lane; i < end; i += 32) top = fmaxf(top, a[i]);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      for (std::int32_t i = begin + lane; i < end; i += 32) sum += expf(a[i] - top);
      sum = warp_sum(sum);
      if (lane == 0) of_all[0] = top, of_all[1] = __fdividef(1.0f, sum);
    }
    __syncthreads();
  }
  const float share = __fdividef(1.0f, static_cast<float>(end - begin));
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kThreads)
    a[i] = t.queries ? expf(a[i] - of_all[0]) * of_all[1] : share;
  __syncthreads();
  for (Index c = threadIdx.x; c < t.columns; c += kThreads) {
    float sum = 0;
#pragma unroll 2
    for (std::int32_t i = begin; i < end; ++i) sum = fmaf(a[i], number_of(t.x, t.rows[i], c), sum);
    put_number(t.out.data, t.out.dtype, text * t.out.step + output * t.columns + c, sum);
  }
}

/// Slopes of a text's scores for one output: s = scale a (dp . x - sum a (dp . x)).
__global__ void __launch_bounds__(kThreads) slope_scores(const __grid_constant__ PoolTask t) {
  __shared__ float mean;
  const Index text = blockIdx.x, output = blockIdx.y;
  const std::int32_t begin = t.offsets[text], end = t.offsets[text + 1];
  const float* a = t.weights + output * t.pooled;
  float* s = t.slopes + output * t.pooled;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int32_t i = begin + warp; i < end; i += kWarps) {
    const float slope = dot(t, t.rows[i], t.out, text, output * t.columns);
    if (lane == 0) s[i] = slope;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
    for (std::int32_t i = begin + lane; i < end; i += 32) sum = fmaf(a[i], s[i], sum);
    sum = warp_sum(sum);
    if (lane == 0) mean = sum;
  }
  __syncthreads();
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kThreads)
    s[i] = t.scale * a[i] * (s[i] - mean);
}

/// dx of a text's row by a block: the sum over its outputs of a dp + s query.
__global__ void __launch_bounds__(kThreads) slope_rows(const __grid_constant__ PoolTask t) {
  const auto text = static_cast<Index>(blockIdx.x);
  const std::int32_t begin = t.offsets[text], end = t.offsets[text + 1];
  for (std::int32_t i = begin + static_cast<std::int32_t>(blockIdx.y); i < end;
       i += static_cast<std::int32_t>(gridDim.y))
    for (Index c = threadIdx.x; c < t.columns; c += kThreads) {
      float sum = 0;
      for (Index o = 0; o < t.outputs; ++o) {
        sum = fmaf(t.weights[o * t.pooled + i], number_of(t.out, text, o * t.columns + c), sum);
        if (t.queries) sum = fmaf(t.slopes[o * t.pooled + i], number_of(t.query, o, c), sum);
      }
      put_number(t.dx.data, t.dx.dtype, t.rows[i] * t.dx.step + c, sum);
    }
}

constexpr int kStrands = 8, kStrandColumns = kThreads / kStrands;

/// dquery += the sum over all pooled rows of s x: eight strands of rows, folded in order.
__global__ void __launch_bounds__(kThreads) slope_queries(const __grid_constant__ PoolTask t) {
  __shared__ float sums[kStrands][kStrandColumns];
  const Index output = blockIdx.y;
  const int strand = static_cast<int>(threadIdx.x) / kStrandColumns,
            at = static_cast<int>(threadIdx.x) % kStrandColumns;
  const Index c = static_cast<Index>(blockIdx.x) * kStrandColumns + at;
  float sum = 0;
  if (c < t.columns) {
#pragma unroll 4
    for (Index i = strand; i < t.pooled; i += kStrands)
      sum = fmaf(t.slopes[output * t.pooled + i], number_of(t.x, t.rows[i], c), sum);
  }
  sums[strand][at] = sum;
  __syncthreads();
  if (strand != 0 || c >= t.columns) return;
  for (int s = 1; s < kStrands; ++s) sum += sums[s][at];
  t.dquery[output * t.columns + c] += sum;
}

}  // namespace

Status pool(const PoolTask& t, int device, void* stream) {
  if (t.texts == 0 || t.columns == 0 || t.outputs == 0) return {};
  return on_device(device, [&]() -> Status {
    const auto on = static_cast<cudaStream_t>(stream);
    const auto texts = static_cast<unsigned>(t.texts), outputs = static_cast<unsigned>(t.outputs);
    if (!t.backward) return launch({"cuda/pool", dim3(texts, outputs), kThreads, 0, on}, pool_rows, t);
    if (t.queries) {
      Status status = launch({"cuda/pool_backward", dim3(texts, outputs), kThreads, 0, on}, slope_scores, t);
      if (status.ok() && t.dquery)
        status = launch(
            {"cuda/pool_queries", dim3(blocks_of(t.columns, kStrandColumns), outputs), kThreads, 0, on},
            slope_queries, t);
      if (!status.ok()) return status;
    }
    return launch({"cuda/pool_rows", dim3(texts, 8), kThreads, 0, on}, slope_rows, t);
  });
}

}  // namespace headwise::cuda::row
