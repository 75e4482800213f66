// Laws of gradients: the adjoint of the forward, shifts that change nothing, shared heads that add up.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/backward_run.h"
#include "tests/support/gradient_yardstick.h"

namespace headwise::test {
namespace {

double dot_of(const InputView& a, const InputView& b) {
  double sum = 0;
  for (Index n = 0; n < a.count(); ++n)
    sum += static_cast<const double*>(a.data)[n] * static_cast<const double*>(b.data)[n];
  return sum;
}
double sum_of(const Tensor& t, Index first, Index count) {
  double sum = 0;
  for (Index n = first; n < first + count; ++n) sum += load_double(t.view().data, t.dtype(), n);
  return sum;
}

/// <dout, J v> == <J^T dout, v> for a direction v through every input at once; J v by differences of out.
TEST(BackwardLaws, TheBackwardIsTheAdjointOfTheForward) {
  FullBackward full({.name = "adjoint",
                     .batch = 2,
                     .q_tokens = 33,
                     .kv_tokens = 40,
                     .heads = 6,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .value_dim = 12,
                     .dtype = DType::f64});
  for (std::uint64_t draw = 1; draw <= 16; ++draw) {
    GradientRun r = in_double(full.args, {});
    Tensor dout = random_normal({2, 33, 6, 12}, DType::f64, draw * 31);
    r.args.dout = dout.view();
    attention_backward(r.args, context_of("ref"));
    double right = 0;
    std::deque<Tensor> here, direction;
    each_gradient(r.args, [&](const char*, const InputView& input, const InputView& gradient) {
      here.push_back(converted(input, DType::f64));
      direction.push_back(converted(input, DType::f64));
      Tensor normal = random_normal({input.count()}, DType::f64, draw * 57 + here.size());
      for (Index n = 0; n < input.count(); ++n)
        store_double(direction.back().view().data, DType::f64, n,
                     normal.values<double>()[static_cast<std::size_t>(n)]);
      right += dot_of(gradient, direction.back().view());
    });
    const auto loss_at = [&](double step) {
      std::size_t which = 0;
      each_gradient(r.args, [&](const char*, const InputView& input, const InputView&) {
        for (std::size_t n = 0; n < static_cast<std::size_t>(input.count()); ++n)
          static_cast<double*>(input.data)[n] =
              here[which].values<double>()[n] + step * direction[which].values<double>()[n];
        ++which;
      });
      return loss_of(r);
    };
    constexpr double kEps = 1e-5;
    const double left =
        (8 * (loss_at(kEps) - loss_at(-kEps)) - (loss_at(2 * kEps) - loss_at(-2 * kEps))) / (12 * kEps);
    EXPECT_NEAR(left, right, 1e-6 * std::max(1.0, std::fabs(right))) << draw;
  }
}

/// A constant added to a row of logits changes nothing: its slopes add up to 0, the sink's among them.
TEST(BackwardLaws, SlopesOfARowAddUpToZero) {
  each_backward_kernel([](const char* kernel) {
    for (const bool with_sinks : {false, true}) {
      BackwardRun r({.name = "shift", .q_tokens = 40, .kv_tokens = 70, .heads = 3, .kv_heads = 3});
      Tensor bias = random_normal({1, 3, 40, 70}, DType::f32, 5), dbias = bias.clone();
      Tensor sinks = filled(3, 1.5), dsinks = sinks.clone();
      r.args.forward.inputs.bias = bias.view(), r.args.dbias = dbias.view();
      if (with_sinks) r.args.forward.inputs.sinks = sinks.view(), r.args.dsinks = dsinks.view();
      r.forward();
      run_backward(r.args, kernel);
      for (Index h = 0; h < 3; ++h) {
        const double sink = with_sinks ? dsinks.values<float>()[static_cast<std::size_t>(h)] : 0;
        EXPECT_NEAR(sum_of(dbias, h * 40 * 70, 40 * 70) + sink, 0, 1e-4);
        if (with_sinks)
          EXPECT_GT(std::fabs(sink), 1e-3);
        else
          for (Index i = 0; i < 40; ++i)
            EXPECT_NEAR(sum_of(dbias, (h * 40 + i) * 70, 70), 0, 2e-6) << h << " " << i;
      }
    }
  });
}

/// A gate of 0 stops every gradient but its own, which is what the output would have been.
TEST(BackwardLaws, AClosedGatePassesItsOwnGradientAlone) {
  each_backward_kernel([](const char* kernel) {
    BackwardRun r({.name = "gate", .q_tokens = 20, .kv_tokens = 30, .heads = 4, .kv_heads = 2});
    r.forward();
    Tensor open_out = r.inputs.out.clone();
    Tensor gate = filled(20 * 4, 1), dgate(DType::f32, {1, 20, 4});
    AnyView view = dgate.view();
    view.data = gate.view().data;
    for (std::size_t n = 0; n < 80; ++n) gate.values<float>()[n] = n % 4 == 2 ? 1.0f : 0.0f;
    r.args.forward.inputs.gate = view, r.args.dgate = dgate.view();
    r.forward();
    run_backward(r.args, kernel);
    EXPECT_EQ(GradientTruth(r.args).fault(r.args), "");
    for (Index i = 0; i < 20; ++i)
      for (Index h = 0; h < 4; ++h) {
        double want = 0;
        for (Index c = 0; c < 8; ++c) {
          const auto n = static_cast<std::size_t>((i * 4 + h) * 8 + c);
          want += static_cast<double>(open_out.values<float>()[n]) *
                  static_cast<double>(r.dout.values<float>()[n]);
          EXPECT_TRUE(h == 2 || r.dq.values<float>()[n] == 0) << i << " " << h;
        }
        EXPECT_NEAR(dgate.values<float>()[static_cast<std::size_t>(i * 4 + h)], want, 1e-5) << i << " " << h;
      }
  });
}

/// Heads that share keys and values add up what each alone would give.
TEST(BackwardLaws, R047_R048_SharedHeadsAddUpWhatTheyGetAlone) {
  each_backward_kernel([](const char* kernel) {
    for (const char* text : {"all", "causal", "window(3, 2)"}) {
      const Case shared{
          .name = "mqa", .batch = 2, .q_tokens = 21, .kv_tokens = 33, .heads = 6, .kv_heads = 1};
      const Mask mask = parse_mask(text);
      BackwardRun mqa(shared);
      mqa.args.forward.mask = mask.set();
      mqa.forward();
      run_backward(mqa.args, kernel);
      EXPECT_EQ(GradientTruth(mqa.args).fault(mqa.args), "");
      // The same keys for every head, each with a gradient of its own.
      Case alone = shared;
      alone.kv_heads = 6;
      BackwardRun mha(alone);
      mha.args.forward.k = mqa.args.forward.k, mha.args.forward.v = mqa.args.forward.v;
      for (AnyView* v : std::initializer_list<AnyView*>{&mha.args.forward.k, &mha.args.forward.v})
        v->size[2] = 6, v->step[2] = 0;
      mha.args.forward.q = mqa.args.forward.q, mha.args.dout = mqa.args.dout;
      mha.args.forward.mask = mask.set();
      mha.forward();
      run_backward(mha.args, kernel);
      EXPECT_TRUE(same_bits(mqa.dq, mha.dq)) << text;
      for (const auto& [one, six] : {std::pair{&mqa.dk, &mha.dk}, {&mqa.dv, &mha.dv}})
        for (std::size_t n = 0; n < one->values<float>().size(); ++n) {
          double sum = 0, size = 0;
          for (std::size_t h = 0; h < 6; ++h) {
            const double x = six->values<float>()[n / 8 * 48 + h * 8 + n % 8];
            sum += x, size += std::fabs(x);
          }
          ASSERT_NEAR(one->values<float>()[n], sum, 1e-6 * (1 + size)) << text << " " << n;
        }
    }
  });
}

/// Overlapped heads: a column that two heads read gets both gradients; one outside the row gets none, and a
/// column that no head reads gets 0.
TEST(BackwardLaws, ColumnsGetTheGradientsOfEveryHeadThatReadsThem) {
  const HeadLayout layout{3, 4,  1,
                          3, -1, 14};  // heads read columns -1..2, 2..5, 5..8; 9..13 are read by none
  HeadSpec heads;
  heads.q = heads.k = heads.v = layout;
  each_backward_kernel([&](const char* kernel) {
    Tensor q = random_normal({2, 9, 14}, DType::f32, 1), k = random_normal({2, 11, 14}, DType::f32, 2),
           v = random_normal({2, 11, 14}, DType::f32, 3), dout = random_normal({2, 9, 3, 4}, DType::f32, 4);
    Tensor out(DType::f32, {2, 9, 3, 4}), lse(DType::f32, {2, 3, 9}), dq = q.clone(), dk = k.clone(),
                                                                      dv = v.clone();
    BackwardArgs a;
    a.forward.q = q.view(), a.forward.k = k.view(), a.forward.v = v.view();
    a.forward.out = out.view(), a.forward.lse = lse.view();
    a.dout = dout.view(), a.dq = dq.view(), a.dk = dk.view(), a.dv = dv.view();
    attention(a.forward, context_of(""), {}, heads);
    run_backward(a, kernel, 2, heads);
    EXPECT_EQ(GradientTruth(a, heads).fault(a), "");
    for (Tensor* t : {&dq, &dk, &dv})
      for (std::size_t n = 0; n < t->values<float>().size(); ++n)
        EXPECT_EQ(t->values<float>()[n] == 0, n % 14 >= 9) << n;
  });
}

TEST(BackwardLaws, SizesOfZero) {
  each_backward_kernel([](const char* kernel) {
    for (const Case& c : empty_cases()) {
      BackwardRun r(c);
      r.forward();
      const Gradients g = run_backward(r.args, kernel);
      for (const auto& [name, tensor] : g) EXPECT_TRUE(all_zero(tensor)) << c << " d" << name;
    }
  });
}

}  // namespace
}  // namespace headwise::test
