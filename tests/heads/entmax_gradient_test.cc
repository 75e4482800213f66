// Entmax in double: its known values, its laws, and every gradient against central differences, crossed with
// masks, groups, ragged batches and score terms.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/kernels/ref/normalize.h"
#include "tests/base/sentence.h"
#include "tests/support/backward_run.h"
#include "tests/support/cover.h"

namespace headwise::test {
namespace {

std::vector<double> weights(const std::vector<double>& s, double alpha) {
  std::vector<double> w;
  ref::normalize(s, alpha, w);
  return w;
}

TEST(Entmax, KnownWeights) {
  const std::vector<double> square = weights({-2, 0, 0.5}, 1.5), line = weights({-2, 0, 0.5}, 2);
  EXPECT_EQ(square[0], 0);
  EXPECT_NEAR(square[1], 0.3260, 5e-5);
  EXPECT_NEAR(square[2], 0.6740, 5e-5);
  EXPECT_EQ(line[0], 0);
  EXPECT_NEAR(line[1], 0.25, 1e-15);
  EXPECT_NEAR(line[2], 0.75, 1e-15);
  std::vector<double> w, dw = {1, 0, 0};
  ref::normalize({-1, 0, 0.5}, 1.33, w);
  EXPECT_NEAR(ref::normalize_backward(w, 1.33, dw), -0.2562, 5e-5);
}

TEST(Entmax, WeightsAddUpToOneAndShiftsChangeNothing) {
  for (const double alpha : {1.01, 1.2, 1.5, 1.77, 2.0})
    for (std::uint64_t draw = 0; draw < 20; ++draw) {
      Tensor t = random_normal({37}, DType::f64, draw);
      std::vector<double> s(t.values<double>().begin(), t.values<double>().end()), shifted = s;
      s[5] = s[11] = shifted[5] = shifted[11] = 1.25;  // ties
      for (double& x : shifted) x += 3;
      const std::vector<double> w = weights(s, alpha), v = weights(shifted, alpha);
      double sum = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        sum += w[i];
        EXPECT_NEAR(w[i], v[i], 1e-12);
      }
      EXPECT_NEAR(sum, 1, 1e-14);
      EXPECT_EQ(w[5], w[11]);
    }
}

TEST(Entmax, TendsToSoftmaxAndHalleyMeetsTheExactWays) {
  const std::vector<double> s = {0.3, -1, 2, 0.7, 1.9, -3};
  const std::vector<double> soft = weights(s, 1), close = weights(s, 1.0001);
  for (std::size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(soft[i], close[i], 1e-3);
  for (const double alpha : {1.5, 2.0}) {
    const std::vector<double> exact = weights(s, alpha), near = weights(s, alpha - 1e-9);
    for (std::size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(exact[i], near[i], 1e-8);
  }
}

TEST(Entmax, AFarKeyWeighsExactlyNothingAndASingleKeyAll) {
  for (const double alpha : {1.25, 1.5, 2.0}) {
    std::vector<double> w = weights({2 - 1 / (alpha - 1), 2, 1.5}, alpha), dw = {5, -1, 2};
    EXPECT_EQ(w[0], 0);
    ref::normalize_backward(w, alpha, dw);
    EXPECT_EQ(dw[0], 0);
    w = weights({-7.5}, alpha), dw = {3};
    EXPECT_EQ(w[0], 1);
    ref::normalize_backward(w, alpha, dw);
    EXPECT_EQ(dw[0], 0);
  }
}

TEST(Entmax, EveryGradientMatchesCentralDifferences) {
  Choice counts{};
  counts.fill(1);
  counts[kHeads] = 3, counts[kStart] = 3, counts[kRagged] = 2, counts[kMask] = 6, counts[kSoftcap] = 2;
  counts[kAlibi] = 2, counts[kRelative] = 2, counts[kScale] = 3, counts[kBias] = 3, counts[kSinks] = 2;
  counts[kDropout] = 2, counts[kGate] = 2, counts[kHeadKind] = 3, counts[kRows] = 3;
  Cover cover(2, counts, 1e9);
  int cases = 0;
  for (; !cover.done(); ++cases) {
    const Choice c = cover.next();
    Sizes s = sizes_of(c);
    s.q_tokens = 3 + cases % 2, s.kv_tokens = 6 - cases % 2, s.head_dim = 2, s.value_dim = 2;
    const auto seed = static_cast<std::uint64_t>(cases + 1);
    Posed posed;
    pose(c, {.seed = seed, .sizes = &s}, posed);
    GradientRun run = double_of(posed, seed);
    Tensor alpha(DType::f64, {s.heads}), dalpha = alpha.clone();
    constexpr double kAlphas[] = {1.5, 1.3, 1.85, 1.1, 1.6};
    for (Index h = 0; h < s.heads; ++h)
      alpha.values<double>()[static_cast<std::size_t>(h)] = kAlphas[(cases + h) % 5];
    run.args.forward.inputs.alpha = alpha.view(), run.args.dalpha = dalpha.view();
    EXPECT_EQ(differs_from_differences(run), "") << describe(c) << " seed " << seed;
  }
  std::printf("entmax gradient check: %d cases\n", cases);
}

TEST(Entmax, GradientsOfSparsemaxMatchCentralDifferences) {
  BackwardRun r({.name = "sparsemax",
                 .batch = 2,
                 .q_tokens = 5,
                 .kv_tokens = 6,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 3,
                 .value_dim = 2,
                 .dtype = DType::f64});
  const Mask causal = Mask::causal();
  r.args.forward.mask = causal.set();
  GradientRun run = in_double(r.args, {});
  Tensor alpha = filled(2, 2, DType::f64);
  run.args.forward.inputs.alpha = alpha.view();
  // alpha may not leave 2: its own slope is one-sided and not looked at
  BackwardArgs& a = run.args;
  attention_backward(a, context_of("ref"));
  for (const auto& [input, gradient] :
       {std::pair{a.forward.q, a.dq}, {a.forward.k, a.dk}, {a.forward.v, a.dv}})
    for (Index n = 0; n < input.count(); ++n) {
      double& x = static_cast<double*>(input.data)[n];
      const double was = x;
      x = was + 1e-5;
      const double up = loss_of(run);
      x = was - 1e-5;
      const double down = loss_of(run);
      x = was;
      EXPECT_NEAR(static_cast<double*>(gradient.data)[n], (up - down) / 2e-5, 1e-8);
    }
}

TEST(Entmax, AnAlphaOfOneIsSoftmax) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Case c{
        .name = "one", .batch = 2, .q_tokens = 9, .kv_tokens = 12, .heads = 4, .kv_heads = 2, .dtype = dtype};
    BackwardRun plain(c), entmax(c);
    Tensor alpha = filled(4, 1);
    entmax.args.forward.inputs.alpha = alpha.view();
    for (BackwardRun* r : {&plain, &entmax}) {
      attention(r->args.forward, context_of("ref"));
      run_backward(r->args, "ref");
    }
    EXPECT_LE(distance_of(entmax.inputs.out.view(), plain.inputs.out.view()).largest, 1e-7);
    EXPECT_LE(distance_of(entmax.inputs.lse.view(), plain.inputs.lse.view()).largest, 1e-6);
    EXPECT_LE(distance_of(entmax.dq.view(), plain.dq.view()).largest, 1e-6);
  }
}

TEST(Entmax, BadAlphasAreRefusedInWords) {
  BackwardRun r({.name = "bad", .q_tokens = 2, .kv_tokens = 2, .heads = 2, .kv_heads = 2});
  const auto run = [&](double x) {
    Tensor alpha = filled(2, 1.5);
    alpha.values<float>()[1] = static_cast<float>(x);
    r.args.forward.inputs.alpha = alpha.view();
    return sentence_of(ErrorKind::bad_argument, [&] { attention(r.args.forward, context_of("ref")); });
  };
  EXPECT_EQ(run(0.5),
            "attention: alpha of head 1 is 0.5; give 1 (softmax) or a number from 1.01 to 2 (sparsemax)");
  EXPECT_EQ(run(2.5),
            "attention: alpha of head 1 is 2.5; give 1 (softmax) or a number from 1.01 to 2 (sparsemax)");
  EXPECT_EQ(run(1.00390625),
            "attention: alpha of head 1 is 1.00391; give 1 (softmax) or a number from 1.01 to 2 (sparsemax)");
  Tensor alpha = filled(2, 1), dalpha = alpha.clone();
  r.args.forward.inputs.alpha = alpha.view(), r.args.dalpha = dalpha.view();
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { attention_backward(r.args, context_of("ref")); }),
            "attention_backward: dalpha is asked but alpha of head 0 is 1, softmax, where its slope is not "
            "computed; learn an alpha from 1.01 on");
}

}  // namespace
}  // namespace headwise::test
