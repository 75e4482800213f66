#include "headwise/layers/feed_forward.h"

#include "headwise/ops/activation.h"

namespace headwise {

FeedForward::FeedForward(ParamSet& params, std::string_view name, const FeedOptions& o) : options_(o) {
  const auto scope = params.scope(name);
  const LinearOptions linear{.bias = o.bias, .init_scale = o.init_scale};
  in_.emplace(params, "in", o.model_dim, o.feed_dim, linear);
  if (o.kind == FeedKind::swiglu) gate_.emplace(params, "gate", o.model_dim, o.feed_dim, linear);
  out_.emplace(params, "out", o.feed_dim, o.model_dim, linear);
}

Activation FeedForward::activation() const {
  switch (options_.kind) {
    case FeedKind::relu: return Activation::relu;
    case FeedKind::gelu: return Activation::gelu;
    case FeedKind::gelu_tanh: return Activation::gelu_tanh;
    case FeedKind::swiglu: return Activation::silu;
  }
  return Activation::none;
}

AnyView FeedForward::forward(const AnyView& x, Call& call, Saved* saved, const Tail& tail) const {
  const Index rows = x.size[0];
  const DropoutOptions dropped = call.next_dropout(options_.dropout);
  Saved local;
  Saved& s = saved ? *saved : local;
  s.dropout = dropped;
  // relu's slope is known from its output: nothing but that is kept.
  const bool fused = gate_ ? false : !saved || options_.kind == FeedKind::relu;
  AnyView inner = in_->forward(x, call, &s.in, {}, fused ? activation() : Activation::none);
  s.before = inner;
  if (gate_) {
    s.gated = gate_->forward(x, call, &s.gate);
    inner = call.memory.take(x.dtype, {rows, options_.feed_dim});
    gated(activation(), s.before, s.gated, inner, call.ctx);
  } else if (!fused) {
    inner = call.memory.take(x.dtype, {rows, options_.feed_dim});
    headwise::activation(activation(), s.before, inner, call.ctx);
  }
  if (dropped.p > 0) {
    const bool kept = fused && saved;  // relu: `before` is read again
    const AnyView to = kept ? call.memory.take(x.dtype, {rows, options_.feed_dim}) : inner;
    dropout(inner, {}, dropped, to, call.ctx);
    inner = to;
  }
  return out_->forward(inner, call, &s.out, tail);
}

AnyView FeedForward::backward(const AnyView& dy, Call& call, const Saved& saved,
                              const AnyView& residual) const {
  const AnyView dinner = out_->backward(dy, call, saved.out);
  if (saved.dropout.p > 0) dropout_backward(dinner, saved.dropout, dinner, call.ctx);
  if (!gate_) {
    activation_backward(activation(), saved.before, dinner, dinner, call.ctx);
    return in_->backward(dinner, call, saved.in, residual);
  }
  const AnyView dgate = call.memory.take(dy.dtype, {dy.size[0], options_.feed_dim});
  gated_backward(activation(), saved.before, saved.gated, dinner, dinner, dgate, call.ctx);
  return in_->backward(dinner, call, saved.in, gate_->backward(dgate, call, saved.gate, residual));
}

}  // namespace headwise
