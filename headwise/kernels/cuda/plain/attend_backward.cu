// cuda/plain_backward: one warp a row of dq, dk or dv; every width, dtype, mask and term. Correct, slow.
#include <cstdio>
#include <limits>

#include "headwise/kernels/cuda/inputs/backward_inputs.h"
#include "headwise/kernels/cuda/inputs/pair.cuh"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::plain {
namespace {

constexpr int kWarpsPerBlock = 4, kColumnsPerLane = 8, kColumns = 32 * kColumnsPerLane;

/// What one pair adds: its weight as v sees it, and the gradient of its score.
template <class W>
struct Pair {
  W weight = 0, score = 0, slant = 0, value = 0;  // value: weight * dout.v before the gate
};
template <class T, class W>
__device__ Pair<W> pair_of(const BackwardInputs& p, const SequenceLocation& at, Index b, Index h, Index i,
                           Index j) {
  const RunInputs& f = p.in;
  Pair<W> r;
  const MaskSubject mask_place{b, h, at.q_start};
  if (j >= at.kv_tokens || i >= at.q_tokens) return r;
  if (f.mask_count != 0 && !f.masks[f.mask_count == 1 ? 0 : h].may_attend(at.q_start + i, j, mask_place))
    return r;
  const W s = score<T, W>(f, at, b, h, i, j, &r.slant);
  const Index lse_at = at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + i) * f.lse_step[2];
  const W lse = f.lse ? static_cast<W>(f.lse[lse_at]) : static_cast<W>(f.lse_double[lse_at]);
  if (s == -std::numeric_limits<W>::infinity() || lse == -std::numeric_limits<W>::infinity()) return r;
  const W weight = exp(s - lse);
  W keep = 1, gate = 1, dp = 0;
  if (f.dropout != 0) {
    const Index id = f.sequence_ids ? f.sequence_ids[b] : b;
    keep = f.rule.keep(id, h, at.q_start + i, j) ? 1 / static_cast<W>(1 - f.dropout) : W(0);
  }
  if (f.gate)
    gate = load_number<W>(
        f.gate, f.gate_dtype,
        at.tensor_batch * f.gate_step[0] + (at.q_row + i) * f.gate_step[1] + h * f.gate_step[2]);
  for (Index c = 0; c < f.v.layout.dim; ++c)
    dp = fma(element<T, W>(p.dout, at.tensor_batch, at.q_row + i, h, c),
             element<T, W>(f.v, at.tensor_batch, at.kv_row + j, h, c), dp);
  r.weight = weight * keep * gate;
  r.value = weight * keep * dp;
  r.score = weight * (keep * gate * dp - static_cast<W>(p.delta[(b * f.heads + h) * f.q_tokens + i]));
  return r;
}

template <class T>
__global__ void plain_queries(const __grid_constant__ BackwardInputs p) {
  using W = typename Work<T>::type;
  const RunInputs& f = p.in;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (Index task = static_cast<Index>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
       task < f.batch * f.heads * f.q_tokens; task += static_cast<Index>(gridDim.x) * kWarpsPerBlock) {
    const Index b = task / (f.heads * f.q_tokens), h = task / f.q_tokens % f.heads, i = task % f.q_tokens;
    const SequenceLocation at = f.places[b];
    if (i >= at.q_tokens) continue;
    const W scale = static_cast<W>(f.scales[f.scale_count == 1 ? 0 : h]);
    for (Index c0 = 0; c0 < f.q.layout.dim; c0 += kColumns) {
      W dq[kColumnsPerLane] = {}, value = 0;
      for (Index j0 = 0; j0 < at.kv_tokens; j0 += 32) {
        const Pair<W> mine = pair_of<T, W>(p, at, b, h, i, j0 + lane);
        value += mine.value;
        const W ds = mine.score * mine.slant * scale;
        for (unsigned rest = __ballot_sync(~0u, mine.weight != 0 || ds != 0); rest != 0; rest &= rest - 1) {
          const int key = __ffs(static_cast<int>(rest)) - 1;
          const W x = __shfl_sync(~0u, ds, key);
          for (int n = 0; n < kColumnsPerLane; ++n)
            if (const Index c = c0 + 32 * n + lane; c < f.q.layout.dim)
              dq[n] = fma(x, element<T, W>(f.k, at.tensor_batch, at.kv_row + j0 + key, h, c), dq[n]);
        }
      }
      if (p.dq.data)
        for (int n = 0; n < kColumnsPerLane; ++n)
          if (const Index c = c0 + 32 * n + lane; c < f.q.layout.dim)
            static_cast<T*>(p.dq.data)[at.tensor_batch * p.dq.step[0] + (at.q_row + i) * p.dq.step[1] +
                                       h * p.dq.step[2] + c * p.dq.step[3]] = static_cast<T>(dq[n]);
      value = warp_sum(value);
      if (p.dgate && lane == 0 && c0 == 0)
        store_float(
            p.dgate, p.dgate_dtype,
            at.tensor_batch * p.dgate_step[0] + (at.q_row + i) * p.dgate_step[1] + h * p.dgate_step[2],
            static_cast<double>(value));
    }
  }
}

/// A row of dk, or of dv: over the heads that read it, then over queries.
template <class T, bool Values>
__global__ void plain_keys(const __grid_constant__ BackwardInputs p, Index kv_tokens) {
  using W = typename Work<T>::type;
  const RunInputs& f = p.in;
  const HeadsView &to = Values ? p.dv : p.dk, &from = Values ? p.dout : f.q;
  const HeadLayout& layout = Values ? f.v.layout : f.k.layout;
  const Index slots = layout.heads / layout.group;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (Index task = static_cast<Index>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
       task < f.batch * slots * kv_tokens; task += static_cast<Index>(gridDim.x) * kWarpsPerBlock) {
    const Index b = task / (slots * kv_tokens), slot = task / kv_tokens % slots, j = task % kv_tokens;
    const SequenceLocation at = f.places[b];
    if (j >= at.kv_tokens) continue;
    for (Index c0 = 0; c0 < layout.dim; c0 += kColumns) {
      W sum[kColumnsPerLane] = {};
      for (Index h = slot * layout.group; h < (slot + 1) * layout.group; ++h) {
        const W scale = static_cast<W>(f.scales[f.scale_count == 1 ? 0 : h]);
        for (Index i0 = 0; i0 < at.q_tokens; i0 += 32) {
          const Pair<W> mine = pair_of<T, W>(p, at, b, h, i0 + lane, j);
          const W factor = Values ? mine.weight : mine.score * mine.slant * scale;
          for (unsigned rest = __ballot_sync(~0u, factor != 0); rest != 0; rest &= rest - 1) {
            const int row = __ffs(static_cast<int>(rest)) - 1;
            const W x = __shfl_sync(~0u, factor, row);
            for (int n = 0; n < kColumnsPerLane; ++n)
              if (const Index c = c0 + 32 * n + lane; c < layout.dim)
                sum[n] = fma(x, element<T, W>(from, at.tensor_batch, at.q_row + i0 + row, h, c), sum[n]);
          }
        }
      }
      for (int n = 0; n < kColumnsPerLane; ++n)
        if (const Index c = c0 + 32 * n + lane; c < layout.dim)
          static_cast<T*>(to.data)[at.tensor_batch * to.step[0] + (at.kv_row + j) * to.step[1] +
                                   slot * to.step[2] + c * to.step[3]] = static_cast<T>(sum[n]);
    }
  }
}

/// An element of dbias a thread; along axes of size 1 it is the sum, in ascending order.
template <class T>
__global__ void plain_bias(const __grid_constant__ BackwardInputs p, Index kv_tokens) {
  using W = typename Work<T>::type;
  const Index all[4] = {p.in.batch, p.in.heads, p.in.q_tokens, kv_tokens};
  const Index* size = p.dbias_size;
  for (Index task = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
       task < size[0] * size[1] * size[2] * size[3]; task += static_cast<Index>(gridDim.x) * blockDim.x) {
    Index at[4], rest = task, to = 0, count[4];
    for (int axis = 3; axis >= 0; --axis) {
      at[axis] = rest % size[axis], rest /= size[axis];
      to += at[axis] * p.dbias_step[axis];
      count[axis] = size[axis] == 1 ? all[axis] : 1;
    }
    W sum = 0;
    for (Index b = at[0]; b < at[0] + count[0]; ++b)
      for (Index h = at[1]; h < at[1] + count[1]; ++h)
        for (Index i = at[2]; i < at[2] + count[2]; ++i)
          for (Index j = at[3]; j < at[3] + count[3]; ++j)
            sum += pair_of<T, W>(p, p.in.places[b], b, h, i, j).score;
    store_float(p.dbias, p.dbias_dtype, to, static_cast<double>(sum));
  }
}

void refuse(const BackwardProblem& p, char (&why)[kSentenceBytes]) {
  backward_refused(p, {.q = true, .k = true, .v = true, .bias = true, .sinks = true, .gate = true},
                   "dq, dk, dv, dbias, dsinks and dgate", why);
}

template <class T>
Status start(const BackwardInputs& f, const AttentionProblem& p, cudaStream_t stream) {
  const auto how = [&](Index warps) {
    const Index blocks = min_of(ceil_div(max_of(warps, 1), kWarpsPerBlock), Index{1} << 20);
    return Launch{"cuda/plain_backward", dim3(static_cast<unsigned>(blocks)), 32 * kWarpsPerBlock, 0, stream};
  };
  const Index rows = p.batch * p.heads.q.heads * p.q_tokens;
  Status status;
  if (rows > 0 && (f.dq.data || f.dgate)) status = launch(how(rows), plain_queries<T>, f);
  if (status.ok() && f.dk.data)
    status = launch(how(p.batch * p.heads.k.slots() * p.kv_tokens), plain_keys<T, false>, f, p.kv_tokens);
  if (status.ok() && f.dv.data)
    status = launch(how(p.batch * p.heads.v.slots() * p.kv_tokens), plain_keys<T, true>, f, p.kv_tokens);
  if (status.ok() && f.dbias)
    status = launch(how(f.dbias_size[0] * f.dbias_size[1] * f.dbias_size[2] * ceil_div(f.dbias_size[3], 32)),
                    plain_bias<T>, f, p.kv_tokens);
  return status;
}

Status run(const BackwardProblem& problem, const BackwardArgs& a, int device, void* stream) {
  const AttentionProblem& p = problem.forward;
  if (p.batch == 0 || p.heads.q.heads == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  BackwardInputs f;
  Status status = gather_backward(p, a, *state, f);
  if (!status.ok()) return status;
  switch (p.dtype) {
    case DType::f32: status = start<float>(f, p, state->stream); break;
    case DType::bf16: status = start<bf16>(f, p, state->stream); break;
    case DType::f16: status = start<f16>(f, p, state->stream); break;
    default: status = start<double>(f, p, state->stream);
  }
  return status;
}

void numerics(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/plain_backward %s k32", name_of(p.forward.dtype).data());
}

}  // namespace

const BackwardKernel kBackward = {"cuda/plain_backward", refuse, run, numerics};

}  // namespace headwise::cuda::plain
