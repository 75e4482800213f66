#include "headwise/layers/basic/linear.h"

#include "headwise/ops/projection/backward.h"
#include "headwise/ops/projection/projection.h"

namespace headwise {

Linear::Linear(ParamSet& params, std::string_view name, Index in, Index out, LinearOptions options)
    : in_(in), out_(out) {
  require(in > 0 && out > 0, ErrorKind::bad_shape, "linear", name, " goes from ", in, " to ", out,
          " columns; both start at 1");
  const auto scope = params.scope(name);
  const double range = options.init_scale * std::sqrt(6 / static_cast<double>(in + out));
  weight_ = params.add("weight", {out, in}, Init::uniform(range));
  if (options.bias) bias_ = params.add("bias", {out});
}

AnyView project_rows(const AnyView& x, const Learned& weight, const Learned& bias, Call& call,
                     const AnyView& residual, Activation activation, const AnyView& slope) {
  const AnyView y = call.memory.take(x.dtype, {x.size[0], weight.value().size[0]});
  projection({.x = x,
              .weight = weight.value(),
              .bias = bias.value(),
              .residual = residual,
              .slope = slope,
              .out = y,
              .parts = call.training},
             activation, call.ctx);
  return y;
}

AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const Learned& weight, const Learned& bias,
                              Call& call, const AnyView& residual, const AnyView& factor) {
  return project_rows_backward(dy, x,
                               {.weight = weight.value(), .dweight = weight.grad(), .dbias = bias.grad()},
                               call, residual, factor);
}

AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const LinearViews& of, Call& call,
                              const AnyView& residual, const AnyView& factor) {
  const AnyView w = of.weight;
  const AnyView dx = call.memory.take(dy.dtype, {dy.size[0], w.size[1]});
  // y = x W^T  ->  dx = dy W: a projection by the transposed weight, so that a residual costs no pass.
  AnyView turned = w;
  turned.size[0] = w.size[1], turned.size[1] = w.size[0];
  turned.step[0] = w.step[1], turned.step[1] = w.step[0];
  projection(
      {.x = dy, .weight = turned, .residual = residual, .factor = factor, .out = dx, .parts = call.training},
      Activation::none, call.ctx);
  if (of.dweight.given() || of.dbias.given())
    projection_backward({.dy = dy, .x = x, .dweight = of.dweight, .dbias = of.dbias, .parts = call.training},
                        call.ctx);
  return dx;
}

AnyView Linear::forward(const AnyView& x, Call& call, Saved* saved, const Tail& tail, Activation activation,
                        const AnyView& slope) const {
  const DropoutOptions dropped = call.next_dropout(tail.dropout);
  const bool drops = dropped.p > 0;
  const AnyView y =
      project_rows(x, weight_, bias_, call, drops ? AnyView{} : tail.residual, activation, slope);
  if (drops) dropout(y, tail.residual, dropped, y, call.ctx);
  if (saved) *saved = {x, dropped};
  return y;
}

AnyView Linear::backward(const AnyView& dy, Call& call, const Saved& saved, const AnyView& residual,
                         const AnyView& factor) const {
  if (saved.dropout.p == 0) return project_rows_backward(dy, saved.x, weight_, bias_, call, residual, factor);
  const AnyView dropped = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
  dropout_backward(dy, saved.dropout, dropped, call.ctx);
  return project_rows_backward(dropped, saved.x, weight_, bias_, call, residual, factor);
}

}  // namespace headwise
