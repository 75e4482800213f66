// cpu/backward on gradients of any size: training hands back numbers far below 1, and what is small counts as
// much as what is large.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/backward_run.h"

namespace headwise::test {
namespace {

const Case kCase{.name = "magnitudes", .q_tokens = 34, .kv_tokens = 140, .head_dim = 40, .value_dim = 64};

void multiply(const InputView& x, double by, Index from = 0, Index every = 1) {
  const Index row = x.size[2] * x.size[3];
  for (Index n = 0; n < x.count(); ++n)
    if (n / row % every == from) store_double(x.data, x.dtype, n, load_double(x.data, x.dtype, n) * by);
}
float largest(const Tensor& t) {
  float most = 0;
  for (const float x : t.values<float>()) most = std::max(most, std::fabs(x));
  return most;
}

/// Gradients are linear in dout.
TEST(BackwardMagnitudes, GradientsOfAnySize) {
  each_level([] {
    BackwardRun r(kCase);
    r.forward();
    const Gradients one = run_backward(r.args, "cpu/backward");
    for (const double size : {0x1p-90, 0x1p-35, 0x1p60, 0x1p90}) {
      BackwardRun scaled(kCase);
      scaled.forward();
      multiply(scaled.dout.view(), size);
      const Gradients all = run_backward(scaled.args, "cpu/backward");
      for (const auto& [name, g] : one)
        for (Index n = 0; n < g.view().count(); ++n) {
          const auto at = static_cast<std::size_t>(n);
          ASSERT_NEAR(static_cast<double>(all.at(name).values<float>()[at]) / size,
                      static_cast<double>(g.values<float>()[at]), 2e-6 * static_cast<double>(largest(g)))
              << 'd' << name << " at " << n << ", dout times " << size;
        }
    }
  });
}

/// A cap far above the scores changes nothing, one far below leaves no score; no gradient is NaN at either
/// end.
TEST(BackwardMagnitudes, CapsAtBothEnds) {
  each_level([] {
    BackwardRun plain(kCase);
    plain.forward();
    const Gradients one = run_backward(plain.args, "cpu/backward");
    for (const double cap : {1e-30, 1e30}) {
      BackwardRun r(kCase);
      r.args.forward.inputs.softcap = cap;
      r.forward();
      const Gradients all = run_backward(r.args, "cpu/backward");
      for (const auto& [name, g] : one) {
        const auto got = all.at(name).values<float>(), want = g.values<float>();
        for (std::size_t n = 0; n < got.size(); ++n)
          if (cap > 1)
            ASSERT_NEAR(got[n], want[n], 2e-6f * largest(g)) << 'd' << name << " at " << n;
          else
            ASSERT_TRUE(name == "v" ? std::isfinite(got[n]) : got[n] == 0) << 'd' << name << " at " << n;
      }
    }
  });
}

/// A row of small dout beside large ones: its dq is as exact as alone.
TEST(BackwardMagnitudes, SmallRowsBesideLargeOnes) {
  each_level([] {
    BackwardRun r(kCase), alone(kCase);
    r.forward(), alone.forward();
    const Gradients one = run_backward(alone.args, "cpu/backward");
    constexpr double kSize = 0x1p-70;
    multiply(r.dout.view(), kSize, 1, 3);
    const Gradients all = run_backward(r.args, "cpu/backward");
    const Tensor &a = all.at("q"), &b = one.at("q");
    for (Index n = 0; n < a.view().count(); ++n) {
      const double size = n / (kCase.heads * kCase.head_dim) % 3 == 1 ? kSize : 1;
      const auto at = static_cast<std::size_t>(n);
      ASSERT_NEAR(static_cast<double>(a.values<float>()[at]) / size,
                  static_cast<double>(b.values<float>()[at]), 2e-6 * static_cast<double>(largest(b)))
          << n;
    }
  });
}

/// Rows and keys at both ends of the range, whose products are ordinary.
TEST(BackwardMagnitudes, TinyAndHugeRows) {
  each_level([] {
    for (const double up : {0x1p45, 0x1p100}) {
      BackwardRun r(kCase), plain(kCase);
      plain.forward();
      const Gradients one = run_backward(plain.args, "cpu/backward");
      multiply(r.inputs.q.view(), up), multiply(r.inputs.k.view(), 1 / up);
      r.forward();
      const Gradients all = run_backward(r.args, "cpu/backward");
      for (const auto& [name, size] : {std::pair{"q", 1 / up}, std::pair{"k", up}, std::pair{"v", 1.0}})
        for (Index n = 0; n < one.at(name).view().count(); ++n) {
          const auto at = static_cast<std::size_t>(n);
          ASSERT_NEAR(static_cast<double>(all.at(name).values<float>()[at]) / size,
                      static_cast<double>(one.at(name).values<float>()[at]),
                      1e-5 * static_cast<double>(largest(one.at(name))))
              << 'd' << name << " at " << n << ", queries times " << up;
        }
    }
  });
}

/// A gate of 1 leads another way through the kernel than no gate: the same bits.
TEST(BackwardMagnitudes, AGateOfOneChangesNoBit) {
  each_level([] {
    for (const bool causal : {false, true}) {
      BackwardRun r(kCase), gated(kCase);
      const Mask mask = causal ? Mask::causal() & Mask::window(50, 0) : Mask::all();
      Tensor gate(DType::f32, {1, kCase.q_tokens, kCase.heads});
      fill(gate.view(), 1);
      r.args.forward.mask = gated.args.forward.mask = mask.set();
      gated.args.forward.inputs.gate = gate.view();
      r.forward(), gated.forward();
      expect_same_bits(run_backward(r.args, "cpu/backward"), run_backward(gated.args, "cpu/backward"));
    }
  });
}

}  // namespace
}  // namespace headwise::test
