// Every pair of option values in some backward run; each kernel there is matches ref in double on each of
// them.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "tests/support/backward_run.h"
#include "tests/support/cover.h"
#include "tests/support/gradient_yardstick.h"

namespace headwise::test {
namespace {

/// What a case may cost: ref takes five products where the forward takes two.
constexpr double kWork = 4e5;

/// A posed setting as backward gets it: out, lse, dout and every gradient in memory of their own, each with
/// steps of its own.
struct PosedGradients {
  Posed posed;
  BackwardArgs args;
  std::deque<Placed> placed;
  std::deque<Tensor> before;

  PosedGradients(const Choice& c, std::uint64_t seed) {
    pose(c, {.seed = seed}, posed);
    const Sizes& s = posed.sizes;
    args.forward = posed.args;
    args.forward.probe = {};
    const Index b = posed.tensor_batch(), q = posed.q_rows(),
                value_dim = posed.heads.v.heads ? posed.heads.v.dim : s.value_dim;
    Tensor out(s.dtype, {b, q, s.heads, value_dim}),
        dout = random_normal({b, q, s.heads, value_dim}, s.dtype, seed * 1000 + 90),
        lse(s.dtype == DType::f64 ? DType::f64 : DType::f32, {b, s.heads, q});
    args.forward.out = put(out.view(), c[kOutLayout]);
    args.forward.lse = put(lse.view(), c[kLse]);
    args.dout = put(dout.view(), static_cast<int>(seed % 3));
    int n = 0;
    each_gradient(args, [&](const char*, const InputView& input, AnyView& gradient) {
      const std::uint64_t draw = seed + static_cast<std::uint64_t>(++n);
      if (!input.given() || draw % 7 == 0) return;
      constexpr DType kTerms[] = {DType::f32, DType::bf16, DType::f64, DType::f16};
      const DType dtype = n <= 3                                 ? s.dtype
                          : &input == &args.forward.inputs.scale ? kTerms[draw % 2 * 2]
                                                                 : kTerms[draw % 4];
      gradient = put(converted(input, dtype).view(), static_cast<int>(draw % 4));
    });
  }
  AnyView put(const InputView& plain, int how) {
    Placement where;
    if (how == 1) {
      for (int axis = 0; axis < plain.rank; ++axis) where.order.push_back(axis);
      if (plain.rank == 4) std::swap(where.order[1], where.order[2]);
      if (plain.rank == 3) std::swap(where.order[0], where.order[1]);
    }
    if (how == 2) where = {.inner = 2, .gap = 3, .first = 1};
    if (how == 3) where = {.gap = 5, .first = 3, .junk = true};
    placed.push_back(place(plain, where));
    return placed.back().view;
  }
  /// NaN in every gradient; what lies between their elements is remembered.
  void poison_all() {
    poison_gradients(args);
    before.clear();
    for (const Placed& p : placed) before.push_back(p.memory.clone());
  }
  std::string touched() const {
    for (std::size_t n = 0; n < placed.size(); ++n)
      if (const Index at = touched_outside(placed[n], before[n]); at >= 0)
        return text("element ", at, " of the memory of tensor ", n, " belongs to no element but was written");
    return "";
  }
};

/// True when `kernel` refused.
bool expect_right(PosedGradients& p, const GradientTruth& truth, const char* kernel, int threads) {
  const BackwardProblem problem = backward_problem_of(p.args, p.posed.heads);
  const Context& ctx = context_of(kernel, threads);
  const bool wide = problem.forward.dtype == DType::f64;
  const bool lists = problem.forward.heads.terms.rows && (problem.wants.bias || problem.wants.relative);
  if (kernel != std::string("ref") && (wide || lists)) {
    EXPECT_THROW(BackwardPlan(problem, ctx), Error);
    return true;
  }
  p.poison_all();
  BackwardPlan(problem, ctx).run(p.args, context_of(kernel, threads));
  EXPECT_EQ(truth.fault(p.args), "");
  EXPECT_EQ(p.touched(), "");
  return false;
}

void run_case(const Choice& c, std::uint64_t seed, int& refused) {
  SCOPED_TRACE(describe(c) + "\nreplay: HEADWISE_CASE=" + std::to_string(seed) + ":" + to_text(c));
  PosedGradients p(c, seed);
  if (backward_problem_of(p.args, p.posed.heads).wants == GradientSpec{}) return;
  const GradientTruth truth(p.args, p.posed.heads);
  constexpr int kThreadCounts[] = {2, 1, 3, 5};
  each_backward_kernel([&](const char* kernel) {
    attention(p.args.forward, context_of(""), {}, p.posed.heads);
    refused += expect_right(p, truth, kernel, kThreadCounts[c[kThreads]]);
  });
}

/// HEADWISE_CASE=seed:choice, as a failure prints it, runs that case alone.
TEST(BackwardPairwise, EveryPairOfOptions) {
  int cases = 0, refused = 0;
  if (const char* replay = std::getenv("HEADWISE_CASE")) {
    const std::string all = replay;
    const std::size_t colon = all.find(':');
    ASSERT_NE(colon, std::string::npos);
    run_case(choice_of(all.substr(colon + 1)), static_cast<std::uint64_t>(std::atoll(all.c_str())), refused);
    return;
  }
  Choice counts = Cover::all_values();
  for (const int option : {kRowProbe, kTopK, kClasses, kColumns, kPicked, kStage, kKernels, kKeysValues})
    counts[static_cast<std::size_t>(option)] = 1;
  counts[kKvTokens] = 13;  // up to 300
  Cover cover(7, counts, kWork);
  for (; !cover.done() && !HasFatalFailure(); ++cases) {
    const Choice c = cover.next();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (cases % 6 != 0) continue;  // ten times slower there: a sixth of the cases
#endif
    run_case(c, static_cast<std::uint64_t>(cases + 1), refused);
  }
  std::printf("backward pairwise: %d cases, %d refused in words\n", cases, refused);
}

/// Sizes in which a swapped axis still fits, with every term there is.
TEST(BackwardPairwise, SizesThatHideASwappedAxis) {
  for (const Case& size : square_cases()) {
    FullBackward r(size);
    const GradientTruth truth(r.args);
    each_backward_kernel([&](const char* kernel) {
      r.forward();
      run_backward(r.args, kernel);
      EXPECT_EQ(truth.fault(r.args), "") << size;
    });
  }
}

/// The bound is no wall of cotton: half a percent on one gradient of an f32 run is seen, whichever it is.
TEST(BackwardPairwise, TheBoundSeesHalfAPercent) {
  FullBackward r({.name = "bound", .q_tokens = 20, .kv_tokens = 20, .heads = 2, .kv_heads = 1});
  const GradientTruth truth(r.args);
  run_backward(r.args, "ref");
  EXPECT_EQ(truth.fault(r.args), "");
  each_gradient(r.args, [&](const char* name, const InputView&, const InputView& gradient) {
    const auto scale_by = [&](double factor) {
      for (Index n = 0; n < gradient.count(); ++n)
        store_double(gradient.data, gradient.dtype, n,
                     factor * load_double(gradient.data, gradient.dtype, n));
    };
    if (!gradient.given()) return;
    scale_by(1.005);
    EXPECT_NE(truth.fault(r.args), "") << name;
    scale_by(1 / 1.005);
  });
}

}  // namespace
}  // namespace headwise::test
