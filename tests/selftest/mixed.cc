// Mixed heads at this CPU level: every kernel for them against `ref` in double, forward and backward.
#include <cmath>
#include <map>

#include "tests/selftest/check.h"
#include "tests/support/gradients.h"
#include "tests/support/mix_case.h"

namespace headwise::selftest {
namespace {

using test::converted;
using test::MixCase;
using test::MixRun;

/// |a - b| / |b| in the 2-norm.
double apart(const InputView& a, const InputView& b) {
  double error = 0, norm = 0;
  for (Index n = 0; n < b.count(); ++n) {
    const double x = load_double(a.data, a.dtype, n), y = load_double(b.data, b.dtype, n);
    error += (x - y) * (x - y), norm += y * y;
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}
Context& on(const char* kernel) {
  static std::map<std::string, Context> all;
  return all.try_emplace(kernel, Context({.threads = 2, .kernels = kernel})).first->second;
}

void against_ref(const MixCase& c) {
  MixRun run(c);
  AttentionArgs& a = run.args.forward;
  Tensor lse(DType::f32, {a.q.size[0], run.heads.normal_heads(), a.q.size[1]});
  a.lse = lse.view();
  test::GradientRun truth = test::in_double(run.args, run.heads);
  attention(truth.args.forward, on("ref"), {}, run.heads);
  attention_backward(truth.args, on("ref"), run.heads);
  const double bound = c.dtype == DType::f32 ? 1e-5 : c.dtype == DType::f16 ? 2e-3 : 1e-2;
  for (const char* kernel : {"cpu/mixed_twice", "cpu/mixed"}) {
    attention(a, on(kernel), {}, run.heads);
    const double error = apart(a.out, truth.args.forward.out);
    check(error <= bound, kernel, text(c.name, " ", c.dtype, " is ", error, " from ref"));
  }
  std::deque<Tensor> kept;
  test::each_gradient(run.args, [&](const char*, AnyView& input, AnyView& gradient) {
    if (input.given()) gradient = kept.emplace_back(converted(input, input.dtype)).view();
  });
  attention_backward(run.args, on("cpu/mixed_backward"), run.heads);
  std::size_t n = 0;
  std::vector<AnyView> wide;
  test::each_gradient(truth.args, [&](const char*, AnyView&, AnyView& g) { wide.push_back(g); });
  test::each_gradient(run.args, [&](const char* name, AnyView& input, AnyView& g) {
    const InputView& w = wide[n++];
    if (!input.given()) return;
    const double error = apart(g, w);
    check(error <= bound, "cpu/mixed_backward",
          text(c.name, " ", c.dtype, " d", name, " is ", error, " from ref"));
  });
}

}  // namespace

void check_mixed(const Options& options) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Mix kind : {Mix::fixed, Mix::dynamic})
      for (const char* mask : {"", "causal", "causal & window(9, 0)"})
        for (const Index tokens : {7, 40, 77}) {
          if (options.quick && (tokens == 77 || dtype == DType::f16)) continue;
          MixCase c{.name = text(kind == Mix::fixed ? "fixed" : "dynamic", " ", mask, " ", tokens)};
          c.before = c.after = kind;
          c.q_heads = c.heads = c.v_heads = 5;
          if (kind == Mix::fixed) c.q_heads = 4, c.v_heads = 6, c.kv_group = 2, c.v_group = 3;
          c.rank = kind == Mix::dynamic ? 2 : 0;
          c.batch = 2, c.q_tokens = c.kv_tokens = tokens, c.dim = 24, c.value_dim = 17;
          c.mask = mask, c.sinks = c.relative = tokens == 40, c.gate = c.dropout = c.bias = tokens == 7;
          c.dtype = dtype;
          piece(c.name, [&] { against_ref(c); });
        }
}

}  // namespace headwise::selftest
