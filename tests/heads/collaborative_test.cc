// Collaborative heads: what biases become, equal rows, and the conversion of a trained layer.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "headwise/heads/collaborative_fit.h"

#include "headwise/base/context.h"
#include "tests/base/sentence.h"
#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

constexpr Index kHeads = 3, kDim = 4, kModel = 10, kTokens = 6, kAll = kHeads * kDim;

Tensor matrix(Index rows, Index columns, std::uint64_t seed) {
  return random_normal({rows, columns}, DType::f64, seed);
}
double at(const Tensor& t, Index i) { return t.values<double>()[static_cast<std::size_t>(i)]; }

/// softmax((x W_Q^T + b_q)(x W_K^T + b_k)^T / sqrt(dim)) of head h, row i: a loop per line of the formula.
std::vector<double> weights_of_mha(const Tensor& x, const Tensor& w_q, const Tensor& w_k, const Tensor& b_q,
                                   const Tensor& b_k, Index h, Index i) {
  const auto projected = [&](const Tensor& w, const Tensor& b, Index token, Index row) {
    double sum = at(b, row);
    for (Index c = 0; c < kModel; ++c) sum += at(x, token * kModel + c) * at(w, row * kModel + c);
    return sum;
  };
  std::vector<double> p;
  double total = 0;
  for (Index j = 0; j < kTokens; ++j) {
    double score = 0;
    for (Index row = h * kDim; row < (h + 1) * kDim; ++row)
      score += projected(w_q, b_q, i, row) * projected(w_k, b_k, j, row);
    p.push_back(std::exp(score / std::sqrt(double(kDim)))), total += p.back();
  }
  for (double& w : p) w /= total;
  return p;
}

/// y of a collaborative head with these weights and values v [1 tokens kAll].
Tensor out_of(const CollaborativeFit& fit, const Tensor& x, const Tensor& v) {
  Context ctx({.threads = 1, .kernels = ""});
  ParamSet params(DType::f64);
  const AnyHead head(Collaborative(fit.config, params, {0, 1, kModel}));
  const auto put = [&](const char* name, const Tensor& from) {
    std::copy_n(from.values<double>().data(), from.view().count(),
                static_cast<double*>(params.find(name).value().data));
  };
  put("mixing", fit.mixing);
  if (fit.config.content) put("content", fit.content);
  Tensor q(DType::f64, {1, kTokens, fit.config.shared}), k(DType::f64, {1, kTokens, fit.config.shared});
  projection({.x = x.view(), .weight = fit.w_q.view(), .out = q.view()}, Activation::none, ctx);
  projection({.x = x.view(), .weight = fit.w_k.view(), .out = k.view()}, Activation::none, ctx);
  HeadRun run(head, {.dtype = DType::f64, .batch = 1, .q_tokens = kTokens, .kv_tokens = kTokens}, false);
  Buffer memory(1 << 16);
  Arena arena(memory.span());
  run.call.x = run.call.x_kv = x.view(), run.call.q = q.view(), run.call.k = k.view(), run.call.v = v.view();
  run.book(arena), run.forward(ctx);
  return converted(run.call.y, DType::f64);
}

TEST(Collaborative, BlocksOfOnesWithContentAreMhaWithBiases) {
  Tensor x = random_normal({1, kTokens, kModel}, DType::f64, 1),
         v = random_normal({1, kTokens, kAll}, DType::f64, 2);
  Tensor w_q = matrix(kAll, kModel, 3), w_k = matrix(kAll, kModel, 4);
  Tensor b_q = random_normal({kAll}, DType::f64, 5), b_k = random_normal({kAll}, DType::f64, 6);
  const CollaborativeFit fit =
      fit_collaborative({.w_q = w_q.view(), .w_k = w_k.view(), .b_q = b_q.view(), .heads = kHeads});
  EXPECT_LE(fit.error, 1e-12);
  EXPECT_EQ(fit.steps, 0);
  Tensor y = out_of(fit, x, v);
  for (Index h = 0; h < kHeads; ++h)
    for (Index i = 0; i < kTokens; ++i) {
      const std::vector<double> p = weights_of_mha(x, w_q, w_k, b_q, b_k, h, i);
      for (Index c = h * kDim; c < (h + 1) * kDim; ++c) {
        double sum = 0;
        for (Index j = 0; j < kTokens; ++j) sum += p[static_cast<std::size_t>(j)] * at(v, j * kAll + c);
        EXPECT_NEAR(at(y, i * kAll + c), sum, 1e-12);
      }
    }
}

TEST(Collaborative, EqualRowsGiveAllHeadsOneMap) {
  Tensor x = random_normal({1, kTokens, kModel}, DType::f64, 1);
  Tensor v(DType::f64, {1, kTokens, kAll});
  for (Index i = 0; i < v.view().count(); ++i)  // the same values for every head
    v.values<double>()[static_cast<std::size_t>(i)] = std::sin(double(i / kAll * kDim + i % kDim));
  CollaborativeFit fit;
  fit.config = {kHeads, kDim, 5, MixingStart::ones, false, 0};
  fit.w_q = matrix(5, kModel, 3), fit.w_k = matrix(5, kModel, 4), fit.mixing = matrix(kHeads, 5, 7);
  for (Index i = 5; i < 5 * kHeads; ++i)
    fit.mixing.values<double>()[static_cast<std::size_t>(i)] = at(fit.mixing, i % 5);
  Tensor y = out_of(fit, x, v);
  for (Index i = 0; i < y.view().count(); ++i)
    EXPECT_EQ(at(y, i), at(y, i / kAll * kAll + i % kDim)) << "element " << i;
}

TEST(Collaborative, FitFindsASharedSpaceThatIsThere) {
  // Heads that weigh the same 5 columns differently: 12 trained columns, rank 5.
  Tensor a = matrix(5, kModel, 1), c = matrix(5, kModel, 2), m = matrix(kHeads, 5, 3);
  Tensor w_q(DType::f64, {kHeads * 5, kModel}), w_k(DType::f64, {kHeads * 5, kModel});
  for (Index row = 0; row < kHeads * 5; ++row)
    for (Index i = 0; i < kModel; ++i) {
      const auto to = static_cast<std::size_t>(row * kModel + i);
      w_q.values<double>()[to] = at(m, row) * at(a, row % 5 * kModel + i);
      w_k.values<double>()[to] = at(c, row % 5 * kModel + i);
    }
  const TrainedScores trained{.w_q = w_q.view(), .w_k = w_k.view(), .heads = kHeads};
  const CollaborativeFit fit = fit_collaborative(trained, {.shared = 5, .steps = 500, .tolerance = 0});
  EXPECT_LE(fit.error, 1e-6);
  EXPECT_DOUBLE_EQ(fit.config.scale, 1 / std::sqrt(5.0));
  EXPECT_FALSE(fit.config.content);
}

TEST(Collaborative, FitErrorFallsWithColumnsAndIsTheTruth) {
  Tensor w_q = matrix(kAll, kModel, 11), w_k = matrix(kAll, kModel, 12);
  const TrainedScores trained{.w_q = w_q.view(), .w_k = w_k.view(), .heads = kHeads};
  double last = 1;
  for (const Index shared : {2, 4, 8, 11}) {
    const CollaborativeFit fit = fit_collaborative(trained, {.shared = shared});
    EXPECT_LT(fit.error, last) << shared << " columns";
    last = fit.error;
    double apart = 0, whole = 0;  // of the tensor itself, formed here alone
    for (Index h = 0; h < kHeads; ++h)
      for (Index i = 0; i < kModel; ++i)
        for (Index j = 0; j < kModel; ++j) {
          double t = 0, f = 0;
          for (Index r = h * kDim; r < (h + 1) * kDim; ++r)
            t += at(w_q, r * kModel + i) * at(w_k, r * kModel + j);
          for (Index r = 0; r < shared; ++r)
            f += at(fit.mixing, h * shared + r) * at(fit.w_q, r * kModel + i) * at(fit.w_k, r * kModel + j);
          apart += (t - f) * (t - f), whole += t * t;
        }
    EXPECT_NEAR(fit.error, std::sqrt(apart / whole), 1e-12);
  }
}

TEST(Collaborative, FitRefusesWhatCannotBe) {
  Tensor w = matrix(kAll, kModel, 1);
  const auto sentence = [&](Index heads, Index shared) {
    return sentence_of(shared > kAll ? ErrorKind::bad_argument : ErrorKind::bad_shape, [&] {
      fit_collaborative({.w_q = w.view(), .w_k = w.view(), .heads = heads}, {.shared = shared});
    });
  };
  EXPECT_EQ(sentence(5, 0), "fit_collaborative: w_q has 12 rows, which must be a multiple of heads (5)");
  EXPECT_EQ(sentence(3, 13),
            "fit_collaborative: shared is 13; give 1 to heads*dim (12), where the fit is exact");
}

}  // namespace
}  // namespace headwise::test
