// Routing of heads: both conventions of scores and of the balance loss, choices, lists, and their gradients.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/route/route_heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/base/sentence.h"
#include "tests/support/backward_run.h"

namespace headwise::test {
namespace {

Context& context() { return context_of("", 3); }

/// A call in f64 with its tensors.
struct Route {
  RouteOptions o;
  Index batch, tokens;
  Tensor shared, routed, stages, gate, chosen;
  Route(const RouteOptions& options, Index b, Index t, std::uint64_t seed = 1)
      : o(options),
        batch(b),
        tokens(t),
        shared(random_normal({b, t, o.shared}, DType::f64, seed)),
        routed(random_normal({b, t, o.routed()}, DType::f64, seed + 1)),
        stages(random_normal({b, t, 2}, DType::f64, seed + 2)),
        gate(DType::f64, {b, t, o.heads}),
        chosen(DType::i64, {b, t, o.chosen}) {}
  RouteArgs args() { return {shared.view(), routed.view(), stages.view(), gate.view(), chosen.view()}; }
  void run() { route_heads(o, args(), context()); }
  double g(Index b, Index t, Index h) const {
    return gate.values<double>()[static_cast<std::size_t>((b * tokens + t) * o.heads + h)];
  }
};

TEST(RouteHeads, ZeroRoutersAndAllHeadsGiveGatesOfOne) {
  for (const Index shared : {0, 1, 3}) {
    Route r({.heads = 7, .shared = shared, .chosen = 7 - shared}, 2, 5);
    fill(r.shared.view(), 0), fill(r.routed.view(), 0), fill(r.stages.view(), 0);
    r.run();
    for (const double g : r.gate.values<double>()) EXPECT_EQ(static_cast<float>(g), 1);
  }
}

TEST(RouteHeads, GatesOfTheCodeAddUpToTwiceTheChosen) {
  Route r({.heads = 10, .shared = 3, .chosen = 3}, 2, 40);
  r.run();
  for (Index t = 0; t < 80; ++t) {
    double sum = 0;
    for (Index h = 0; h < 10; ++h) sum += r.g(t / 40, t % 40, h);
    EXPECT_NEAR(sum, 6, 1e-12);
  }
}

TEST(RouteHeads, PaperScoresAreProductsOfTwoSoftmaxes) {
  Route r({.heads = 5, .shared = 2, .chosen = 2, .score = RouteScore::paper}, 1, 1);
  const double s[] = {0.5, -1}, e[] = {2, 0.25, 1}, a[] = {0.3, 0.1};
  for (std::size_t i = 0; i < 2; ++i)
    r.shared.values<double>()[i] = s[i], r.stages.values<double>()[i] = a[i];
  for (std::size_t i = 0; i < 3; ++i) r.routed.values<double>()[i] = e[i];
  r.run();
  const double stage = std::exp(0.3) / (std::exp(0.3) + std::exp(0.1));
  const double routed = std::exp(2) + std::exp(0.25) + std::exp(1), own = std::exp(0.5) + std::exp(-1.0);
  EXPECT_NEAR(r.g(0, 0, 0), stage * std::exp(0.5) / own, 1e-15);
  EXPECT_NEAR(r.g(0, 0, 1), stage * std::exp(-1.0) / own, 1e-15);
  EXPECT_NEAR(r.g(0, 0, 2), (1 - stage) * std::exp(2) / routed, 1e-15);
  EXPECT_EQ(r.g(0, 0, 3), 0);
  EXPECT_NEAR(r.g(0, 0, 4), (1 - stage) * std::exp(1) / routed, 1e-15);
  EXPECT_EQ(r.chosen.values<std::int64_t>()[0], 2);
  EXPECT_EQ(r.chosen.values<std::int64_t>()[1], 4);
}

TEST(RouteHeads, EdgesOfTheRelease) {
  Route none({.heads = 4, .shared = 0, .chosen = 2}, 1, 9);  // no stages: gates of the chosen add up to k
  none.run();
  for (Index t = 0; t < 9; ++t)
    EXPECT_NEAR(none.g(0, t, 0) + none.g(0, t, 1) + none.g(0, t, 2) + none.g(0, t, 3), 2, 1e-12);
  Route only({.heads = 4, .shared = 4, .chosen = 0}, 1, 9);
  only.run();
  Route lowered({.heads = 6, .shared = 4, .chosen = 0}, 1,
                9);  // a call that chooses none: shared heads alone
  lowered.run();
  for (Index t = 0; t < 9; ++t) {
    EXPECT_NEAR(only.g(0, t, 0) + only.g(0, t, 1) + only.g(0, t, 2) + only.g(0, t, 3), 4, 1e-12);
    for (Index h = 0; h < 6; ++h) EXPECT_EQ(lowered.g(0, t, h), h < 4 ? only.g(0, t, h) : 0);
  }
}

TEST(RouteHeads, TiesGoToTheLowestHead) {
  Route r({.heads = 6, .shared = 1, .chosen = 3}, 1, 1);
  fill(r.routed.view(), 0.25);
  r.run();
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(r.chosen.values<std::int64_t>()[i], static_cast<Index>(i) + 1);
}

TEST(RouteHeads, UniformRoutingHasABalanceOfK) {
  // Three of six heads for each of six tokens, each head three times.
  RouteOptions o{.heads = 8, .shared = 2, .chosen = 3};
  Tensor routed(DType::f64, {1, 6, 6}), chosen(DType::i64, {1, 6, 3});
  for (Index t = 0; t < 6; ++t) {
    bool in[6] = {};
    for (Index i = 0; i < 3; ++i) in[(t + i) % 6] = true;
    Index n = 0;
    for (Index h = 0; h < 6; ++h)
      if (in[h]) chosen.values<std::int64_t>()[static_cast<std::size_t>(3 * t + n++)] = 2 + h;
  }
  EXPECT_NEAR(balance_loss(o, BalanceScale::code, routed.view(), chosen.view(), context()), 3, 1e-12);
  EXPECT_NEAR(balance_loss(o, BalanceScale::paper, routed.view(), chosen.view(), context()), 0.5, 1e-12);
}

/// Five-point central differences of `loss` at every element of x against g.
void expect_slopes(Tensor& x, const Tensor& g, const std::function<double()>& loss, const char* name) {
  for (std::size_t n = 0; n < x.values<double>().size(); ++n) {
    double& here = x.values<double>()[n];
    const double was = here, eps = 1e-5;
    const auto at = [&](double step) {
      here = was + step;
      return loss();
    };
    const double slope = (8 * (at(eps) - at(-eps)) - (at(2 * eps) - at(-2 * eps))) / (12 * eps);
    here = was;
    const double got = g.values<double>()[n];
    EXPECT_NEAR(got, slope, 1e-8 * std::max(1.0, std::fabs(got))) << name << " " << n;
  }
}

TEST(RouteHeads, GradientsAreCentralDifferences) {
  for (const RouteScore score : {RouteScore::code, RouteScore::paper})
    for (const auto [heads, shared, k] :
         {std::array<Index, 3>{7, 3, 2}, {5, 0, 2}, {4, 1, 3}, {4, 4, 0}, {6, 4, 0}}) {
      Route r({.heads = heads, .shared = shared, .chosen = k, .score = score}, 2, 3, 5);
      Tensor dgate = random_normal({2, 3, heads}, DType::f64, 9);
      const auto loss = [&] {
        r.run();
        double sum = 0;
        for (std::size_t n = 0; n < r.gate.values<double>().size(); ++n)
          sum += r.gate.values<double>()[n] * dgate.values<double>()[n];
        return sum;
      };
      loss();
      Tensor ds = r.shared.clone(), dr = r.routed.clone(), da = r.stages.clone();
      poison(ds), poison(dr), poison(da);
      route_heads_backward(r.o, r.args(), {dgate.view(), ds.view(), dr.view(), da.view()}, context());
      expect_slopes(r.shared, ds, loss, "shared");
      expect_slopes(r.routed, dr, loss, "routed");
      expect_slopes(r.stages, da, loss, "stages");
      if (k == 0) continue;
      for (const BalanceScale scale : {BalanceScale::code, BalanceScale::paper}) {
        const auto balance = [&] {
          r.run();
          return 0.01 * balance_loss(r.o, scale, r.routed.view(), r.chosen.view(), context());
        };
        balance();
        fill(dr.view(), 0);
        balance_loss_backward(r.o, scale, 0.01, r.routed.view(), r.chosen.view(), dr.view(), context());
        expect_slopes(r.routed, dr, balance, "balance");
      }
    }
}

/// The scores a straight-through router pretends to have returned.
double norm_scores(const RouteOptions& o, const Tensor& q, const Tensor& dgate) {
  const InputView& v = q.view();
  double loss = 0;
  for (Index t = 0; t < v.size[1]; ++t) {
    std::vector<double> norm;
    double mean = 0, square = 0, sum = 0, dot = 0;
    for (Index h = o.shared; h < o.heads; ++h) {
      double n = 0;
      for (Index c = 0; c < v.size[3]; ++c) {
        const double x = q.values<double>()[static_cast<std::size_t>((t * o.heads + h) * v.size[3] + c)];
        n += x * x;
      }
      norm.push_back(std::sqrt(n));
      mean += norm.back() / static_cast<double>(o.routed());
    }
    for (const double n : norm) square += (n - mean) * (n - mean);
    const double deviation = std::sqrt(square / static_cast<double>(o.routed() - 1));
    for (std::size_t h = 0; h < norm.size(); ++h) {
      const double e = std::exp(norm[h] / deviation);
      sum += e;
      dot += e * dgate.values<double>()[static_cast<std::size_t>(t * o.heads + o.shared) + h];
    }
    loss += dot / sum;
  }
  return loss;
}

TEST(RouteHeads, NormRouterChoosesTheLongestQueriesStraightThrough) {
  const RouteOptions o{.heads = 6, .shared = 2, .chosen = 2};
  Tensor q = random_normal({1, 4, 6, 5}, DType::f64, 3), dgate = random_normal({1, 4, 6}, DType::f64, 4);
  Tensor gate(DType::f64, {1, 4, 6}), chosen(DType::i64, {1, 4, 2}), dq(DType::f64, {1, 4, 6, 5});
  route_by_norm(o, q.view(), gate.view(), chosen.view(), context());
  for (std::size_t t = 0; t < 4; ++t) {
    double least_chosen = 1e9, most_left = 0;
    for (std::size_t h = 0; h < 6; ++h) {
      double n = 0;
      for (std::size_t c = 0; c < 5; ++c) n += std::pow(q.values<double>()[(t * 6 + h) * 5 + c], 2);
      const double g = gate.values<double>()[t * 6 + h];
      EXPECT_TRUE(g == 0 || g == 1);
      if (h < 2)
        EXPECT_EQ(g, 1);
      else
        g == 1 ? least_chosen = std::min(least_chosen, n) : most_left = std::max(most_left, n);
    }
    EXPECT_GT(least_chosen, most_left);
  }
  route_by_norm_backward(o, q.view(), dgate.view(), dq.view(), context());
  expect_slopes(
      q, dq, [&] { return norm_scores(o, q, dgate); }, "q");
}

TEST(RouteHeads, ListsNameTheChosenRowsOfEveryHead) {
  Route r({.heads = 5, .shared = 2, .chosen = 1}, 3, 4);
  r.run();
  Tensor offsets(DType::i64, {16}), index(DType::i64, {36});
  const RowLists lists{offsets.view(), index.view()};
  list_rows(r.o, r.chosen.view(), {}, lists);
  for (Index b = 0; b < 3; ++b)
    for (Index h = 0; h < 5; ++h)
      for (Index t = 0; t < 4; ++t)
        EXPECT_EQ(lists.lists(b * 5 + h, t), r.g(b, t, h) != 0) << b << " " << h << " " << t;
  EXPECT_EQ(lists.begin(15), 36);

  Route ragged({.heads = 5, .shared = 2, .chosen = 1}, 1, 12);
  ragged.run();
  Tensor q_offsets = tensor_of({0, 3, 3, 12});
  list_rows(ragged.o, ragged.chosen.view(), q_offsets.view(), lists);
  for (Index b = 0; b < 3; ++b)
    for (Index h = 0; h < 5; ++h) {
      const Index start = q_offsets.values<std::int64_t>()[static_cast<std::size_t>(b)],
                  end = q_offsets.values<std::int64_t>()[static_cast<std::size_t>(b) + 1];
      for (Index t = start; t < end; ++t)
        EXPECT_EQ(lists.lists(b * 5 + h, t - start), ragged.g(0, t, h) != 0);
    }
}

TEST(RouteHeads, BadChoicesAreRefusedInWords) {
  Route r({.heads = 5, .shared = 2, .chosen = 3}, 1, 2);
  r.o.chosen = 4;
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { r.run(); }),
            "route_heads: a token chooses 4 heads but only 3 of 5 are routed; choose at most these");
  r.o = {.heads = 5, .shared = 0, .chosen = 0};
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { list_rows(r.o, r.chosen.view(), {}, {}); }),
            "list_rows: no head is shared and none is chosen; a token needs one head at least");
}

}  // namespace
}  // namespace headwise::test
