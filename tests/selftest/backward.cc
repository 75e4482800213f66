// Gradients of every kernel of this CPU level against `ref` in double, and their bits over threads.
#include <map>

#include "tests/selftest/check.h"
#include "tests/support/gradient_yardstick.h"

namespace headwise::selftest {
namespace {

using test::each_gradient;
using test::GradientRun;
using test::GradientTruth;

/// Inputs after their forward, dout, and a place for the gradient of every input.
GradientRun gradients_of(const Inputs& in, Outputs& forward) {
  GradientRun r;
  r.heads = in.heads;
  r.args.forward = in.args();
  r.args.forward.out = forward.out.view(), r.args.forward.lse = forward.lse.view();
  const InputView& out = forward.out.view();
  r.args.dout = r.keep(
      random_normal({out.size[0], out.size[1], out.size[2], out.size[3]}, out.dtype, in.setup.seed + 77));
  each_gradient(r.args, [&](const char*, const InputView& input, AnyView& gradient) {
    if (!input.given()) return;
    Tensor t;
    const Index* n = input.size;
    switch (input.rank) {
      case 1: t = Tensor(input.dtype, {n[0]}); break;
      case 2: t = Tensor(input.dtype, {n[0], n[1]}); break;
      case 3: t = Tensor(input.dtype, {n[0], n[1], n[2]}); break;
      default: t = Tensor(input.dtype, {n[0], n[1], n[2], n[3]}); break;
    }
    gradient = r.keep(std::move(t));
  });
  return r;
}

/// All gradients as one string of bytes.
std::string bytes_of(const GradientRun& r) {
  std::string all;
  each_gradient(r.args, [&](const char*, const InputView&, const InputView& g) {
    if (g.given())
      all.append(static_cast<const char*>(g.data), static_cast<std::size_t>(g.count() * size_of(g.dtype)));
  });
  return all;
}

std::map<std::string, int>& cases_run() {
  static std::map<std::string, int> runs;
  return runs;
}

void against_ref(const Setup& s) {
  const Inputs in = make_inputs(s);
  Outputs forward = run(in);
  GradientRun r = gradients_of(in, forward);
  const GradientTruth truth(r.args, r.heads);
  const BackwardProblem problem = backward_problem_of(r.args, r.heads);
  for (const BackwardKernel& kernel : backward_kernels(Device::Kind::cpu)) {
    if (!kernel.refuse(problem).empty()) continue;
    const std::string part = text("backward ", kernel.name, " ", describe(s));
    piece(part, [&] {
      attention_backward(r.args, context(kernel.name, 1), r.heads);
      const std::string one = bytes_of(r), fault = truth.fault(r.args);
      check(fault.empty(), part, fault);
      attention_backward(r.args, context(kernel.name, 3), r.heads);
      check(one == bytes_of(r), part, "3 threads give other bits than 1");
      ++cases_run()[kernel.name];
    });
  }
}

constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

void sizes(const Options& options) {
  std::uint64_t seed = 700;
  for (const DType dtype : kDtypes)
    for (const Index dim : {1, 8, 20, 33, 64, 128})
      for (const Index tokens : {1, 17, 65, 130}) {
        if (options.quick && (tokens == 130 || dim == 128 || (dim + tokens) % 3 != 0)) continue;
        against_ref({.dtype = dtype,
                     .q_tokens = tokens,
                     .kv_tokens = tokens == 17 ? 33 : tokens,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = dim,
                     .value_dim = dim == 33 ? 20 : dim,
                     .mask = tokens % 2 ? "causal" : "all",
                     .seed = ++seed});
      }
}

void features(const Options& options) {
  const char* masks[] = {"causal", "window(5, 3)", "lengths(0, 30, 61)", "causal | prefix(9)",
                         "dense",  "per head"};
  std::uint64_t seed = 800;
  for (const DType dtype : kDtypes)
    for (int which = 0; which < 8; ++which) {
      if (options.quick && which % 2) continue;
      Setup s{.dtype = dtype,
              .batch = 3,
              .q_tokens = 29,
              .kv_tokens = 61,
              .heads = 4,
              .kv_heads = which % 3 == 0 ? 4 : 2,
              .head_dim = 16,
              .value_dim = 24,
              .mask = masks[which % 6],
              .q_start = 20,
              .seed = ++seed};
      // Each term alone, then all of them.
      const bool all = which == 7;
      s.terms = {.softcap = which == 0 || all,
                 .alibi = which == 1 || all,
                 .bias = which == 2 || all,
                 .relative = which == 3 || all,
                 .sinks = which == 4 || all,
                 .dropout = which == 5 || all,
                 .gate = which == 6 || all};
      s.head_scales = which % 2 == 1;
      s.ragged = which == 1 || which == 6;
      if (s.ragged) s.mask = "causal";
      s.layout = which % 3 == 1 ? Layout::bhsd : which % 3 == 2 ? Layout::spread : Layout::bshd;
      against_ref(s);
      s.kind = which % 2 ? HeadKind::overlapped : HeadKind::shared_key;
      against_ref(s);
    }
}

}  // namespace

void check_backward(const Options& options) {
  for (const auto part : {sizes, features}) piece("backward", [&] { part(options); });
  // A kernel that refused everything was not tested; that must not look like success.
  for (const BackwardKernel& kernel : backward_kernels(Device::Kind::cpu))
    // check_mixed and check_entmax have theirs; cpu/f64_backward is the same at every level.
    if (const std::string_view name = kernel.name;
        !name.starts_with("cpu/mixed") && !name.starts_with("cpu/f64") && name != "cpu/entmax")
      check(cases_run()[kernel.name] > 20, kernel.name,
            text("ran only ", cases_run()[kernel.name], " cases"));
}

}  // namespace headwise::selftest
