// MaskView against the definitions, written out a second time: every small tile, every row, and positions
// near the end of Index.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/spec/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

namespace headwise {
namespace {

using Open = std::function<bool(Index, Index)>;
constexpr Index kHuge = std::numeric_limits<Index>::max();

// What the compiler can check itself.
static_assert(MaskView::all().tile(0, 8, 8, 16) == TileKind::full);
static_assert(MaskView::causal().tile(0, 8, 7, 16) == TileKind::mixed);
static_assert(MaskView::causal().tile(15, 16, 8, 16) == TileKind::full);
static_assert(MaskView::causal().tile(-8, 0, 0, 16) == TileKind::empty);
static_assert(MaskView::window(4, 0).tile(20, 24, 8, 16) == TileKind::empty);
static_assert(MaskView::window(kHuge, kHuge).tile(0, 2, 0, kHuge) == TileKind::full);
static_assert(MaskView::prefix(5).tile(0, 1, 4, 6) == TileKind::mixed);
static_assert(MaskView::causal().may_attend(3, 3) && !MaskView::causal().may_attend(3, 4));
static_assert(std::is_trivially_copyable_v<MaskView>);

// Offsets into a dense mask past 2^31 and 2^32 words and bits, without the memory: 3 batches of 5 heads of
// 2^31 queries.
constexpr Index kTwo31 = Index{1} << 31, kTwo32 = Index{1} << 32;
constexpr Index kDenseWords[3] = {5 * kTwo31 * 2, kTwo31 * 2, 2};
static_assert(mask_terms::dense_word(kDenseWords, 0, 0, 0, kTwo31 - 1) == kTwo31 / 64 - 1);
static_assert(mask_terms::dense_word(kDenseWords, 0, 0, 0, kTwo31 + 1) == kTwo31 / 64);
static_assert(mask_terms::dense_word(kDenseWords, 0, 0, 0, kTwo32 - 1) == kTwo32 / 64 - 1);
static_assert(mask_terms::dense_word(kDenseWords, 0, 0, 0, kTwo32 + 1) == kTwo32 / 64);
static_assert(mask_terms::dense_word(kDenseWords, 0, 0, kTwo31 - 1, 64) == kTwo32 - 1);
static_assert(mask_terms::dense_word(kDenseWords, 2, 4, kTwo31 - 1, 64) == 15 * kTwo32 - 1);

MaskView join(MaskOp op, const MaskView& a, const MaskView& b) {
  MaskView v = a;
  for (int i = 0; i < b.count; ++i) v.steps[v.count++] = b.steps[i];
  v.steps[v.count++] = {.op = op};
  return v;
}
MaskView both(const MaskView& a, const MaskView& b) { return join(MaskOp::both, a, b); }
MaskView either(const MaskView& a, const MaskView& b) { return join(MaskOp::either, a, b); }

/// Compares may_attend, tile and row_bits with `open` around queries from `q_low` and keys from `k_low`.
void expect_exact(const MaskView& v, const Open& open, Index q_low, Index k_low, Index span,
                  const MaskSubject& at = {}) {
  const auto side = static_cast<std::size_t>(span);
  std::vector<std::vector<int>> before(side + 1, std::vector<int>(side + 1));  // open pairs left of and above
  for (Index i = 0; i < span; ++i)
    for (Index j = 0; j < span; ++j) {
      const bool is = open(q_low + i, k_low + j);
      ASSERT_EQ(v.may_attend(q_low + i, k_low + j, at), is) << "q " << q_low + i << " k " << k_low + j;
      const auto y = static_cast<std::size_t>(i), x = static_cast<std::size_t>(j);
      before[y + 1][x + 1] = before[y][x + 1] + before[y + 1][x] - before[y][x] + is;
    }
  for (std::size_t i0 = 0; i0 < side; ++i0)
    for (std::size_t i1 = i0 + 1; i1 <= side; ++i1)
      for (std::size_t j0 = 0; j0 < side; ++j0)
        for (std::size_t j1 = j0 + 1; j1 <= side; ++j1) {
          const int n = before[i1][j1] - before[i0][j1] - before[i1][j0] + before[i0][j0];
          const TileKind want = n == 0                                         ? TileKind::empty
                                : n == static_cast<int>((i1 - i0) * (j1 - j0)) ? TileKind::full
                                                                               : TileKind::mixed;
          const auto q = [&](std::size_t i) { return q_low + static_cast<Index>(i); };
          const auto k = [&](std::size_t j) { return k_low + static_cast<Index>(j); };
          ASSERT_EQ(v.tile(q(i0), q(i1), k(j0), k(j1), at), want)
              << "queries " << q(i0) << ".." << q(i1) << " keys " << k(j0) << ".." << k(j1);
        }
  for (Index i = 0; i < span; ++i)
    for (int words : {1, 3, 4, 5}) {
      std::vector<std::uint64_t> row(static_cast<std::size_t>(words) + 1, 0xabcdef);
      v.row_bits(q_low + i, k_low, words, row.data(), at);
      for (Index j = 0; j < 64 * words; ++j)
        ASSERT_EQ(row[static_cast<std::size_t>(j / 64)] >> (j % 64) & 1, open(q_low + i, k_low + j))
            << "q " << q_low + i << " k " << k_low + j;
      ASSERT_EQ(row.back(), 0xabcdef) << "a word past the end was written";
    }
}

/// The same at the start, in the middle of words, before the first key, and past 2^31 and 2^40.
void expect_exact_everywhere(const MaskView& v, const Open& open, const MaskSubject& at = {}) {
  for (Index q_low : {-7, 0, 3})
    for (Index k_low : {0, 2, 59}) expect_exact(v, open, q_low, k_low, 12, at);
  for (Index far : {kTwo31 - 5, kTwo32 + 3, Index{1} << 40, Index{1} << 62}) {
    expect_exact(v, open, far, far - 3, 12, at);
    expect_exact(v, open, far, 0, 8, at);
    expect_exact(v, open, 0, far, 8, at);
  }
}

TEST(MaskView, AllIsOpen) {
  expect_exact_everywhere(MaskView::all(), [](Index, Index) { return true; });
}

TEST(MaskView, CausalIsExact) {
  expect_exact_everywhere(MaskView::causal(), [](Index q, Index k) { return k <= q; });
}

TEST(MaskView, WindowIsExact) {
  for (Index back : {Index{0}, Index{1}, Index{4}, Index{70}, kTwo31, kHuge})
    for (Index ahead : {Index{0}, Index{2}, Index{5}, kHuge})
      expect_exact_everywhere(MaskView::window(back, ahead), [&](Index q, Index k) {
        const __int128 wide_q = q;
        return wide_q - back <= k && k <= wide_q + ahead;
      });
}

TEST(MaskView, R029SlidingWindowCountsItself) {
  for (Index width : {1, 2, 63, 64, 65}) {
    const MaskView v = MaskView::window(width - 1, 0);
    int visible = 0;
    for (Index k = 0; k < 300; ++k) visible += v.may_attend(200, k);
    EXPECT_EQ(visible, width);
  }
}

TEST(MaskView, PrefixIsExact) {
  for (Index n : {Index{0}, Index{1}, Index{7}, Index{64}, Index{65}, kTwo32, kHuge})
    expect_exact_everywhere(MaskView::prefix(n), [&](Index, Index k) { return k < n; });
}

TEST(MaskView, LengthsAreExactAndClosedPastTheBatch) {
  const std::vector<Index> lengths = {0, 5, 63, kTwo32};
  const MaskView v = MaskView::one({.op = MaskOp::lengths, .offsets = lengths.data(), .n = 4});
  for (Index b = 0; b < 6; ++b)
    expect_exact_everywhere(v,
                            [&](Index, Index k) { return b < 4 && k < lengths[static_cast<std::size_t>(b)]; },
                            {.sequence = b});
}

int document(const std::vector<Index>& offsets, Index p) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    if (offsets[i] <= p && p < offsets[i + 1]) return static_cast<int>(i);
  return -1;
}
MaskStep documents_step(const std::vector<Index>& offsets) {
  return {.op = MaskOp::documents, .offsets = offsets.data(), .n = static_cast<Index>(offsets.size()) - 1};
}

TEST(MaskView, DocumentsAreExact) {
  const std::vector<std::vector<Index>> cases = {
      {0}, {3}, {0, 4}, {0, 0, 3, 3, 8}, {2, 5, 9, 10, 11, 70}, {0, kTwo31, kTwo32 + 7, kHuge}};
  for (const auto& offsets : cases)
    expect_exact_everywhere(MaskView::one(documents_step(offsets)), [&](Index q, Index k) {
      return document(offsets, q) >= 0 && document(offsets, q) == document(offsets, k);
    });
}

TEST(MaskView, BlocksAreExact) {
  // Row 0 has a gap, row 1 nothing, row 2 neighbours, row 3 everything up to 2^40 keys' worth of one column.
  const std::vector<Index> rows = {0, 2, 2, 5, 6}, columns = {0, 2, 1, 2, 3, 0};
  for (Index q_block : {Index{1}, Index{3}, Index{64}, kTwo31})
    for (Index kv_block : {Index{1}, Index{4}, Index{100}, Index{1} << 40}) {
      const MaskView v = MaskView::one({.op = MaskOp::blocks,
                                        .a = q_block,
                                        .b = kv_block,
                                        .offsets = rows.data(),
                                        .columns = columns.data(),
                                        .n = 4});
      expect_exact_everywhere(v, [&](Index q, Index k) {
        if (q < 0 || q / q_block >= 4) return false;
        const auto r = static_cast<std::size_t>(q / q_block);
        for (Index i = rows[r]; i < rows[r + 1]; ++i)
          if (columns[static_cast<std::size_t>(i)] == k / kv_block) return true;
        return false;
      });
    }
}

TEST(MaskView, StridedIsExact) {
  for (Index stride :
       {Index{1}, Index{2}, Index{3}, Index{7}, Index{32}, Index{63}, Index{64}, Index{65}, kTwo31})
    for (Index width : {Index{1}, Index{2}, Index{5}, Index{40}, stride}) {
      if (width > stride) continue;
      const MaskView v = MaskView::one({.op = MaskOp::strided, .a = stride, .b = width});
      expect_exact_everywhere(v, [&](Index q, Index k) { return (q < k ? k - q : q - k) % stride < width; });
    }
}

TEST(MaskView, GlobalIsExact) {
  for (const std::vector<Index>& positions : {std::vector<Index>{},
                                              {0},
                                              {1, 2, 3, 4, 5},
                                              {0, 60, 61, 200},
                                              {5, kTwo31 - 2, kTwo32 + 9, Index{1} << 40}})
    expect_exact_everywhere(
        MaskView::one(
            {.op = MaskOp::global, .offsets = positions.data(), .n = static_cast<Index>(positions.size())}),
        [&](Index q, Index k) {
          const auto in = [&](Index p) {
            return std::find(positions.begin(), positions.end(), p) != positions.end();
          };
          return in(q) || in(k);
        });
}

TEST(MaskView, DenseIsExactByIndexAndRepeatsSizeOne) {
  std::mt19937_64 random(7);
  for (Index batch : {1, 2})
    for (Index heads : {1, 3})
      for (Index q : {0, 1, 9})
        for (Index kv : {0, 1, 5, 64, 130}) {
          const Index row = ceil_div(kv, 64);
          MaskStep s{.op = MaskOp::dense};
          const Index size[4] = {batch, heads, q, kv}, words[3] = {heads * q * row, q * row, row};
          for (int axis = 0; axis < 4; ++axis) s.size[axis] = size[axis];
          for (int axis = 0; axis < 3; ++axis) s.words[axis] = size[axis] == 1 ? 0 : words[axis];
          std::vector<std::uint64_t> bits(static_cast<std::size_t>(batch * heads * q * row));
          for (std::size_t w = 0; w < bits.size(); ++w) {
            const auto end = static_cast<Index>(w) % row == row - 1 ? kv - 64 * (row - 1) : 64;
            const std::uint64_t dice = random();
            bits[w] = (dice % 4 == 0   ? 0
                       : dice % 4 == 1 ? ~std::uint64_t{0}
                                       : random()) &
                      mask_terms::bits_between(0, end);
          }
          s.bits = bits.data();
          for (const MaskSubject& at :
               {MaskSubject{0, 0, 0}, {1, 2, -3}, {1, 0, 5}, {0, 1, kTwo31 - 5}, {3, 0, 0}})
            for (Index k_low : {Index{0}, Index{59}, Index{127}, kTwo32}) {
              const Open open = [&](Index p, Index k) {
                Index at_axis[4] = {at.sequence, at.head, p - at.q_start, k};
                for (int axis = 0; axis < 4; ++axis) {
                  if (size[axis] == 1) at_axis[axis] = 0;
                  if (at_axis[axis] < 0 || at_axis[axis] >= size[axis]) return false;
                }
                const Index w = ((at_axis[0] * heads + at_axis[1]) * q + at_axis[2]) * row + at_axis[3] / 64;
                return (bits[static_cast<std::size_t>(w)] >> (at_axis[3] % 64) & 1) != 0;
              };
              expect_exact(MaskView::one(s), open, at.q_start - 1, k_low, 11, at);
            }
        }
}

TEST(MaskView, AndOfIntervalTermsIsExact) {
  const std::vector<Index> lengths = {6}, first = {0, 3, 4, 9, 66}, second = {1, 6, 8, 90};
  const std::vector<MaskView> terms = {
      MaskView::causal(),
      MaskView::window(2, 1),
      MaskView::window(0, 4),
      MaskView::prefix(8),
      MaskView::prefix(62),
      MaskView::one({.op = MaskOp::lengths, .offsets = lengths.data(), .n = 1}),
      MaskView::one(documents_step(first)),
      MaskView::one(documents_step(second))};
  for (unsigned chosen = 1; chosen < 1u << terms.size(); ++chosen)
    for (bool right : {false, true}) {
      std::vector<MaskView> parts;
      for (std::size_t i = 0; i < terms.size(); ++i)
        if (chosen >> i & 1) parts.push_back(terms[i]);
      MaskView v = right ? parts.back() : parts.front();
      for (std::size_t i = 1; i < parts.size(); ++i)
        v = right ? both(parts[parts.size() - 1 - i], v) : both(v, parts[i]);
      const Open open = [&](Index q, Index k) {
        return std::all_of(parts.begin(), parts.end(), [&](const MaskView& t) { return t.may_attend(q, k); });
      };
      for (Index q_low : {-3, 1})
        for (Index k_low : {0, 58}) expect_exact(v, open, q_low, k_low, 9);
    }
}

TEST(MaskView, EitherOfExactTermsIsNeverMixedWhenEmpty) {
  const MaskView v = either(both(MaskView::causal(), MaskView::window(3, 0)), MaskView::prefix(2));
  for (Index q0 = 0; q0 < 12; ++q0)
    for (Index q1 = q0 + 1; q1 <= 12; ++q1)
      for (Index k0 = 0; k0 < 12; ++k0)
        for (Index k1 = k0 + 1; k1 <= 12; ++k1) {
          bool open = false;
          for (Index q = q0; q < q1; ++q)
            for (Index k = k0; k < k1; ++k) open = open || (k <= q && q - k <= 3) || k < 2;
          EXPECT_EQ(v.tile(q0, q1, k0, k1) == TileKind::empty, !open);
        }
}

TEST(MaskView, AndJoinsIntervalsAcrossOtherTerms) {
  // window & strided & causal: the two interval terms leave nothing here though each alone does.
  const MaskView strided = MaskView::one({.op = MaskOp::strided, .a = 2, .b = 1});
  const MaskView v = both(both(MaskView::prefix(4), strided), MaskView::window(0, 0));
  EXPECT_EQ(v.tile(6, 9, 0, 9), TileKind::empty);
}

TEST(MaskView, DeepestProgramsFitTheirStack) {
  MaskView left = MaskView::window(0, 3), right = MaskView::window(0, 3);
  for (int i = 1; i < MaskView::kMaxTerms; ++i) {
    left = join(i % 2 ? MaskOp::either : MaskOp::both, left, MaskView::window(i % 3, i % 5));
    right = join(i % 2 ? MaskOp::either : MaskOp::both, MaskView::window(i % 3, i % 5), right);
  }
  ASSERT_EQ(right.count, MaskView::kMaxSteps);
  for (Index q = 0; q < 20; ++q)
    for (Index k = 0; k < 20; ++k) {
      EXPECT_EQ(left.may_attend(q, k), right.may_attend(q, k));
      std::uint64_t word = 0;
      right.row_bits(q, k, 1, &word);
      EXPECT_EQ(word & 1, left.may_attend(q, k));
      EXPECT_EQ(right.tile(q, q + 1, k, k + 1) == TileKind::empty, !left.may_attend(q, k));
    }
}

}  // namespace
}  // namespace headwise
