// View, AnyView, Buffer, Tensor: steps, conversions, and sizes that do not fit.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/view.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/base/buffer.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

static_assert(std::is_trivially_copyable_v<View<float, 4>> && std::is_trivially_copyable_v<AnyView>);
static_assert(std::is_convertible_v<View<float, 2>, View<const float, 2>>);
static_assert(!std::is_convertible_v<View<const float, 2>, View<float, 2>>);
static_assert(!std::is_convertible_v<View<float, 2>, View<const double, 2>>);
static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_constructible_v<Tensor>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);

constexpr Index kMost = std::numeric_limits<Index>::max();
static_assert(ceil_div(0, 7) == 0 && ceil_div(7, 7) == 1 && ceil_div(8, 7) == 2 &&
              ceil_div(kMost, 2) == kMost / 2 + 1);
static_assert(round_up(9, 8) == 16 && round_up(16, 8) == 16 && round_up(0, 8) == 0);
static_assert((Checked(Index{1} << 31) * Checked(Index{1} << 31)).value == Index{1} << 62);
static_assert(!(Checked(Index{1} << 32) * Checked(Index{1} << 31)).ok && !(Checked(kMost) + Checked(1)).ok);
static_assert((Checked(kMost) + Checked(0)).ok && (Checked(kMost) * Checked(1)).ok);
static_assert(!(Checked(kMost) * Checked(2) * Checked(0)).ok, "a product that left the range stays refused");
static_assert(!(Checked(kMost) * Checked(2) + Checked(0)).ok, "and so does a sum over it");

TEST(View, PackedStepsAreRowMajor) {
  std::vector<float> data(2 * 3 * 5);
  std::iota(data.begin(), data.end(), 0.0f);
  const auto v = View<float, 3>::packed(data.data(), {2, 3, 5});
  EXPECT_EQ(v.step[0], 15);
  EXPECT_EQ(v.step[1], 5);
  EXPECT_EQ(v.step[2], 1);
  EXPECT_EQ(v(1, 2, 4), 29.0f);
  EXPECT_EQ(v(0, 1, 0), 5.0f);
}

TEST(View, StepZeroRepeatsAndSmallStepOverlaps) {
  float data[] = {1, 2, 3, 4};
  View<float, 2> v;
  v.data = data;
  v.size[0] = 3, v.size[1] = 2;
  v.step[0] = 0, v.step[1] = 1;
  EXPECT_EQ(v(2, 1), 2.0f);
  v.step[0] = 1;
  EXPECT_EQ(v(2, 1), 4.0f);
}

TEST(View, OffsetsPastTwoToThe31AreNotTruncated) {
  // No such tensor is touched: the address alone is formed, from steps whose product needs 34 bits.
  std::vector<std::uint8_t> byte(1);
  AnyView any = AnyView::packed(byte.data(), DType::u8, {4, Index{1} << 32});
  EXPECT_EQ(any.step[0], Index{1} << 32);
  EXPECT_EQ(any.count(), Index{1} << 34);
}

TEST(AnyView, KeepsDtypeRankSizesAndSteps) {
  std::vector<bf16> data(6);
  const AnyView any = View<bf16, 2>::packed(data.data(), {2, 3});
  EXPECT_EQ(any.dtype, DType::bf16);
  EXPECT_EQ(any.rank, 2);
  EXPECT_EQ(any.count(), 6);
  const auto back = any.as<const bf16, 2>();
  EXPECT_EQ(back.data, data.data());
  EXPECT_EQ(back.step[0], 3);
  EXPECT_EQ(text(any), "bf16 [2 3]");
}

TEST(AnyView, GivenAndEmptyAreDifferentThings) {
  EXPECT_FALSE(AnyView().given());
  EXPECT_EQ(AnyView().count(), 0);
  const AnyView none = AnyView::packed(nullptr, DType::f32, {3, 0, 2});
  EXPECT_TRUE(none.given());
  EXPECT_EQ(none.count(), 0);
}

TEST(AnyView, WrongTypeOrRankIsASentence) {
  std::vector<float> data(6);
  const AnyView any = View<float, 2>::packed(data.data(), {2, 3});
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { any.as<double, 2>(); }),
            "view: holds f32 of rank 2 but f64 of rank 2 was asked");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { any.as<float, 3>(); }),
            "view: holds f32 of rank 2 but f32 of rank 3 was asked");
}

TEST(AnyView, DoublesRoundTripThroughEveryDtype) {
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8}) {
    alignas(8) std::byte room[16] = {};
    store_double(room, t, 1, 3.0);
    EXPECT_EQ(load_double(room, t, 1), 3.0) << t;
    EXPECT_EQ(load_double(room, t, 0), 0.0) << t;
  }
}

TEST(Buffer, MovesAndNeverCopies) {
  Buffer a(100);
  std::byte* const at = a.data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 128, 0u);
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(b.size(), 100u);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: what a moved-from buffer holds is its promise
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

TEST(Buffer, MoreThanTheMachineHasIsASentence) {
  for (const std::size_t bytes : {~std::size_t{0}, ~std::size_t{0} / 2, std::size_t{1} << 62})
    EXPECT_EQ(sentence_of(ErrorKind::out_of_memory, [&] { Buffer b(bytes); }),
              text("buffer: ", bytes,
                   " bytes were asked and the system has not that many; use smaller sizes or fewer threads"));
}

TEST(Tensor, StartsAtZeroAndClones) {
  Tensor a(DType::f32, {2, 3});
  for (float x : a.values<float>()) EXPECT_EQ(x, 0.0f);
  a.values<float>()[4] = 7.0f;
  Tensor b = a.clone();
  a.values<float>()[4] = 8.0f;
  EXPECT_EQ(b.values<const float>()[4], 7.0f);
  EXPECT_NE(a.view().data, b.view().data);
  EXPECT_EQ(Tensor(DType::f16, {4, 0, 2}).values<f16>().size(), 0u);
}

TEST(Tensor, BadSizesAreSentences) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [] {
                          Tensor t(DType::f32, {2, -1});
                        }),
            "tensor: got a size of -1; sizes start at 0");
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [] {
                          Tensor t(DType::f32, {1, 1, 1, 1, 1});
                        }),
            "tensor: got 5 sizes; at most 4 are kept");
  EXPECT_EQ(sentence_of(ErrorKind::out_of_memory,
                        [] {
                          Tensor t(DType::f32, {Index{1} << 40, Index{1} << 40});
                        }),
            "tensor: the product of its 2 sizes is more than any address space holds; use smaller sizes");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [] { Tensor(DType::f32, {1}).values<double>(); }),
            "tensor: holds f32 but f64 was asked");
}

}  // namespace
}  // namespace headwise
