#include "headwise/layers/transformer/mirror.h"

#include "headwise/base/context.h"
#include "headwise/layers/transformer/abroad.h"

namespace headwise {

namespace {

/// v, row-major, rounded to a dtype in `memory`; v itself where it has that.
AnyView rounded(const InputView& v, DType dtype, StepMemory& memory, Context& ctx) {
  if (!v.given() || v.dtype == dtype) return v;
  constexpr Index kPiece = Index{1} << 14;
  AnyView to = v;
  to.dtype = dtype;
  to.data = memory.take(dtype, {v.count()}).data;
  const Index n = v.count();
  visit_float(v.dtype, [&]<class From>(Type<From>) {
    visit_float(dtype, [&]<class To>(Type<To>) {
      const From* const from = static_cast<const From*>(v.data);
      To* const at = static_cast<To*>(to.data);
      ctx.pool().parallel_for(ceil_div(n, kPiece), [&](Index piece, int) noexcept {
        for (Index i = piece * kPiece; i < min_of(n, (piece + 1) * kPiece); ++i)
          at[i] = static_cast<To>(static_cast<float>(from[i]));
      });
    });
  });
  return to;
}

}  // namespace

TransformerMirror::TransformerMirror(const TransformerConfig& config, ParamSet& home, Device device,
                                     DType dtype, Context& ctx)
    : params_(ParamSet::blank(dtype)), model_(params_, config) {
  for (Param& there : params_.all())
    for (Param& p : home.all())
      if (p.name == there.name) pairs_.emplace_back(&p, &there);
  require(pairs_.size() == params_.all().size(), ErrorKind::bad_argument, "mirror", "the set has ",
          pairs_.size(), " of the model's ", params_.all().size(),
          " parameters; give the set the model was made in");
  move(device, ctx);
  copy_values(ctx);
}

void TransformerMirror::move(Device device, Context& ctx) {
  constexpr std::string_view kAll[] = {""};
  moved_ = DeviceParams(params_, kAll, device, ctx);
}

void TransformerMirror::copy_values(Context& ctx) {
  StepMemory staging;
  for (const auto& [home, there] : pairs_)
    to(rounded(home->value, params_.dtype(), staging, ctx), there->value, ctx);
  wait(device(), ctx);  // before the rounded values go
}

AnyView TransformerMirror::forward(const TransformerInput& input, Call& call, Transformer::Saved* saved) {
  if (saved && !learns_) {
    require(params_.dtype() == pairs_.front().first->value.dtype, ErrorKind::unsupported, "mirror",
            "the model computes in ", params_.dtype(), " on ", device(), ", where it learns in ",
            pairs_.front().first->value.dtype, "; take that");
    const Device there = device();
    moved_.bring_home(call.ctx);
    params_.make_grads();
    move(there, call.ctx);
    learns_ = true;
  }
  if (learns_) copy_values(call.ctx);
  TransformerInput in = input;
  in.added = rounded(input.added, params_.dtype(), call.memory, call.ctx);
  const DType home = pairs_.front().first->value.dtype;
  return rounded(forward_abroad(model_, in, call, saved), home, call.memory, call.ctx);
}

AnyView TransformerMirror::backward(const AnyView& dy, Call& call, Transformer::Saved& saved) {
  moved_.zero_grads(call.ctx);
  const AnyView drows = backward_abroad(model_, dy, call, saved);
  for (const auto& [home, there] : pairs_) {
    if (!home->grad.given()) continue;
    const Scratch scratch(call.memory);
    add_into(home->grad, to(there->grad, call.memory, call.ctx));
  }
  return drows;
}

}  // namespace headwise
