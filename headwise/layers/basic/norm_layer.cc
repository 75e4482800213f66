#include "headwise/layers/basic/norm_layer.h"

#include "headwise/heads/sums.h"
#include "headwise/layers/basic/team_rows.h"
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

namespace {

/// What layer_norm keeps of its rows, in the form it has where x lies.
AnyView take_moments(const AnyView& x, Call& call) {
  return x.on_cpu() ? call.memory.take(DType::f64, {x.size[0], 2})
                    : call.memory.take(DType::f32, {2, x.size[0]});
}

}  // namespace

AnyView NormLayer::forward(const InputView& x, Call& call, Saved* saved) const {
  const AnyView y = call.memory.take(x.dtype, {x.size[0], dim_});
  AnyView moments;
  if (options_.kind == NormKind::layer) {
    if (saved) moments = take_moments(x, call);
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

/// Of the weight and the bias alone, over the rows of all ranks: every rank makes the whole sums.
void NormLayer::learn_from_team(const AnyView& dy, Call& call, const Saved& saved) const {
  const bool layer = options_.kind == NormKind::layer;
  if (!weight_.grad().given() && !bias_.grad().given()) return;
  const Scratch scratch(call.memory);
  const AnyView x = rows_of_team(saved.x, call, "rows of a norm"),
                d = rows_of_team(dy, call, "rows of a norm");
  if (layer)
    return layer_norm_backward({.x = x,
                                .weight = weight_.value(),
                                .dout = d,
                                .moments = rows_of_team(saved.moments, call, "moments of a norm"),
                                .dweight = weight_.grad(),
                                .dbias = bias_.grad(),
                                .eps = options_.eps},
                               call.ctx);
  const AnyView dweight = call.memory.take(weight_.grad().dtype, {dim_});
  rms_norm_backward({.x = x, .weight = weight_.value(), .dout = d, .dweight = dweight}, {.eps = options_.eps},
                    call.ctx);
  add_into(weight_.grad(), dweight);
}

AnyView NormLayer::backward(const InputView& dy, Call& call, const Saved& saved,
                            const InputView& residual) const {
  const AnyView dx = call.memory.take(dy.dtype, {dy.size[0], dim_});
  const bool cut = call.rows_team != nullptr;
  if (cut) learn_from_team(dy, call, saved);
  const AnyView weight_grad = cut ? AnyView{} : weight_.grad(), bias_grad = cut ? AnyView{} : bias_.grad();
  if (options_.kind == NormKind::layer) {
    layer_norm_backward({.x = saved.x,
                         .weight = weight_.value(),
                         .dout = dy,
                         .residual = residual,
                         .moments = saved.moments,
                         .dx = dx,
                         .dweight = weight_grad,
                         .dbias = bias_grad,
                         .eps = options_.eps},
                        call.ctx);
    return dx;
  }
  {
    const Scratch scratch(call.memory);
    // rms_norm_backward writes its dweight; a parameter's gradient is added to.
    AnyView dweight;
    if (weight_grad.given()) dweight = call.memory.take(weight_grad.dtype, {dim_});
    AnyView room;
    if (!dy.on_cpu()) room = call.memory.take(DType::f32, {dy.size[0]});
    rms_norm_backward(
        {.x = saved.x, .weight = weight_.value(), .dout = dy, .dx = dx, .dweight = dweight, .room = room},
        {.eps = options_.eps}, call.ctx);
    if (dweight.given() && dweight.on_cpu()) add_into(weight_grad, dweight);
    if (dweight.given() && !dweight.on_cpu()) add_to(weight_grad, dweight, call.ctx);
  }
  if (residual.given()) add(dx, residual, dx, call.ctx);
  return dx;
}

}  // namespace headwise
