#include "headwise/layers/basic/feed_forward.h"

#include "headwise/ops/row/activation.h"

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
  const bool relu = options_.kind == FeedKind::relu;
  s.slope = {};
  if (saved && !gate_ && !relu)
    s.slope = call.memory.take(x.dtype == DType::f64 ? DType::f64 : DType::f32, {rows, options_.feed_dim});
  AnyView inner = in_->forward(x, call, &s.in, {}, gate_ ? Activation::none : activation(), s.slope);
  s.before = inner;
  if (gate_) {
    s.gated = gate_->forward(x, call, &s.gate);
    inner = call.memory.take(x.dtype, {rows, options_.feed_dim});
    gated(activation(), s.before, s.gated, inner, call.ctx);
  }
  if (dropped.p > 0) {
    const bool kept = relu && saved;  // `before` is read again
    const AnyView to = kept ? call.memory.take(x.dtype, {rows, options_.feed_dim}) : inner;
    dropout(inner, {}, dropped, to, call.ctx);
    inner = to;
  }
  return out_->forward(inner, call, &s.out, tail);
}

AnyView FeedForward::backward(const AnyView& dy, Call& call, const Saved& saved,
                              const AnyView& residual) const {
  // inner = dropout(act(W_1 x))  ->  dW_1 x = dropout'(dinner * act'(W_1 x)): the order of factors is free.
  const AnyView dinner = out_->backward(dy, call, saved.out, {}, saved.slope);
  if (saved.dropout.p > 0) dropout_backward(dinner, saved.dropout, dinner, call.ctx);
  if (!gate_) {
    if (!saved.slope.given()) activation_backward(activation(), saved.before, dinner, dinner, call.ctx);
    return in_->backward(dinner, call, saved.in, residual);
  }
  const AnyView dgate = call.memory.take(dy.dtype, {dy.size[0], options_.feed_dim});
  gated_backward(activation(), saved.before, saved.gated, dinner, dinner, dgate, call.ctx);
  return in_->backward(dinner, call, saved.in, gate_->backward(dgate, call, saved.gate, residual));
}

}  // namespace headwise
