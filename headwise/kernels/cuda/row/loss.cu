#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

__device__ __forceinline__ Index label_at(const LossTask& t, Index row) {
  return t.wide_labels ? static_cast<const std::int64_t*>(t.labels)[row]
                       : static_cast<const std::int32_t*>(t.labels)[row];
}

/// The largest logit, the sum of e^(x - largest), the sum of x.
struct Spread {
  float top = -INFINITY;
  double sum = 0, all = 0;
};
__device__ __forceinline__ float power(float x, float top) { return x == -INFINITY ? 0.0f : expf(x - top); }
__device__ __forceinline__ Spread joined(const Spread& a, const Spread& b) {
  Spread r;
  r.top = fmaxf(a.top, b.top);
  if (r.top == -INFINITY)
    r.sum = a.sum + b.sum;  // nothing yet, or NaN
  else
    r.sum =
        a.sum * static_cast<double>(power(a.top, r.top)) + b.sum * static_cast<double>(power(b.top, r.top));
  r.all = a.all + b.all;
  return r;
}

/// Of a row, by a block: thread t takes the columns 8 t .. 8 t + 7 of every 2,048; warps and then threads
/// fold as a tree.
__device__ __forceinline__ Spread spread_of(const LossTask& t, Index row, bool wide) {
  __shared__ Spread parts[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  Spread s;
  for (Index c = 8 * thread; c < t.classes; c += 8 * kThreads) {
    const int count = count8(t.classes, c);
    float x[8];
    load8(t.logits, row, c, count, wide, x);
    float top = s.top, sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) top = fmaxf(top, x[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) sum += power(x[i], top), s.all += t.smoothing > 0 ? static_cast<double>(x[i]) : 0.0;
    s.sum = (top > s.top ? s.sum * static_cast<double>(power(s.top, top)) : s.sum) + static_cast<double>(sum);
    s.top = top;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    Spread other;
    other.top = __shfl_xor_sync(~0u, s.top, step), other.sum = __shfl_xor_sync(~0u, s.sum, step);
    other.all = __shfl_xor_sync(~0u, s.all, step);
    s = joined(s, other);
  }
  if (thread % 32 == 0) parts[thread / 32] = s;
  __syncthreads();
  s = parts[0];
  for (int w = 1; w < kWarps; ++w) s = joined(s, parts[w]);
  return s;
}

__global__ void __launch_bounds__(kThreads) loss_rows(const __grid_constant__ LossTask t, bool wide) {
  const Index row = blockIdx.x, label = label_at(t, row);
  const int thread = static_cast<int>(threadIdx.x);
  const bool ignored = label == t.ignore, there = label >= 0 && label < t.classes;
  const Spread s = ignored ? Spread{} : spread_of(t, row, wide);
  const double lse = static_cast<double>(s.top) + log(s.sum),
               share = static_cast<double>(t.smoothing) / static_cast<double>(t.classes);
  const float at_label = there ? number_at(t.logits.data, t.logits.dtype, row * t.logits.step + label) : 0.0f;
  __syncthreads();  // dlogits may be logits
  if (thread == 0) {
    double loss = (1 - static_cast<double>(t.smoothing)) * (lse - static_cast<double>(at_label));
    if (t.smoothing > 0) loss += static_cast<double>(t.smoothing) * lse - share * s.all;
    t.loss[row] = ignored ? 0.0 : there ? loss : __longlong_as_double(0x7ff8000000000000ll);
  }
  if (!t.dlogits.data) return;
  const auto scale = static_cast<float>(static_cast<double>(t.weight) / s.sum),
             shift = static_cast<float>(share * static_cast<double>(t.weight));
  for (Index c = 8 * thread; c < t.classes; c += 8 * kThreads) {
    const int count = count8(t.classes, c);
    float x[8];
    load8(t.logits, row, c, count, wide, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float d = power(x[i], s.top) * scale - shift;
      if (c + i == label)
        d = static_cast<float>((static_cast<double>(power(x[i], s.top)) / s.sum -
                                (1 - static_cast<double>(t.smoothing)) - share) *
                               static_cast<double>(t.weight));
      x[i] = ignored ? 0.0f : there ? d : __int_as_float(0x7fc00000);
    }
    store8(t.dlogits, row, c, count, wide, x);
  }
}

struct LossSums {
  const double* loss;
  Index rows;
  double* total;
};
/// Blocks of 1,024 rows as trees, added in ascending order to what stands there.
__global__ void __launch_bounds__(1024) sum_losses(const __grid_constant__ LossSums t) {
  __shared__ double sums[1024];
  const int thread = static_cast<int>(threadIdx.x);
  double total = *t.total;
  for (Index begin = 0; begin < t.rows; begin += 1024) {
    const Index row = begin + thread;
    sums[thread] = row < t.rows ? t.loss[row] : 0.0;
    __syncthreads();
    for (int step = 512; step > 0; step /= 2) {
      if (thread < step) sums[thread] += sums[thread + step];
      __syncthreads();
    }
    total += sums[0];
    __syncthreads();
  }
  if (thread == 0) *t.total = total;
}
/// Rows whose label is not ignored, added to what stands there.
__global__ void __launch_bounds__(1024) count_labels(const __grid_constant__ LossTask t) {
  __shared__ int counts[32];
  const int thread = static_cast<int>(threadIdx.x);
  int mine = 0;
  for (Index row = thread; row < t.rows; row += 1024) mine += label_at(t, row) != t.ignore;
  mine = warp_sum(mine);
  if (thread % 32 == 0) counts[thread / 32] = mine;
  __syncthreads();
  if (thread != 0) return;
  for (int w = 1; w < 32; ++w) mine += counts[w];
  *t.counted += mine;
}

/// A row by a block, in double: thread t takes the columns t, t + 256, ..., warps and then threads fold.
__global__ void __launch_bounds__(kThreads) binary_rows(const __grid_constant__ BinaryLossTask t) {
  __shared__ double parts[kWarps];
  const Index row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (Index c = thread; c < t.classes; c += kThreads) {
    const double x = number_at(t.logits.data, t.logits.dtype, row * t.logits.step + c);
    const Index at = row * t.labels.step + c;
    const double y = t.labels.dtype == DType::u8
                         ? static_cast<double>(static_cast<const std::uint8_t*>(t.labels.data)[at])
                         : number_at(t.labels.data, t.labels.dtype, at);
    const double e = exp(-fabs(x));
    sum += (x > 0 ? x : x < 0 ? 0.0 : x) - x * y + log1p(e);
    if (t.dlogits.data)
      put_double(t.dlogits.data, t.dlogits.dtype, row * t.dlogits.step + c,
                 ((x >= 0 ? 1 / (1 + e) : e / (1 + e)) - y) * static_cast<double>(t.weight));
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) parts[thread / 32] = sum;
  __syncthreads();
  if (thread != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += parts[w];
  t.loss[row] = sum;
}

}  // namespace

Status binary_cross_entropy(const BinaryLossTask& t, int device, void* stream) {
  if (t.rows == 0 || t.classes == 0) return {};
  return on_device(device, [&] {
    const auto on = static_cast<cudaStream_t>(stream);
    const Status status = launch(
        {"cuda/binary_cross_entropy", dim3(static_cast<unsigned>(t.rows)), kThreads, 0, on}, binary_rows, t);
    if (!status.ok() || !t.total) return status;
    return launch({"cuda/sum_losses", dim3(1), 1024, 0, on}, sum_losses, LossSums{t.loss, t.rows, t.total});
  });
}

Status cross_entropy(const LossTask& t, int device, void* stream) {
  if (t.rows == 0 || t.classes == 0) return {};
  return on_device(device, [&] {
    const auto on = static_cast<cudaStream_t>(stream);
    const bool all = wide(t.logits) && wide(t.dlogits);
    const Status status = launch({"cuda/cross_entropy", dim3(static_cast<unsigned>(t.rows)), kThreads, 0, on},
                                 loss_rows, t, all);
    Status after = status;
    if (after.ok() && t.counted) after = launch({"cuda/count_labels", dim3(1), 1024, 0, on}, count_labels, t);
    if (!after.ok() || !t.total) return after;
    return launch({"cuda/sum_losses", dim3(1), 1024, 0, on}, sum_losses, LossSums{t.loss, t.rows, t.total});
  });
}

}  // namespace headwise::cuda::row
