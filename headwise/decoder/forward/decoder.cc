#include "headwise/decoder/forward/decoder.h"

#include <bit>
#include <cmath>

#include "headwise/decoder/forward/pass.h"

namespace headwise {
namespace {

/// Turns of so many positions are kept; longer texts compute them, with the same bits.
constexpr Index kMostTurns = 16'384;

DecoderCut checked_cut(const DecoderConfig& c, const DecoderOptions& o) {
  const DecoderCut cut{o.team};
  const Index ranks = cut.ranks();
  const auto refuse = [&](bool right, const auto&... words) {
    require(right, ErrorKind::unsupported, "decoder", words..., ", which ", ranks,
            " ranks cannot share; take fewer");
  };
  if (ranks == 1) return cut;
  refuse(c.heads % ranks == 0, "the model has ", c.heads, " heads");
  refuse(c.kv_heads >= ranks ? c.kv_heads % ranks == 0 : ranks % c.kv_heads == 0, "the model has ",
         c.kv_heads, " kv heads");
  refuse(c.model_dim >= ranks && c.feed_dim >= ranks, "model_dim is ", c.model_dim, " and feed_dim ",
         c.feed_dim);
  refuse(!c.cross, "a ", c.family, " model has cross-attention");
  return cut;
}

}  // namespace

Decoder::Decoder(DecoderSource& source, const DecoderOptions& options, Context& ctx)
    : config_(source.config()),
      options_(options),
      weights_(source, options.dtype, checked_cut(source.config(), options)),
      scale_(DType::f32, {1}) {
  // What differs from rank to rank is known before a text is.
  for (const Communicator* team : {options.team, options.context})
    if (team != nullptr)
      team->agree("decoder", {{"family", config_.family},
                              {"layers", text(config_.layers)},
                              {"feed_dim", text(config_.feed_dim)},
                              {"embedding", text(weights_.embed.fingerprint())},
                              {"numerics", numerics()}});
  const double plain = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  scale_.values<float>()[0] = static_cast<float>(config_.scale > 0 ? config_.scale : plain);
  if (config_.learned_positions || config_.positions > kMostTurns) return;
  turns_.emplace(config_.rope, config_.head_dim, config_.positions, ctx);
  sliding_turns_.emplace(config_.sliding_rope, config_.head_dim, config_.positions, ctx);
}

std::uint64_t Decoder::fingerprint() const {
  const DecoderConfig& c = config_;
  std::uint64_t state = weights_.fingerprint();
  const auto mix = [&](double x) {
    state = (state ^ std::bit_cast<std::uint64_t>(x)) * 0xff51afd7ed558ccdu;
    state ^= state >> 32;
  };
  for (const char letter : c.family) mix(letter);
  for (const Index n :
       {c.layers, c.model_dim, c.feed_dim, c.heads, c.kv_heads, c.head_dim, c.vocabulary, c.positions})
    mix(static_cast<double>(n));
  for (const Index window : c.windows) mix(static_cast<double>(window));
  for (const double x : {c.eps, c.embed_scale, c.scale, c.attention_softcap, c.logit_softcap, c.rope.base,
                         c.sliding_rope.base, static_cast<double>(c.rope.kind),
                         static_cast<double>(c.activation), static_cast<double>(c.norm_weight)})
    mix(x);
  return state;
}

std::string Decoder::numerics() const {
  return text("weights ", options_.dtype.has_value() ? name_of(*options_.dtype) : "as stored", ", rows ",
              options_.rounded_rows ? "rounded to 8 bits before quantized matrices" : "exact",
              weights_.in_parts() ? ", bf16 weights in parts" : "");
}

KvShape Decoder::kv_shape() const {
  return {.layers = config_.layers,
          .kv_heads = DecoderCut{options_.team}.kv_heads(config_).size,
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
