#include "tests/support/gradients.h"

#include <cmath>

#include "tests/support/case.h"

namespace headwise::test {
namespace {

Context& one_thread() {
  static auto* ctx = new Context({.threads = 1, .kernels = "ref"});
  return *ctx;
}

}  // namespace

GradientRun in_double(const BackwardArgs& a, const HeadSpec& heads) {
  GradientRun r;
  r.heads = heads;
  r.args.forward = a.forward;
  r.args.forward.probe = {}, r.args.forward.lse = {};
  each_gradient(r.args, [&](const char*, AnyView& input, AnyView& gradient) {
    if (!input.given()) return;
    input = r.keep(converted(input, DType::f64));
    gradient = r.keep(converted(input, DType::f64));
  });
  r.args.dout = r.keep(converted(a.dout, DType::f64));
  r.args.forward.out = r.keep(converted(a.dout, DType::f64));
  return r;
}

GradientRun double_of(const Posed& p, std::uint64_t seed) {
  BackwardArgs a;
  a.forward = p.truth;
  const Index value_dim = p.heads.v.heads ? p.heads.v.dim : p.sizes.value_dim;
  Tensor dout =
      random_normal({p.tensor_batch(), p.q_rows(), p.sizes.heads, value_dim}, DType::f64, seed * 1000 + 90);
  a.dout = dout.view();
  return in_double(a, p.heads);
}

double loss_of(const GradientRun& r) {
  attention(r.args.forward, one_thread(), {}, r.heads);
  const auto *out = static_cast<const double*>(r.args.forward.out.data),
             *dout = static_cast<const double*>(r.args.dout.data);
  double sum = 0;
  for (Index n = 0; n < r.args.dout.count(); ++n) sum += out[n] * dout[n];
  return sum;
}

std::string differs_from_differences(GradientRun& r) {
  attention_backward(r.args, one_thread(), r.heads);
  std::string fault;
  each_gradient(r.args, [&](const char* name, AnyView& input, AnyView& gradient) {
    auto* x = static_cast<double*>(input.data);
    for (Index n = 0; input.given() && n < input.count() && fault.empty(); ++n) {
      constexpr double kEps = 1e-5;
      const double here = x[n];
      const auto at = [&](double step) {
        x[n] = here + step;
        return loss_of(r);
      };
      const double slope = (8 * (at(kEps) - at(-kEps)) - (at(2 * kEps) - at(-2 * kEps))) / (12 * kEps);
      x[n] = here;
      const double g = static_cast<const double*>(gradient.data)[n];
      if (!(std::fabs(g - slope) <= 1e-8 * std::max(1.0, std::fabs(g))))
        fault = text("d", name, " ", n, " is ", g, ", differences say ", slope, ", apart ", g - slope);
    }
  });
  return fault;
}

}  // namespace headwise::test
