#include "headwise/decoder/decoder.h"

#include <cmath>

#include "headwise/decoder/pass.h"

namespace headwise {
namespace {

/// Turns of so many positions are kept; longer texts compute them, with the same bits.
constexpr Index kMostTurns = 16'384;

}  // namespace

Decoder::Decoder(DecoderSource& source, const DecoderOptions& options, Context& ctx)
    : config_(source.config()),
      dtype_(options.dtype),
      weights_(source, options.dtype, ctx),
      scale_(DType::f32, {1}) {
  const double plain = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  scale_.values<float>()[0] = static_cast<float>(config_.scale > 0 ? config_.scale : plain);
  if (config_.learned_positions || config_.positions > kMostTurns) return;
  turns_.emplace(config_.rope, config_.head_dim, config_.positions, ctx);
  sliding_turns_.emplace(config_.sliding_rope, config_.head_dim, config_.positions, ctx);
}

KvShape Decoder::kv_shape() const {
  return {.layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .value_dim = config_.head_dim};
}

void Decoder::forward(std::span<const DecoderRow> rows, KvCache& cache, DecoderStep& step,
                      Context& ctx) const {
  DecoderPass(*this, rows, cache, step, ctx).run();
}

std::span<const float> DecoderStep::logits(Index asked) const {
  const float* all = static_cast<const float*>(logits_.view().data);
  return {all + asked * vocabulary_, static_cast<std::size_t>(vocabulary_)};
}

}  // namespace headwise
