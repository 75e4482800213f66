#include "headwise/layers/transformer/transformer.h"

#include <utility>

#include "headwise/heads/sums.h"

namespace headwise {
namespace {

StackOptions stack_of(const TransformerConfig& c, Index depth, Cross cross) {
  StackOptions s{
      .depth = depth, .share_layers = c.share_layers, .final_norm = c.final_norm, .ds_init = c.ds_init};
  s.block = {.heads = c.heads,
             .cross_heads = c.cross_heads,
             .cross = cross,
             .model_dim = c.model_dim,
             .feed_dim = c.feed_dim,
             .feed = c.feed,
             .norm = c.norm,
             .norm_first = c.norm_first,
             .bias = c.bias,
             .dropout = c.dropout,
             .attention_dropout = c.attention_dropout,
             .positions = c.positions,
             .teams = c.teams};
  return s;
}
EmbedOptions embed_of(const TransformerConfig& c, Index vocabulary) {
  return {.vocabulary = vocabulary,
          .model_dim = c.model_dim,
          .max_tokens = c.max_tokens,
          .positions = c.positions,
          .scaled = c.scaled_embedding,
          .token_types = c.token_types,
          .norm = c.embed_norm ? std::optional(c.norm) : std::nullopt,
          .dropout = c.dropout};
}

}  // namespace

Transformer::Transformer(ParamSet& params, const TransformerConfig& c) : config_(c), causal_(Mask::causal()) {
  const bool both = c.kind == ModelKind::encoder_decoder;
  if (both) {
    source_embed_.emplace(params, "source_embed",
                          embed_of(c, c.source_vocabulary ? c.source_vocabulary : c.vocabulary));
    source_stack_.emplace(params, "source_stack",
                          stack_of(c, c.source_depth ? c.source_depth : c.depth, Cross::none));
  }
  embed_.emplace(params, "embed", embed_of(c, c.vocabulary));
  stack_.emplace(params, "stack",
                 stack_of(c, c.depth,
                          !both                ? Cross::none
                          : c.merged_attention ? Cross::merged
                                               : Cross::attention));
  if (c.kind == ModelKind::encoder) {
    if (c.outputs > 0) out_.emplace(params, "out", c.model_dim, c.outputs, LinearOptions{.bias = c.bias});
  } else if (!c.tied) {
    out_.emplace(params, "out", c.model_dim, c.vocabulary, LinearOptions{.bias = false});
  }
}

/// The call as the stack over `ids` reads it.
void Transformer::set_up(const TransformerInput& input, Call& call) const {
  call.sequences = input.sequences;
  call.mask = input.mask;
  if (config_.kind != ModelKind::encoder && !input.mask.given()) call.mask = causal_.set();
  call.source_sequences = input.source_sequences;
  call.source_mask = input.cross_mask;
}

AnyView Transformer::encode(const TransformerInput& input, Call& call, Saved* saved) const {
  call.sequences = input.source_sequences, call.mask = input.source_mask, call.source = {};
  call.running = AttentionPart::source;
  // Unless the encoder's are asked for, they are the decoder's.
  Taps* const taps =
      std::exchange(call.taps, call.taps && call.taps->of == AttentionPart::source ? call.taps : nullptr);
  const AnyView rows = source_embed_->forward(input.source_ids, call, saved ? &saved->source_embed : nullptr);
  const AnyView source = source_stack_->forward(rows, call, saved ? &saved->source_stack : nullptr);
  call.taps = taps, call.running = AttentionPart::own;
  return source;
}

AnyView Transformer::forward(const TransformerInput& input, Call& call, Saved* saved) const {
  call.source = source_stack_ ? encode(input, call, saved) : AnyView{};
  set_up(input, call);
  const AnyView x = embed_->forward(input.ids, input.types, call, saved ? &saved->embed : nullptr);
  if (input.added.given()) add(x, input.added, x, call.ctx);
  const AnyView rows = stack_->forward(x, call, saved ? &saved->stack : nullptr);
  if (saved) saved->rows = rows, saved->source = call.source, saved->input = input;
  if (out_) return out_->forward(rows, call, saved ? &saved->out : nullptr);
  if (config_.kind == ModelKind::encoder) return rows;
  return project_rows(rows, embed_->table(), {}, call);
}

AnyView Transformer::backward(const InputView& dy, Call& call, Saved& saved) const {
  call.source = saved.source;
  set_up(saved.input, call);
  AnyView slope = dy;
  if (out_)
    slope = out_->backward(dy, call, saved.out);
  else if (config_.kind != ModelKind::encoder)
    slope = project_rows_backward(dy, saved.rows, embed_->table(), {}, call);
  call.dsource = {};
  if (source_stack_) {
    call.dsource = call.memory.take(dy.dtype, {saved.source.size[0], saved.source.size[1]});
    clear(call.dsource, call.ctx);
  }
  const AnyView drows = stack_->backward(slope, call, saved.stack);
  embed_->backward(drows, call, saved.embed);
  if (!source_stack_) return drows;
  const AnyView dsource = call.dsource;
  call.sequences = saved.input.source_sequences, call.mask = saved.input.source_mask;
  call.source = call.dsource = {};
  source_embed_->backward(source_stack_->backward(dsource, call, saved.source_stack), call,
                          saved.source_embed);
  return drows;
}

}  // namespace headwise
