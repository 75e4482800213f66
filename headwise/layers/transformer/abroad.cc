#include "headwise/layers/transformer/abroad.h"

namespace headwise {
namespace {

/// The call with its memory on the device; what is asked of single heads goes along, and is refused there.
Call call_there(const Call& call, StepMemory& there) {
  require(call.see_rows == nullptr, ErrorKind::unsupported, "transformer", "the model runs on ",
          there.device(), ", where rows between blocks cannot be looked at; run it on the CPU");
  Call far{.ctx = call.ctx, .memory = there, .training = call.training, .seed = call.seed, .step = call.step};
  far.loss = call.loss, far.loss_layers = call.loss_layers, far.loss_weight = call.loss_weight;
  far.next_site = call.next_site, far.head_budget = call.head_budget;
  far.taps = call.taps, far.edit_heads = call.edit_heads, far.parts = call.parts;
  far.score_bias = call.score_bias, far.dscore_bias = call.dscore_bias, far.bias_block = call.bias_block;
  far.head_gates = call.head_gates, far.dhead_gates = call.dhead_gates;
  return far;
}
void take_back(const Call& far, Call& call) {
  call.loss = far.loss, call.loss_layers = far.loss_layers, call.next_site = far.next_site;
}

}  // namespace

AnyView forward_abroad(const Transformer& model, const TransformerInput& input, Call& call,
                       Transformer::Saved* saved) {
  StepMemory& there = call.memory.on(model.device());
  if (&there == &call.memory) return model.forward(input, call, saved);
  Call far = call_there(call, there);
  TransformerInput copied = input;
  copied.added = to(input.added, there, call.ctx);
  const AnyView rows = model.forward(copied, far, saved);
  take_back(far, call);
  return to(rows, call.memory, call.ctx);
}

AnyView backward_abroad(const Transformer& model, const AnyView& dy, Call& call, Transformer::Saved& saved) {
  StepMemory& there = call.memory.on(model.device());
  if (&there == &call.memory) return model.backward(dy, call, saved);
  Call far = call_there(call, there);
  const AnyView drows = model.backward(to(dy, there, call.ctx), far, saved);
  take_back(far, call);
  return to(drows, call.memory, call.ctx);
}

}  // namespace headwise
