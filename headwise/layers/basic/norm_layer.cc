#include "headwise/layers/basic/norm_layer.h"

#include "headwise/ops/norm/layer_norm.h"
#include "headwise/ops/norm/norm.h"

namespace headwise {

NormLayer::NormLayer(ParamSet& params, std::string_view name, Index dim, NormOptions options)
    : dim_(dim), options_(options) {
  require(dim > 0, ErrorKind::bad_shape, "norm", name, " has ", dim, " columns; they start at 1");
  const auto scope = params.scope(name);
  weight_ = params.add("weight", {dim}, Init::constant(1));
  if (options.kind == NormKind::layer && options.bias) bias_ = params.add("bias", {dim});
}

AnyView NormLayer::forward(const InputView& x, Call& call, Saved* saved) const {
  const AnyView y = call.memory.take(x.dtype, {x.size[0], dim_});
  AnyView moments;
  if (options_.kind == NormKind::layer) {
    if (saved) moments = call.memory.take(DType::f64, {x.size[0], 2});
    layer_norm({.x = x,
                .weight = weight_.value(),
                .bias = bias_.value(),
                .out = y,
                .moments = moments,
                .eps = options_.eps},
               call.ctx);
  } else {
    rms_norm(x, weight_.value(), y, {.eps = options_.eps}, call.ctx);
  }
  if (saved) *saved = {x, moments};
  return y;
}

AnyView NormLayer::backward(const InputView& dy, Call& call, const Saved& saved,
                            const InputView& residual) const {
  const AnyView dx = call.memory.take(dy.dtype, {dy.size[0], dim_});
  if (options_.kind == NormKind::layer) {
    layer_norm_backward({.x = saved.x,
                         .weight = weight_.value(),
                         .dout = dy,
                         .residual = residual,
                         .moments = saved.moments,
                         .dx = dx,
                         .dweight = weight_.grad(),
                         .dbias = bias_.grad(),
                         .eps = options_.eps},
                        call.ctx);
    return dx;
  }
  {
    const Scratch scratch(call.memory);
    // rms_norm_backward writes its dweight; a parameter's gradient is added to.
    AnyView dweight;
    if (weight_.grad().given()) dweight = call.memory.take(weight_.grad().dtype, {dim_});
    rms_norm_backward({.x = saved.x, .weight = weight_.value(), .dout = dy, .dx = dx, .dweight = dweight},
                      {.eps = options_.eps}, call.ctx);
    if (dweight.given()) add_into(weight_.grad(), dweight);
  }
  if (residual.given()) add(dx, residual, dx, call.ctx);
  return dx;
}

}  // namespace headwise
