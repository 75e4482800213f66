#include "headwise/kernels/cuda/inputs/backward_inputs.h"

#include <cstdio>
#include <limits>

#include "headwise/kernels/cuda/inputs/pair.cuh"

namespace headwise::cuda {
namespace {

constexpr int kWarpsPerBlock = 4, kSinkThreads = 256;

/// delta = dout . out of a row.
template <class T>
__global__ void delta_rows(const __grid_constant__ BackwardInputs p) {
  using W = typename Work<T>::type;
  const RunInputs& f = p.in;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (Index task = static_cast<Index>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
       task < f.batch * f.heads * f.q_tokens; task += static_cast<Index>(gridDim.x) * kWarpsPerBlock) {
    const Index b = task / (f.heads * f.q_tokens), h = task / f.q_tokens % f.heads, i = task % f.q_tokens;
    const SequenceLocation at = f.places[b];
    W sum = 0;
    if (i < at.q_tokens)
      for (Index c = lane; c < f.v.layout.dim; c += 32)
        sum = fma(element<T, W>(p.dout, at.tensor_batch, at.q_row + i, h, c),
                  element<T, W>(f.out, at.tensor_batch, at.q_row + i, h, c), sum);
    sum = warp_sum(sum);
    if (lane == 0) p.delta[task] = static_cast<double>(sum);
  }
}

/// dsinks[h] = - sum over rows of exp(sink - lse) delta, in one order.
__global__ void __launch_bounds__(kSinkThreads) sink_sums(const __grid_constant__ BackwardInputs p) {
  __shared__ double parts[kSinkThreads];
  const RunInputs& f = p.in;
  const int thread = static_cast<int>(threadIdx.x);
  const Index h = blockIdx.x;
  const double sink = number_of<double>(f.sinks, static_cast<int>(h));
  double sum = 0;
  for (Index n = thread; n < f.batch * f.q_tokens; n += kSinkThreads) {
    const Index b = n / f.q_tokens, i = n % f.q_tokens;
    const SequenceLocation at = f.places[b];
    if (i >= at.q_tokens) continue;
    const Index lse_at = at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + i) * f.lse_step[2];
    const double lse = f.lse ? static_cast<double>(f.lse[lse_at]) : f.lse_double[lse_at];
    if (lse > -std::numeric_limits<double>::infinity())
      sum += exp(sink - lse) * p.delta[(b * f.heads + h) * f.q_tokens + i];
  }
  parts[thread] = sum;
  __syncthreads();
  for (int n = kSinkThreads / 2; n > 0; n /= 2) {
    if (thread < n) parts[thread] += parts[thread + n];
    __syncthreads();
  }
  if (thread == 0) store_float(p.dsinks, p.dsinks_dtype, h * p.dsinks_step, -parts[0]);
}

HeadsView heads_of(const AnyView& v, const HeadLayout& layout) {
  return {v.data, {v.step[0], v.step[1], v.step[2], v.step[3]}, layout};
}

}  // namespace

void backward_refused(const BackwardProblem& problem, const GradientSpec& takes, const char* takes_words,
                      char (&why)[kSentenceBytes]) {
  const AttentionProblem& p = problem.forward;
  inputs_refused(p, why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (const char* heads = special_heads(p, false)) return say("%s", heads);
  if (!p.lse) return say("the forward kept no lse; it needs out and lse");
  const HeadSpec& h = p.heads;
  if (h.q.row || h.k.row || h.v.row || h.q.group != 1)
    return say("heads that lie in rows or share q; it takes [batch tokens heads dim]");
  const GradientSpec& w = problem.wants;
  GradientSpec rest = w;
  for (const auto field : {&GradientSpec::q, &GradientSpec::k, &GradientSpec::v, &GradientSpec::bias,
                           &GradientSpec::sinks, &GradientSpec::gate})
    if (takes.*field) rest.*field = false;
  if (!(rest == GradientSpec{})) return say("gradients beside %s", takes_words);
}

Status gather_backward(const AttentionProblem& p, const BackwardArgs& a, StreamState& state,
                       BackwardInputs& f) {
  f = {};
  const Index rows = p.batch * p.heads.q.heads * p.q_tokens;
  Status status =
      gather_inputs(p, a.forward, state, 1, f.in, static_cast<std::size_t>(rows) * sizeof(double));
  if (!status.ok()) return status;
  f.delta = reinterpret_cast<double*>(state.scratch);
  f.dout = heads_of(a.dout, HeadLayout::split(p.heads.q.heads, p.heads.v.dim));
  f.dq = heads_of(a.dq, p.heads.q), f.dk = heads_of(a.dk, p.heads.k), f.dv = heads_of(a.dv, p.heads.v);
  f.dbias = a.dbias.data, f.dbias_dtype = a.dbias.dtype;
  for (int axis = 0; axis < 4; ++axis)
    f.dbias_size[axis] = a.dbias.size[axis], f.dbias_step[axis] = a.dbias.step[axis];
  f.dsinks = a.dsinks.data, f.dsinks_dtype = a.dsinks.dtype, f.dsinks_step = a.dsinks.step[0];
  f.dgate = a.dgate.data, f.dgate_dtype = a.dgate.dtype;
  for (int axis = 0; axis < 3; ++axis) f.dgate_step[axis] = a.dgate.step[axis];
  if (rows > 0) {
    const Index blocks = min_of(ceil_div(rows, kWarpsPerBlock), Index{1} << 20);
    const Launch how{"cuda/delta_rows", dim3(static_cast<unsigned>(blocks)), 32 * kWarpsPerBlock, 0,
                     state.stream};
    switch (p.dtype) {
      case DType::f32: status = launch(how, delta_rows<float>, f); break;
      case DType::bf16: status = launch(how, delta_rows<bf16>, f); break;
      case DType::f16: status = launch(how, delta_rows<f16>, f); break;
      default: status = launch(how, delta_rows<double>, f);
    }
  }
  if (status.ok() && f.dsinks)
    status = launch(
        {"cuda/sink_sums", dim3(static_cast<unsigned>(p.heads.q.heads)), kSinkThreads, 0, state.stream},
        sink_sums, f);
  return status;
}

}  // namespace headwise::cuda
