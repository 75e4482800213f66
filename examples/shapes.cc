// Shapes people know: self-attention, cross-attention, words over image regions, heads split and joined.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <iostream>

#include "headwise/headwise.h"
namespace hw = headwise;

/// Runs a layer of `heads` over x [batch q_tokens model_dim] and keys [batch kv_tokens model_dim], and says
/// what comes out.
void attend(const char* what, hw::Index batch, hw::Index q_tokens, hw::Index kv_tokens, hw::Index model_dim,
            const char* heads) {
  hw::Context ctx({.threads = 1});
  hw::StepMemory memory;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  const hw::MultiHead layer(params, "attention", heads, {.model_dim = model_dim});
  const hw::Tensor x = hw::random_normal({batch * q_tokens, model_dim}, hw::DType::f32, 2),
                   keys = hw::random_normal({batch * kv_tokens, model_dim}, hw::DType::f32, 3);
  const hw::Index count = layer.head().spec().q.heads, dim = layer.head().spec().q.dim;
  hw::Tensor weights(hw::DType::f32, {batch, count, q_tokens, kv_tokens});
  hw::Call call{.ctx = ctx, .memory = memory};
  hw::MultiHead::Saved saved;
  const hw::AnyView y = layer.forward({.x = x.view(),
                                       .keys = keys.view(),
                                       .sequences = {.batch = batch, .tokens = q_tokens},
                                       .kv_sequences = {.batch = batch, .tokens = kv_tokens},
                                       .weights = weights.view()},
                                      call, &saved);
  double sum = 0, worst = 0;  // of the weights averaged over heads, one query's row: 1
  for (hw::Index i = 0; i < weights.view().count(); ++i) {
    sum += static_cast<double>(weights.values<float>()[static_cast<std::size_t>(i)]);
    if ((i + 1) % kv_tokens == 0) worst = std::max(worst, std::abs(sum - 1)), sum = 0;
  }
  const hw::AnyView out = saved.run->call.run.forward.out;  // [batch tokens heads dim], where W_O reads it
  std::cout << what << "\n  x [" << batch << ' ' << q_tokens << ' ' << model_dim << "], keys [" << batch
            << ' ' << kv_tokens << ' ' << model_dim << "], " << count << " heads of " << dim
            << "\n  heads' output [" << out.size[0] << ' ' << out.size[1] << ' ' << out.size[2] << ' '
            << out.size[3] << "], in torch's order [" << out.size[0] << ' ' << out.size[2] << ' '
            << out.size[1] << ' ' << out.size[3] << "]: a view, no copy\n"
            << "  weights per head [" << batch << ' ' << count << ' ' << q_tokens << ' ' << kv_tokens
            << "], averaged [" << batch << ' ' << q_tokens << ' ' << kv_tokens
            << "], rows sum to 1: " << (worst < 1e-5 ? "yes" : "no") << "\n  y [" << batch << ' ' << q_tokens
            << ' ' << y.count() / batch / q_tokens << "]\n";
}

int main() {
  attend("self-attention, 4 heads", 2, 5, 5, 32, "mha:heads=4,dim=8");
  attend("5 target tokens over 6 source tokens", 2, 5, 6, 32, "mha:heads=4,dim=8");
  attend("10 words over 49 image regions", 1, 10, 49, 64, "mha:heads=8,dim=8");
  attend("512 columns in 8 heads of 64 and back", 5, 10, 10, 512, "mha:heads=8,dim=64");
}
