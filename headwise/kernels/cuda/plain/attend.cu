// cuda/plain: one warp a query row, keys 32 at a time; every width, dtype and mask. The GPU's own reference.
#include <cstdio>
#include <limits>

#include "headwise/kernels/cuda/inputs/pair.cuh"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::plain {
namespace {

constexpr int kWarpsPerBlock = 4, kColumnsPerLane = 8, kColumns = 32 * kColumnsPerLane;

template <class T>
__global__ void attend_plain(const __grid_constant__ RunInputs p) {
  using W = typename Work<T>::type;
  const W infinity = std::numeric_limits<W>::infinity();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index rows = p.batch * p.heads * p.q_tokens;
  for (Index task = static_cast<Index>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32; task < rows;
       task += static_cast<Index>(gridDim.x) * kWarpsPerBlock) {
    const Index b = task / (p.heads * p.q_tokens), h = task / p.q_tokens % p.heads, i = task % p.q_tokens;
    const SequenceLocation at = p.places[b];
    if (i >= at.q_tokens) continue;
    const MaskSubject mask_place{b, h, at.q_start};
    const Index id = p.sequence_ids ? p.sequence_ids[b] : b;
    for (Index c0 = 0; c0 < p.v.layout.dim; c0 += kColumns) {
      W top = -infinity, sum = 0, out[kColumnsPerLane] = {};
      for (Index j0 = 0; j0 < at.kv_tokens; j0 += 32) {
        const Index j = j0 + lane;
        bool open = j < at.kv_tokens && (p.mask_count == 0 || p.masks[p.mask_count == 1 ? 0 : h].may_attend(
                                                                  at.q_start + i, j, mask_place));
        W s = open ? score<T, W>(p, at, b, h, i, j) : -infinity;
        open = open && s != -infinity;
        const unsigned keys = __ballot_sync(~0u, open);
        if (keys == 0) continue;
        const W most = fmax(top, warp_most(s)), factor = top == -infinity ? W(0) : exp(top - most);
        W w = open ? exp(s - most) : W(0);
        top = most, sum = sum * factor + w;
        if (p.dropout != 0)
          w = open && p.rule.keep(id, h, at.q_start + i, j) ? w / static_cast<W>(1 - p.dropout) : W(0);
        for (int n = 0; n < kColumnsPerLane; ++n) out[n] *= factor;
        for (unsigned rest = keys; rest != 0; rest &= rest - 1) {
          const int key = __ffs(static_cast<int>(rest)) - 1;
          const W weight = __shfl_sync(~0u, w, key) * kv_scale<W>(p, p.v_scale, p.v, at, b, j0 + key, h);
          for (int n = 0; n < kColumnsPerLane; ++n) {
            const Index c = c0 + 32 * n + lane;
            if (c < p.v.layout.dim)
              out[n] = fma(weight, kv_element<T, W>(p, p.v, at, b, j0 + key, h, c), out[n]);
          }
        }
      }
      sum = warp_sum(sum);
      W weight = 1;
      const bool empty = top == -infinity && sum == 0;
      if (p.sinks.data) {
        const W sink = number_of<W>(p.sinks, static_cast<int>(h)), most = fmax(top, sink);
        if (most > -infinity) {
          weight = empty ? W(0) : exp(top - most);
          sum = sum * weight + exp(sink - most), top = most;
        }
      }
      W gate = 1;
      if (p.gate)
        gate = load_number<W>(
            p.gate, p.gate_dtype,
            at.tensor_batch * p.gate_step[0] + (at.q_row + i) * p.gate_step[1] + h * p.gate_step[2]);
      const W f = empty ? W(0) : gate * (weight / sum);
      for (int n = 0; n < kColumnsPerLane; ++n) {
        const Index c = c0 + 32 * n + lane;
        if (c < p.v.layout.dim)
          static_cast<T*>(p.out.data)[at.tensor_batch * p.out.step[0] + (at.q_row + i) * p.out.step[1] +
                                      h * p.out.step[2] + c * p.out.step[3]] =
              static_cast<T>(empty ? W(0) : out[n] * f);
      }
      if (lane == 0 && c0 == 0 && (p.lse || p.lse_double)) {
        const W lse = sum == 0 ? -infinity : top + log(sum);
        const Index to = at.tensor_batch * p.lse_step[0] + h * p.lse_step[1] + (at.q_row + i) * p.lse_step[2];
        if (p.lse)
          p.lse[to] = static_cast<float>(lse);
        else
          p.lse_double[to] = static_cast<double>(lse);
      }
    }
  }
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  inputs_refused(p, why, true);
  if (!why[0] && p.probe.any()) std::snprintf(why, sizeof why, "probes");
  if (const char* heads = special_heads(p); heads && !why[0]) std::snprintf(why, sizeof why, "%s", heads);
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  RunInputs f;
  const Status status = gather_inputs(p, a, *state, 1, f);
  if (!status.ok()) return status;
  const Index blocks = ceil_div(p.batch * p.heads.q.heads * p.q_tokens, kWarpsPerBlock);
  const Launch how{"cuda/attend_plain", dim3(static_cast<unsigned>(min_of(blocks, Index{1} << 20))),
                   32 * kWarpsPerBlock, 0, state->stream};
  switch (p.dtype) {
    case DType::f32: return launch(how, attend_plain<float>, f);
    case DType::bf16: return launch(how, attend_plain<bf16>, f);
    case DType::f16: return launch(how, attend_plain<f16>, f);
    default: return launch(how, attend_plain<double>, f);
  }
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/plain %s%s k32", name_of(p.dtype).data(), kv_words(p));
}

}  // namespace

const Kernel kAttend = {"cuda/plain", refuse, run, numerics};

}  // namespace headwise::cuda::plain
