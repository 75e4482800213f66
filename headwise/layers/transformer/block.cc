#include "headwise/layers/transformer/block.h"

namespace headwise {

Block::Block(ParamSet& params, std::string_view name, const BlockOptions& o) : options_(o) {
  const auto scope = params.scope(name);
  MultiHeadOptions attention{.model_dim = o.model_dim,
                             .bias = o.bias,
                             .out_bias = o.bias,
                             .dropout = o.attention_dropout,
                             .init_scale = o.init_scale,
                             .layer = o.layer,
                             .depth = o.depth,
                             .teams = o.teams};
  require(o.teams == nullptr || o.teams->tensor_ranks() == 1 || o.cross != Cross::merged,
          ErrorKind::unsupported, "block", "merged attention is not cut over ranks yet; use cross-attention");
  require(o.teams == nullptr || o.teams->context_ranks() == 1 || o.cross != Cross::merged,
          ErrorKind::unsupported, "block",
          "merged attention adds a mean over all rows before, which ranks of a context team do not have; use "
          "cross-attention");
  const std::string cross_heads = o.cross_heads.empty() ? o.heads : o.cross_heads;
  if (o.cross == Cross::merged) {
    merged_.emplace(params, "merged", cross_heads, attention);
  } else {
    MultiHeadOptions own = attention;
    if (o.positions == Positions::rope) own.rope = o.rope;
    own.alibi = o.positions == Positions::alibi;
    self_.emplace(params, "attention", o.heads, own);
    if (o.cross == Cross::attention) cross_.emplace(params, "cross", cross_heads, attention);
  }
  feed_.emplace(params, "feed",
                FeedOptions{.kind = o.feed,
                            .model_dim = o.model_dim,
                            .feed_dim = o.feed_dim,
                            .bias = o.bias,
                            .dropout = o.dropout,
                            .init_scale = o.init_scale,
                            .teams = o.teams});
  const int count = 2 + (cross_ ? 1 : 0);
  for (int i = 0; i < count; ++i) norms_.emplace_back(params, text("norm", i + 1), o.model_dim, o.norm);
}

/// norm_first: y = x + f(norm(x)); else y = norm(x + f(x)). f(x, tail) adds the residual itself.
template <class F>
AnyView Block::sublayer(int i, const AnyView& x, Call& call, Saved* saved, F&& f) const {
  const NormLayer& norm = norms_[static_cast<std::size_t>(i)];
  NormLayer::Saved* kept = saved ? &saved->norms[i] : nullptr;
  const Tail tail{.residual = call.parts.residual ? x : AnyView{}, .dropout = options_.dropout};
  if (!call.parts.norms) return f(x, tail);
  return options_.norm_first ? f(norm.forward(x, call, kept), tail) : norm.forward(f(x, tail), call, kept);
}

/// f(slope, residual) gives f's gradient plus the residual.
template <class F>
AnyView Block::sublayer_backward(int i, const AnyView& dy, Call& call, Saved& saved, F&& f) const {
  const NormLayer& norm = norms_[static_cast<std::size_t>(i)];
  // y = x + f(norm(x))  ->  dx = dy + dnorm(df(dy))
  if (options_.norm_first) return norm.backward(f(dy, AnyView{}), call, saved.norms[i], dy);
  // y = norm(s), s = x + f(x)  ->  dx = ds + df(ds)
  const AnyView ds = norm.backward(dy, call, saved.norms[i]);
  return f(ds, ds);
}

AnyView Block::forward(const InputView& x, Call& call, Saved* saved) const {
  check_activation("block", "x", x, options_.model_dim, call.sequences);
  require(options_.cross == Cross::none || call.source.given(), ErrorKind::bad_argument, "block",
          "a decoder with cross-attention needs source rows; set call.source");
  require(!saved || call.parts.whole(), ErrorKind::bad_argument, "block",
          "parts are left out, of which no backward knows; forward without saving");
  AnyView y = x;
  int i = 0;
  Taps* const taps = call.taps;
  const auto looked_at = [&](AttentionPart part) {
    return taps && taps->looks_at(part, cross_.has_value()) ? taps : nullptr;
  };
  const AttentionPart own = call.running;
  call.taps = looked_at(own);
  if (merged_) {  // one attention for both
    call.taps = taps && taps->of != AttentionPart::source ? taps : nullptr;
    call.running = AttentionPart::cross;
    y = sublayer(i++, y, call, saved, [&](const AnyView& in, const Tail& tail) {
      return merged_->forward(in, call, saved ? &saved->merged : nullptr, tail);
    });
    call.running = own;
  }
  if (self_)
    y = sublayer(i++, y, call, saved, [&](const AnyView& in, const Tail& tail) {
      return self_->forward(in, call, saved ? &saved->self : nullptr, tail);
    });
  if (cross_)
    y = sublayer(i++, y, call, saved, [&](const AnyView& in, const Tail& tail) {
      call.running = AttentionPart::cross;
      MultiHeadArgs a = cross_->asked(call);
      a.x = in, a.keys = call.source, a.tail = tail;
      a.sequences = call.sequences, a.kv_sequences = call.source_sequences, a.mask = call.source_mask;
      a.taps = looked_at(AttentionPart::cross);
      if (a.taps && !a.taps->wants(call.block)) a.taps = nullptr;
      return cross_->forward(a, call, saved ? &saved->cross : nullptr);
    });
  call.taps = taps, call.running = own;
  if (!call.parts.feed) return y;
  return sublayer(i, y, call, saved, [&](const AnyView& in, const Tail& tail) {
    return feed_->forward(in, call, saved ? &saved->feed : nullptr, tail);
  });
}

AnyView Block::backward(const InputView& dy, Call& call, Saved& saved) const {
  int i = cross_ ? 2 : 1;
  AnyView slope = sublayer_backward(i--, dy, call, saved, [&](const AnyView& d, const AnyView& residual) {
    return feed_->backward(d, call, saved.feed, residual);
  });
  if (cross_)
    slope = sublayer_backward(i--, slope, call, saved, [&](const AnyView& d, const AnyView& residual) {
      const MultiHeadGrads g = cross_->backward(d, call, saved.cross, residual);
      if (call.dsource.given()) add(call.dsource, g.dkeys, call.dsource, call.ctx);
      return g.dx;
    });
  return sublayer_backward(i, slope, call, saved, [&](const AnyView& d, const AnyView& residual) {
    return merged_ ? merged_->backward(d, call, saved.merged, residual)
                   : self_->backward(d, call, saved.self, residual).dx;
  });
}

}  // namespace headwise
