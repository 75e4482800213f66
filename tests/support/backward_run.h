// BackwardRun: one named size of attention with its gradients, after its forward; run on every kernel there
// is.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>

#include "headwise/base/context.h"
#include "headwise/ops/attention/backward.h"
#include "tests/support/gradients.h"
#include "tests/support/online.h"

namespace headwise::test {

/// One context for each list of kernels and thread count, kept.
inline Context& context_of(const std::string& kernels, int threads = 2) {
  static std::map<std::pair<std::string, int>, std::unique_ptr<Context>> all;
  auto& ctx = all[{kernels, threads}];
  if (!ctx) ctx = std::make_unique<Context>(ContextOptions{.threads = threads, .kernels = kernels});
  return *ctx;
}

/// The kernels that go head by head: those for mixed heads, entmax and f64 have tests of their own.
inline std::vector<BackwardKernel> kernels_head_by_head() {
  std::vector<BackwardKernel> all;
  for (const BackwardKernel& kernel : backward_kernels(Device::Kind::cpu))
    if (const std::string_view name = kernel.name;
        !name.starts_with("cpu/mixed") && !name.starts_with("cpu/f64") && name != "cpu/entmax")
      all.push_back(kernel);
  return all;
}

/// Calls f(name) for each of them: ref once, the others at each ISA level.
inline void each_backward_kernel(const std::function<void(const char*)>& f) {
  for (const BackwardKernel& kernel : kernels_head_by_head()) {
    SCOPED_TRACE(kernel.name);
    if (kernel.name == std::string("ref"))
      f(kernel.name);
    else
      each_level([&] { f(kernel.name); });
  }
}

struct BackwardRun {
  CaseRun inputs;
  Tensor dout, dq, dk, dv;
  BackwardArgs args;

  explicit BackwardRun(const Case& c, std::uint64_t seed = 1)
      : inputs(c, seed),
        dout(random_normal({c.batch, c.q_tokens, c.heads, c.value_dim}, c.dtype, seed + 3000)),
        dq(c.dtype, {c.batch, c.q_tokens, c.heads, c.head_dim}),
        dk(c.dtype, {c.batch, c.kv_tokens, c.kv_heads, c.head_dim}),
        dv(c.dtype, {c.batch, c.kv_tokens, c.kv_heads, c.value_dim}) {
    point();
  }
  void point() {
    args.forward = inputs.args;
    args.dout = dout.view(), args.dq = dq.view(), args.dk = dk.view(), args.dv = dv.view();
  }
  /// Runs the forward on the best kernel: what backward reads stands in out and lse.
  void forward(const HeadSpec& heads = {}) { attention(args.forward, context_of(""), {}, heads); }
  void poison_gradients() const { poison(dq), poison(dk), poison(dv); }
};

/// A run with every score term and every gradient.
struct FullBackward : BackwardRun {
  Tensor scale, slopes, bias, relative, sinks, gate, ids;
  Tensor dscale, dslopes, dbias, drelative, dsinks, dgate;
  Mask mask;
  explicit FullBackward(const Case& c, std::uint64_t seed = 1) : BackwardRun(c, seed) {
    scale = filled(c.heads, 0.3), slopes = filled(c.heads, 0.05), sinks = filled(c.heads, 0.5);
    bias = random_normal({1, c.heads, 1, c.kv_tokens}, DType::f32, 7);
    relative = random_normal({16, c.heads}, DType::f32, 8);
    gate = random_normal({c.batch, c.q_tokens, c.heads}, DType::f32, 9);
    ids = tensor_of(random_integers(c.batch, 0, 99, 3));
    mask = Mask::causal() & (Mask::window(100, 0) | Mask::strided(9, 2));
    dscale = scale.clone(), dslopes = slopes.clone(), dbias = bias.clone(), drelative = relative.clone();
    dsinks = sinks.clone(), dgate = gate.clone();
    point_terms();
  }
  void point_terms() {
    args.forward.inputs = {.scale = scale.view(),
                           .softcap = 20,
                           .slopes = slopes.view(),
                           .bias = bias.view(),
                           .relative = relative.view(),
                           .buckets = {.buckets = 16, .max_distance = 90, .bidirectional = true},
                           .sinks = sinks.view(),
                           .gate = gate.view(),
                           .dropout = 0.1,
                           .seed = 5,
                           .sequence_ids = ids.view()};
    args.forward.mask = mask.set();
    args.dscale = dscale.view(), args.dslopes = dslopes.view(), args.dbias = dbias.view();
    args.drelative = drelative.view(), args.dsinks = dsinks.view(), args.dgate = dgate.view();
  }
};

/// Copies of every gradient of a run, by name.
using Gradients = std::map<std::string, Tensor>;
inline Gradients gradients_of(const BackwardArgs& a) {
  Gradients all;
  each_gradient(a, [&](const char* name, const InputView&, const InputView& gradient) {
    if (gradient.given()) all.emplace(name, converted(gradient, gradient.dtype));
  });
  return all;
}
inline void poison_gradients(const BackwardArgs& a) {
  each_gradient(a, [&](const char*, const InputView&, const InputView& v) {
    for (Index n = 0; n < v.count(); ++n) {
      Index rest = n, at = 0;
      for (int axis = v.rank - 1; axis >= 0; --axis)
        at += rest % v.size[axis] * v.step[axis], rest /= v.size[axis];
      store_double(v.data, v.dtype, at, kNan);
    }
  });
}
/// Runs on `kernel` over poisoned gradients and gives copies of them.
inline Gradients run_backward(const BackwardArgs& a, const char* kernel, int threads = 2,
                              const HeadSpec& heads = {}) {
  poison_gradients(a);
  attention_backward(a, context_of(kernel, threads), heads);
  return gradients_of(a);
}
inline void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& what = "") {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(same_bits(tensor, b.at(name))) << "d" << name << " " << what;
}
inline bool all_finite(const Tensor& t) {
  for (Index n = 0; n < t.view().count(); ++n)
    if (!std::isfinite(load_double(t.view().data, t.dtype(), n))) return false;
  return true;
}
inline bool all_zero(const Tensor& t) {
  for (Index n = 0; n < t.view().count(); ++n)
    if (load_double(t.view().data, t.dtype(), n) != 0) return false;
  return true;
}

}  // namespace headwise::test
