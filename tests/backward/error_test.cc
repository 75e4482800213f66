// Errors of gradients against double, by those of the plain formula in the same dtype, one factor for all.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/backward_run.h"
#include "tests/support/gradient_yardstick.h"

namespace headwise::test {
namespace {

/// Errors of one gradient over several draws: a tensor of few numbers has too few errors in one.
struct Errors {
  double largest = 0, squares = 0, norm = 0, most = 0;
  void add(double got, double truth) {
    largest = std::max(largest, std::fabs(got - truth)), squares += (got - truth) * (got - truth);
    norm += truth * truth, most = std::max(most, std::fabs(truth));
  }
  double relative() const { return std::sqrt(squares / norm); }
};
struct Judged {
  std::string name;
  DType dtype;
  Errors got, plain;
};

/// T1: max and 2-norm of the error at most those of the plain run (f32: 1.5 times, both are rounding noise) +
/// 2 ulp of what is written.
void expect_t1(const std::vector<Judged>& all, DType t, const std::string& what) {
  const double factor = t == DType::f32 ? 1.5 : 1.0;
  for (const Judged& g : all) {
    EXPECT_LE(g.got.largest, factor * g.plain.largest + 2 * ulp_of(g.dtype, g.got.most))
        << "d" << g.name << what;
    EXPECT_LE(g.got.relative(), factor * g.plain.relative() + 2 * ulp_of(g.dtype, 1.0))
        << "d" << g.name << what;
  }
}

/// Runs with their truth: computed once, for every kernel and level.
template <class Run>
struct Draws {
  std::deque<Run> runs;
  std::deque<GradientTruth> truths;
  template <class Prepare>
  Draws(const Case& c, int count, Prepare&& prepare) {
    for (int draw = 0; draw < count; ++draw) {
      prepare(runs.emplace_back(c, static_cast<std::uint64_t>(draw) * 17 + 1));
      truths.emplace_back(runs.back().args);
    }
  }

  /// Errors of `kernel` and of the plain run, gradient by gradient.
  std::vector<Judged> errors_of(const char* kernel) {
    std::vector<Judged> all;
    for (std::size_t draw = 0; draw < runs.size(); ++draw) {
      const BackwardArgs& args = runs[draw].args;
      const GradientTruth& truth = truths[draw];
      runs[draw].forward();
      run_backward(args, kernel);
      std::vector<AnyView> right;
      each_gradient(truth.args(),
                    [&](const char*, const InputView&, const InputView& g) { right.push_back(g); });
      std::size_t which = 0, at = 0;
      each_gradient(args, [&](const char* name, const InputView&, const InputView& gradient) {
        const std::vector<double>& plain = truth.yardstick().plain[which];
        const InputView& want = right[which++];
        if (!gradient.given()) return;
        if (draw == 0) all.push_back({name, gradient.dtype, {}, {}});
        Judged& g = all[at++];
        for (Index n = 0; n < want.count(); ++n) {
          const double y = static_cast<const double*>(want.data)[n];
          g.got.add(load_double(gradient.data, gradient.dtype, n), y);
          g.plain.add(plain[static_cast<std::size_t>(n)], y);
        }
      });
    }
    return all;
  }
};

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};
const Case kSizes[] = {
    {.name = "causal",
     .q_tokens = 70,
     .kv_tokens = 70,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .value_dim = 24},
    {.name = "long",
     .q_tokens = 20,
     .kv_tokens = 300,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 64,
     .value_dim = 64},
};

TEST(BackwardErrors, T1PlainAttention) {
  for (const DType dtype : kNarrow)
    for (const Case& size : kSizes) {
      Draws<BackwardRun> draws(with_dtype(size, dtype), 4, [](BackwardRun&) {});
      each_backward_kernel([&](const char* kernel) {
        expect_t1(draws.errors_of(kernel), dtype, text(" ", size.name, " ", dtype));
      });
    }
}

TEST(BackwardErrors, T1EveryTerm) {
  for (const DType dtype : kNarrow) {
    Draws<FullBackward> draws(with_dtype(kSizes[0], dtype), 24,
                              [](FullBackward& r) { r.scale = filled(4, 0.2), r.point_terms(); });
    each_backward_kernel(
        [&](const char* kernel) { expect_t1(draws.errors_of(kernel), dtype, text(" ", dtype)); });
  }
}

/// T4: rounding, not truncation: the mean signed error of 10^6 gradients is within 3 of its standard errors.
TEST(BackwardErrors, T4NoDrift) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    BackwardRun r(with_dtype({.name = "drift",
                              .batch = 16,
                              .q_tokens = 64,
                              .kv_tokens = 64,
                              .heads = 8,
                              .kv_heads = 8,
                              .head_dim = 43,
                              .value_dim = 43},
                             dtype));
    GradientRun truth = in_double(r.args, {});
    attention_backward(truth.args, context_of("ref"));
    r.forward();
    for (const BackwardKernel& kernel : kernels_head_by_head()) {
      run_backward(r.args, kernel.name);
      const std::pair<const Tensor*, const AnyView*> pairs[] = {
          {&r.dq, &truth.args.dq}, {&r.dk, &truth.args.dk}, {&r.dv, &truth.args.dv}};
      Index count = 0;
      for (const auto& [got, want] : pairs) {
        count += want->count();
        EXPECT_LE(std::fabs(signed_bias(got->view(), *want)), 3.0) << kernel.name << " " << dtype;
      }
      EXPECT_GE(count, 1'000'000);
    }
  }
}

}  // namespace
}  // namespace headwise::test
