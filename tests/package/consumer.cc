#include <iostream>

#include "headwise/headwise.h"
namespace hw = headwise;

int main() {
  hw::Context ctx;
  const hw::Tensor q = hw::random_normal({1, 5, 2, 8}, hw::DType::f32, 1);  // [batch tokens heads dim]
  hw::Tensor v(hw::DType::f32, {1, 5, 2, 8}), out(hw::DType::f32, {1, 5, 2, 8});
  for (float& x : v.values<float>()) x = 1.0f;
  const hw::Mask mask = hw::Mask::causal();
  hw::attention({.q = q.view(), .k = q.view(), .v = v.view(), .out = out.view(), .mask = mask.set()}, ctx);
  for (const float x : out.values<float>())
    if (x < 0.999999f || x > 1.000001f) return 1;  // weights sum to 1
  hw::Tensor dv(hw::DType::f32, {1, 5, 2, 8});
  hw::attention_backward({.forward = {.q = q.view(), .k = q.view(), .v = v.view(), .mask = mask.set()},
                          .dout = out.view(),
                          .dv = dv.view()},
                         ctx);
  float sum = 0;
  for (const float x : dv.values<float>()) sum += x;
  if (sum < 79.99f || sum > 80.01f) return 3;  // every weight hands its share of 80 ones on
  try {
    hw::parse_mask("causal &");
    return 2;
  } catch (const hw::Error& e) {
    std::cout << hw::kVersion << ' ' << e.what() << '\n';
  }
}
