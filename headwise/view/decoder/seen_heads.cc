#include "headwise/view/decoder/seen_heads.h"

#include <algorithm>
#include <cmath>

#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

void append(const AnyView& rows, std::vector<float>& to) {
  for (Index t = 0; t < rows.size[1]; ++t)
    for (Index h = 0; h < rows.size[2]; ++h) {
      const float* from = static_cast<const float*>(rows.data) + t * rows.step[1] + h * rows.step[2];
      to.insert(to.end(), from, from + rows.size[3]);
    }
}

/// One head of [tokens heads head_dim] as [1 tokens 1 head_dim].
ConstView head_of(const std::vector<float>& rows, Index heads, Index head, Index tokens, Index dim) {
  ConstView v = ConstView::packed(rows.data() + head * dim, DType::f32, {1, tokens, 1, dim});
  v.step[0] = tokens * heads * dim, v.step[1] = heads * dim, v.step[2] = dim;
  return v;
}

}  // namespace

SeenHeads::SeenHeads(const DecoderConfig& config, Index tokens)
    : config_(config), tokens_(tokens), q_(at(config.layers)), k_(at(config.layers)) {}

void SeenHeads::add(Index layer, const AnyView& q, const AnyView& k) {
  append(q, q_[at(layer)]);
  append(k, k_[at(layer)]);
}

void SeenHeads::row(Index layer, Index head, Index query, std::span<float> weights) {
  if (layer != layer_ || head != head_) compute(layer, head);
  std::copy_n(weights_.begin() + query * tokens_, tokens_, weights.begin());
}

void SeenHeads::compute(Index layer, Index head) {
  const DecoderConfig& c = config_;
  const Index n = tokens_, d = c.head_dim;
  std::vector<std::int64_t> picks;
  for (Index i = 0; i < n; ++i) picks.insert(picks.end(), {0, 0, i});
  weights_.resize(at(n * n));
  std::vector<float> out(at(n * d));
  const float scale = static_cast<float>(c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(d)));
  const Index window = c.window(layer);
  const Mask mask = window > 0 ? Mask::sliding(window) : Mask::causal();
  AttentionArgs args;
  args.q = head_of(q_[at(layer)], c.heads, head, n, d);
  args.k = head_of(k_[at(layer)], c.kv_heads, head / (c.heads / c.kv_heads), n, d);
  args.v = args.k;
  args.out = AnyView::packed(out.data(), DType::f32, {1, n, 1, d});
  args.mask = mask.set();
  args.inputs.scale = ConstView::packed(&scale, DType::f32, {1});
  args.inputs.softcap = c.attention_softcap;
  args.probe.picks = ConstView::packed(picks.data(), DType::i64, {n, 3});
  args.probe.picked_weights = AnyView::packed(weights_.data(), DType::f32, {n, n});
  attention(args, ctx_, {.picked = n});
  layer_ = layer, head_ = head;
}

std::vector<float> SeenHeads::by_head(const std::vector<float>& rows, Index from_heads, float factor) const {
  const Index n = tokens_, d = config_.head_dim, group = config_.heads / from_heads;
  std::vector<float> out(at(config_.heads * n * d));
  for (Index h = 0; h < config_.heads; ++h)
    for (Index t = 0; t < n; ++t)
      for (Index i = 0; i < d; ++i)
        out[at((h * n + t) * d + i)] = factor * rows[at((t * from_heads + h / group) * d + i)];
  return out;
}

std::vector<float> SeenHeads::queries(Index layer) const {
  const double root = std::sqrt(static_cast<double>(config_.head_dim));
  return by_head(q_[at(layer)], config_.heads,
                 config_.scale > 0 ? static_cast<float>(config_.scale * root) : 1.0f);
}

std::vector<float> SeenHeads::keys(Index layer) const { return by_head(k_[at(layer)], config_.kv_heads, 1); }

}  // namespace headwise
