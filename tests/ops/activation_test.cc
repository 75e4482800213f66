#include "headwise/ops/row/activation.h"

#include <gtest/gtest.h>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "tests/ops/projection_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Tensor activated(Activation act, const InputView& x, int threads = 2) {
  Context ctx({.threads = threads});
  Tensor out = tensor_like(x);
  activation(act, x, out.view(), ctx);
  return out;
}
Tensor slope_times(Activation act, const InputView& x, const InputView& dout) {
  Context ctx({.threads = 2});
  Tensor dx = tensor_like(x);
  activation_backward(act, x, dout, dx.view(), ctx);
  return dx;
}

TEST(Activation, ValuesByHand) {
  EXPECT_EQ(ref::activate(Activation::relu, -2), 0);
  EXPECT_NEAR(ref::activate(Activation::gelu, 1), 0.84134474606854293, 1e-15);
  EXPECT_NEAR(ref::activate(Activation::gelu_tanh, 1), 0.84119199060827676, 1e-15);
  EXPECT_NEAR(ref::activate(Activation::silu, 1), 0.73105857863000490, 1e-15);
  EXPECT_NEAR(ref::activate(Activation::sigmoid, -1), 0.26894142136999512, 1e-15);
  EXPECT_NEAR(ref::activate(Activation::gelu, -6), -5.9195263e-9, 1e-15);  // no cancellation at the tail
}

/// Every 9973rd f32 from -20 to 20, tiny ones included.
TEST(Activation, F32IsWithinAFewUlpEverywhere) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x41a00000u; bits += 9973)
    for (const std::uint32_t sign : {0u, 0x80000000u}) values.push_back(std::bit_cast<float>(bits | sign));
  each_level([&] {
    const cpu::GemmKernels& kernels = *cpu::chosen_isa().gemm();
    const auto count = static_cast<Index>(values.size());
    std::vector<float> value(values.size()), slope(values.size());
    for (const Activation act : kActivations) {
      kernels.slopes(static_cast<int>(act), values.data(), count, value.data(), slope.data());
      double worst = 0, worst_slope = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double x = static_cast<double>(values[i]), y = ref::activate(act, x), s = ref::slope_of(act, x);
        // The far negative tail is the product of small numbers: absolute there.
        worst =
            std::max(worst, std::fabs(static_cast<double>(value[i]) - y) / (std::fabs(y) * 0x1p-24 + 1e-8));
        worst_slope = std::max(worst_slope, std::fabs(static_cast<double>(slope[i]) - s));
      }
      EXPECT_LE(worst, 8) << name_of(act);
      EXPECT_LE(worst_slope, 1e-6) << name_of(act);
    }
  });
}
TEST(Activation, TypesAndLayoutsAgree) {
  each_level([] {
    for (const DType dtype : kFloats)
      for (const Activation act : kActivations) {
        Tensor x = random_normal({3, 7, 300}, dtype, 1), dout = random_normal({3, 7, 300}, dtype, 2);
        Tensor y = activated(act, x.view(), 1), dx = slope_times(act, x.view(), dout.view());
        for (Index i = 0; i < y.view().count(); ++i) {
          const double v = value(x.view(), i), truth = ref::activate(act, v),
                       slope = ref::slope_of(act, v) * value(dout.view(), i);
          const double slack = dtype == DType::f64 ? 1e-14 : 1e-6;
          ASSERT_TRUE(rounded_once(dtype, value(y.view(), i), truth, slack)) << dtype << " " << name_of(act);
          ASSERT_TRUE(rounded_once(dtype, value(dx.view(), i), slope,
                                   slack * (1 + std::fabs(value(dout.view(), i)))));
        }
        EXPECT_TRUE(same_bits(activated(act, x.view(), 7), y));
        for (const std::vector<int>& order : {std::vector<int>{1, 2, 0}, {2, 0, 1}}) {
          Scattered s(x.view(), order, 1);
          Context ctx({.threads = 2});
          activation(act, s.view, s.view, ctx);  // in place
          EXPECT_TRUE(same_bits(s.packed(), y) && s.gaps_intact());
        }
      }
  });
}
TEST(Activation, CentralDifferencesAgree) {
  Tensor x = random_normal({40}, DType::f64, 3);
  Tensor dout = random_normal({40}, DType::f64, 4);
  for (const Activation act : kActivations) {
    Tensor dx = slope_times(act, x.view(), dout.view());
    for (Index i = 0; i < 40; ++i) {
      const double eps = 1e-5, v = value(x.view(), i);
      const double g =
          (ref::activate(act, v + eps) - ref::activate(act, v - eps)) / (2 * eps) * value(dout.view(), i);
      EXPECT_LE(std::fabs(value(dx.view(), i) - g), 1e-8 * std::max(1.0, std::fabs(g)))
          << name_of(act) << " at " << v;
    }
  }
}
TEST(Gated, IsTheProductAndItsGradientsAgree) {
  const Index n = 300;
  for (const Activation act : kActivations) {
    Tensor y = random_normal({n}, DType::f64, 5), gate = random_normal({n}, DType::f64, 6),
           dout = random_normal({n}, DType::f64, 7);
    Tensor out(DType::f64, {n}), dy(DType::f64, {n}), dgate(DType::f64, {n});
    Context ctx({.threads = 2});
    gated(act, y.view(), gate.view(), out.view(), ctx);
    gated_backward(act, y.view(), gate.view(), dout.view(), dy.view(), dgate.view(), ctx);
    for (Index i = 0; i < n; ++i) {
      const double a = value(y.view(), i), g = value(gate.view(), i), d = value(dout.view(), i), eps = 1e-5;
      EXPECT_NEAR(value(out.view(), i), a * ref::activate(act, g), 1e-15);
      EXPECT_NEAR(value(dy.view(), i), d * ref::activate(act, g), 1e-15);
      const double slope = d * a * (ref::activate(act, g + eps) - ref::activate(act, g - eps)) / (2 * eps);
      EXPECT_LE(std::fabs(value(dgate.view(), i) - slope), 1e-8 * std::max(1.0, std::fabs(slope)))
          << name_of(act);
    }
  }
}
TEST(Gated, NarrowTypesAndPlacesAgree) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Tensor y = random_normal({9, 70}, dtype, 8), gate = random_normal({9, 70}, dtype, 9),
             dout = random_normal({9, 70}, dtype, 10);
      Tensor out(dtype, {9, 70}), dy(dtype, {9, 70}), dgate(dtype, {9, 70});
      Context ctx({.threads = 3});
      gated(Activation::silu, y.view(), gate.view(), out.view(), ctx);
      gated_backward(Activation::silu, y.view(), gate.view(), dout.view(), dy.view(), dgate.view(), ctx);
      for (Index i = 0; i < 630; ++i) {
        const double a = value(y.view(), i), g = value(gate.view(), i), d = value(dout.view(), i);
        ASSERT_TRUE(rounded_once(dtype, value(out.view(), i), a * ref::activate(Activation::silu, g), 3e-6));
        ASSERT_TRUE(rounded_once(dtype, value(dy.view(), i), d * ref::activate(Activation::silu, g), 3e-6));
        ASSERT_TRUE(
            rounded_once(dtype, value(dgate.view(), i), d * a * ref::slope_of(Activation::silu, g), 1e-5));
      }
      Tensor own_gate = gate.clone(), own_dout = dout.clone(), own_y = y.clone();
      gated_backward(Activation::silu, own_y.view(), own_gate.view(), own_dout.view(), own_dout.view(),
                     own_gate.view(), ctx);
      EXPECT_TRUE(same_bits(own_dout, dy) && same_bits(own_gate, dgate));
      gated(Activation::silu, own_y.view(), gate.view(), own_y.view(), ctx);
      EXPECT_TRUE(same_bits(own_y, out));
    }
  });
}
TEST(Activation, NanStaysAndInfinitiesHaveLimits) {
  each_level([] {
    for (const Activation act : kActivations) {
      Tensor x(DType::f32, {33});
      x.values<float>()[20] = NAN, x.values<float>()[3] = INFINITY, x.values<float>()[32] = -200;
      Tensor y = activated(act, x.view());
      EXPECT_TRUE(std::isnan(y.values<float>()[20])) << name_of(act);
      EXPECT_EQ(y.values<float>()[3], act == Activation::sigmoid ? 1.0f : INFINITY) << name_of(act);
      EXPECT_NEAR(y.values<float>()[32], act == Activation::none ? -200.0f : 0.0f, 1e-30) << name_of(act);
    }
  });
}
TEST(Activation, SizesOfZeroAndNoAllocation) {
  EXPECT_EQ(activated(Activation::gelu, Tensor(DType::f32, {3, 0}).view()).view().count(), 0);
  Tensor x = random_normal({5, 300}, DType::bf16, 1);
  Context ctx({.threads = 2});
  activation(Activation::gelu, x.view(), x.view(), ctx);
  const std::uint64_t before = allocations();
  for (int i = 0; i < 10; ++i) activation(Activation::gelu, x.view(), x.view(), ctx);
  EXPECT_EQ(allocations(), before);
}
TEST(ActivationErrors, EachIsOneSentence) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {4, 8}), other(DType::f32, {4, 7}), out(DType::f32, {4, 8});
  Tensor whole(DType::i32, {4, 8});
  const auto act = [&](const InputView& a, const InputView& b) {
    return error_of([&] { activation(Activation::relu, a, b, ctx); });
  };
  EXPECT_EQ(act({}, out.view()), "activation: x is empty; give a tensor of rank 1 to 4");
  EXPECT_EQ(act(whole.view(), whole.view()), "activation: x is i32 [4 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(act(x.view(), other.view()),
            "activation: out is f32 [4 7] but x is f32 [4 8]; give both one dtype and sizes");
  AnyView shifted = slice(x.view(), 1, 1, 8), begin = slice(x.view(), 1, 0, 7);
  EXPECT_EQ(
      act(begin, shifted),
      "activation: out overlaps x without being it; give it memory of its own, or x itself to work in place");
  AnyView one = out.view();
  one.step[0] = 0;
  EXPECT_EQ(
      act(x.view(), one),
      "activation: out is f32 [4 8] with steps that put several elements in one place; give each its own");
  EXPECT_EQ(error_of([&] {
              gated_backward(Activation::silu, x.view(), x.view(), x.view(), out.view(), out.view(), ctx);
            }),
            "gated_backward: dy overlaps dgate; give it memory of its own");
}

}  // namespace
}  // namespace headwise
