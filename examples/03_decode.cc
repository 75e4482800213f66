// Decode: four query heads share a key head, tokens arrive one by one, keys lie packed; the bits are
// prefill's.
#include <cstring>
#include <iostream>

#include "headwise/headwise.h"
namespace hw = headwise;

/// Tokens [first, first + count) of x [batch tokens heads dim].
hw::ConstView tokens(const hw::Tensor& x, hw::Index first, hw::Index count) {
  hw::ConstView v = x.view();
  v.data = static_cast<const std::byte*>(v.data) + first * v.step[1] * hw::size_of(v.dtype);
  v.size[1] = count;
  return v;
}

int main() {
  hw::Context ctx;
  const hw::Index prompt = 2500, all = 2510, heads = 8, kv_heads = 2, dim = 64;
  const hw::Tensor q = hw::random_normal({1, all, heads, dim}, hw::DType::f32, 1);
  const hw::Tensor k = hw::random_normal({1, all, kv_heads, dim}, hw::DType::f32, 2);
  const hw::Tensor v = hw::random_normal({1, all, kv_heads, dim}, hw::DType::f32, 3);

  // The whole text at once, to compare with.
  hw::Tensor whole(hw::DType::f32, {1, all, heads, dim});
  const hw::Mask causal = hw::Mask::causal();
  hw::AttentionArgs prefill;
  prefill.q = q.view(), prefill.k = k.view(), prefill.v = v.view(), prefill.out = whole.view();
  prefill.mask = causal.set();
  hw::attention(prefill, ctx);

  // A cache with room for all tokens: packed keys, plain values.
  hw::PackedKeys about = hw::packed_keys(hw::DType::f32, kv_heads, dim, /*capacity=*/all);
  hw::Tensor buffer(hw::DType::f32, {1, kv_heads, about.room()});
  hw::pack_keys(tokens(k, 0, prompt), buffer.view(), about, ctx);

  hw::Tensor out(hw::DType::f32, {1, 1, heads, dim});
  bool same = true;
  std::string kernel;
  for (hw::Index at = prompt; at < all; ++at) {
    hw::append_keys(tokens(k, at, 1), buffer.view(), about, ctx);
    hw::AttentionArgs step;  // the new token sees every key there is: no mask
    step.q = tokens(q, at, 1), step.v = tokens(v, 0, at + 1), step.out = out.view();
    step.k = buffer.view(), step.packed = about;
    const hw::AttentionPlan plan(hw::problem_of(step), ctx);
    plan.run(step, ctx);
    kernel = plan.kernel();
    same = same && std::memcmp(out.view().data, tokens(whole, at, 1).data, heads * dim * sizeof(float)) == 0;
  }
  std::cout << "kernel " << kernel << ", " << about.tokens << " tokens in the cache\n";
  std::cout << "every step has the bits of the prefill: " << (same ? "yes" : "no") << "\n";
}
