#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

__device__ __forceinline__ Index id_at(const EmbeddingTask& t, Index token) {
  return t.wide_ids ? static_cast<const std::int64_t*>(t.ids)[token]
                    : static_cast<const std::int32_t*>(t.ids)[token];
}

__global__ void __launch_bounds__(kThreads) look_up(const __grid_constant__ EmbeddingTask t, bool wide) {
  const Index token = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= t.tokens) return;
  const Index id = id_at(t, token);
  const bool there = id >= 0 && id < t.table_rows;
  for (Index c = 8 * (threadIdx.x % 32); c < t.columns; c += 256) {
    const int count = count8(t.columns, c);
    float x[8];
    if (there) load8(t.table, id, c, count, wide, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = there ? x[i] * t.scale : __int_as_float(0x7fc00000);
    store8(t.out, token, c, count, wide, x);
  }
}

/// The block of an id's first token adds all its tokens, ascending: no atomic, no sort. Other blocks leave at
/// the first earlier token of their id.
__global__ void __launch_bounds__(kThreads) add_rows(const __grid_constant__ EmbeddingTask t) {
  __shared__ Index found[kThreads];
  __shared__ int counts[kWarps];
  const Index token = blockIdx.x, id = id_at(t, token);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (id < 0 || id >= t.table_rows) return;
  for (Index end = token; end > 0; end -= kThreads) {
    const Index at = end - 1 - thread;
    if (__syncthreads_or(at >= 0 && id_at(t, at) == id)) return;
    if (end <= kThreads) break;
  }
  for (Index begin = token; begin < t.tokens; begin += kThreads) {
    const Index at = begin + thread;
    const bool mine = at < t.tokens && id_at(t, at) == id;
    const unsigned mask = __ballot_sync(~0u, mine);
    if (lane == 0) counts[warp] = __popc(mask);
    __syncthreads();
    int before = __popc(mask & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kWarps; ++w) before += w < warp ? counts[w] : 0, all += counts[w];
    if (mine) found[before] = at;
    __syncthreads();
    if (all > 0)
      for (Index c = thread; c < t.columns; c += kThreads) {
        float* to = static_cast<float*>(t.table.data) + id * t.table.step + c;
        float sum = *to;
#pragma unroll 4
        for (int n = 0; n < all; ++n)
          sum = fmaf(number_at(t.out.data, t.out.dtype, found[n] * t.out.step + c), t.scale, sum);
        *to = sum;
      }
    __syncthreads();
  }
}

}  // namespace

Status embedding(const EmbeddingTask& t, int device, void* stream) {
  if (t.tokens == 0 || t.columns == 0) return {};
  return on_device(device, [&] {
    const auto on = static_cast<cudaStream_t>(stream);
    if (t.backward)
      return launch({"cuda/embedding_backward", dim3(static_cast<unsigned>(t.tokens)), kThreads, 0, on},
                    add_rows, t);
    return launch({"cuda/embedding", dim3(blocks_of(t.tokens, kWarps)), kThreads, 0, on}, look_up, t,
                  wide(t.table) && wide(t.out));
  });
}

}  // namespace headwise::cuda::row
