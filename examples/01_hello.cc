// Hello: causal attention over a small batch, and which kernel ran.
#include <iostream>

#include "headwise/headwise.h"
namespace hw = headwise;

int main() {
  hw::Context ctx;  // threads and workspace of this caller: no globals
  // [batch tokens heads dim]; four query heads share each key and value head.
  const hw::Tensor q = hw::random_normal({2, 128, 8, 64}, hw::DType::f32, /*seed=*/1);
  const hw::Tensor k = hw::random_normal({2, 128, 2, 64}, hw::DType::f32, /*seed=*/2);
  const hw::Tensor v = hw::random_normal({2, 128, 2, 64}, hw::DType::f32, /*seed=*/3);
  hw::Tensor out(hw::DType::f32, {2, 128, 8, 64});
  const hw::Mask mask = hw::Mask::causal() & hw::Mask::window(/*back=*/64, /*ahead=*/0);

  hw::AttentionArgs args;
  args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
  args.mask = mask.set();
  const hw::AttentionPlan plan(hw::problem_of(args), ctx);
  plan.run(args, ctx);

  std::cout << "out " << out.view() << " under " << hw::to_text(mask) << "\n";
  std::cout << "kernel " << plan.kernel() << "\n";
  // The first query sees only the first key, so its output is that key's value.
  std::cout << "first row equals the first value: "
            << (out.values<float>()[0] == v.values<float>()[0] ? "yes" : "no") << "\n";
}
