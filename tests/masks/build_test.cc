// Mask as users build it: each term against its definition, copies that own their arrays, and every refusal
// word for word.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

using Numbers = std::vector<Index>;
constexpr Index kHuge = std::numeric_limits<Index>::max();

template <class F>
std::string refusal(F&& build) {
  try {
    build();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

/// Every pair of 12 queries from -2 and 12 keys.
std::vector<bool> picture(const Mask& m, const MaskSubject& at = {}) {
  std::vector<bool> open;
  for (Index q = -2; q < 10; ++q)
    for (Index k = 0; k < 12; ++k) open.push_back(m.may_attend(q, k, at));
  return open;
}
template <class F>
std::vector<bool> picture_of(F&& open) {
  std::vector<bool> out;
  for (Index q = -2; q < 10; ++q)
    for (Index k = 0; k < 12; ++k) out.push_back(open(q, k));
  return out;
}

// What a temporary lends is gone before a kernel reads it.
template <class M>
concept Lends = requires(M&& m) {
  std::forward<M>(m).set();
};
static_assert(Lends<const Mask&> && !Lends<Mask>);

TEST(Mask, TermsOpenWhatTheirDefinitionsSay) {
  EXPECT_EQ(picture(Mask::all()), picture_of([](Index, Index) { return true; }));
  EXPECT_EQ(picture(Mask::causal()), picture_of([](Index q, Index k) { return k <= q; }));
  EXPECT_EQ(picture(Mask::window(2, 1)),
            picture_of([](Index q, Index k) { return q - 2 <= k && k <= q + 1; }));
  EXPECT_EQ(picture(Mask::prefix(4)), picture_of([](Index, Index k) { return k < 4; }));
  EXPECT_EQ(picture(Mask::lengths(Numbers{9, 3}), {.sequence = 1}),
            picture_of([](Index, Index k) { return k < 3; }));
  EXPECT_EQ(picture(Mask::documents(Numbers{1, 4, 9})), picture_of([](Index q, Index k) {
              return (1 <= q && q < 4 && 1 <= k && k < 4) || (4 <= q && q < 9 && 4 <= k && k < 9);
            }));
  EXPECT_EQ(picture(Mask::blocks(4, 3, Numbers{0, 2, 3}, Numbers{0, 2, 1})), picture_of([](Index q, Index k) {
              return (0 <= q && q < 4 && (k < 3 || (6 <= k && k < 9))) ||
                     (4 <= q && q < 8 && 3 <= k && k < 6);
            }));
  EXPECT_EQ(picture(Mask::strided(4, 2)),
            picture_of([](Index q, Index k) { return std::abs(q - k) % 4 < 2; }));
  EXPECT_EQ(picture(Mask::global(Numbers{7, 0, 7})),
            picture_of([](Index q, Index k) { return q == 0 || q == 7 || k == 0 || k == 7; }));
}

TEST(Mask, R030FourSpellingsOfCausalAreTheSamePairs) {
  const std::vector<bool> causal = picture(Mask::causal());
  EXPECT_EQ(picture(Mask::window(11, 0)), causal);
  EXPECT_EQ(picture(Mask::window(kHuge, 0)), causal);
  EXPECT_EQ(picture(Mask::sliding(12)), causal);
  EXPECT_EQ(Mask::sliding(kHuge), Mask::window(kHuge - 1, 0));
}

TEST(Mask, DensePacksAnyStepsAndBothPolarities) {
  // 70 keys cross a word; the tensor is [heads 2][kv 70][q 5] seen as [heads q kv].
  std::vector<std::uint8_t> bytes(2 * 70 * 5);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 0x80;
  AnyView v = AnyView::packed(bytes.data(), DType::u8, {2, 5, 70});
  v.step[1] = 1, v.step[2] = 5;
  const Mask open = Mask::dense(v), closed = Mask::from_blocked(v);
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 5; ++i)
      for (Index k = 0; k < 70; ++k) {
        const bool is = bytes[static_cast<std::size_t>(h * 350 + k * 5 + i)] != 0;
        ASSERT_EQ(open.may_attend(100 + i, k, {0, h, 100}), is);
        ASSERT_EQ(closed.may_attend(100 + i, k, {3, h, 100}), !is);
      }
  EXPECT_FALSE(closed.may_attend(0, 70)) << "keys past the tensor are closed in both polarities";
  EXPECT_FALSE(closed.may_attend(5, 0));
}

TEST(Mask, DenseBytesOfEveryValueAndUnevenRowsPack) {
  std::vector<std::uint8_t> bytes(3 * 131);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 % 256);
  const Mask m = Mask::dense(AnyView::packed(bytes.data(), DType::u8, {3, 131}));
  for (Index i = 0; i < 3; ++i)
    for (Index k = 0; k < 131; ++k)
      ASSERT_EQ(m.may_attend(i, k), bytes[static_cast<std::size_t>(i * 131 + k)] != 0) << i << ' ' << k;
  for (std::uint8_t& byte : bytes) byte = byte == 0;
  EXPECT_EQ(Mask::from_blocked(AnyView::packed(bytes.data(), DType::u8, {3, 131})), m)
      << "padding bits are 0 either way";
}

TEST(Mask, DenseRepeatsSizesOfOneAndStepsOfZero) {
  std::uint8_t keys[4] = {1, 0, 0, 1};
  AnyView v = AnyView::packed(keys, DType::u8, {2, 1, 1, 2});  // [batch 1 1 kv]: padding masks
  const Mask padding = Mask::dense(v);
  v.size[1] = 8, v.size[2] = 5, v.step[1] = v.step[2] = 0;
  const Mask repeated = Mask::dense(v);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 8; ++h)
      for (Index i = 0; i < 5; ++i)
        for (Index k = 0; k < 2; ++k) {
          ASSERT_EQ(padding.may_attend(i, k, {.sequence = b, .head = h}), keys[b * 2 + k] != 0);
          ASSERT_EQ(repeated.may_attend(i, k, {.sequence = b, .head = h}), keys[b * 2 + k] != 0);
        }
  EXPECT_NO_THROW(padding.check(2, 8, 5, 2));
  EXPECT_NO_THROW(repeated.check(2, 8, 5, 2));
}

TEST(Mask, DenseMergedFormIsTheSameMask) {
  for (const auto& [batch, heads] : {std::pair<Index, Index>{2, 3}, {3, 3}, {1, 4}, {4, 1}}) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(batch * heads * 15));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = i * i % 7 < 3;
    const Mask split = Mask::dense(AnyView::packed(bytes.data(), DType::u8, {batch, heads, 5, 3}));
    const AnyView merged = AnyView::packed(bytes.data(), DType::u8, {batch * heads, 5, 3});
    EXPECT_EQ(Mask::dense(unmerge_heads(merged, heads)), split);
    EXPECT_EQ(Mask::dense(merged) == split, batch == 1)
        << "read as [heads q kv] it is the same with one sequence";
  }
}

TEST(Mask, EmptyArraysAndTensorsAreLegal) {
  EXPECT_FALSE(Mask::lengths({}).may_attend(0, 0));
  EXPECT_FALSE(Mask::global({}).may_attend(0, 0));
  EXPECT_FALSE(Mask::documents(Numbers{0}).may_attend(0, 0));
  EXPECT_FALSE(Mask::blocks(2, 2, Numbers{0}, {}).may_attend(0, 0));
  for (const auto& sizes : {std::initializer_list<Index>{0, 5}, {5, 0}, {0, 2, 5, 5}, {2, 0, 5, 5}}) {
    const Mask m = Mask::dense(AnyView::packed(nullptr, DType::u8, sizes));
    EXPECT_FALSE(m.may_attend(0, 0));
    EXPECT_EQ(m.tile(0, 3, 0, 3), TileKind::empty);
    EXPECT_EQ(m, Mask(m));
  }
}

TEST(Mask, CopiesOutliveTheirOriginals) {
  std::uint8_t bytes[2] = {1, 0};
  auto original = std::make_unique<Mask>((Mask::lengths(Numbers{2, 5}) | Mask::global(Numbers{9})) &
                                         Mask::dense(AnyView::packed(bytes, DType::u8, {2, 1, 1, 1})));
  const std::vector<bool> want = picture(*original);
  const Mask copy = *original;
  EXPECT_EQ(copy, *original);
  EXPECT_NE(copy.set().views, original->set().views);
  Mask assigned = Mask::causal();
  assigned = *original;
  Mask moved = Mask(*original);
  const Mask moved_again = std::move(moved);
  const Mask heads = Mask::per_head(std::vector<Mask>{*original, Mask::causal(), copy});
  original.reset();
  EXPECT_EQ(picture(copy), want);
  EXPECT_EQ(picture(assigned), want);
  EXPECT_EQ(picture(moved_again), want);
  EXPECT_EQ(picture(heads, {.head = 2}), want);
  assigned = *&assigned;
  EXPECT_EQ(picture(assigned), want);
}

TEST(Mask, PerHeadGivesEachHeadItsOwn) {
  const Mask m = Mask::per_head(std::vector<Mask>{Mask::causal(), Mask::all(), Mask::prefix(1)});
  EXPECT_EQ(m.heads(), 3);
  EXPECT_EQ(m.set().count, 3);
  EXPECT_FALSE(m.may_attend(0, 1, {.head = 0}));
  EXPECT_TRUE(m.may_attend(0, 1, {.head = 1}));
  EXPECT_EQ(m.tile(0, 4, 1, 4, {.head = 2}), TileKind::empty);
  EXPECT_EQ(Mask::per_head(std::vector<Mask>{Mask::causal()}), Mask::causal());
  EXPECT_EQ(Mask::per_head(std::vector<Mask>{Mask()}), Mask::all());
  const Mask open;
  EXPECT_FALSE(open.set().given());
}

TEST(MaskRefuses, NumbersThatCannotBe) {
  EXPECT_EQ(refusal([] { Mask::window(-1, 0); }),
            "mask: window(-1, 0) counts keys besides the query itself, both numbers must be 0 or more; "
            "causal() has no "
            "limit behind");
  EXPECT_EQ(refusal([] { Mask::window(3, -2); }),
            "mask: window(3, -2) counts keys besides the query itself, both numbers must be 0 or more; "
            "causal() has no "
            "limit behind");
  EXPECT_EQ(refusal([] { Mask::sliding(0); }),
            "mask: sliding(0) counts the query itself, the width must be 1 or more");
  EXPECT_EQ(refusal([] { Mask::prefix(-3); }), "mask: prefix(-3) must be 0 or more keys");
  EXPECT_EQ(refusal([] {
              Mask::lengths(Numbers{4, -1});
            }),
            "mask: lengths[1] is -1; a length must be 0 or more, 0 closes the whole sequence");
  EXPECT_EQ(refusal([] { Mask::strided(0); }),
            "mask: strided(0, 1) must have a stride of 1 or more and a width from 1 to the stride");
  EXPECT_EQ(refusal([] { Mask::strided(4, 5); }),
            "mask: strided(4, 5) must have a stride of 1 or more and a width from 1 to the stride");
  EXPECT_EQ(refusal([] { Mask::strided(4, 0); }),
            "mask: strided(4, 0) must have a stride of 1 or more and a width from 1 to the stride");
  EXPECT_EQ(refusal([] {
              Mask::global(Numbers{0, -5});
            }),
            "mask: global[1] is -5; positions must be 0 or more");
}

TEST(MaskRefuses, DocumentsThatOverlap) {
  EXPECT_EQ(refusal([] { Mask::documents({}); }),
            "mask: documents has no offsets; give n + 1 numbers for n documents");
  EXPECT_EQ(refusal([] {
              Mask::documents(Numbers{-2, 4});
            }),
            "mask: documents starts at -2; offsets must be 0 or more");
  EXPECT_EQ(refusal([] {
              Mask::documents(Numbers{0, 5, 3});
            }),
            "mask: documents overlap: offsets[2] is 3 after 5; give the offsets in ascending order");
}

TEST(MaskRefuses, BlockListsThatAreNotCsr) {
  const auto blocks = [](Index q, Index kv, Numbers rows, Numbers columns) {
    return refusal([&] { Mask::blocks(q, kv, rows, columns); });
  };
  EXPECT_EQ(blocks(0, 64, {0}, {}), "mask: blocks(0, 64) must have block sizes of 1 or more");
  EXPECT_EQ(blocks(64, -1, {0}, {}), "mask: blocks(64, -1) must have block sizes of 1 or more");
  const char* begin =
      "mask: blocks rows must begin with 0; give n + 1 offsets into the columns for n block rows";
  EXPECT_EQ(blocks(8, 8, {}, {}), begin);
  EXPECT_EQ(blocks(8, 8, {1, 2}, {0, 1}), begin);
  EXPECT_EQ(blocks(8, 8, {0, 2, 1}, {0, 1}), "mask: blocks rows[2] is 1 after 2; row offsets must ascend");
  EXPECT_EQ(blocks(8, 8, {0, 1, 3}, {0, 1}),
            "mask: blocks rows end at 3 but there are 2 columns; the last row offset must be their number");
  EXPECT_EQ(blocks(8, 8, {0, 1, 3}, {0, 4, 4}),
            "mask: blocks columns[2] is 4 after 4 in row 1; columns must ascend inside a row");
  EXPECT_EQ(blocks(8, 8, {0, 1}, {-1}), "mask: blocks columns[0] is -1; a kv block must be 0 or more");
  EXPECT_EQ(blocks(8, 8, {0, 1}, {kHuge / 8}),
            "mask: blocks columns[0] is 1152921504606846975, which with 8 keys a block lies past the last "
            "position an "
            "Index can hold");
}

TEST(MaskRefuses, TensorsThatAreNotMasks) {
  float numbers[6] = {};
  std::uint8_t bytes[6] = {};
  EXPECT_EQ(refusal([&] {
              Mask::dense(AnyView::packed(numbers, DType::f32, {2, 3}));
            }),
            "mask: dense takes u8, got f32 [2 3]; compare the values first, so that non-zero means open");
  EXPECT_EQ(
      refusal([&] {
        Mask::from_blocked(AnyView::packed(numbers, DType::f32, {2, 3}));
      }),
      "mask: from_blocked takes u8, got f32 [2 3]; compare the values first, so that non-zero means blocked");
  EXPECT_EQ(refusal([&] { Mask::dense(AnyView::packed(bytes, DType::u8, {6})); }),
            "mask: dense takes [q kv], [heads q kv] or [batch heads q kv], got u8 [6]");
  EXPECT_EQ(refusal([&] {
              Mask::dense(AnyView::packed(nullptr, DType::u8, {2, 3}));
            }),
            "mask: dense u8 [2 3] has no data; pass its address");
  AnyView backwards = AnyView::packed(bytes, DType::u8, {2, 3});
  backwards.step[0] = -3;
  EXPECT_EQ(refusal([&] { Mask::dense(backwards); }),
            "mask: dense has size 2 and step -3; both must be 0 or more");
  AnyView huge = AnyView::packed(bytes, DType::u8, {1, 1});
  huge.size[0] = huge.size[1] = kHuge;
  EXPECT_EQ(refusal([&] { Mask::dense(huge); }),
            "mask: dense u8 [9223372036854775807 9223372036854775807] needs more words than an Index holds");
  EXPECT_EQ(refusal([&] {
              unmerge_heads(AnyView::packed(bytes, DType::u8, {3, 1, 2}), 2);
            }),
            "unmerge_heads: got u8 [3 1 2] for 2 heads; the first of at most 3 sizes must be batch*heads");
}

TEST(MaskRefuses, PerHeadInsideAnExpression) {
  const Mask two = Mask::per_head(std::vector<Mask>{Mask::causal(), Mask::all()});
  EXPECT_EQ(
      refusal([&] { two& Mask::causal(); }),
      "mask: per_head of 2 masks cannot stand inside &; combine each head's mask first, then call per_head");
  EXPECT_EQ(
      refusal([&] { Mask::all() | two; }),
      "mask: per_head of 2 masks cannot stand inside |; combine each head's mask first, then call per_head");
  EXPECT_EQ(refusal([&] {
              Mask::per_head(std::vector<Mask>{Mask::causal(), two});
            }),
            "mask: per_head mask 1 is itself one of 2 heads; per_head takes plain masks only");
  EXPECT_EQ(refusal([] { Mask::per_head({}); }), "mask: per_head has no masks; give one for each head");
}

TEST(MaskRefuses, ProblemsItDoesNotFit) {
  const Mask two = Mask::per_head(std::vector<Mask>{Mask::causal(), Mask::all()});
  EXPECT_EQ(refusal([&] { two.check(1, 8, 4, 4); }),
            "mask: per_head has 2 masks but there are 8 heads; give one mask for each head");
  EXPECT_EQ(refusal([&] { two.check(1, 2, 4, 4); }), "accepted");
  EXPECT_EQ(refusal([] {
              (Mask::causal() & Mask::lengths(Numbers{1, 2, 3})).check(2, 8, 4, 4);
            }),
            "mask: lengths are for 3 sequences but the batch has 2; give one length for each sequence");
  std::uint8_t bytes[12] = {};
  const Mask dense = Mask::dense(AnyView::packed(bytes, DType::u8, {3, 4}));
  EXPECT_EQ(refusal([&] { dense.check(2, 8, 4, 3); }),
            "mask: dense is [1 1 3 4] but the problem is [2 8 4 3] ([batch heads q kv]); every size must be "
            "equal or 1");
  EXPECT_EQ(refusal([&] { dense.check(2, 8, 3, 4); }), "accepted");
}

TEST(MaskRefuses, QuestionsWithoutAnAnswer) {
  const Mask two = Mask::per_head(std::vector<Mask>{Mask::causal(), Mask::all()});
  EXPECT_EQ(refusal([&] { two.may_attend(0, 0, {.head = 2}); }),
            "mask: head 2 was asked but per_head has 2 masks; ask for one of 0..1");
  EXPECT_EQ(refusal([&] { two.may_attend(0, -1); }), "mask: key -1 was asked; keys count from 0");
  EXPECT_EQ(refusal([&] { two.tile(4, 4, 0, 1); }),
            "mask: tile of queries 4..4 and keys 0..1 was asked; both ranges must hold something and keys "
            "count from 0");
}

}  // namespace
}  // namespace headwise
