// & and | of masks, counting, and properties over random expressions: a tile never lies, a row is its
// pairs, text comes back.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

using Numbers = std::vector<Index>;

/// A mask beside a second, independent statement of the same pairs.
struct Expression {
  Mask mask;
  std::function<bool(Index q, Index k, const MaskSubject&)> open;
};

Numbers ascending(int most, Index last) {
  Numbers list = *rc::gen::container<Numbers>(rc::gen::inRange<Index>(0, last));
  if (list.size() > static_cast<std::size_t>(most)) list.resize(static_cast<std::size_t>(most));
  std::sort(list.begin(), list.end());
  return list;
}

Expression random_term(bool with_dense) {
  const Index x = *rc::gen::inRange<Index>(0, 90), y = *rc::gen::inRange<Index>(0, 90);
  switch (*rc::gen::inRange(0, with_dense ? 10 : 9)) {
    case 0: return {Mask::all(), [](Index, Index, auto&) { return true; }};
    case 1: return {Mask::causal(), [](Index q, Index k, auto&) { return k <= q; }};
    case 2: return {Mask::window(x, y), [=](Index q, Index k, auto&) { return q - x <= k && k <= q + y; }};
    case 3: return {Mask::prefix(x), [=](Index, Index k, auto&) { return k < x; }};
    case 4:
      return {Mask::lengths(Numbers{x, y}),
              [=](Index, Index k, auto& at) { return k < (at.sequence ? y : x); }};
    case 5: {
      Numbers offsets = ascending(6, 120);
      offsets.insert(offsets.begin(), 0);
      return {Mask::documents(offsets), [=](Index q, Index k, auto&) {
                for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
                  if (offsets[i] <= q && q < offsets[i + 1]) return offsets[i] <= k && k < offsets[i + 1];
                return false;
              }};
    }
    case 6: {
      const Index q_block = x + 1, kv_block = y / 4 + 1;
      Numbers rows = {0}, columns;
      for (int r = 0; r < 4; ++r) {
        Numbers row = ascending(5, 12);
        row.erase(std::unique(row.begin(), row.end()), row.end());
        columns.insert(columns.end(), row.begin(), row.end());
        rows.push_back(static_cast<Index>(columns.size()));
      }
      return {Mask::blocks(q_block, kv_block, rows, columns), [=](Index q, Index k, auto&) {
                if (q < 0 || q / q_block >= 4) return false;
                const auto r = static_cast<std::size_t>(q / q_block);
                return std::count(columns.begin() + rows[r], columns.begin() + rows[r + 1], k / kv_block) > 0;
              }};
    }
    case 7: {
      const Index stride = x + 1, width = y % stride + 1;
      return {Mask::strided(stride, width),
              [=](Index q, Index k, auto&) { return (q < k ? k - q : q - k) % stride < width; }};
    }
    case 8: {
      const Numbers positions = ascending(6, 120);
      return {Mask::global(positions), [=](Index q, Index k, auto&) {
                return std::count(positions.begin(), positions.end(), q) +
                           std::count(positions.begin(), positions.end(), k) >
                       0;
              }};
    }
    default: break;
  }
  const auto seed = *rc::gen::arbitrary<unsigned>();
  const Index heads = 2, q_tokens = 40, kv_tokens = x + 40;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(heads * q_tokens * kv_tokens));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = (i / 97 + seed) % 3 == 0 || (i * seed + i) % 11 < 3;
  return {Mask::dense(AnyView::packed(bytes.data(), DType::u8, {heads, q_tokens, kv_tokens})),
          [=](Index q, Index k, auto& at) {
            const Index i = q - at.q_start;
            return 0 <= i && i < q_tokens && k < kv_tokens &&
                   bytes[static_cast<std::size_t>((at.head * q_tokens + i) * kv_tokens + k)] != 0;
          }};
}

Expression random_expression(bool with_dense = true) {
  Expression e = random_term(with_dense);
  const int more = *rc::gen::inRange(0, 4);
  for (int n = 0; n < more; ++n) {
    Expression other = random_term(with_dense);
    if (*rc::gen::inRange(0, 3) == 0) {  // a nested right side
      const Expression third = random_term(with_dense);
      other = {other.mask | third.mask, [a = other.open, b = third.open](Index q, Index k, auto& at) {
                 return a(q, k, at) || b(q, k, at);
               }};
    }
    if (*rc::gen::arbitrary<bool>())
      e = {e.mask & other.mask,
           [a = e.open, b = other.open](Index q, Index k, auto& at) { return a(q, k, at) && b(q, k, at); }};
    else
      e = {e.mask | other.mask,
           [a = e.open, b = other.open](Index q, Index k, auto& at) { return a(q, k, at) || b(q, k, at); }};
  }
  return e;
}

MaskSubject random_place() {
  return {*rc::gen::inRange<Index>(0, 2), *rc::gen::inRange<Index>(0, 2), *rc::gen::inRange<Index>(-9, 60)};
}

TEST(MaskProperties, TileNeverLies) {
  EXPECT_TRUE(rc::check("tile is empty or full only when every pair is", [] {
    const Expression e = random_expression();
    const MaskSubject at = random_place();
    for (int n = 0; n < 40; ++n) {
      const Index q0 = *rc::gen::inRange<Index>(-20, 130), q1 = q0 + *rc::gen::inRange<Index>(1, 20);
      const Index k0 = *rc::gen::inRange<Index>(0, 130), k1 = k0 + *rc::gen::inRange<Index>(1, 40);
      const TileKind kind = e.mask.tile(q0, q1, k0, k1, at);
      for (Index q = q0; q < q1; ++q)
        for (Index k = k0; k < k1; ++k) {
          RC_ASSERT(e.mask.may_attend(q, k, at) == e.open(q, k, at));
          RC_ASSERT(kind == TileKind::mixed || e.open(q, k, at) == (kind == TileKind::full));
        }
    }
  }));
}

TEST(MaskProperties, RowBitsAreTheDefinition) {
  EXPECT_TRUE(rc::check("row_bits equals may_attend", [] {
    const Expression e = random_expression();
    RC_PRE(e.mask.set().given());
    const MaskSubject at = random_place();
    for (int n = 0; n < 30; ++n) {
      const Index q = *rc::gen::inRange<Index>(-20, 130), k0 = *rc::gen::inRange<Index>(0, 150);
      const int words = *rc::gen::inRange(1, 7);
      std::vector<std::uint64_t> row(static_cast<std::size_t>(words));
      e.mask.set().of(0).row_bits(q, k0, words, row.data(), at);
      for (Index j = 0; j < 64 * words; ++j)
        RC_ASSERT((row[static_cast<std::size_t>(j / 64)] >> (j % 64) & 1) == e.open(q, k0 + j, at));
    }
  }));
}

TEST(MaskProperties, TextComesBackAsTheSameMask) {
  EXPECT_TRUE(rc::check("parse_mask(to_text(m)) == m", [] {
    const Mask m = random_expression(false).mask;
    RC_ASSERT(parse_mask(to_text(m)) == m);
    const Mask heads = Mask::per_head(std::vector<Mask>{m, random_expression(false).mask, Mask::all()});
    RC_ASSERT(parse_mask(to_text(heads)) == heads);
    RC_ASSERT(to_text(parse_mask(to_text(heads))) == to_text(heads));
  }));
}

TEST(MaskProperties, OpenPairsCountsThem) {
  EXPECT_TRUE(rc::check("open_pairs equals a plain count", [] {
    const Expression e = random_expression();
    const MaskSubject at = random_place();
    const Index q_tokens = *rc::gen::inRange<Index>(0, 70), kv_tokens = *rc::gen::inRange<Index>(0, 700);
    Index open = 0;
    for (Index i = 0; i < q_tokens; ++i)
      for (Index k = 0; k < kv_tokens; ++k) open += e.open(at.q_start + i, k, at);
    RC_ASSERT(open_pairs(e.mask, q_tokens, kv_tokens, at) == open);
  }));
}

TEST(MaskAlgebra, SimplifiesWhatChangesNothing) {
  const Mask c = Mask::causal(), w = Mask::window(4, 0), d = Mask::documents(Numbers{0, 3});
  EXPECT_EQ(Mask::all() & c, c);
  EXPECT_EQ(c & Mask::all(), c);
  EXPECT_EQ(c | Mask::all(), Mask::all());
  EXPECT_EQ(Mask::all() | c, Mask::all());
  EXPECT_EQ(c & c, c);
  EXPECT_EQ((c & d) & (d & c), c & d);
  EXPECT_EQ((c & d) & (d & w), (c & d) & w);
  EXPECT_EQ((c | w) | w, c | w);
  EXPECT_EQ(c & (w & d), (c & w) & d) << "chains are flat from the left";
  EXPECT_EQ((c | w) & (w | c), (c | w) & (w | c));
  EXPECT_NE(c & w, w & c) << "equality is of the sentence, not of the pairs";
  EXPECT_NE(c & w, c | w);
  EXPECT_NE(Mask::documents(Numbers{0, 3}), Mask::documents(Numbers{0, 4}));
  EXPECT_NE(Mask::window(4, 0), Mask::window(4, 1));
}

TEST(MaskAlgebra, HoldsSixteenTermsAndRefusesMore) {
  Mask m = Mask::window(0, 0);
  for (Index i = 1; i < 16; ++i) m = m | Mask::window(i, 2 * i);
  EXPECT_TRUE(m.may_attend(0, 30));
  EXPECT_FALSE(m.may_attend(0, 31));
  EXPECT_EQ(m & m, m);
  try {
    m& Mask::causal();
    FAIL() << "17 terms were accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "mask: the expression has 17 terms but a mask holds 16; join windows, lengths or blocks into fewer "
        "terms, or use dense");
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
  }
}

TEST(MaskCounts, OpenPairsOfLargeProblemsAreClosedForms) {
  const Index n = Index{1} << 17;
  EXPECT_EQ(open_pairs(Mask::causal(), n, n), n * (n + 1) / 2);
  EXPECT_EQ(open_pairs(Mask::sliding(64), n, n), 64 * n - 64 * 63 / 2);
  EXPECT_EQ(open_pairs(Mask::causal(), 1, n, {.q_start = n - 1}), n);
  EXPECT_EQ(open_pairs(Mask::all(), n, n), n * n);
  EXPECT_EQ(open_pairs(Mask::causal(), 0, n), 0);
  EXPECT_EQ(open_pairs(Mask::causal(), n, 5, {.q_start = -n}), 0);
}

TEST(MaskCounts, OpenPairsOfStridesTakeNoTimeForEveryPair) {
  const Index n = Index{1} << 20;
  const auto beyond = [&](Index stride) {  // keys a multiple of the stride after their query
    const Index m = (n - 1) / stride;
    return n * m - stride * (m * (m + 1) / 2);
  };
  const Mask three = Mask::strided(3, 1), eight = Mask::strided(8, 1);
  EXPECT_EQ(open_pairs(eight, n, n), n + 2 * beyond(8));
  EXPECT_EQ(open_pairs(Mask::causal() | three, n, n), n * (n + 1) / 2 + beyond(3));
  EXPECT_EQ(open_pairs(three & eight & Mask::causal(), n, n), n + beyond(24));
  EXPECT_EQ(open_pairs(eight & Mask::documents(Numbers{0, n / 2, n}), n, n),
            2 * open_pairs(eight, n / 2, n / 2));
}

TEST(MaskCounts, TilesOfIntervalTermsAreThoseWithAnOpenPair) {
  const Index n = 512;
  const TileGrid grid{.q_tokens = n, .kv_tokens = n, .q_tile = 32, .kv_tile = 64};
  EXPECT_EQ(count_tiles(Mask::all(), grid), 16 * 8);
  EXPECT_EQ(count_tiles(Mask::causal(), grid), 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
  EXPECT_EQ(count_tiles(Mask::causal(), {.q_tokens = 1, .kv_tokens = n, .q_tile = 32, .kv_tile = 64},
                        {.q_start = 100}),
            2);
  EXPECT_EQ(count_tiles(Mask::causal(), {.q_tokens = 0, .kv_tokens = n, .q_tile = 32, .kv_tile = 64}), 0);
  EXPECT_TRUE(rc::check("visited tiles == tiles that hold an open pair", [] {
    const Index back = *rc::gen::inRange<Index>(0, 60), keys = *rc::gen::inRange<Index>(0, 200);
    Numbers offsets = ascending(8, 200);
    offsets.push_back(200);
    Mask m = Mask::all();
    if (*rc::gen::arbitrary<bool>()) m = m & Mask::causal();
    if (*rc::gen::arbitrary<bool>()) m = m & Mask::window(back, 3);
    if (*rc::gen::arbitrary<bool>()) m = m & Mask::documents(offsets);
    if (*rc::gen::arbitrary<bool>()) m = m & Mask::lengths(Numbers{keys});
    const TileGrid g{*rc::gen::inRange<Index>(0, 200), *rc::gen::inRange<Index>(0, 200),
                     *rc::gen::inRange<Index>(1, 40), *rc::gen::inRange<Index>(1, 70)};
    const MaskSubject at{.q_start = *rc::gen::inRange<Index>(-50, 100)};
    Index held = 0;
    for (Index i = 0; i < g.q_tokens; i += g.q_tile)
      for (Index k = 0; k < g.kv_tokens; k += g.kv_tile) {
        bool open = false;
        for (Index q = i; q < std::min(i + g.q_tile, g.q_tokens); ++q)
          for (Index j = k; j < std::min(k + g.kv_tile, g.kv_tokens); ++j)
            open = open || m.may_attend(at.q_start + q, j, at);
        held += open;
      }
    RC_ASSERT(count_tiles(m, g, at) == held);
  }));
}

TEST(MaskCounts, RefusesNegativeSizes) {
  const auto refusal = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([] { open_pairs(Mask::causal(), -1, 4); }),
            "mask: open_pairs of -1 queries and 4 keys; both must be 0 or more and their product an Index");
  EXPECT_EQ(
      refusal([] {
        count_tiles(Mask::causal(), {4, 4, 0, 1});
      }),
      "mask: count_tiles of 4 queries by 0 and 4 keys by 1; tokens must be 0 or more and tiles 1 or more");
  const Index last = std::numeric_limits<Index>::max();
  EXPECT_EQ(refusal([&] { open_pairs(Mask::causal(), 4, 4, {.q_start = last}); }),
            "mask: open_pairs from query 9223372036854775807 runs past the last position an Index can hold");
}

}  // namespace
}  // namespace headwise
