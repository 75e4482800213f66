// Bags of rows of a table, as n-grams are: their sums over the root of their number, and the gradient.
#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

__device__ __forceinline__ double root_of(const BagTask& t, std::int32_t bag) {
  const std::int32_t count = t.offsets[bag + 1] - t.offsets[bag];
  return 1 / sqrt(static_cast<double>(count > 1 ? count : 1));
}

/// A bag by a warp.
__global__ void __launch_bounds__(kThreads) add_bags(const __grid_constant__ BagTask t) {
  const Index bag = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (bag >= t.bags) return;
  const double scale = root_of(t, static_cast<std::int32_t>(bag));
  const std::int32_t begin = t.offsets[bag], end = t.offsets[bag + 1];
  for (Index c = threadIdx.x % 32; c < t.columns; c += 32) {
    double sum = 0;
#pragma unroll 4
    for (std::int32_t i = begin; i < end; ++i)
      sum += static_cast<double>(number_at(t.table.data, t.table.dtype, t.rows[i] * t.table.step + c));
    put_double(t.out.data, t.out.dtype, bag * t.out.step + c, scale * sum);
  }
}

/// A row of the table by a warp: its bags in ascending order.
__global__ void __launch_bounds__(kThreads) add_slopes(const __grid_constant__ BagTask t) {
  const Index run = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (run >= t.run_count) return;
  float* to = static_cast<float*>(t.table.data) + t.runs[run] * t.table.step;
  const std::int32_t begin = t.starts[run], end = t.starts[run + 1];
  for (Index c = threadIdx.x % 32; c < t.columns; c += 32) {
    auto sum = static_cast<double>(to[c]);
#pragma unroll 4
    for (std::int32_t i = begin; i < end; ++i) {
      const std::int32_t bag = t.tokens[i];
      sum += root_of(t, bag) * static_cast<double>(number_at(t.out.data, t.out.dtype, bag * t.out.step + c));
    }
    to[c] = static_cast<float>(sum);
  }
}

}  // namespace

Status bag(const BagTask& t, int device, void* stream) {
  const Index warps = t.backward ? t.run_count : t.bags;
  if (warps == 0 || t.columns == 0) return {};
  return on_device(device, [&] {
    const Launch l{t.backward ? "cuda/bag_backward" : "cuda/bag", dim3(blocks_of(warps, kWarps)), kThreads, 0,
                   static_cast<cudaStream_t>(stream)};
    return t.backward ? launch(l, add_slopes, t) : launch(l, add_bags, t);
  });
}

}  // namespace headwise::cuda::row
