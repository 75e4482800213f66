// Models on a CUDA device against the same on the CPU: forward, gradients, dropout; what a machine with a
// device and one with a double of it run alike.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/layers/transformer/abroad.h"
#include "headwise/ops/device/params.h"

namespace headwise::test {

struct DeviceCase {
  std::string name;
  TransformerConfig config;
  std::vector<Index> lengths = {5, 9, 1};  // of the sequences, or as many equal ones where padded
  bool ragged = true, training = false;
  DType dtype = DType::f32;
};

inline TransformerConfig small_encoder() {
  return {.kind = ModelKind::encoder,
          .vocabulary = 50,
          .model_dim = 32,
          .feed_dim = 48,
          .depth = 2,
          .heads = "mha:heads=4",
          .max_tokens = 64,
          .feed = FeedKind::gelu};
}

/// Every way through the layers that runs on a device, once.
inline std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> all;
  const auto add = [&](std::string name, auto&& change) {
    DeviceCase c{.name = std::move(name), .config = small_encoder()};
    change(c);
    all.push_back(c);
  };
  add("mha, learned positions, gelu, layer norm", [](DeviceCase&) {});
  add("padded", [](DeviceCase& c) { c.ragged = false, c.lengths = {7, 7, 7}; });
  add("gqa, rope, swiglu, rms norm", [](DeviceCase& c) {
    c.config.heads = "gqa:heads=4,kv_heads=2", c.config.positions = Positions::rope;
    c.config.feed = FeedKind::swiglu, c.config.norm.kind = NormKind::rms, c.config.bias = false;
  });
  add("rope, padded", [](DeviceCase& c) {
    c.config.positions = Positions::rope, c.ragged = false, c.lengths = {6, 6};
  });
  add("gated, alibi, relu, norms behind", [](DeviceCase& c) {
    c.config.heads = "mha:heads=4+gated:source=input,act=silu", c.config.positions = Positions::alibi;
    c.config.feed = FeedKind::relu, c.config.norm_first = false;
  });
  add("gates of the heads, sinusoidal positions, token types, a norm behind the embedding",
      [](DeviceCase& c) {
        c.config.heads = "gated:heads=4,source=heads,act=gelu", c.config.positions = Positions::sinusoidal;
        c.config.token_types = 2, c.config.embed_norm = true, c.config.outputs = 3;
      });
  add("gates of whole heads", [](DeviceCase& c) {
    c.config.heads = "gated:heads=4,grain=head,bias=1", c.config.feed = FeedKind::gelu_tanh;
  });
  add("a causal decoder with a tied table", [](DeviceCase& c) { c.config.kind = ModelKind::decoder; });
  add("an encoder and a decoder",
      [](DeviceCase& c) { c.config.kind = ModelKind::encoder_decoder, c.config.source_depth = 1; });
  add("dropout", [](DeviceCase& c) { c.config.dropout = 0.25, c.training = true; });
  return all;
}

/// Heads that compute nothing beside attention, forward.
inline std::vector<DeviceCase> device_heads() {
  std::vector<DeviceCase> all;
  for (const char* heads : {"gqa:heads=4,kv_heads=1", "talking:heads=4", "overlapped:heads=4"}) {
    DeviceCase c{.name = heads, .config = small_encoder()};
    c.config.heads = heads;
    all.push_back(c);
  }
  return all;
}

struct DeviceRun {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> grads;
};

inline std::vector<double> numbers_of(const InputView& v) {
  std::vector<double> all;
  for (Index i = 0; i < v.count(); ++i) all.push_back(load_double(v.data, v.dtype, i));
  return all;
}

/// The case's model, forward and, where wanted, backward of fixed numbers.
inline DeviceRun run_case(const DeviceCase& c, Device device, bool backward) {
  Context ctx({.threads = 2});
  StepMemory memory;
  ParamSet params(c.dtype, 11);
  const Transformer model(params, c.config);
  if (backward) params.make_grads();
  DeviceParams moved;
  constexpr std::string_view kAll[] = {""};
  if (!device.is_cpu()) moved = DeviceParams(params, kAll, device, ctx);
  std::vector<Index> offsets = {0};
  for (const Index n : c.lengths) offsets.push_back(offsets.back() + n);
  std::vector<std::int32_t> ids;
  for (Index t = 0; t < offsets.back(); ++t) ids.push_back(static_cast<std::int32_t>((7 * t + 3) % 50));
  TransformerInput in{.ids = AnyView::packed(ids.data(), DType::i32, {offsets.back()})};
  if (c.ragged)
    in.sequences.offsets = AnyView::packed(offsets.data(), DType::i64, {static_cast<Index>(offsets.size())});
  else
    in.sequences.batch = static_cast<Index>(c.lengths.size()), in.sequences.tokens = c.lengths[0];
  in.source_ids = in.ids, in.source_sequences = in.sequences;
  Call call{.ctx = ctx, .memory = memory, .training = c.training, .seed = 5, .step = 2};
  Transformer::Saved saved;
  const AnyView y = forward_abroad(model, in, call, backward ? &saved : nullptr);
  DeviceRun r;
  r.y = numbers_of(y);
  if (!backward) return r;
  const AnyView dy = memory.take(y.dtype, {y.size[0], y.size[1]});
  for (Index i = 0; i < dy.count(); ++i) store_double(dy.data, dy.dtype, i, normal_at(3, i));
  r.dx = numbers_of(backward_abroad(model, dy, call, saved));
  if (!device.is_cpu()) moved.bring_home(ctx);
  for (const Param& p : params.all()) r.grads.push_back(numbers_of(p.grad));
  return r;
}

/// The largest difference over the largest number; NaN counts as endless.
inline double apart(const std::vector<double>& a, const std::vector<double>& b, double least = 1e-6) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0, size = least;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::fabs(a[i] - b[i]);
    most = std::isnan(off) ? INFINITY : std::fmax(most, off);
    size = std::fmax(size, std::fabs(a[i]));
  }
  return most / size;
}

/// How far device and CPU are apart: forward, dx, and the worst gradient of a parameter.
struct DeviceDistance {
  double y = 0, dx = 0, grads = 0;
};
inline DeviceDistance distance_of(const DeviceCase& c, Device device, bool backward) {
  const DeviceRun here = run_case(c, Device::cpu(), backward), there = run_case(c, device, backward);
  DeviceDistance d{.y = apart(here.y, there.y), .dx = apart(here.dx, there.dx)};
  if (here.grads.size() != there.grads.size()) d.grads = INFINITY;
  double most = 0;  // of all gradients: that of a key's bias is 0 but for noise
  for (const std::vector<double>& g : here.grads)
    for (const double x : g) most = std::fmax(most, std::fabs(x));
  for (std::size_t i = 0; i < here.grads.size() && i < there.grads.size(); ++i)
    d.grads = std::fmax(d.grads, apart(here.grads[i], there.grads[i], 1e-3 * most));
  return d;
}

}  // namespace headwise::test
