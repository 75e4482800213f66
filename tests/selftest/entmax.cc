// Sparse weights at this CPU level: cpu/entmax against `ref` in double, forward and backward.
#include <cmath>

#include "tests/selftest/check.h"
#include "tests/support/case.h"
#include "tests/support/gradients.h"

namespace headwise::selftest {
namespace {

/// |a - b| / |b| in the 2-norm; sums that cancel to nothing are judged by their own size.
double apart(const InputView& a, const InputView& b) {
  double error = 0, norm = 0, largest = 0;
  for (Index n = 0; n < b.count(); ++n) {
    const double x = load_double(a.data, a.dtype, n), y = load_double(b.data, b.dtype, n);
    error += (x - y) * (x - y), norm += y * y, largest = std::fmax(largest, std::fabs(x - y));
  }
  return largest <= 1e-6 ? 0 : std::sqrt(error / norm);
}

void against_ref(const Setup& s, double alpha) {
  const Inputs in = make_inputs(s);
  const std::string name = text(describe(s), " alpha ", alpha);
  test::GradientRun run;
  run.heads = in.heads;
  run.args.forward = in.args();
  Tensor alphas(DType::f32, {s.heads});
  for (float& x : alphas.values<float>()) x = static_cast<float>(alpha);
  run.args.forward.inputs.alpha = run.keep(std::move(alphas));
  run.args.dout = run.keep(random_normal({s.batch, s.q_tokens, s.heads, s.value_dim}, s.dtype, s.seed + 7));
  test::GradientRun truth = test::in_double(run.args, run.heads);
  truth.args.forward.lse = truth.keep(Tensor(DType::f64, {s.batch, s.heads, s.q_tokens}));
  truth.args.dbias = truth.args.drelative = {};  // which cpu/entmax leaves to ref
  attention(truth.args.forward, context("ref", 2), {}, run.heads);
  attention_backward(truth.args, context("ref", 2), run.heads);

  run.args.forward.out = run.keep(Tensor(s.dtype, {s.batch, s.q_tokens, s.heads, s.value_dim}));
  run.args.forward.lse = run.keep(Tensor(DType::f32, {s.batch, s.heads, s.q_tokens}));
  std::vector<AnyView> wide;
  test::each_gradient(truth.args, [&](const char*, AnyView&, AnyView& g) { wide.push_back(g); });
  std::size_t n = 0;
  test::each_gradient(run.args, [&](const char*, AnyView& input, AnyView& g) {
    if (wide[n++].given()) g = run.keep(test::converted(input, input.dtype));
  });
  attention(run.args.forward, context("cpu/entmax", 2), {}, run.heads);
  attention_backward(run.args, context("cpu/entmax", 2), run.heads);
  // A weight is off by its logit's rounding times the power of its distance from tau.
  const double bound = s.dtype == DType::f32   ? 2e-5 * (1 + 1 / (alpha - 1))
                       : s.dtype == DType::f16 ? 4e-3
                                               : 3e-2;
  const auto near = [&](const char* what, const InputView& got, const InputView& want) {
    const double error = apart(got, want);
    check(error <= bound, "cpu/entmax", text(name, ": ", what, " is ", error, " from ref"));
  };
  near("out", run.args.forward.out, truth.args.forward.out);
  near("tau", run.args.forward.lse, truth.args.forward.lse);
  n = 0;
  test::each_gradient(run.args, [&](const char* what, AnyView&, AnyView& g) {
    if (const InputView& w = wide[n++]; w.given()) near(what, g, w);
  });
}

}  // namespace

void check_entmax(const Options& options) {
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const double alpha : {1.5, 2.0, 1.3})
      for (const char* mask : {"all", "causal", "causal & window(9, 0)"})
        for (const Index tokens : {7, 40, 130}) {
          if (options.quick && (dtype == DType::f16 || tokens == 130)) continue;
          Setup s{.dtype = dtype, .batch = 2, .q_tokens = tokens, .kv_tokens = tokens, .heads = 4};
          s.kv_heads = 2, s.head_dim = 24, s.value_dim = 17, s.mask = mask, s.seed = ++seed;
          s.terms = {.softcap = tokens == 40, .alibi = tokens == 40, .gate = tokens == 7};
          piece("entmax", [&] { against_ref(s, alpha); });
        }
}

}  // namespace headwise::selftest
