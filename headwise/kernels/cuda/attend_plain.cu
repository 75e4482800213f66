// cuda/plain: one warp a query row, keys 32 at a time; every width, dtype and mask. The GPU's own reference.
#include <cmath>
#include <cstdio>
#include <limits>

#include "headwise/base/random.h"
#include "headwise/kernels/cuda/attend.h"
#include "headwise/kernels/cuda/per_head.cuh"
#include "headwise/kernels/cuda/stream_state.h"

namespace headwise::cuda {
namespace {

constexpr int kWarpsPerBlock = 4, kColumnsPerLane = 8, kColumns = 32 * kColumnsPerLane;
constexpr std::size_t kMostMaskBytes = std::size_t{1} << 20;

/// A tensor of heads as a kernel reads it.
struct Heads {
  void* data;
  Index step[4];
  HeadLayout layout;
};
struct PlainParams {
  Index batch, heads, q_tokens;
  Heads q, k, v, out;
  float* lse;
  double* lse_double;
  Index lse_step[3];
  const SequencePlace* places;
  const MaskView* masks;
  Index mask_count;
  const double* scales;  // one, or one a head
  Index scale_count;
  double softcap;
  PerHead slopes, sinks;
  const void* bias;
  DType bias_dtype;
  Index bias_step[4];
  const void* gate;
  DType gate_dtype;
  Index gate_step[3];
  double dropout;
  DropoutRule rule;
  const Index* sequence_ids;
};

template <class T>
struct Work {  // what a kernel computes in
  using type = float;
};
template <>
struct Work<double> {
  using type = double;
};

/// Element c of a head's vector; columns outside of a row read as 0.
template <class T, class W>
__device__ W element(const Heads& x, Index batch, Index row, Index head, Index c) {
  const T* data = static_cast<const T*>(x.data);
  const HeadLayout& l = x.layout;
  if (l.row == 0)
    return static_cast<W>(
        data[batch * x.step[0] + row * x.step[1] + l.slot(head) * x.step[2] + c * x.step[3]]);
  const Index column = l.column(head) + c;
  return column < 0 || column >= l.row
             ? W(0)
             : static_cast<W>(data[batch * x.step[0] + row * x.step[1] + column * x.step[2]]);
}
template <class W>
__device__ W warp_most(W x) {
  for (int n = 16; n > 0; n /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, n));
  return x;
}
template <class W>
__device__ W warp_sum(W x) {
  for (int n = 16; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
  return x;
}

/// s = softcap(scale * q.k) + bias + alibi of one open pair.
template <class T, class W>
__device__ W score(const PlainParams& p, const SequencePlace& at, Index b, Index h, Index i, Index j) {
  W dot = 0;
  for (Index c = 0; c < p.q.layout.dim; ++c)
    dot = fma(element<T, W>(p.q, at.tensor_batch, at.q_row + i, h, c),
              element<T, W>(p.k, at.tensor_batch, at.kv_row + j, h, c), dot);
  W s = static_cast<W>(p.scales[p.scale_count == 1 ? 0 : h]) * dot;
  if (p.softcap != 0) s = static_cast<W>(p.softcap) * tanh(s / static_cast<W>(p.softcap));
  if (p.bias)
    s += static_cast<W>(
        load_float(p.bias, p.bias_dtype,
                   b * p.bias_step[0] + h * p.bias_step[1] + i * p.bias_step[2] + j * p.bias_step[3]));
  if (p.slopes.data) {
    const Index q = at.q_start + i;
    s -= static_cast<W>(number_of(p.slopes, static_cast<int>(h))) * static_cast<W>(q < j ? j - q : q - j);
  }
  return s;
}

template <class T>
__global__ void attend_plain(const __grid_constant__ PlainParams p) {
  using W = typename Work<T>::type;
  const W infinity = std::numeric_limits<W>::infinity();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index rows = p.batch * p.heads * p.q_tokens;
  for (Index task = static_cast<Index>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32; task < rows;
       task += static_cast<Index>(gridDim.x) * kWarpsPerBlock) {
    const Index b = task / (p.heads * p.q_tokens), h = task / p.q_tokens % p.heads, i = task % p.q_tokens;
    const SequencePlace at = p.places[b];
    if (i >= at.q_tokens) continue;
    const MaskPlace mask_place{b, h, at.q_start};
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
          const W weight = __shfl_sync(~0u, w, key);
          for (int n = 0; n < kColumnsPerLane; ++n) {
            const Index c = c0 + 32 * n + lane;
            if (c < p.v.layout.dim)
              out[n] = fma(weight, element<T, W>(p.v, at.tensor_batch, at.kv_row + j0 + key, h, c), out[n]);
          }
        }
      }
      sum = warp_sum(sum);
      W weight = 1;
      const bool empty = top == -infinity && sum == 0;
      if (p.sinks.data) {
        const W sink = static_cast<W>(number_of(p.sinks, static_cast<int>(h))), most = fmax(top, sink);
        if (most > -infinity) {
          weight = empty ? W(0) : exp(top - most);
          sum = sum * weight + exp(sink - most), top = most;
        }
      }
      W gate = 1;
      if (p.gate)
        gate = static_cast<W>(load_float(
            p.gate, p.gate_dtype,
            at.tensor_batch * p.gate_step[0] + (at.q_row + i) * p.gate_step[1] + h * p.gate_step[2]));
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

/// The arrays of a mask step and their bytes.
struct StepArrays {
  const void* from[3];
  std::size_t bytes[3];
};
StepArrays arrays_of(const MaskStep& s, Index batch, Index heads) {
  const auto size = [](Index n) { return static_cast<std::size_t>(n) * sizeof(Index); };
  StepArrays a{{s.offsets, s.columns, s.bits}, {0, 0, 0}};
  switch (s.op) {
    case MaskOp::lengths:
    case MaskOp::global: a.bytes[0] = size(s.n); break;
    case MaskOp::documents: a.bytes[0] = size(s.n + 1); break;
    case MaskOp::blocks: a.bytes[0] = size(s.n + 1), a.bytes[1] = size(s.n ? s.offsets[s.n] : 0); break;
    case MaskOp::dense: {
      const Index last[3] = {(s.size[0] == 1 ? 1 : batch) - 1, (s.size[1] == 1 ? 1 : heads) - 1,
                             s.size[2] - 1};
      Index words = ceil_div(s.size[3], 64);
      for (int axis = 0; axis < 3; ++axis) words += last[axis] > 0 ? last[axis] * s.words[axis] : 0;
      a.bytes[2] = size(words);
      break;
    }
    default: break;
  }
  return a;
}

std::size_t mask_bytes(const AttentionProblem& p, const MaskSet& mask) {
  std::size_t bytes = static_cast<std::size_t>(mask.count) * sizeof(MaskView);
  for (Index n = 0; n < mask.count; ++n)
    for (int i = 0; i < mask.views[n].count; ++i)
      for (std::size_t part : arrays_of(mask.views[n].steps[i], p.batch, p.heads.q.heads).bytes)
        bytes += part;
  return bytes;
}

void refuse(const AttentionProblem& p, const AttentionArgs& a, int device, char (&why)[kSentenceBytes]) {
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  why[0] = '\0';
  const DeviceFacts facts = facts_of(device);
  if (!facts.there) return say("there is no CUDA device %d", device);
  if (facts.major < 8)
    return say("device %d is of capability %d.%d; it needs 8.0", device, facts.major, facts.minor);
  if (p.heads.terms.relative) return say("relative positions; give them as a bias");
  if (p.probe.any()) return say("probes");
  if (const std::size_t bytes = mask_bytes(p, a.mask); bytes > kMostMaskBytes)
    return say("a mask of %zu bytes; up to %zu travel with a launch", bytes, kMostMaskBytes);
}

Heads heads_of(const AnyView& v, const HeadLayout& layout) {
  return {v.data, {v.step[0], v.step[1], v.step[2], v.step[3]}, layout};
}

/// Takes pieces of scratch from the front; the same calls measure and place.
struct Pieces {
  std::byte* base = nullptr;
  std::size_t used = 0;
  template <class T>
  T* take(Index count) {
    auto* piece = reinterpret_cast<T*>(base + used);
    used += (static_cast<std::size_t>(count) * sizeof(T) + 15) / 16 * 16;
    return piece;
  }
};

/// Sends places, scales, ids and masks; null base: only measures.
Status send(const AttentionProblem& p, const AttentionArgs& a, Pieces& pieces, PlainParams& f,
            cudaStream_t stream) {
  const bool measuring = pieces.base == nullptr;
  Status status;
  const auto put = [&](void* to, const void* from, std::size_t bytes) {
    if (!measuring && status.ok() && bytes) status = upload(to, from, bytes, stream);
  };
  auto* places = pieces.take<SequencePlace>(p.batch);
  for (Index b0 = 0; b0 < p.batch; b0 += 64) {
    SequencePlace some[64];
    const Index count = min_of(64, p.batch - b0);
    for (Index i = 0; i < count; ++i) some[i] = place_of(p, a, b0 + i);
    put(places + b0, some, static_cast<std::size_t>(count) * sizeof(SequencePlace));
  }
  f.places = places;
  f.scale_count = a.inputs.scale.given() ? a.inputs.scale.size[0] : 1;
  auto* scales = pieces.take<double>(f.scale_count);
  for (Index h0 = 0; h0 < f.scale_count; h0 += 256) {
    double some[256];
    const Index count = min_of(256, f.scale_count - h0);
    for (Index i = 0; i < count; ++i)
      some[i] = a.inputs.scale.given() ? load_double(a.inputs.scale.data, a.inputs.scale.dtype,
                                                     (h0 + i) * a.inputs.scale.step[0])
                                       : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
    put(scales + h0, some, static_cast<std::size_t>(count) * sizeof(double));
  }
  f.scales = scales;
  f.sequence_ids = nullptr;
  if (p.heads.terms.dropout && a.inputs.sequence_ids.given()) {
    auto* ids = pieces.take<Index>(p.batch);
    for (Index b = 0; b < p.batch; ++b)
      put(ids + b, static_cast<const Index*>(a.inputs.sequence_ids.data) + b * a.inputs.sequence_ids.step[0],
          sizeof(Index));
    f.sequence_ids = ids;
  }
  auto* masks = pieces.take<MaskView>(a.mask.count);
  for (Index n = 0; n < a.mask.count; ++n) {
    MaskView view = a.mask.views[n];
    for (int i = 0; i < view.count; ++i) {
      const StepArrays arrays = arrays_of(view.steps[i], p.batch, p.heads.q.heads);
      void* moved[3];
      for (int part = 0; part < 3; ++part) {
        moved[part] = pieces.take<std::byte>(static_cast<Index>(arrays.bytes[part]));
        put(moved[part], arrays.from[part], arrays.bytes[part]);
      }
      view.steps[i].offsets = static_cast<const Index*>(moved[0]);
      view.steps[i].columns = static_cast<const Index*>(moved[1]);
      view.steps[i].bits = static_cast<const std::uint64_t*>(moved[2]);
    }
    put(masks + n, &view, sizeof view);
  }
  f.masks = masks, f.mask_count = a.mask.count;
  return status;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return {"cuda/streams", 1, "more than 256 streams were used in this process"};
  const std::lock_guard lock(state->mutex);
  PlainParams f{};
  Pieces measured;
  send(p, a, measured, f, state->stream);
  Status status = state->reserve(1, measured.used);
  if (!status.ok()) return status;
  Pieces pieces{state->scratch};
  status = send(p, a, pieces, f, state->stream);
  if (!status.ok()) return status;
  f.batch = p.batch, f.heads = p.heads.q.heads, f.q_tokens = p.q_tokens;
  f.q = heads_of(a.q, p.heads.q), f.k = heads_of(a.k, p.heads.k), f.v = heads_of(a.v, p.heads.v);
  f.out = heads_of(a.out, HeadLayout::split(p.heads.q.heads, p.heads.v.dim));
  if (p.lse) {
    if (a.lse.dtype == DType::f32)
      f.lse = static_cast<float*>(a.lse.data);
    else
      f.lse_double = static_cast<double*>(a.lse.data);
    for (int axis = 0; axis < 3; ++axis) f.lse_step[axis] = a.lse.step[axis];
  }
  const HeadInputs& in = a.inputs;
  f.softcap = in.softcap;
  if (p.heads.terms.alibi) f.slopes = {in.slopes.data, in.slopes.dtype, in.slopes.step[0]};
  if (p.heads.terms.sinks) f.sinks = {in.sinks.data, in.sinks.dtype, in.sinks.step[0]};
  if (p.heads.terms.bias) {
    f.bias = in.bias.data, f.bias_dtype = in.bias.dtype;
    for (int axis = 0; axis < 4; ++axis) f.bias_step[axis] = in.bias.step[axis];
  }
  if (p.heads.terms.gate) {
    f.gate = in.gate.data, f.gate_dtype = in.gate.dtype;
    for (int axis = 0; axis < 3; ++axis) f.gate_step[axis] = in.gate.step[axis];
  }
  if (p.heads.terms.dropout) f.dropout = in.dropout, f.rule = DropoutRule::of(in.dropout, in.seed);
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
  std::snprintf(words, sizeof words, "cuda/plain %s k32", name_of(p.dtype).data());
}

}  // namespace

const Kernel kPlain = {"cuda/plain", refuse, run, numerics};

}  // namespace headwise::cuda
