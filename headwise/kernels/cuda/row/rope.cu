#include "headwise/kernels/cuda/row/row.cuh"

namespace headwise::cuda::row {
namespace {

/// One token a block: cosines and sines once, then all heads. In double, rounded once.
__global__ void __launch_bounds__(128) turn(const __grid_constant__ RopeTask t) {
  __shared__ double cosine[RopeTask::kMostPairs], sine[RopeTask::kMostPairs];
  const Index token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const auto position = static_cast<double>(t.positions ? t.positions[token] : t.start + token);
  if (thread < t.pairs) {
    // What the product lost is added by the first term of its series: angles reach 2^31.
    const double angle = position * t.frequency[thread], lost = fma(position, t.frequency[thread], -angle);
    double s, c;
    sincos(angle, &s, &c);
    cosine[thread] = (c - lost * s) * t.factor, sine[thread] = (s + lost * c) * t.factor;
  }
  __syncthreads();
  const Index rest = t.dim - 2 * t.pairs, each = t.pairs + rest;
  for (Index i = thread; i < t.heads * each; i += 128) {
    const Index head = i / each, at = i - head * each, from = token * t.x_step[0] + head * t.x_step[1],
                to = token * t.out_step[0] + head * t.out_step[1];
    if (at >= t.pairs) {
      const Index c = t.pairs + at;
      put_number(t.out, t.dtype, to + c, number_at(t.x, t.dtype, from + c));
      continue;
    }
    const bool half = t.kind == RopeKind::half;
    const Index a = half ? at : 2 * at, b = half ? at + t.pairs : 2 * at + 1;
    const double xa = number_at(t.x, t.dtype, from + a), xb = number_at(t.x, t.dtype, from + b);
    put_double(t.out, t.dtype, to + a, xa * cosine[at] - xb * sine[at]);
    put_double(t.out, t.dtype, to + b, xb * cosine[at] + xa * sine[at]);
  }
}

}  // namespace

Status rope(const RopeTask& t, int device, void* stream) {
  if (t.tokens == 0 || t.heads == 0 || t.dim == 0) return {};
  return on_device(device, [&] {
    return launch(
        {"cuda/rope", dim3(static_cast<unsigned>(t.tokens)), 128, 0, static_cast<cudaStream_t>(stream)}, turn,
        t);
  });
}

}  // namespace headwise::cuda::row
