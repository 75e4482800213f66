#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

/// The parameter a block works on: the last whose first block is not past it.
template <class Task>
__device__ __forceinline__ const AdamWParameter& parameter_of(const Task& t, Index block) {
  int low = 0, high = t.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (t.parameters[middle].first_block <= block)
      low = middle;
    else
      high = middle - 1;
  }
  return t.parameters[low];
}

/// The order of operations is that of the CPU's kernel, and no product is contracted with a sum: equal bits.
__global__ void __launch_bounds__(kThreads) step_blocks(const __grid_constant__ AdamWTask t) {
  const AdamWParameter p = parameter_of(t, blockIdx.x);
  const AdamWWords w = *t.words;
  if (w.skip) return;
  const Index first = (blockIdx.x - p.first_block) * kAdamWBlock, end = min(first + kAdamWBlock, p.count);
  const float gain1 = 1.0f - w.beta1, gain2 = 1.0f - w.beta2,
              size = __fmul_rn(w.size, p.rate),
              shrink = p.decays ? 1.0f - __fmul_rn(__fmul_rn(w.rate, p.rate), w.decay) : 1.0f;
#pragma unroll 4
  for (Index i = first + threadIdx.x; i < end; i += kThreads) {
    const float g = __fmul_rn(p.gradient[i], w.factor), m0 = p.m[i], v0 = p.v[i];
    const float m = __fadd_rn(m0, __fmul_rn(gain1, __fsub_rn(g, m0))),
                v = __fadd_rn(__fmul_rn(v0, w.beta2), __fmul_rn(__fmul_rn(gain2, g), g));
    const float x =
        __fsub_rn(__fmul_rn(p.master[i], shrink),
                  __fmul_rn(size, __fdiv_rn(m, __fadd_rn(__fdiv_rn(__fsqrt_rn(v), w.root), w.eps))));
    p.m[i] = m, p.v[i] = v, p.master[i] = x;
    if (p.average) p.average[i] = __fadd_rn(p.average[i], __fmul_rn(w.gain, __fsub_rn(x, p.average[i])));
    if (p.weight) put_number(p.weight, p.weight_dtype, i, x);
    if (t.clear_gradients) p.gradient[i] = 0;
  }
}

/// The same for SGD, in the order of the CPU's loop.
__global__ void __launch_bounds__(kThreads) sgd_blocks(const __grid_constant__ SgdTask t) {
  const AdamWParameter p = parameter_of(t, blockIdx.x);
  const SgdWords w = *t.words;
  if (w.skip) return;
  const Index first = (blockIdx.x - p.first_block) * kAdamWBlock, end = min(first + kAdamWBlock, p.count);
  const float decay = p.decays ? w.decay : 0.0f;
  for (Index i = first + threadIdx.x; i < end; i += kThreads) {
    const float x = p.master[i];
    float d = __fadd_rn(__fmul_rn(p.gradient[i], w.factor), __fmul_rn(decay, x));
    if (p.m) {
      const float b = w.first ? d : __fadd_rn(__fmul_rn(w.momentum, p.m[i]), __fmul_rn(w.gain, d));
      d = w.ahead ? __fadd_rn(d, __fmul_rn(w.momentum, b)) : b;
      p.m[i] = b;
    }
    const float now = __fsub_rn(x, __fmul_rn(w.rate, d));
    p.master[i] = now;
    if (p.weight) put_number(p.weight, p.weight_dtype, i, now);
    if (t.clear_gradients) p.gradient[i] = 0;
  }
}

/// Squares of a block's gradients in double, in one order.
__global__ void __launch_bounds__(kThreads) square_blocks(const __grid_constant__ AdamWTask t) {
  __shared__ double parts[kWarps];
  const AdamWParameter& p = parameter_of(t, blockIdx.x);
  const Index first = (blockIdx.x - p.first_block) * kAdamWBlock, end = min(first + kAdamWBlock, p.count);
  double sum = 0;
#pragma unroll 4
  for (Index i = first + threadIdx.x; i < end; i += kThreads) {
    const auto g = static_cast<double>(p.gradient[i]);
    sum += g * g;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) sum += parts[w];
    t.squares[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(1024) add_squares(const __grid_constant__ NormOfTask t) {
  __shared__ double sums[1024];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (Index i = thread; i < t.blocks; i += 1024) sum += t.squares[i];
  sums[thread] = sum;
  __syncthreads();
  for (int step = 512; step > 0; step /= 2) {
    if (thread < step) sums[thread] += sums[thread + step];
    __syncthreads();
  }
  if (thread != 0) return;
  const double norm = sqrt(sums[0]);
  if (t.norm) *t.norm = norm;
  if (!t.words) return;
  if (!isfinite(norm)) t.words->skip = 1;
  const double limit = static_cast<double>(t.limit), factor = limit / (norm + 1e-6);
  t.words->factor = limit > 0 && factor < 1 ? static_cast<float>(factor) : 1.0f;
}

}  // namespace

Status adamw(const AdamWTask& t, int device, void* stream) {
  if (t.blocks == 0) return {};
  return on_device(device, [&] {
    const Launch l{t.squares ? "cuda/squares" : "cuda/adamw", dim3(static_cast<unsigned>(t.blocks)), kThreads,
                   0, static_cast<cudaStream_t>(stream)};
    return t.squares ? launch(l, square_blocks, t) : launch(l, step_blocks, t);
  });
}

Status sgd(const SgdTask& t, int device, void* stream) {
  if (t.blocks == 0) return {};
  return on_device(device, [&] {
    return launch(
        {"cuda/sgd", dim3(static_cast<unsigned>(t.blocks)), kThreads, 0, static_cast<cudaStream_t>(stream)},
        sgd_blocks, t);
  });
}

Status norm_of(const NormOfTask& t, int device, void* stream) {
  return on_device(device, [&] {
    return launch({"cuda/norm_of", dim3(1), 1024, 0, static_cast<cudaStream_t>(stream)}, add_squares, t);
  });
}

}  // namespace headwise::cuda::row
