// Gradients of rope, RMS norm and L2 norm: central differences in f64, ref in every layout, bits, refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/norm.h"
#include "headwise/kernels/ref/rope.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/row/rope.h"
#include "tests/ops/row_op_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

/// Either norm, forward and backward, with weight or scale as `weight`.
struct Norm {
  bool rms;
  double eps = 1e-6;
  WeightForm form = WeightForm::plain;
  void forward(const InputView& x, const InputView& weight, const InputView& out, Context& ctx) const {
    if (rms)
      rms_norm(x, weight, out, {.eps = eps, .weight_form = form}, ctx);
    else
      l2_norm(x, weight, out, {.eps = eps}, ctx);
  }
  void backward(const NormBackwardArgs& a, Context& ctx) const {
    if (rms)
      rms_norm_backward(a, {.eps = eps, .weight_form = form}, ctx);
    else
      l2_norm_backward(a, {.eps = eps}, ctx);
  }
};

double dot_of(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (Index n = 0; n < a.view().count(); ++n) sum += value(a.view(), n) * value(b.view(), n);
  return sum;
}

/// Every element of `gradient` is the five-point difference of loss() over the element of `input`.
template <class Loss>
void expect_slopes(const char* name, Tensor& input, const Tensor& gradient, const Loss& loss) {
  for (Index n = 0; n < input.view().count(); ++n) {
    constexpr double kEps = 1e-5;
    double& x = input.values<double>()[static_cast<std::size_t>(n)];
    const double here = x;
    const auto at = [&](double step) {
      x = here + step;
      return loss();
    };
    const double slope = (8 * (at(kEps) - at(-kEps)) - (at(2 * kEps) - at(-2 * kEps))) / (12 * kEps);
    x = here;
    const double g = value(gradient.view(), n);
    EXPECT_NEAR(g, slope, 1e-8 * std::max(1.0, std::abs(g))) << name << " " << n;
  }
}

TEST(NormBackward, EveryElementMatchesCentralDifferences) {
  Context ctx({.threads = 2});
  const std::initializer_list<std::initializer_list<Index>> weights = {{5}, {3, 5}, {1}, {3, 1}, {1, 5}};
  for (const Norm norm : {Norm{true}, Norm{true, 0.3, WeightForm::one_plus}, Norm{false}, Norm{false, 1.9}})
    for (const auto& sizes : weights) {
      if (norm.rms && (*sizes.begin() == 1 || *(sizes.end() - 1) == 1)) continue;
      Tensor x = random_normal({2, 4, 3, 5}, DType::f64, 1), weight = random_normal(sizes, DType::f64, 2),
             dout = random_normal({2, 4, 3, 5}, DType::f64, 3);
      Tensor dx = tensor_like(x.view()), dweight = tensor_like(weight.view()), out = tensor_like(x.view());
      norm.backward({.x = x.view(),
                     .weight = weight.view(),
                     .dout = dout.view(),
                     .dx = dx.view(),
                     .dweight = dweight.view()},
                    ctx);
      const auto loss = [&] {
        norm.forward(x.view(), weight.view(), out.view(), ctx);
        return dot_of(out, dout);
      };
      expect_slopes("dx", x, dx, loss);
      expect_slopes("dweight", weight, dweight, loss);
    }
}

TEST(NormBackward, MatchesTheReferenceInEveryLayout) {
  EXPECT_TRUE(rc::check("any sizes, steps, dtypes, weights", [] {
    const auto size = [](Index low, Index high) { return *rc::gen::inRange<Index>(low, high); };
    const DType dtype = kFloats[size(0, 4)];
    const Index batch = size(0, 4), tokens = size(0, 300), heads = size(0, 4), dim = size(0, 80),
                form = size(0, 3);
    const auto seed = static_cast<std::uint64_t>(size(0, 1000));
    Tensor x = random_normal({batch, tokens, heads, dim}, dtype, seed),
           dout = random_normal({batch, tokens, heads, dim}, dtype, seed + 5);
    Tensor w = form == 2 ? random_normal({heads, dim}, DType::f32, seed + 1)
                         : random_normal({dim}, DType::bf16, seed + 2);
    const std::vector<int> orders[] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
    const Scattered from(x.view(), orders[size(0, 4)], size(0, 3)),
        slope(dout.view(), orders[size(0, 4)], size(0, 3));
    Scattered to(x.view(), orders[size(0, 4)], size(0, 3));
    Tensor dweight(DType::f64,
                   form == 2 ? std::initializer_list<Index>{heads, dim} : std::initializer_list<Index>{dim});
    const Norm norm{size(0, 2) == 1, 1e-6, size(0, 2) == 1 ? WeightForm::one_plus : WeightForm::plain};
    const bool plus = norm.form == WeightForm::one_plus;
    Context ctx({.threads = static_cast<int>(size(1, 4))});
    NormBackwardArgs a{.x = from.view, .dout = slope.view, .dx = to.view};
    if (form > 0) a.weight = w.view(), a.dweight = dweight.view();
    norm.backward(a, ctx);
    RC_ASSERT(to.gaps_intact() && from.gaps_intact() && slope.gaps_intact());
    Tensor truth(DType::f64, {batch, tokens, heads, dim}), sums = tensor_like(dweight.view());
    each_index(x.view(), [&](const Index* at) {
      if (at[3] != 0) return;
      const Index head_at[] = {at[2], 0};
      const AnyView vector = form == 2 ? row_of(w.view(), head_at) : a.weight;
      const AnyView sum = form == 2 ? row_of(sums.view(), head_at) : form == 1 ? sums.view() : AnyView{};
      const AnyView in = row_of(x.view(), at), back = row_of(dout.view(), at), dx = row_of(truth.view(), at);
      if (norm.rms)
        ref::rms_norm_backward(in, vector, plus ? 1 : 0, 1e-6, back, dx, sum);
      else
        ref::l2_norm_backward(in, vector, 1e-6, back, dx, sum);
    });
    Tensor got = to.packed();
    for (Index i = 0; i < got.view().count(); ++i) {
      const double t = value(truth.view(), i);
      // dim 1: the two terms cancel to what rounding leaves of them.
      RC_ASSERT(
          rounded_once(dtype, value(got.view(), i), t, 1e-13 * (1 + std::abs(t)) / (dim < 3 ? 1e-4 : 1)));
    }
    for (Index i = 0; form > 0 && i < sums.view().count(); ++i)
      RC_ASSERT(std::abs(value(dweight.view(), i) - value(sums.view(), i)) <=
                1e-13 * static_cast<double>(1 + batch * tokens * heads));
  }));
}

TEST(NormBackwardBits, SameForThreadsLayoutsNeighboursAndInPlace) {
  for (DType dtype : kFloats)
    for (const bool is_rms : {true, false}) {
      const Norm norm{is_rms};
      Tensor x = random_normal({3, 400, 4, 24}, dtype, 3), dout = random_normal({3, 400, 4, 24}, dtype, 4),
             weight = random_normal({4, 24}, DType::f32, 5);
      const auto run = [&](int threads, const InputView& in, const InputView& back, const AnyView& dx,
                           Tensor& dw) {
        Context ctx({.threads = threads});
        norm.backward({.x = in, .weight = weight.view(), .dout = back, .dx = dx, .dweight = dw.view()}, ctx);
      };
      Tensor dx = tensor_like(x.view()), dweight = tensor_like(weight.view());
      run(1, x.view(), dout.view(), dx.view(), dweight);
      for (int threads : {2, 3, 5, 8}) {
        Tensor again = tensor_like(x.view()), sums = tensor_like(weight.view());
        run(threads, x.view(), dout.view(), again.view(), sums);
        EXPECT_TRUE(same_bits(dx.view(), again.view()) && same_bits(dweight.view(), sums.view())) << threads;
      }
      Scattered there(dout.view(), {3, 1, 2, 0}, 2);  // in place, in another layout
      Tensor sums = tensor_like(weight.view());
      run(2, x.view(), there.view, there.view, sums);
      EXPECT_TRUE(same_bits(dx.view(), there.packed().view()) && there.gaps_intact());
      EXPECT_TRUE(same_bits(dweight.view(), sums.view()));
      Tensor alone = tensor_like(slice(x.view(), 0, 1, 2));
      Context ctx({.threads = 2});
      norm.backward({.x = slice(x.view(), 0, 1, 2),
                     .weight = weight.view(),
                     .dout = slice(dout.view(), 0, 1, 2),
                     .dx = alone.view()},
                    ctx);
      EXPECT_TRUE(same_bits(alone.view(), slice(dx.view(), 0, 1, 2)));
    }
}

TEST(NormBackward, RowsOfZerosAndBadNumbers) {
  Context ctx({.threads = 2});
  for (const bool is_rms : {true, false})
    for (const double eps : {0.0, 1e-6}) {
      const Norm norm{is_rms, eps};
      Tensor x = random_normal({4, 6}, DType::f32, 1);
      Tensor dout = random_normal({4, 6}, DType::f32, 2), clean = tensor_like(x.view()),
             dx = tensor_like(x.view());
      for (Index i = 0; i < 6; ++i) x.values<float>()[static_cast<std::size_t>(6 + i)] = 0;
      norm.backward({.x = x.view(), .dout = dout.view(), .dx = clean.view()}, ctx);
      for (Index i = 6; i < 12; ++i) {
        // A row of zeros: out is 0 without eps, x / eps (RMS: x / sqrt(eps)) with it.
        const double divisor = is_rms ? std::sqrt(eps) : eps, g = value(dout.view(), i);
        const double want = eps == 0 ? 0 : g / divisor;
        EXPECT_NEAR(value(clean.view(), i), want, 1e-6 * std::abs(want)) << i;
      }
      x.values<float>()[2 * 6 + 3] = NAN;
      norm.backward({.x = x.view(), .dout = dout.view(), .dx = dx.view()}, ctx);
      for (Index i = 0; i < 24; ++i)
        EXPECT_TRUE(i / 6 == 2 ? std::isnan(value(dx.view(), i))
                               : value(dx.view(), i) == value(clean.view(), i))
            << i;
    }
}

/// Lengthening x changes nothing of out, so dx is at a right angle to x.
TEST(NormBackwardLaws, TheGradientIsAtARightAngleToTheRow) {
  Context ctx({.threads = 1});
  for (const bool is_rms : {true, false}) {
    const Norm norm{is_rms, 0};
    Tensor x = random_normal({1, 30}, DType::f64, 1), dout = random_normal({1, 30}, DType::f64, 2),
           dx = tensor_like(x.view());
    norm.backward({.x = x.view(), .dout = dout.view(), .dx = dx.view()}, ctx);
    EXPECT_NEAR(dot_of(x, dx), 0, 1e-13);
  }
}

TEST(NormBackward, SizesOfZeroGiveZeroWeights) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {0, 3, 4}), weight = random_normal({3, 4}, DType::f32, 1);
  Tensor dweight = random_normal({3, 4}, DType::f32, 2), zero(DType::f32, {3, 4});
  rms_norm_backward({.x = x.view(), .weight = weight.view(), .dout = x.view(), .dweight = dweight.view()}, {},
                    ctx);
  EXPECT_TRUE(same_bits(dweight.view(), zero.view()));
}

TEST(RowBackward, RunsAllocateNothingAfterTheFirst) {
  Tensor x = random_normal({2, 9, 3, 64}, DType::f32, 12), weight = random_normal({3, 64}, DType::f32, 13);
  Tensor dout = random_normal({2, 9, 3, 64}, DType::f32, 14), dweight = tensor_like(weight.view());
  Context ctx({.threads = 2});
  const auto run = [&] {
    rms_norm_backward({.x = x.view(),
                       .weight = weight.view(),
                       .dout = dout.view(),
                       .dx = dout.view(),
                       .dweight = dweight.view()},
                      {}, ctx);
    rope_backward(dout.view(), 3, dout.view(), RopeOptions{}, ctx);
  };
  run();
  const std::uint64_t before = allocations();
  for (int n = 0; n < 10; ++n) run();
  EXPECT_EQ(allocations(), before);
}

TEST(NormBackwardErrors, EachIsOneSentence) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3, 8}), dout(DType::f32, {2, 3, 8}), dx(DType::f32, {2, 3, 8}),
      weight(DType::f32, {8}), dweight(DType::f32, {8});
  const NormBackwardArgs sound{.x = x.view(),
                               .weight = weight.view(),
                               .dout = dout.view(),
                               .dx = dx.view(),
                               .dweight = dweight.view()};
  const auto rms = [&](auto&& spoil, double eps = 1e-6) {
    NormBackwardArgs a = sound;
    spoil(a);
    return error_of([&] { rms_norm_backward(a, {.eps = eps}, ctx); });
  };
  const auto unit = [&](auto&& spoil) {
    NormBackwardArgs a = sound;
    spoil(a);
    return error_of([&] { l2_norm_backward(a, {}, ctx); });
  };
  const auto nothing = [](NormBackwardArgs&) {};
  EXPECT_EQ(rms(nothing), "no error");
  EXPECT_EQ(rms(nothing, -1), "rms_norm_backward: eps is -1; give a finite number from 0 up");
  EXPECT_EQ(rms([](NormBackwardArgs& a) { a.x = {}; }),
            "rms_norm_backward: x is empty; give a tensor of rank 1 to 4");
  Tensor whole(DType::i32, {2, 3, 8}), other(DType::f32, {2, 3, 7}), narrow(DType::f16, {2, 3, 8}),
      nine(DType::f32, {9}), count(DType::i64, {8});
  EXPECT_EQ(
      rms([&](NormBackwardArgs& a) { a.x = whole.view(); }),
      "rms_norm_backward: gradients asked of integer inputs: x is i32 [2 3 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(
      rms([&](NormBackwardArgs& a) { a.dout = other.view(); }),
      "rms_norm_backward: dout is f32 [2 3 7] but x is f32 [2 3 8]; give dout the dtype and sizes of x");
  EXPECT_EQ(
      unit([&](NormBackwardArgs& a) { a.dx = narrow.view(); }),
      "l2_norm_backward: dx is f16 [2 3 8] but dout is f32 [2 3 8]; give dx the dtype and sizes of dout");
  EXPECT_EQ(rms([](NormBackwardArgs& a) { a.dx = a.dweight = {}; }),
            "rms_norm_backward: no gradient is asked; give dx, dweight or both");
  EXPECT_EQ(
      unit([](NormBackwardArgs& a) { a.weight = {}; }),
      "l2_norm_backward: dweight is given but scale is not; give the scale of the forward or leave dweight "
      "empty");
  EXPECT_EQ(rms([&](NormBackwardArgs& a) { a.dweight = nine.view(); }),
            "rms_norm_backward: dweight is f32 [9] but weight is f32 [8]; give a float type and its sizes");
  EXPECT_EQ(rms([&](NormBackwardArgs& a) { a.dweight = count.view(); }),
            "rms_norm_backward: dweight is i64 [8] but weight is f32 [8]; give a float type and its sizes");
  EXPECT_EQ(
      rms([](NormBackwardArgs& a) { a.dweight.step[0] = 0; }),
      "rms_norm_backward: dweight is f32 [8] with steps that put several elements in one place; give each "
      "its own");
  EXPECT_EQ(rms([](NormBackwardArgs& a) { a.dx = a.x; }),
            "rms_norm_backward: dx overlaps x; give it memory of its own");
  EXPECT_EQ(rms([](NormBackwardArgs& a) { a.dweight.data = a.dx.data; }),
            "rms_norm_backward: dweight overlaps dx; give it memory of its own");
  EXPECT_EQ(rms([&](NormBackwardArgs& a) { a.weight = nine.view(); }),
            "rms_norm_backward: weight is f32 [9] but x is f32 [2 3 8]; give [dim] or [heads dim]");
}

std::vector<RopeOptions> rope_kinds() {
  RopeOptions plain, partial, yarn;
  partial.kind = RopeKind::interleaved, partial.rotary_dim = 4;
  yarn.scaling = RopeScaling::yarn(8, 64);
  yarn.inverse = true;
  return {plain, partial, yarn};
}

TEST(RopeBackward, EveryElementMatchesCentralDifferences) {
  Context ctx({.threads = 2});
  for (const RopeOptions& options : rope_kinds()) {
    Tensor x = random_normal({2, 3, 2, 8}, DType::f64, 1), dout = random_normal({2, 3, 2, 8}, DType::f64, 2);
    Tensor dx = tensor_like(x.view()), out = tensor_like(x.view());
    rope_backward(dout.view(), 11, dx.view(), options, ctx);
    expect_slopes("dx", x, dx, [&] {
      rope(x.view(), 11, out.view(), options, ctx);
      return dot_of(out, dout);
    });
  }
}

/// <dout, rope x> == <rope_backward dout, x>: rope is linear, so its transpose is its gradient.
TEST(RopeBackwardLaws, IsTheTransposeAtAnyPosition) {
  Context ctx({.threads = 2});
  for (const RopeOptions& options : rope_kinds())
    for (const Index start : {Index{0}, Index{-5000}, kRopeReach - 40}) {
      Tensor x = random_normal({2, 40, 3, 32}, DType::f64, 1),
             dout = random_normal({2, 40, 3, 32}, DType::f64, 2);
      Tensor dx = tensor_like(x.view()), out = tensor_like(x.view());
      rope(x.view(), start, out.view(), options, ctx);
      rope_backward(dout.view(), start, dx.view(), options, ctx);
      EXPECT_NEAR(dot_of(out, dout), dot_of(dx, x), 1e-10);
    }
}

TEST(RopeBackwardBits, TableInPlaceAndTheInverseAreOne) {
  Context ctx({.threads = 3});
  for (const DType dtype : kFloats)
    for (const RopeOptions& options : rope_kinds()) {
      Tensor dout = random_normal({2, 50, 3, 32}, dtype, 4);
      Tensor dx = tensor_like(dout.view()), turned = tensor_like(dout.view()), tabled = dout.clone();
      rope_backward(dout.view(), 5, dx.view(), options, ctx);
      RopeOptions back = options;
      back.inverse = !options.inverse;
      rope(dout.view(), 5, turned.view(), back, ctx);
      EXPECT_TRUE(same_bits(dx.view(), turned.view()));
      rope_backward(tabled.view(), 5, tabled.view(), RopeTable(options, 32, 60, ctx), ctx);
      EXPECT_TRUE(same_bits(dx.view(), tabled.view()));
      Tensor truth = tensor_like(dout.view());
      each_index(dout.view(), [&](const Index* at) {
        if (at[3] == 0)
          ref::rope(row_of(dout.view(), at), 5 + at[1], row_of(truth.view(), at), back,
                    options.rotary_dim == kWholeHead ? 32 : options.rotary_dim);
      });
      for (Index n = 0; n < truth.view().count(); ++n)
        EXPECT_NEAR(value(dx.view(), n), value(truth.view(), n), ulp(dtype, value(truth.view(), n)) + 1e-14);
    }
}

TEST(RopeBackwardErrors, SpeakOfDoutAndDx) {
  Context ctx({.threads = 1});
  Tensor dout(DType::f32, {1, 2, 3, 8}), odd(DType::f32, {1, 2, 3, 7}), whole(DType::i32, {1, 2, 3, 8}),
      dx(DType::f32, {1, 2, 3, 8}), places(DType::i64, {3});
  const auto with = [&](const InputView& a, const RopePositions& at, const InputView& b,
                        RopeOptions options = {}) {
    return error_of([&] { rope_backward(a, at, b, options, ctx); });
  };
  EXPECT_EQ(with(dout.view(), 0, dx.view()), "no error");
  EXPECT_EQ(with(whole.view(), 0, whole.view()),
            "rope_backward: dout is i32 [1 2 3 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(
      with(dout.view(), 0, odd.view()),
      "rope_backward: dx is f32 [1 2 3 7] but dout is f32 [1 2 3 8]; give dx the dtype and sizes of dout");
  EXPECT_EQ(
      with(odd.view(), 0, odd.view()),
      "rope_backward: head_dim is 7, which leaves one dimension without a partner; give an even rotary_dim");
  EXPECT_EQ(
      with(dout.view(), places.view(), dx.view()),
      "rope_backward: positions are i64 [3] but dout is f32 [1 2 3 8]; give one a token: [tokens] or [batch "
      "tokens]");
  EXPECT_EQ(
      with(dout.view(), kRopeReach, dx.view()),
      "rope_backward: start 2147483648 with 2 tokens goes beyond 2147483648; angles are exact only there");
  AnyView flat = dout.view();
  flat.rank = 3;
  EXPECT_EQ(with(flat, 0, flat), "rope_backward: dout is f32 [1 2 3]; give [batch tokens heads dim]");
}

}  // namespace
}  // namespace headwise
