// ConstView: inputs are read and never written, and the compiler holds callers to it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "headwise/base/buffer.h"
#include "headwise/base/context.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/row/activation.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

using OfConst = decltype(std::declval<const Tensor&>().view());
static_assert(std::is_same_v<OfConst, ConstView>);
static_assert(std::is_convertible_v<AnyView, ConstView> && std::is_convertible_v<ConstView, InputView>);
static_assert(!std::is_constructible_v<AnyView, ConstView> && !std::is_assignable_v<AnyView&, ConstView>);
static_assert(!std::is_constructible_v<AnyView, View<const float, 2>>);
static_assert(std::is_same_v<decltype(std::declval<ConstView>().as<float, 2>().data), const float*>);
static_assert(
    std::is_same_v<decltype(std::declval<const Tensor&>().values<float>()), std::span<const float>>);

TEST(ConstView, ShowsWhatTheTensorHolds) {
  Tensor t(DType::f32, {2, 3});
  t.values<float>()[4] = 7;
  const Tensor& read = t;
  const ConstView v = read.view();
  EXPECT_EQ(v.data, t.view().data);
  EXPECT_EQ((v.as<float, 2>()(1, 1)), 7);
  EXPECT_EQ(v.count(), 6);
  EXPECT_TRUE(v.given() && v.on_cpu() && !ConstView().given());
  EXPECT_EQ(v.on(Device::cuda(1)).where(), Device::cuda(1));
  EXPECT_EQ(text(v), "f32 [2 3]");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { v.as<double, 2>(); }),
            "view: holds f32 of rank 2 but f64 of rank 2 was asked");
}

TEST(ConstView, OfMemoryThatIsConst) {
  static const float kNumbers[] = {1, 2, 3, 4};
  const ConstView v = ConstView::packed(kNumbers, DType::f32, {2, 2});
  EXPECT_EQ(v.step[0], 2);
  EXPECT_EQ((v.as<float, 2>()(1, 0)), 3);
  Tensor out(DType::f32, {2, 2});
  Context ctx;
  activation(Activation::relu, v, out.view(), ctx);
  EXPECT_EQ(std::memcmp(out.view().data, kNumbers, sizeof kNumbers), 0);
}

/// Inputs lie in const tensors; bits are those of a call with plain views.
TEST(ConstView, AttentionReadsConstTensors) {
  const Tensor q = random_normal({1, 5, 2, 8}, DType::f32, 1), k = random_normal({1, 7, 2, 8}, DType::f32, 2),
               v = random_normal({1, 7, 2, 8}, DType::f32, 3);
  Tensor q_own = q.clone(), k_own = k.clone(), v_own = v.clone();
  Tensor out(DType::f32, {1, 5, 2, 8}), plain(DType::f32, {1, 5, 2, 8});
  Context ctx;
  attention({.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()}, ctx);
  attention({.q = q_own.view(), .k = k_own.view(), .v = v_own.view(), .out = plain.view()}, ctx);
  EXPECT_EQ(std::memcmp(out.view().data, plain.view().data, 5 * 2 * 8 * sizeof(float)), 0);
}

}  // namespace
}  // namespace headwise
