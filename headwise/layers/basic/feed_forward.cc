#include "headwise/layers/basic/feed_forward.h"

#include "headwise/layers/basic/leaves.h"
#include "headwise/ops/row/activation.h"

namespace headwise {
namespace {

/// Of what lies between the two maps; forward and backward alike, see dropout_backward.
void drop(const FeedOptions& options, const AnyView& x, const DropoutOptions& o, const AnyView& out,
          Call& call) {
  if (options.teams != nullptr)
    drop_columns(x, options.feed_dim, o, out, call, *options.teams);
  else
    dropout(x, {}, o, out, call.ctx);
}

}  // namespace

FeedForward::FeedForward(ParamSet& params, std::string_view name, const FeedOptions& o) : options_(o) {
  const auto scope = params.scope(name);
  const LinearOptions wide{.bias = o.bias,
                           .init_scale = o.init_scale,
                           .cut = Cut::out,
                           .teams = o.teams,
                           .leaves = leaves_of(o.feed_dim)};
  LinearOptions narrow = wide;
  narrow.cut = Cut::in;
  in_.emplace(params, "in", o.model_dim, o.feed_dim, wide);
  if (o.kind == FeedKind::swiglu) gate_.emplace(params, "gate", o.model_dim, o.feed_dim, wide);
  out_.emplace(params, "out", o.feed_dim, o.model_dim, narrow);
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

AnyView FeedForward::forward(const InputView& x, Call& call, Saved* saved, const Tail& tail) const {
  const Index rows = x.size[0];
  const DropoutOptions dropped = call.next_dropout(options_.dropout);
  if (options_.teams != nullptr) check_cut(call, saved != nullptr, 0, *options_.teams);
  Saved local;
  Saved& s = saved ? *saved : local;
  s.dropout = dropped;
  // relu's slope is known from its output: nothing but that is kept.
  const bool relu = options_.kind == FeedKind::relu;
  s.slope = {};
  if (saved && !gate_ && !relu)
    s.slope = call.memory.take(x.dtype == DType::f64 ? DType::f64 : DType::f32, {rows, in_->out()});
  AnyView inner = in_->forward(x, call, &s.in, {}, gate_ ? Activation::none : activation(), s.slope);
  s.before = inner;
  if (gate_) {
    s.gated = gate_->forward(x, call, &s.gate);
    inner = call.memory.take(x.dtype, {rows, in_->out()});
    gated(activation(), s.before, s.gated, inner, call.ctx);
  }
  if (dropped.p > 0) {
    const bool kept = relu && saved;  // `before` is read again
    const AnyView to = kept ? call.memory.take(x.dtype, {rows, in_->out()}) : inner;
    drop(options_, inner, dropped, to, call);
    inner = to;
  }
  return out_->forward(inner, call, &s.out, tail);
}

AnyView FeedForward::backward(const InputView& dy, Call& call, const Saved& saved,
                              const InputView& residual) const {
  // inner = dropout(act(W_1 x))  ->  dW_1 x = dropout'(dinner * act'(W_1 x)): the order of factors is free.
  const AnyView dinner = out_->backward(dy, call, saved.out, {}, saved.slope);
  if (saved.dropout.p > 0) drop(options_, dinner, saved.dropout, dinner, call);
  if (!gate_) {
    if (!saved.slope.given()) activation_backward(activation(), saved.before, dinner, dinner, call.ctx);
    return in_->backward(dinner, call, saved.in, residual);
  }
  const AnyView dgate = call.memory.take(dy.dtype, {dy.size[0], in_->out()});
  gated_backward(activation(), saved.before, saved.gated, dinner, dinner, dgate, call.ctx);
  if (in_->sums_backward()) {
    const Linear* const maps[] = {&*gate_, &*in_};
    const AnyView slopes[] = {dgate, dinner};
    return Linear::backward_together(maps, slopes, saved.in.x, call, residual);
  }
  return in_->backward(dinner, call, saved.in, gate_->backward(dgate, call, saved.gate, residual));
}

}  // namespace headwise
