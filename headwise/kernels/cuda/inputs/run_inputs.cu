#include "headwise/kernels/cuda/inputs/run_inputs.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "headwise/kernels/cuda/inputs/mask_arrays.h"

namespace headwise::cuda {
namespace {

constexpr Index kMostMaskBytes = Index{1} << 20;
constexpr Index kMostDistance = 4096;

/// Bytes that go to the device one after another, in as few launches as hold them; without a base it only
/// counts.
class Sender {
 public:
  Sender(std::byte* base, cudaStream_t stream) : base_(base), stream_(stream) {}
  std::size_t bytes() const { return sent_ + held_; }
  /// Where the next bytes will lie.
  template <class T>
  const T* next() const {
    return reinterpret_cast<const T*>(base_ + bytes());
  }
  void add(const void* from, std::size_t count) {
    const auto* bytes = static_cast<const std::byte*>(from);
    while (count > 0) {
      const std::size_t piece = count < kUploadBytes - held_ ? count : kUploadBytes - held_;
      if (base_) std::memcpy(buffer_ + held_, bytes, piece);
      held_ += piece, bytes += piece, count -= piece;
      if (held_ == kUploadBytes) flush();
    }
  }
  void align() { held_ += (16 - bytes() % 16) % 16; }
  Status finish() {
    if (held_) flush();
    return status_;
  }

 private:
  void flush() {
    if (base_ && status_.ok()) status_ = upload(base_ + sent_, buffer_, held_, stream_);
    sent_ += held_, held_ = 0;
  }
  std::byte* base_;
  cudaStream_t stream_;
  Status status_ = {};
  std::size_t sent_ = 0, held_ = 0;
  std::byte buffer_[kUploadBytes] = {};
};

void send_masks(const AttentionProblem& p, const MaskSet& mask, Sender& to, RunInputs& f) {
  const auto each_array = [&](auto&& body) {
    for (Index n = 0; n < mask.count; ++n)
      for (int i = 0; i < mask.views[n].count; ++i)
        body(arrays_of(mask.views[n].steps[i], p.batch, p.heads.q.heads));
  };
  const auto* arrays = to.next<std::byte>();
  each_array([&](const StepArrays& a) {  // all of words of 8 bytes
    for (int part = 0; part < 3; ++part) to.add(a.from[part], a.bytes[part]);
  });
  to.align();
  f.masks = to.next<MaskView>(), f.mask_count = mask.count;
  for (Index n = 0; n < mask.count; ++n) {
    MaskView view = mask.views[n];
    for (int i = 0; i < view.count; ++i) {
      const StepArrays a = arrays_of(view.steps[i], p.batch, p.heads.q.heads);
      view.steps[i].offsets = reinterpret_cast<const Index*>(arrays);
      view.steps[i].columns = reinterpret_cast<const Index*>(arrays + a.bytes[0]);
      view.steps[i].bits = reinterpret_cast<const std::uint64_t*>(arrays + a.bytes[0] + a.bytes[1]);
      arrays += a.bytes[0] + a.bytes[1] + a.bytes[2];
    }
    to.add(&view, sizeof view);
  }
  to.align();
}

void send(const AttentionProblem& p, const AttentionArgs& a, Sender& to, RunInputs& f) {
  f.places = to.next<SequenceLocation>();
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation place = place_of(p, a, b);
    to.add(&place, sizeof place);
  }
  to.align();
  const AnyView& scale = a.inputs.scale;
  f.scales = to.next<double>(), f.scale_count = scale.given() ? scale.size[0] : 1;
  for (Index h = 0; h < f.scale_count; ++h) {
    const double x = scale.given() ? load_double(scale.data, scale.dtype, h * scale.step[0])
                                   : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
    to.add(&x, sizeof x);
  }
  to.align();
  if (p.heads.terms.dropout && a.inputs.sequence_ids.given()) {
    f.sequence_ids = to.next<Index>();
    const AnyView& ids = a.inputs.sequence_ids;
    for (Index b = 0; b < p.batch; ++b)
      to.add(static_cast<const Index*>(ids.data) + b * ids.step[0], sizeof(Index));
    to.align();
  }
  if (p.heads.terms.relative) {  // a bucket depends on the distance alone, and on it no more past the last
    const RelativeBuckets& r = a.inputs.buckets;
    f.buckets = to.next<std::uint16_t>(), f.bucket_count = r.max_distance + 1;
    for (int ahead = 0; ahead < 2; ++ahead)
      for (Index d = 0; d < f.bucket_count; ++d) {
        const auto bucket = static_cast<std::uint16_t>(ahead ? r.bucket(0, d) : r.bucket(d, 0));
        to.add(&bucket, sizeof bucket);
      }
    to.align();
  }
  send_masks(p, a.mask, to, f);
}

HeadsView heads_of(const AnyView& v, const HeadLayout& layout) {
  return {v.data, {v.step[0], v.step[1], v.step[2], v.step[3]}, layout};
}
ScalesView scales_of(const AnyView& v) {
  return {static_cast<const float*>(v.data), {v.step[0], v.step[1], v.step[2]}};
}
RowsView rows_of(const AnyView& v) { return {v.data, {v.step[0], v.step[1], v.step[2]}}; }

}  // namespace

RowProbes probes_of(const AttentionProblem& p, const AttentionArgs& a) {
  if (!p.probe.rows) return {};
  const ProbeOut& to = a.probe;
  return {true,
          !to.top_position.given() && !to.second_moment.given() && !to.mean_distance.given(),
          rows_of(to.entropy),
          rows_of(to.top_weight),
          rows_of(to.top_position),
          rows_of(to.second_moment),
          rows_of(to.mean_distance),
          rows_of(to.sink_mass)};
}

const char* special_heads(const AttentionProblem& p, bool rows_too) {
  if (p.heads.mixes()) return "heads are mixed: a row needs all its heads at once";
  if (p.heads.norm != Norm::softmax) return "weights are entmax";
  if (rows_too && p.heads.terms.rows) return "heads list their rows";
  return nullptr;
}

void inputs_refused(const AttentionProblem& p, char (&why)[kSentenceBytes], bool eight_bits) {
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  why[0] = '\0';
  const int device = p.device.index;
  const DeviceFacts facts = facts_of(device);
  if (!facts.there) return say("there is no CUDA device %d", device);
  if (facts.major < 8)
    return say("device %d is of capability %d.%d; it needs 8.0", device, facts.major, facts.minor);
  if (p.eight_bit_kv() && !eight_bits) return say(kEightRefused, name_of(p.kv_dtype()).data());
  if (p.heads.terms.relative && (p.run.max_distance > kMostDistance || p.run.buckets > kMostDistance))
    return say("relative positions up to %lld in %lld buckets; up to %lld of both travel with a launch",
               static_cast<long long>(p.run.max_distance), static_cast<long long>(p.run.buckets),
               static_cast<long long>(kMostDistance));
  const ProbeSpec& probe = p.probe;
  if (probe.top_k || probe.classes || probe.columns || probe.picked || probe.scores != ScoreStage::none)
    return say("probes of single weights; it takes the statistics of rows");
  if (p.run.mask_bytes > kMostMaskBytes)
    return say("a mask of %lld bytes; up to %lld travel with a launch",
               static_cast<long long>(p.run.mask_bytes), static_cast<long long>(kMostMaskBytes));
}

Status gather_inputs(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, Index counters,
                     RunInputs& f, std::size_t own_bytes) {
  f = {};
  own_bytes = (own_bytes + 255) / 256 * 256;
  Sender counted(nullptr, state.stream);
  send(p, a, counted, f);
  Status status = state.reserve(counters, own_bytes + counted.bytes());
  if (!status.ok()) return status;
  Sender sender(state.scratch + own_bytes, state.stream);
  send(p, a, sender, f);
  status = sender.finish();
  if (!status.ok()) return status;
  f.batch = p.batch, f.heads = p.heads.q.heads, f.q_tokens = p.q_tokens;
  f.q = heads_of(a.q, p.heads.q), f.k = heads_of(a.k, p.heads.k), f.v = heads_of(a.v, p.heads.v);
  f.kv_dtype = p.kv_dtype();
  if (p.eight_bit_kv()) f.k_scale = scales_of(a.k_scale), f.v_scale = scales_of(a.v_scale);
  if (p.keys == KeyForm::paged) {
    const AnyView& table = a.page_table.table;
    f.pages = static_cast<const std::int32_t*>(table.data);
    f.pages_step[0] = table.step[0], f.pages_step[1] = table.step[1];
    f.page_size = p.page_size, f.page_count = p.pages;
  }
  f.out = heads_of(a.out, HeadLayout::split(p.heads.q.heads, p.heads.v.dim));
  if (p.lse) {
    if (a.lse.dtype == DType::f32)
      f.lse = static_cast<float*>(a.lse.data);
    else
      f.lse_double = static_cast<double*>(a.lse.data);
    for (int axis = 0; axis < 3; ++axis) f.lse_step[axis] = a.lse.step[axis];
  }
  const HeadInputs& in = a.inputs;
  const Terms& terms = p.heads.terms;
  f.softcap = in.softcap;
  if (terms.alibi) f.slopes = {in.slopes.data, in.slopes.dtype, in.slopes.step[0]};
  if (terms.sinks) f.sinks = {in.sinks.data, in.sinks.dtype, in.sinks.step[0]};
  if (terms.bias) {
    f.bias = in.bias.data, f.bias_dtype = in.bias.dtype;
    for (int axis = 0; axis < 4; ++axis) f.bias_step[axis] = in.bias.step[axis];
  }
  if (terms.relative) {
    f.relative = in.relative.data, f.relative_dtype = in.relative.dtype;
    for (int axis = 0; axis < 2; ++axis) f.relative_step[axis] = in.relative.step[axis];
  }
  if (terms.gate) {
    f.gate = in.gate.data, f.gate_dtype = in.gate.dtype;
    for (int axis = 0; axis < 3; ++axis) f.gate_step[axis] = in.gate.step[axis];
  }
  if (terms.dropout) f.dropout = in.dropout, f.rule = DropoutRule::of(in.dropout, in.seed);
  f.probes = probes_of(p, a);
  return {};
}

}  // namespace headwise::cuda
